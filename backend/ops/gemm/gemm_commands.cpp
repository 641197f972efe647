// Appends the commands of a GEMM (gemm_schedule.h).

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arch/bd.h"
#include "arch/geometry.h"
#include "error.h"
#include "ops/gemm/gemm_schedule.h"
#include "ops/gemm/gemm_store.h"
#include "ops/gemm/gemm_transfers.h"
#include "ops/shim_commands.h"

namespace npu::ops {

namespace {

// BDs of a shim tile that are used, of 16: as many rounds are in flight as they suffice for, 5 with
// one BD each for A, B and C, 3 with tails.
// The last one is that of an A that is read once beside B.
constexpr int kBds = 15;
constexpr int64_t kMaxSize = int64_t{1} << 31;      // M, K, N
constexpr int64_t kMaxElements = int64_t{1} << 60;  // of a matrix: bytes stay below 2^63

class GemmCommands : private ShimCommands {
 public:
  GemmCommands(stream::Builder& builder, const Configuration& configuration,
               const GemmProblem& problem, uint32_t first_argument)
      : ShimCommands(builder, configuration),
        first_argument_(first_argument),
        tile_(GemmTile::of(configuration)),
        problem_(problem),
        transfers_(tile_, problem, geometry_),
        kinds_(transfers_.kinds()),
        ring_(kBds / (2 * kinds_ + 1)),
        store_(GemmStore::of(configuration)),
        plan_(store_ ? plan_store(*store_, tile_, problem, ring_) : GemmStorePlan{}) {
    const auto named = [&](const char* kind, int64_t i) {
      return port(strf("%s%d", kind, static_cast<int>(i)));
    };
    for (int64_t r = 0; r < tile_.rows; ++r) a_ports_.push_back(named("A", r));
    for (int64_t c = 0; c < tile_.columns; ++c) {
      b_ports_.push_back(named("B", c));
      c_ports_.push_back(named("C", c));
    }
  }

  // `next`: what this product may begin to read for the one after it.
  void append(GemmCommands* next = nullptr) {
    const int64_t slots = ring_ - (plan_.ahead > 0 ? 1 : 0);
    // Parts that are read object by object are tasks of their own: one runs, the others wait.
    const int64_t most = transfers_.by_objects() ? (arch::kTaskQueueDepth + 1) / kinds() : slots;
    TaskRing ring(slots, problem_.overlap ? std::clamp<int64_t>(most, 1, slots) : 1);
    int64_t left = kept_blocks();  // until all that stays has been sent once
    const auto wait_for_c = [&] {
      wait(*c_ports_[0], static_cast<int>(tile_.columns));
      if (--left == 0) append_store_settled(builder_, *store_, tile_, problem_, plan_);
    };
    for (int64_t round = 0; round < rounds(); ++round) {
      const int slot = ring.next(wait_for_c);
      if (round == 0) {
        begin(slot);
      } else {
        push_round(round, slot);
      }
      if (next && round >= first_ahead()) {
        if (round == first_ahead()) next->begin_ahead();
        next->read_ahead(round - first_ahead() + 1, rounds() - first_ahead());
      }
    }
    if (next) next->read_b_ahead();
    ring.drain(wait_for_c);
    if (store_) append_store_end(builder_, *store_, tile_, problem_, plan_);
  }

  // Whether this product can begin to read while the one before it is computed, whose B stays in
  // the memtiles and leaves its channels idle.
  bool begins_ahead(const GemmCommands& before) {
    constexpr int kLeastSlots = 5;  // all shim BDs but the last one: the fifth of B is used ahead
    const bool idle = before.plan_.kept == GemmKept::kB && before.problem_.overlap &&
                      before.ring_ == kLeastSlots && before.first_ahead() < before.rounds();
    if (!idle || !store_ || !problem_.overlap || ring_ != kLeastSlots) return false;
    plan_.ahead = ahead_of(*store_, tile_, problem_, plan_);
    return plan_.ahead > 0;
  }

