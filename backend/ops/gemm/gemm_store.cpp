// Memtiles that keep an operand (gemm_store.h).
#include "ops/gemm/gemm_store.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "arch/geometry.h"
#include "error.h"

namespace npu::ops {

namespace {

constexpr int64_t kRepeats = 256;    // of a task
constexpr int64_t kQueued = 3;       // long tasks of a channel; a queue holds four
constexpr int64_t kMostObjects = 2;  // of a ring

uint32_t register_of(const Configuration& configuration, const std::string& name, int col) {
  for (const Configuration::Rtp& rtp : configuration.rtps) {
    if (rtp.name == name && rtp.col == col) {
      return arch::tile_address(rtp.col, rtp.row, rtp.address);
    }
  }
  fail(ErrorKind::kFormat,
       "[gemm] configuration \"%s\" has no register \"%s\" in column %d; lower the design again",
       configuration.name.c_str(), name.c_str(), col);
}

GemmStoreSide side_of(const Configuration& configuration, const char* name) {
  const int64_t bds = arch::tile_geometry(arch::TileKind::kMem).bds;
  const auto param = [&](const char* what, int64_t least, int64_t most) {
    return configuration.param(strf("%s_%s", name, what), least, most);
  };
  const auto bd = [&](const char* what) { return static_cast<int>(param(what, 0, bds - 1)); };
  GemmStoreSide side{bd("keep_in"),
                     bd("keep_out"),
                     bd("ring_in"),
                     bd("ring_out"),
                     bd("again_out"),
                     param("ring", 1, kMostObjects),
                     param("times", 1, bds),
                     {},
                     {}};
  for (int64_t i = 0; i < param("groups", 1, bds); ++i) {
    side.groups.push_back(param(strf("group_%d", static_cast<int>(i)).c_str(), 1, bds));
  }
  for (int col = 0; col < arch::device_geometry(configuration.generation).columns; ++col) {
    const auto at = [&](const char* what) {
      return register_of(configuration, strf("%s_%s", name, what), col);
    };
    GemmStoreSide::Registers registers{at("tasks_in"), at("tasks_out"), {}};
    for (size_t i = 0; i < side.groups.size(); ++i) {
      registers.gates.push_back(at(strf("gate_%d", static_cast<int>(i)).c_str()));
    }
    side.columns.push_back(std::move(registers));
  }
  return side;
}

// Appends the tasks of one memtile for one operand.
class Tasks {
 public:
  Tasks(stream::Builder& builder, const GemmStoreSide& side, size_t column)
      : builder_(builder), side_(side), registers_(side.columns[column]) {}

  // `objects` stay, and are sent `times` times.
  void keep(int64_t objects, int64_t times) {
    const size_t first = side_.first_group(objects).value();
    const auto begin = side_.groups.begin();
    const int64_t skipped =
        std::accumulate(begin, begin + static_cast<ptrdiff_t>(first), int64_t{0});
    push(registers_.tasks_in, side_.keep_in + skipped, 1);
    push(registers_.tasks_out, side_.keep_out + static_cast<int64_t>(first), times);
  }

  // `objects` pass by, sent once or again. An odd one is the first: a task may begin in the middle
  // of a chain.
  void pass(int64_t objects, bool again) {
    const auto both = [&](int64_t slot, int64_t times) {
      push(registers_.tasks_in, side_.ring_in + slot, times);
      push(registers_.tasks_out,
           again ? side_.again_out + slot * side_.times : side_.ring_out + slot, times);
    };
    const int64_t rest = objects % side_.ring;
    if (rest > 0) both(side_.ring - rest, 1);
    both(0, objects / side_.ring);
  }

 private:
  void push(uint32_t queue, int64_t bd, int64_t times) {
    for (; times > 0; times -= kRepeats) {
      const int64_t repeats = std::min(times, kRepeats) - 1;
      builder_.write(queue, static_cast<uint32_t>(bd) | static_cast<uint32_t>(repeats) << 16);
    }
  }

