// Memtiles that keep an operand (gemm_store.h).
#include "ops/gemm/gemm_store.h"

#include <algorithm>
#include <string>
#include <utility>

#include "arch/bd.h"
#include "arch/geometry.h"
#include "error.h"

namespace npu::ops {

namespace {

constexpr int64_t kRepeats = 256;  // of a task
constexpr int64_t kQueued = 3;     // long tasks of a channel; a queue holds four
constexpr int64_t kMostSlots = 3;  // of a ring

int store_columns(const Configuration& configuration) {
  return arch::device_geometry(configuration.generation).columns;
}

// The registers of that name in the memtiles of all columns.
std::vector<uint32_t> registers_of(const Configuration& configuration, const std::string& name) {
  const int columns = store_columns(configuration);
  std::vector<uint32_t> found(static_cast<size_t>(columns));
  for (const Configuration::Rtp& rtp : configuration.rtps) {
    if (rtp.name != name || rtp.col >= columns) continue;
    found[static_cast<size_t>(rtp.col)] = arch::tile_address(rtp.col, rtp.row, rtp.address);
  }
  const auto missing = std::ranges::find(found, 0u);
  if (missing == found.end()) return found;
  fail(ErrorKind::kFormat,
       "[gemm] configuration \"%s\" has no register \"%s\" in column %d; lower the design again",
       configuration.name.c_str(), name.c_str(), static_cast<int>(missing - found.begin()));
}

GemmStoreSide side_of(const Configuration& configuration, const std::string& name,
                      const std::string& other) {
  const arch::TileGeometry& memtile = arch::tile_geometry(arch::TileKind::kMem);
  const auto param = [&](const std::string& of, const char* what, int64_t least, int64_t most) {
    return configuration.param((of + "_" + what).c_str(), least, most);
  };
  const auto bd = [&](const std::string& of, const char* what) {
    return static_cast<int>(param(of, what, 0, memtile.bds - 1));
  };
  GemmStoreSide side{};
  side.keep_in = bd(name, "keep_in");
  side.keep_out = bd(name, "keep_out");
  side.keep_on = bd(name, "keep_on");
  side.ring_in = bd(name, "ring_in");
  side.ring_out = bd(name, "ring_out");
  side.again_out = bd(name, "again_out");
  side.objects = param(name, "objects", 1, memtile.max_iteration);
  side.ring = param(name, "ring", 1, kMostSlots);
  side.times = param(name, "times", 1, memtile.bds);
  side.halves = param(name, "halves", 0, 1) == 1;
  if (side.halves) {
    side.first_in = bd(name, "first_in");
    side.second_in = bd(name, "second_in");
    side.beside_in = bd(other, "beside_in");
    side.ahead_in = bd(name, "ahead_in");
    side.ahead = param(name, "ahead", 0, memtile.max_iteration);
  }
  const std::vector<uint32_t> in = registers_of(configuration, name + "_tasks_in");
  const std::vector<uint32_t> out = registers_of(configuration, name + "_tasks_out");
  for (size_t col = 0; col < in.size(); ++col) side.columns.push_back({in[col], out[col]});
  return side;
}

int64_t rows_of(const GemmTile& tile, const GemmProblem& problem) {
  return problem.m / tile.native_m();
}
int64_t columns_of(const GemmTile& tile, const GemmProblem& problem) {
  return problem.n / tile.native_n();
}
int64_t depth_of(const GemmTile& tile, const GemmProblem& problem) { return problem.k / tile.k_mt; }

// Writes words of BDs of one memtile.
class Words {
 public:
  Words(stream::Builder& builder, const GemmStore& store, const GemmTile& tile, size_t column)
      : builder_(builder),
        store_(store),
        object_(static_cast<uint32_t>(tile.a.span(tile.k_mt) * tile.m / 4)),
        column_(column) {}

  // BDs from `first` on go through `slots` objects; the next one is `current`.
  void turns(int first, int64_t count, int64_t slots, int64_t current = 0) const {
    constexpr size_t kWord = 6;
    arch::Bd bd;
    bd.iteration_wrap = static_cast<uint32_t>(slots);
    bd.iteration_step = slots > 1 ? object_ : 1;
    bd.iteration_current = static_cast<uint32_t>(current);
    const uint32_t word = arch::encode_bd(arch::TileKind::kMem, bd)[kWord];
    for (int id = first; id < first + count; ++id) {
      const auto at = store_.turns.find(id);  // one that has one slot does not advance
      if (at != store_.turns.end()) builder_.write(at->second[column_], word);
    }
  }