 private:
  using Piece = GemmTransfer;

  int64_t rounds() const { return problem_.m / tile_.native_m() * (problem_.n / tile_.native_n()); }

  // Blocks of C of which an operand stays.
  int64_t kept_blocks() const {
    if (plan_.kept == GemmKept::kNone) return 0;
    return plan_.kept == GemmKept::kA ? problem_.m / tile_.native_m()
                                      : problem_.n / tile_.native_n();
  }

  // The round in which the next product may begin to read: what stays of this one's B is there.
  int64_t first_ahead() const { return ring_ + kept_blocks() - 1; }

  // The first round: reads start before the rest of the stream is set up, A first, because its
  // objects in the memtiles are larger; cores wait for their RTPs.
  void begin(int slot) {
    const size_t start = builder_.bytes();
    if (plan_.ahead > 0) {  // the first reads are done
      write_parameters();
      push_rest(slot);
    } else if (store_) {
      for (size_t c = 0; c < b_ports_.size(); ++c) push_first(slot, c);
      append_store_out(builder_, *store_, tile_, problem_, plan_);
    } else {
      for (size_t r = 0; r < a_ports_.size(); ++r) push_a(0, slot, r);
      for (size_t c = 0; c < b_ports_.size(); ++c) push_b(0, slot, c);
    }
    const size_t reads = builder_.bytes() - start;
    for (const Port* p : c_ports_) route_tokens(*p);
    if (plan_.ahead == 0) write_parameters();
    const size_t prepared = builder_.bytes();
    for (size_t c = 0; c < c_ports_.size(); ++c) push_c(0, slot, c);
    check_length(rounds(), prepared - reads, builder_.bytes() - prepared + reads);
  }

  void write_parameters() {
    const auto value = [&](const Configuration::Rtp& rtp) { return parameter(rtp.name, rounds()); };
    if (store_) {
      write_rtp_blocks(value);
    } else {
      write_rtps([](int) { return true; }, value);
    }
  }

  // Refuses before the stream is built what no reader takes: `rounds` of `round_bytes` and a wait.
  void check_length(int64_t rounds, size_t start, size_t round_bytes) const {
    constexpr size_t kSyncBytes = 16;
    const auto max_rounds =
        static_cast<int64_t>((stream::Stream::kMaxBytes - start) / (round_bytes + kSyncBytes));
    if (rounds <= max_rounds) return;
    fail(ErrorKind::kShape,
         "[gemm] M, K, N = %lld, %lld, %lld take %lld output rounds of %lld x %lld; a "
         "stream of at most %zu bytes holds %lld: split M or N, as npu.matmul does",
         static_cast<long long>(problem_.m), static_cast<long long>(problem_.k),
         static_cast<long long>(problem_.n), static_cast<long long>(rounds),
         static_cast<long long>(tile_.native_m()), static_cast<long long>(tile_.native_n()),
         stream::Stream::kMaxBytes, static_cast<long long>(max_rounds));
  }

  // The value of an RTP; workers read an int32.
  uint32_t parameter(const std::string& name, int64_t rounds) const {
    int64_t value = rounds;
    if (name == "k_tiles") {
      value = problem_.k / tile_.k;
    } else if (name == "shift") {
      value = problem_.shift;
    } else if (name == "across") {  // bits of A and B, as aie_kernels/matmul_square.cc has them
      const auto across = [](const GemmFeed& feed) { return feed.order != GemmOrder::kAlong; };
      value = (across(problem_.a) ? 1 : 0) + (across(problem_.b) ? 2 : 0);
    } else if (name != "tiles") {
      fail(ErrorKind::kFormat,
           "[gemm] configuration \"%s\" has the RTP \"%s\"; a GEMM has k_tiles, tiles "
           "and shift: lower the design again",
           configuration_.name.c_str(), name.c_str());
    }
    if (value > std::numeric_limits<int32_t>::max()) {
      fail(ErrorKind::kShape, "[gemm] %s = %lld does not fit an int32; split the problem",
           name.c_str(), static_cast<long long>(value));
    }
    return static_cast<uint32_t>(value);
  }