  stream::Builder& builder_;
  const GemmStoreSide& side_;
  const GemmStoreSide::Registers& registers_;
};

}  // namespace

std::optional<size_t> GemmStoreSide::first_group(int64_t objects) const {
  for (size_t i = groups.size(); i > 0 && objects > 0;) {
    objects -= groups[--i];
    if (objects == 0) return i;
  }
  return std::nullopt;
}

std::optional<GemmStore> GemmStore::of(const Configuration& configuration) {
  if (!configuration.params.contains("a_keep_in")) return std::nullopt;
  return GemmStore{side_of(configuration, "a"), side_of(configuration, "b")};
}

GemmKept kept_operand(const GemmStore& store, const GemmTile& tile, const GemmProblem& problem,
                      int64_t panels) {
  const int64_t rows = problem.m / tile.native_m(), columns = problem.n / tile.native_n();
  const int64_t depth = problem.k / tile.k_mt;
  const auto fits = [&](const GemmStoreSide& side, int64_t blocks) {
    return blocks <= panels && side.first_group(blocks * depth).has_value();
  };
  // Objects of both to be read, of four memtiles each.
  const int64_t none = 2 * rows * columns * depth;
  const int64_t with_a = fits(store.a, rows) ? (rows + rows * columns) * depth : none;
  const int64_t passing = sends_again(store, tile, problem) ? rows : rows * columns;
  const int64_t with_b = fits(store.b, columns) ? (columns + passing) * depth : none;
  if (std::min(with_a, with_b) >= none) return GemmKept::kNone;
  return with_a <= with_b ? GemmKept::kA : GemmKept::kB;
}

bool sends_again(const GemmStore& store, const GemmTile& tile, const GemmProblem& problem) {
  return problem.k == tile.k_mt && problem.n / tile.native_n() == store.a.times;
}

int64_t store_rounds(const GemmTile& tile, int64_t k) {
  return std::max<int64_t>(1,
                           kQueued * kRepeats * kMostObjects / std::max<int64_t>(1, k / tile.k_mt));
}

void append_store_end(stream::Builder& builder, const GemmStore& store, const GemmTile& tile,
                      const GemmProblem& problem, GemmKept kept) {
  if (kept == GemmKept::kNone) return;
  const bool a = kept == GemmKept::kA;
  const GemmStoreSide& side = a ? store.a : store.b;
  const int64_t blocks = a ? problem.m / tile.native_m() : problem.n / tile.native_n();
  const size_t first = side.first_group(blocks * (problem.k / tile.k_mt)).value();
  for (const GemmStoreSide::Registers& column : side.columns) {
    for (size_t i = first; i < column.gates.size(); ++i) builder.write(column.gates[i], 0);
  }
}

void append_store_tasks(stream::Builder& builder, const GemmStore& store, const GemmTile& tile,
                        const GemmProblem& problem, GemmKept kept) {
  const int64_t rows = problem.m / tile.native_m(), columns = problem.n / tile.native_n();
  const int64_t depth = problem.k / tile.k_mt, objects = rows * columns * depth;
  if (objects > kQueued * kRepeats * kMostObjects) {
    fail(ErrorKind::kShape,
         "[gemm] M, K, N = %lld, %lld, %lld take %lld objects per memtile; the tasks of a "
         "submission have %lld: split the problem, as npu.matmul does",
         static_cast<long long>(problem.m), static_cast<long long>(problem.k),
         static_cast<long long>(problem.n), static_cast<long long>(objects),
         static_cast<long long>(kQueued * kRepeats * kMostObjects));
  }
  for (size_t col = 0; col < store.a.columns.size(); ++col) {
    Tasks a(builder, store.a, col), b(builder, store.b, col);
    if (kept == GemmKept::kA) {
      a.keep(rows * depth, columns);
    } else {
      const bool again = kept == GemmKept::kB && sends_again(store, tile, problem);
      a.pass(again ? rows : objects, again);
    }
    if (kept == GemmKept::kB) {
      b.keep(columns * depth, rows);
    } else {
      b.pass(objects, false);
    }
  }
}

}  // namespace npu::ops