  // The BD sends `objects`.
  void length(int id, int64_t objects) const {
    constexpr size_t kWord = 0;
    arch::Bd bd;
    bd.length = static_cast<uint32_t>(objects) * object_;
    builder_.write(store_.lengths.at(id)[column_],
                   arch::encode_bd(arch::TileKind::kMem, bd)[kWord]);
  }

 private:
  stream::Builder& builder_;
  const GemmStore& store_;
  uint32_t object_;  // words: tile.m rows, or as many columns, of k_mt values
  size_t column_;
};

// The tasks of one memtile for one operand, and what sets back what they leave.
class Tasks {
 public:
  Tasks(stream::Builder& builder, const GemmStore& store, const GemmTile& tile,
        const GemmStoreSide& side, size_t column)
      : builder_(builder),
        side_(side),
        queues_(side.columns[column]),
        words_(builder, store, tile, column) {}

  // `objects` stay.
  void keep_in(int64_t objects) const {
    if (objects != side_.objects) words_.turns(side_.keep_in, 1, objects);
    in(side_.keep_in, objects);
  }
  void keep_out(int64_t objects, int64_t times) const {
    if (objects != side_.objects) {
      words_.turns(side_.keep_out, 1, objects);
      words_.length(side_.keep_on, objects);
    }
    out(side_.keep_out, objects);
    out(side_.keep_on, times - 1);
  }
  void keep_settled(int64_t objects, bool beside) const {
    if (objects == side_.objects) return;
    if (!beside) words_.turns(side_.keep_in, 1, side_.objects);
    words_.turns(side_.keep_out, 1, side_.objects);
  }
  void keep_end(int64_t objects) const {
    if (objects != side_.objects) words_.length(side_.keep_on, side_.objects);
  }

  // `objects` pass by, which are sent once or again and again.
  void pass_in(int64_t objects) const { in(side_.ring_in, objects); }
  void pass_out(int64_t objects, bool again) const {
    out(again ? side_.again_out : side_.ring_out, objects);
  }
  void pass_end(int64_t objects, bool again) const {
    if (objects % side_.ring == 0) return;
    words_.turns(side_.ring_in, side_.halves ? 2 : 1, side_.ring);
    sent(again);
  }

  // `objects` pass by, the second halves by the way of `other`, of which `kept` stay.
  void beside_in(int64_t objects, int64_t kept, const Tasks& other) const {
    if (kept != other.side_.objects) words_.turns(side_.beside_in, 1, kept);
    in(side_.first_in, objects);
    other.in(side_.beside_in, kept);
    other.in(side_.second_in, objects - kept);
  }
  // `ahead` of those that stay come by this side's own way, before; `halves` are the second halves
  // that come before the rest of them, which may overwrite what the product before uses.
  void ahead_in(int64_t objects, int64_t ahead, int64_t halves, const Tasks& other) const {
    words_.turns(side_.ahead_in, 1, ahead);
    in(side_.ahead_in, ahead);
    in(side_.first_in, objects);
    other.in(side_.second_in, halves);
  }
  void rest_in(int64_t objects, int64_t kept, int64_t ahead, int64_t halves,
               const Tasks& other) const {
    if (kept > ahead) words_.turns(side_.beside_in, 1, kept, ahead);
    other.in(side_.beside_in, kept - ahead);
    other.in(side_.second_in, objects - halves - (kept - ahead));
  }
  void beside_settled(int64_t kept, int64_t ahead, const Tasks& other) const {
    const int64_t most = other.side_.objects;
    if (ahead > 0) words_.turns(side_.ahead_in, 1, most);
    if (kept > ahead && kept != most) words_.turns(side_.beside_in, 1, most);
  }
  void beside_end(int64_t objects) const {
    if (objects % side_.ring == 0) return;
    words_.turns(side_.first_in, 1, side_.ring);
    words_.turns(side_.second_in, 1, side_.ring);
    sent(false);
  }

 private:
  void in(int bd, int64_t times) const { push(queues_.in, bd, times); }
  void out(int bd, int64_t times) const { push(queues_.out, bd, times); }
  void push(uint32_t queue, int bd, int64_t times) const {
    for (; times > 0; times -= kRepeats) {
      const int64_t repeats = std::min(times, kRepeats) - 1;
      builder_.write(queue, static_cast<uint32_t>(bd) | static_cast<uint32_t>(repeats) << 16);
    }
  }