  // First row and column of C that a round computes: row by row, but where A is kept.
  int64_t row_of(int64_t round) const {
    const int64_t rows = problem_.m / tile_.native_m(), columns = problem_.n / tile_.native_n();
    return (plan_.kept == GemmKept::kA ? round % rows : round / columns) * tile_.native_m();
  }
  int64_t column_of(int64_t round) const {
    const int64_t rows = problem_.m / tile_.native_m(), columns = problem_.n / tile_.native_n();
    return (plan_.kept == GemmKept::kA ? round / rows : round % columns) * tile_.native_n();
  }

  // BD numbers: those of A, those of B, C's; of each task `ring_`, one after the other.
  int kinds() const { return kinds_; }

  void push_round(int64_t round, int slot) {
    const bool first = (plan_.kept == GemmKept::kA ? row_of(round) : column_of(round)) == 0;
    for (size_t c = 0; c < c_ports_.size(); ++c) {
      push_c(round, slot, c);
      if (plan_.beside) {
        push_b_halves(round, slot, c);
      } else if (plan_.kept != GemmKept::kB && (!plan_.again || first)) {
        push_b(column_of(round), slot, c);
      }
    }
    if (plan_.kept == GemmKept::kA || (plan_.again && !first)) return;
    for (size_t r = 0; r < a_ports_.size(); ++r) push_a(row_of(round), slot, r);
  }

  // What a memtile gets first, all of what it keeps, and its tasks.
  void push_first(int slot, size_t c) {
    if (plan_.beside) {
      push_a_and_halves(kBds, slot, c);
      push(*b_ports_[c], {transfers_.b_half(column_in(0, c), 0)}, kinds() * ring_ + slot, false);
    } else {
      const bool all_a = plan_.kept == GemmKept::kA, all_b = plan_.kept == GemmKept::kB;
      for (int64_t row = 0; row < (all_a ? problem_.m : 1); row += tile_.native_m()) {
        push_a(row, slot + static_cast<int>(row / tile_.native_m()), c);
      }
      for (int64_t column = 0; column < (all_b ? problem_.n : 1); column += tile_.native_n()) {
        push_b(column, slot + static_cast<int>(column / tile_.native_n()), c);
      }
    }
    append_store_in(builder_, *store_, tile_, problem_, plan_, c);
  }

  // While the product before is computed: tasks, and BDs of the objects of A that B's channels
  // read.
  void begin_ahead() {
    for (size_t c = 0; c < b_ports_.size(); ++c) {
      const Piece piece = transfers_.a_objects(c, 0, plan_.ahead);
      write_bd(*b_ports_[c], bd_ahead(), piece.bd, first_argument_ + piece.argument, piece.offset);
      append_store_in(builder_, *store_, tile_, problem_, plan_, c);
    }
    append_store_out(builder_, *store_, tile_, problem_, plan_);
  }

  // In its round `round` of `rounds` from then on: a part for one column after the other, so that
  // its results have their share of the memory's bandwidth. As many tasks as a queue holds, with
  // the one of B.
  void read_ahead(int64_t round, int64_t rounds) {
    constexpr int64_t kParts = 3;
    const auto columns = static_cast<int64_t>(b_ports_.size()), all = kParts * columns;
    for (int64_t i = all * (round - 1) / rounds; i < all * round / rounds; ++i) {
      const int64_t part = i / columns;
      const int64_t count = plan_.ahead * (part + 1) / kParts - plan_.ahead * part / kParts;
      if (count > 0) queue(*b_ports_[static_cast<size_t>(i % columns)], bd_ahead(), count, false);
    }
  }

