// Appends the commands of a GEMM (gemm_schedule.h).

#include <algorithm>
#include <array>
#include <cassert>
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
#include "ops/shim_commands.h"
#include "rounding.h"

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
        kinds_(std::max(tasks_of(problem.a, tile_.a), tasks_of(problem.b, tile_.b))),
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
    const int64_t most = by_objects() ? (arch::kTaskQueueDepth + 1) / kinds() : slots;
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
  // One transfer of a shim channel: where from or to, and how.
  struct Piece {
    uint32_t argument;
    int64_t offset;  // bytes
    arch::Bd bd;
    int64_t repeats = 1;
  };

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

  bool has_tail(const GemmFeed& feed, const GemmCell& cell) const {
    return feed.direct > 0 && feed.depth < cell.count(problem_.k);
  }

  // BDs that a round takes of an operand.
  int tasks_of(const GemmFeed& feed, const GemmCell& cell) const {
    const int tail = has_tail(feed, cell) ? 1 : 0;
    if (!by_objects()) return 1 + tail;
    const auto tasks = [&](int64_t depth) {
      return static_cast<int>(divide_up(depth / cell.count(tile_.k_mt), max_repeats()));
    };
    // A's packed copy is one task.
    const bool packed = feed.order == GemmOrder::kTurned && feed.direct < cell.count(problem_.n);
    return std::max(feed.direct > 0 ? tasks(feed.depth) + tail : 1,
                    packed ? tasks(cell.count(problem_.k)) : 0);
  }

  // Whether both operands are read object by object: where B cannot be read otherwise, a longer A
  // would have the memory's bandwidth until it fills its memtiles.
  bool by_objects() const { return problem_.b.order == GemmOrder::kTurned; }

  static int64_t max_repeats() { return arch::tile_geometry(arch::TileKind::kShim).max_iteration; }

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
      push(*b_ports_[c], {b_half(column_in(0, c), 0)}, kinds() * ring_ + slot, false);
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
      const Piece piece = a_objects(c, 0, plan_.ahead);
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
      push(*b_ports_[c], {b_half(column_in(0, c), 0)}, kinds() * ring_, false);
      push(*a_ports_[c], {b_half(column_in(0, c), 1, 0, halves)}, kBds, false);
    }
  }

  // What of A, and of the second halves, was not read ahead.
  void push_rest(int slot) {
    const int64_t halves = halves_ahead_of(*store_, tile_, problem_);
    const int64_t beside = depth() - plan_.ahead, left = depth() - halves - beside;
    for (size_t c = 0; c < a_ports_.size(); ++c) {
      if (beside > 0) push_a_and_halves(ring_ - 1, slot, c, halves);
      if (left > 0) {
        const Piece rest = b_half(column_in(0, c), 1, halves + beside, left);
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
    Piece kept = a_objects(c, plan_.ahead, count);
    const Piece half = b_half(column_in(0, c), 1, first, count);
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
    push(*a_ports_[r], a_pieces(row), slot, false);
  }

  void push_b(int64_t first, int slot, size_t c) {
    const int64_t col = first + static_cast<int64_t>(c) * tile_.n;
    if (!tile_.b_pairs) {
      push(*b_ports_[c], b_pieces(col), kinds() * ring_ + slot, false);
      return;
    }
    // Both ports of a pair are of the shim tile without A, whose BDs are free there.
    const auto half = static_cast<int64_t>(c % 2);
    push(*b_ports_[c], b_halves(col - half * tile_.n, half),
         static_cast<int>(half) * kinds() * ring_ + slot, false);
  }

  // The objects of a round: their first halves by B's channel, the others by A's.
  void push_b_halves(int64_t round, int slot, size_t c) {
    push(*b_ports_[c], {b_half(column_in(round, c), 0)}, kinds() * ring_ + slot, false);
    push(*a_ports_[c], {b_half(column_in(round, c), 1)}, slot, false);
  }

  void push_c(int64_t round, int slot, size_t c) {
    const int64_t block = column_of(round), col = block + static_cast<int64_t>(c) * tile_.n;
    push(*c_ports_[c], {c_piece(row_of(round), block, col)}, 2 * kinds() * ring_ + slot, true);
  }

  std::vector<Piece> a_pieces(int64_t row) const {
    return pieces(problem_.a, tile_.a, {kA, kAPacked, kATail}, tile_.m, row, true);
  }

  std::vector<Piece> b_pieces(int64_t col) const {
    return pieces(problem_.b, tile_.b, {kB, kBPacked, kBTail}, tile_.n, col, tile_.b_columns);
  }

  // The first or second half of the rows of each object of the panel of B from `column` on, an
  // object per execution of the BD: `count` of them, or all, from `object` on.
  Piece b_half(int64_t column, int64_t half, int64_t object = 0, int64_t count = 0) const {
    const GemmFeed& feed = problem_.b;
    const GemmCell& cell = tile_.b;
    const bool packed = cell.count(column) >= feed.direct, along = feed.order == GemmOrder::kAlong;
    const int64_t size = cell.bytes, rows = cell.count(tile_.n), span = cell.span(tile_.k_mt);
    const int64_t from = cell.count(column) - (packed ? feed.direct : 0);
    const int64_t stride = (along || !packed ? feed.stride : rows) * size;  // bytes
    Piece out{packed ? kBPacked : kB, 0, shim_bd(rows * span / 2), count > 0 ? count : depth()};
    int64_t step = rows * span, skipped = step / 2;
    if (!along) {
      out.offset = packed ? from * cell.span(problem_.k) : from * size;
      step = tile_.k_mt * stride;
      skipped = tile_.k / 2 * stride;
      turn(out.bd, rows, stride);
    } else if (packed) {
      out.offset = from * cell.span(problem_.k);
    } else {
      out.offset = from * stride;
      step = span;
      skipped = rows / 2 * stride;
      set_rows(out.bd, span, stride);
    }
    out.offset += object * step + half * skipped;
    out.bd.iteration_step = words(step);
    out.bd.iteration_wrap = static_cast<uint32_t>(out.repeats);
    return out;
  }

  // The same of A's tile row `r`, whole objects.
  Piece a_objects(size_t r, int64_t object, int64_t count) const {
    const GemmFeed& feed = problem_.a;
    const GemmCell& cell = tile_.a;
    const int64_t first = cell.count(static_cast<int64_t>(r) * tile_.m);
    const int64_t rows = cell.count(tile_.m), span = cell.span(tile_.k_mt);
    const bool packed = first >= feed.direct;
    Piece out{packed ? kAPacked : kA, 0, shim_bd(rows * span), count};
    const int64_t step = packed ? rows * span : span;
    out.offset =
        packed ? (first - feed.direct) * cell.span(problem_.k) : first * feed.stride * cell.bytes;
    if (!packed) set_rows(out.bd, span, feed.stride * cell.bytes);
    out.offset += object * step;
    out.bd.iteration_step = words(step);
    out.bd.iteration_wrap = static_cast<uint32_t>(count);
    return out;
  }

  // An object of k_mt rows of `count` cells, as tiles that lie one after the other along K, a row
  // of each at a time.
  void turn(arch::Bd& bd, int64_t count, int64_t stride_bytes) const {
    bd.wrap[0] = words(count * tile_.b.bytes);
    bd.step[1] = words(tile_.k * stride_bytes);
    bd.wrap[1] = static_cast<uint32_t>(tile_.k_mt / tile_.k);
    bd.step[2] = words(stride_bytes);
  }

  // Half the rows of every memtile object of a pair's panel; of values, not of blocks.
  std::vector<Piece> b_halves(int64_t first, int64_t half) const {
    const GemmFeed& feed = problem_.b;
    const int64_t size = tile_.b.bytes, panel = tile_.b_panel(), skipped = half * tile_.b_rows / 2;
    const auto piece = [&](uint32_t argument, int64_t start, int64_t stride, int64_t depth) {
      arch::Bd bd = shim_bd(panel * depth / 2 * size);
      set_rows(bd, panel * size, stride * size);
      bd.wrap[1] = static_cast<uint32_t>(tile_.b_rows / 2);
      bd.step[2] = words(tile_.b_rows * stride * size);
      return Piece{argument, (start + skipped * stride) * size, bd};
    };
    if (first >= feed.direct) {
      return {piece(kBPacked, (first - feed.direct) * problem_.k, panel, problem_.k)};
    }
    std::vector<Piece> out{piece(kB, first, feed.stride, feed.depth)};
    if (has_tail(feed, tile_.b)) {
      const int64_t rest = problem_.k - feed.depth;
      out.push_back(piece(kBTail, first * rest, panel, rest));
    }
    return out;
  }

  // A tile row of A or a panel of B, `values` rows or columns from `first_value`. `contiguous`:
  // neighbours along K are neighbours in the matrix.
  std::vector<Piece> pieces(const GemmFeed& feed, const GemmCell& cell,
                            const std::array<uint32_t, 3>& arguments, int64_t values,
                            int64_t first_value, bool contiguous) const {
    const int64_t size = cell.bytes, k = cell.count(problem_.k);
    const int64_t count = cell.count(values), first = cell.count(first_value);
    if (feed.order != GemmOrder::kAlong) return across_pieces(feed, cell, arguments, count, first);
    if (first >= feed.direct) {
      const int64_t offset = (first - feed.direct) * k * size;
      return {{arguments[1], offset, shim_bd(count * k * size)}};
    }
    const int64_t offset = first * (contiguous ? feed.stride : 1) * size;
    std::vector<Piece> out;
    if (contiguous && by_objects()) {
      out = along_objects(count, feed, cell, arguments[0], offset);
    } else {
      out = {{arguments[0], offset,
              contiguous ? along_k(count, feed, cell) : across_k(count, feed, size)}};
    }
    if (has_tail(feed, cell)) {
      const int64_t rest = k - feed.depth;
      out.push_back({arguments[2], first * rest * size, shim_bd(count * rest * size)});
    }
    return out;
  }

  // The same of a matrix that is stored with K down its columns; and of panels of such a one.
  std::vector<Piece> across_pieces(const GemmFeed& feed, const GemmCell& cell,
                                   const std::array<uint32_t, 3>& arguments, int64_t count,
                                   int64_t first) const {
    const int64_t size = cell.bytes, k = cell.count(problem_.k);
    std::vector<Piece> out;
    const auto add = [&](uint32_t argument, int64_t offset, int64_t stride, int64_t depth) {
      if (feed.order == GemmOrder::kInterleaved) {
        arch::Bd bd = shim_bd(count * depth * size);
        set_rows(bd, count * size, stride * size);
        out.push_back({argument, offset, bd});
        return;
      }
      const int64_t objects = depth / tile_.k_mt;
      for (int64_t object = 0; object < objects; object += max_repeats()) {
        const int64_t repeats = std::min(max_repeats(), objects - object);
        arch::Bd bd = shim_bd(count * tile_.k_mt * size);
        turn(bd, count, stride * size);
        bd.iteration_step = words(tile_.k_mt * stride * size);
        bd.iteration_wrap = static_cast<uint32_t>(repeats);
        out.push_back({argument, offset + object * tile_.k_mt * stride * size, bd, repeats});
      }
    };
    if (first >= feed.direct) {
      add(arguments[1], (first - feed.direct) * k * size, count, k);
      return out;
    }
    add(arguments[0], first * size, feed.stride, feed.depth);
    const int64_t rest = k - feed.depth;
    if (rest > 0) add(arguments[2], first * rest * size, count, rest);
    return out;
  }

  // The (rows * m, n) block of C that one column of cores produces; `block`: first column of all.
  Piece c_piece(int64_t row, int64_t block, int64_t col) const {
    const bool below = row >= problem_.c_rows, direct = !below && block < problem_.c_cols;
    const GemmCell& cell = tile_.c;
    const auto cells = [&](int64_t values) { return cell.count(values); };
    const int64_t right = cells(problem_.n - problem_.c_cols), width = cells(problem_.n);
    int64_t offset = cells(row) * problem_.c_stride + cells(col), stride = problem_.c_stride;
    if (below) {
      offset = cells(row - problem_.c_rows) * width + cells(col);
      stride = width;
    } else if (!direct) {
      offset = cells(problem_.m - problem_.c_rows) * width + cells(row) * right +
               cells(col - problem_.c_cols);
      stride = right;
    }
    arch::Bd bd = shim_bd(cells(tile_.native_m()) * cell.span(tile_.n));
    set_rows(bd, cell.span(tile_.n), stride * cell.bytes);
    return {direct ? kC : kCPacked, offset * cell.bytes, bd};
  }

  static uint32_t words(int64_t bytes) {
    assert(bytes % 4 == 0);
    if (bytes / 4 > std::numeric_limits<uint32_t>::max()) {
      fail(ErrorKind::kShape,
           "[gemm] one transfer has %lld bytes; a shim BD moves at most %lld: use a "
           "smaller K",
           static_cast<long long>(bytes), 4ll * std::numeric_limits<uint32_t>::max());
    }
    return static_cast<uint32_t>(bytes / 4);
  }

  arch::Bd shim_bd(int64_t bytes) const { return linear_bd(words(bytes)); }

  // Rows of `row_bytes` bytes, `stride_bytes` apart, as many as the transfer's length asks for.
  static void set_rows(arch::Bd& bd, int64_t row_bytes, int64_t stride_bytes) {
    bd.wrap[0] = words(row_bytes);
    bd.step[1] = words(stride_bytes);
  }

  // `rows` rows of `depth` cells as tiles of (rows, k_mt).
  arch::Bd along_k(int64_t rows, const GemmFeed& feed, const GemmCell& cell) const {
    arch::Bd bd = shim_bd(rows * feed.depth * cell.bytes);
    if (feed.stride == cell.count(tile_.k_mt)) return bd;  // contiguous
    set_rows(bd, cell.span(tile_.k_mt), feed.stride * cell.bytes);
    bd.wrap[1] = static_cast<uint32_t>(rows);
    bd.step[2] = words(cell.span(tile_.k_mt));
    return bd;
  }

  // The same, an object per execution of a BD.
  std::vector<Piece> along_objects(int64_t rows, const GemmFeed& feed, const GemmCell& cell,
                                   uint32_t argument, int64_t offset) const {
    const int64_t span = cell.span(tile_.k_mt), objects = feed.depth / cell.count(tile_.k_mt);
    std::vector<Piece> out;
    for (int64_t object = 0; object < objects; object += max_repeats()) {
      const int64_t repeats = std::min(max_repeats(), objects - object);
      arch::Bd bd = shim_bd(rows * span);
      set_rows(bd, span, feed.stride * cell.bytes);
      bd.iteration_step = words(span);
      bd.iteration_wrap = static_cast<uint32_t>(repeats);
      out.push_back({argument, offset + object * span, bd, repeats});
    }
    return out;
  }

  // `depth` rows of `cols` cells of `size` bytes, which are tiles of (k, cols).
  arch::Bd across_k(int64_t cols, const GemmFeed& feed, int64_t size) const {
    arch::Bd bd = shim_bd(cols * feed.depth * size);
    set_rows(bd, cols * size, feed.stride * size);
    return bd;
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