  // Those that have sent objects out of the ring begin with its first slot.
  void sent(bool again) const {
    const int64_t cut = side_.halves ? 2 : 0;  // more BDs than times
    if (again) {
      words_.turns(side_.again_out, side_.times + cut, side_.ring);
    } else {
      words_.turns(side_.ring_out, 1 + cut, side_.ring);
    }
  }

  stream::Builder& builder_;
  const GemmStoreSide& side_;
  const GemmStoreSide::Queues& queues_;
  Words words_;
};

// Objects of an operand of which one stays, and of the other one.
struct Objects {
  int64_t kept, times, passing;
};

Objects objects_of(const GemmTile& tile, const GemmProblem& problem, const GemmStorePlan& plan) {
  const int64_t rows = rows_of(tile, problem), columns = columns_of(tile, problem);
  const bool a = plan.kept == GemmKept::kA;
  const int64_t own = a ? rows : columns, others = a ? columns : rows,
                depth = depth_of(tile, problem);
  return {own * depth, others, plan.again ? others : rows * columns * depth};
}

// Whether A can be read object by object, B in halves of objects: a task per round, and no tails.
bool reads_objects(const GemmTile& tile, const GemmProblem& problem) {
  const auto tail = [&](const GemmFeed& feed, const GemmCell& cell) {
    return feed.direct > 0 && feed.depth < cell.count(problem.k);
  };
  return !tail(problem.a, tile.a) && !tail(problem.b, tile.b) &&
         problem.a.order == GemmOrder::kAlong && problem.b.order != GemmOrder::kInterleaved &&
         depth_of(tile, problem) <= arch::tile_geometry(arch::TileKind::kShim).max_iteration;
}

}  // namespace

std::optional<GemmStore> GemmStore::of(const Configuration& configuration) {
  if (!configuration.params.contains("a_keep_in")) return std::nullopt;
  GemmStore store{side_of(configuration, "a", "b"), side_of(configuration, "b", "a"), {}, {}};
  for (int bd = 0; bd < arch::tile_geometry(arch::TileKind::kMem).bds; ++bd) {
    for (auto [what, found] :
         {std::pair("turns", &store.turns), std::pair("length", &store.lengths)}) {
      const std::string name = strf("%s_%d", what, bd);
      const auto named = [&](const Configuration::Rtp& rtp) { return rtp.name == name; };
      if (std::ranges::any_of(configuration.rtps, named)) {
        (*found)[bd] = registers_of(configuration, name);
      }
    }
  }
  for (const int bd : {store.a.keep_on, store.b.keep_on}) {
    if (!store.lengths.contains(bd)) registers_of(configuration, strf("length_%d", bd));
  }
  return store;
}

GemmStorePlan plan_store(const GemmStore& store, const GemmTile& tile, const GemmProblem& problem,
                         int64_t panels) {
  const int64_t rows = rows_of(tile, problem), columns = columns_of(tile, problem);
  const int64_t depth = depth_of(tile, problem), rounds = rows * columns;
  const auto fits = [&](const GemmStoreSide& side, int64_t blocks) {
    return blocks <= panels && blocks * depth <= side.objects;
  };
  // Objects of both to be read, of four memtiles each.
  const int64_t none = 2 * rounds * depth;
  const bool a_again = depth == 1 && columns == store.a.times;
  const bool b_again = depth == 1 && rows == store.b.times;
  const int64_t with_a = fits(store.a, rows) ? (rows + (b_again ? columns : rounds)) * depth : none;
  const int64_t with_b =
      fits(store.b, columns) ? (columns + (a_again ? rows : rounds)) * depth : none;
  if (std::min(with_a, with_b) >= none) return {};
  if (with_b <= with_a) return {GemmKept::kB, a_again};
  const bool beside = store.b.halves && !b_again && rows == 1 && reads_objects(tile, problem);
  return {GemmKept::kA, b_again, beside};
}

int64_t store_rounds(const GemmTile& tile, int64_t k) {
  return std::max<int64_t>(1, kQueued * kRepeats / std::max<int64_t>(1, k / tile.k_mt));
}

int64_t ahead_of(const GemmStore& store, const GemmTile& tile, const GemmProblem& problem,
                 const GemmStorePlan& plan) {
  if (!plan.beside) return 0;
  const auto [kept, times, passing] = objects_of(tile, problem, plan);
  const int64_t ahead = std::min(kept, store.b.ahead);
  // A task each; and enough second halves for what of A comes beside them.
  const bool rest = halves_ahead_of(store, tile, problem) + kept - ahead <= kept;
  return passing <= kRepeats && rest ? ahead : 0;
}

int64_t halves_ahead_of(const GemmStore& store, const GemmTile& tile, const GemmProblem& problem) {
  return std::min(store.b.ring, depth_of(tile, problem));
}

void append_store_in(stream::Builder& builder, const GemmStore& store, const GemmTile& tile,
                     const GemmProblem& problem, const GemmStorePlan& plan, size_t column) {
  const auto [kept, times, passing] = objects_of(tile, problem, plan);
  if (passing > kQueued * kRepeats) {
    fail(ErrorKind::kShape,
         "[gemm] M, K, N = %lld, %lld, %lld take %lld objects per memtile; the tasks of a "
         "submission have %lld: split the problem, as npu.matmul does",
         static_cast<long long>(problem.m), static_cast<long long>(problem.k),
         static_cast<long long>(problem.n), static_cast<long long>(passing),
         static_cast<long long>(kQueued * kRepeats));
  }
  const Tasks a(builder, store, tile, store.a, column), b(builder, store, tile, store.b, column);
  if (plan.ahead > 0) {
    return b.ahead_in(passing, plan.ahead, halves_ahead_of(store, tile, problem), a);
  }
  if (plan.beside) return b.beside_in(passing, kept, a);
  if (plan.kept == GemmKept::kA) {
    a.keep_in(kept);
  } else {
    a.pass_in(passing);
  }
  if (plan.kept == GemmKept::kB) {
    b.keep_in(kept);
  } else {
    b.pass_in(passing);
  }
}

void append_store_rest(stream::Builder& builder, const GemmStore& store, const GemmTile& tile,
                       const GemmProblem& problem, const GemmStorePlan& plan, size_t column) {
  const auto [kept, times, passing] = objects_of(tile, problem, plan);
  const Tasks a(builder, store, tile, store.a, column), b(builder, store, tile, store.b, column);
  b.rest_in(passing, kept, plan.ahead, halves_ahead_of(store, tile, problem), a);
}

void append_store_out(stream::Builder& builder, const GemmStore& store, const GemmTile& tile,
                      const GemmProblem& problem, const GemmStorePlan& plan) {
  const auto [kept, times, passing] = objects_of(tile, problem, plan);
  for (size_t col = 0; col < store.a.columns.size(); ++col) {
    const Tasks a(builder, store, tile, store.a, col), b(builder, store, tile, store.b, col);
    if (plan.kept == GemmKept::kA) {
      a.keep_out(kept, times);
    } else {
      a.pass_out(passing, plan.again);
    }
    if (plan.kept == GemmKept::kB) {
      b.keep_out(kept, times);
    } else {
      b.pass_out(passing, plan.again);
    }
  }
}

void append_store_settled(stream::Builder& builder, const GemmStore& store, const GemmTile& tile,
                          const GemmProblem& problem, const GemmStorePlan& plan) {
  const auto [kept, times, passing] = objects_of(tile, problem, plan);
  for (size_t col = 0; col < store.a.columns.size(); ++col) {
    const Tasks a(builder, store, tile, store.a, col), b(builder, store, tile, store.b, col);
    if (plan.beside) b.beside_settled(kept, plan.ahead, a);
    if (plan.kept == GemmKept::kA) a.keep_settled(kept, plan.beside);
    if (plan.kept == GemmKept::kB) b.keep_settled(kept, false);
  }
}

void append_store_end(stream::Builder& builder, const GemmStore& store, const GemmTile& tile,
                      const GemmProblem& problem, const GemmStorePlan& plan) {
  const auto [kept, times, passing] = objects_of(tile, problem, plan);
  for (size_t col = 0; col < store.a.columns.size(); ++col) {
    const Tasks a(builder, store, tile, store.a, col), b(builder, store, tile, store.b, col);
    if (plan.kept == GemmKept::kA) {
      a.keep_end(kept);
    } else {
      a.pass_end(passing, plan.again);
    }
    if (plan.beside) {
      b.beside_end(passing);
    } else if (plan.kept == GemmKept::kB) {
      b.keep_end(kept);
    } else {
      b.pass_end(passing, plan.again);
    }
  }
}

}  // namespace npu::ops