  // Both halves of the first round's objects of B, once A's channels have their last reads for the
  // product before.
  void read_b_ahead() {
    const int64_t halves = halves_ahead_of(*store_, tile_, problem_);
    for (size_t c = 0; c < b_ports_.size(); ++c) {
      push(*b_ports_[c], {transfers_.b_half(column_in(0, c), 0)}, kinds() * ring_, false);
      push(*a_ports_[c], {transfers_.b_half(column_in(0, c), 1, 0, halves)}, kBds, false);
    }
  }

  // What of A, and of the second halves, was not read ahead.
  void push_rest(int slot) {
    const int64_t halves = halves_ahead_of(*store_, tile_, problem_);
    const int64_t beside = depth() - plan_.ahead, left = depth() - halves - beside;
    for (size_t c = 0; c < a_ports_.size(); ++c) {
      if (beside > 0) push_a_and_halves(ring_ - 1, slot, c, halves);
      if (left > 0) {
        const Piece rest = transfers_.b_half(column_in(0, c), 1, halves + beside, left);
        push(*a_ports_[c], {rest}, (2 * kinds() + 1) * ring_ - 1, false);
      }
      append_store_rest(builder_, *store_, tile_, problem_, plan_, c);
    }
  }

  // BDs of the last slot are not used for rounds then: B's, A's and C's.
  int bd_ahead() const { return (kinds() + 1) * ring_ - 1; }

  // The objects of A that were not read ahead, each before the second half of one of B, of which
  // the first one is `first`.
  void push_a_and_halves(int bd_of_a, int bd_of_half, size_t c, int64_t first = 0) {
    const int64_t count = depth() - plan_.ahead;
    Piece kept = transfers_.a_objects(c, plan_.ahead, count);
    const Piece half = transfers_.b_half(column_in(0, c), 1, first, count);
    kept.bd.use_next = true;
    kept.bd.next_bd = static_cast<uint32_t>(bd_of_half);
    const Port& port = *a_ports_[c];
    write_bd(port, bd_of_a, kept.bd, first_argument_ + kept.argument, kept.offset);
    write_bd(port, bd_of_half, half.bd, first_argument_ + half.argument, half.offset);
    queue(port, bd_of_a, count, false);
  }

  int64_t depth() const { return problem_.k / tile_.k_mt; }

  // The first column of C that core column `c` computes in a round.
  int64_t column_in(int64_t round, size_t c) const {
    return column_of(round) + static_cast<int64_t>(c) * tile_.n;
  }

  // The tile row of A that core row `r` reads of those from `first` on.
  void push_a(int64_t first, int slot, size_t r) {
    const int64_t row = first + static_cast<int64_t>(r) * tile_.m;
    push(*a_ports_[r], transfers_.a(row), slot, false);
  }

  void push_b(int64_t first, int slot, size_t c) {
    const int64_t col = first + static_cast<int64_t>(c) * tile_.n;
    if (!tile_.b_pairs) {
      push(*b_ports_[c], transfers_.b(col), kinds() * ring_ + slot, false);
      return;
    }
    // Both ports of a pair are of the shim tile without A, whose BDs are free there.
    const auto half = static_cast<int64_t>(c % 2);
    push(*b_ports_[c], transfers_.b_of_pair(col - half * tile_.n, half),
         static_cast<int>(half) * kinds() * ring_ + slot, false);
  }

  // The objects of a round: their first halves by B's channel, the others by A's.
  void push_b_halves(int64_t round, int slot, size_t c) {
    push(*b_ports_[c], {transfers_.b_half(column_in(round, c), 0)}, kinds() * ring_ + slot, false);
    push(*a_ports_[c], {transfers_.b_half(column_in(round, c), 1)}, slot, false);
  }

  void push_c(int64_t round, int slot, size_t c) {
    const int64_t block = column_of(round), col = block + static_cast<int64_t>(c) * tile_.n;
    push(*c_ports_[c], {transfers_.c(row_of(round), block, col)}, 2 * kinds() * ring_ + slot, true);
  }

  // Writes the pieces' BDs from `bd_id` on in steps of the ring and queues them: one that repeats
  // by itself, others chained to one task.
  void push(const Port& port, const std::vector<Piece>& pieces, int bd_id, bool token) {
    const bool repeat =
        std::any_of(pieces.begin(), pieces.end(), [](const Piece& p) { return p.repeats > 1; });
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int id = bd_id + static_cast<int>(i) * ring_;
      arch::Bd bd = pieces[i].bd;
      bd.use_next = !repeat && i + 1 < pieces.size();
      bd.next_bd = bd.use_next ? static_cast<uint32_t>(id + ring_) : 0;
      write_bd(port, id, bd, first_argument_ + pieces[i].argument, pieces[i].offset);
      if (repeat) queue(port, id, pieces[i].repeats, token);
    }
    if (!repeat) queue(port, bd_id, 1, token);
  }

  uint32_t first_argument_;
  GemmTile tile_;
  GemmProblem problem_;
  GemmTransfers transfers_;
  int kinds_;  // BDs of an operand per round
  int ring_;   // rounds in flight
  std::optional<GemmStore> store_;
  GemmStorePlan plan_;
  std::vector<const Port*> a_ports_, b_ports_, c_ports_;
};

void check_sizes(const Configuration& configuration, const GemmProblem& problem) {
  const GemmTile tile = GemmTile::of(configuration);
  const auto fits = [](int64_t size, int64_t unit) { return size > 0 && size % unit == 0; };
  const int64_t largest = std::max({problem.m, problem.k, problem.n});
  const int64_t product =
      largest > kMaxSize
          ? 0
          : std::max({problem.m * problem.k, problem.k * problem.n, problem.m * problem.n});
  if (largest > kMaxSize || product > kMaxElements) {
    fail(ErrorKind::kShape,
         "[gemm] M, K, N = %lld, %lld, %lld are more than can be addressed; split the "
         "problem",
         static_cast<long long>(problem.m), static_cast<long long>(problem.k),
         static_cast<long long>(problem.n));
  }
  if (!fits(problem.m, tile.native_m()) || !fits(problem.k, tile.native_k()) ||
      !fits(problem.n, tile.native_n())) {
    fail(ErrorKind::kShape,
         "[gemm] M, K, N = %lld, %lld, %lld must be multiples of the native size %lld, "
         "%lld, %lld of configuration \"%s\"",
         static_cast<long long>(problem.m), static_cast<long long>(problem.k),
         static_cast<long long>(problem.n), static_cast<long long>(tile.native_m()),
         static_cast<long long>(tile.native_k()), static_cast<long long>(tile.native_n()),
         configuration.name.c_str());
  }
  if (problem.shift < 0 || problem.shift > kMaxShift) {
    fail(ErrorKind::kArgument, "[gemm] shift is %d; use 0 to %d", problem.shift, kMaxShift);
  }
}

}  // namespace

void append_gemm(stream::Builder& builder, const Configuration& configuration,
                 const GemmProblem& problem, uint32_t first_argument) {
  check_sizes(configuration, problem);
  GemmCommands(builder, configuration, problem, first_argument).append();
}

void append_gemms(stream::Builder& builder, const Configuration& configuration,
                  std::span<const GemmProblem> problems) {
  std::vector<GemmCommands> all;
  for (const GemmProblem& problem : problems) {
    check_sizes(configuration, problem);
    all.emplace_back(builder, configuration, problem,
                     static_cast<uint32_t>(all.size() * kGemmArguments));
  }
  // Two products in whichever order lets one begin to read while the other is computed.
  if (all.size() == 2 && all[0].begins_ahead(all[1])) {
    all[1].append(&all[0]);
    all[0].append();
  } else if (all.size() == 2 && all[1].begins_ahead(all[0])) {
    all[0].append(&all[1]);
    all[1].append();
  } else {
    for (GemmCommands& one : all) one.append();
  }
}

}  // namespace npu::ops
