// Builds GEMV runtime streams (gemv_stream.h).
#include "ops/gemv_stream.h"

#include <algorithm>
#include <limits>

#include "arch/bd.h"
#include "arch/device_model.h"
#include "arch/timing.h"
#include "error.h"
#include "ops/shim_stream.h"

namespace npu::ops {

namespace {

constexpr int kMostRepeats = 256;  // executions of one task
constexpr int kRing = 4;           // tasks in flight per weight channel, a BD each
// BD numbers of a shim tile: weights (those of the two channels in turn), x, results.
constexpr int kXBd = 2 * kRing, kYBd = kXBd + 2;
constexpr uint32_t kHalfBlockWords = kQ4BlockBytes / 8;  // a block is longer than a wrap field

class GemvStream : private ShimStream {
 public:
  GemvStream(const Configuration& configuration, const GemvProblem& problem, const GemvPlan& plan)
      : ShimStream(configuration),
        array_(GemvArray::of(configuration)),
        problem_(problem),
        plan_(plan) {}

  std::vector<uint32_t> build() {
    collect_weights();
    size_t most = 0;
    for (const Channel& channel : weights_) most = std::max(most, channel.tasks.size());
    push_first();
    for (size_t i = 1; i < std::min<size_t>(most, kRing); ++i) {
      for (Channel& channel : weights_) {
        if (i < channel.tasks.size()) push_weights(channel, i);
      }
    }
    push_results();
    // Rounds that the first i tasks of a channel cover.
    const auto rounds = [&](size_t i) {
      const auto tasks = static_cast<int64_t>(i);
      if (array_.cores_per_port() == 1) return tasks * max_iteration();
      return tasks / ((problem_.column_blocks + max_iteration() - 1) / max_iteration());
    };
    for (size_t i = kRing; i < most; ++i) {
      refill_x(rounds(i - kRing));
      for (Channel& channel : weights_) {
        if (i >= channel.tasks.size()) continue;
        wait(*channel.port);
        push_weights(channel, i);
      }
    }
    while (x_left_ > 0) push_more_x();
    finish_waits();
    return builder_.finish();
  }

 private:
  struct Task {
    int64_t offset;  // bytes into W
    arch::Bd bd;
    int64_t repeats;
  };
  struct Channel {
    const Port* port;
    std::vector<Task> tasks;
    bool tokens = false;  // needs waits to refill its BDs
  };

  static int64_t max_iteration() { return arch::tile_model(arch::TileKind::kShim).max_iteration; }

  const Port* port(const std::string& name) const { return &configuration_.port(name); }

  arch::Bd shim_bd(int64_t words) const {
    if (words > std::numeric_limits<uint32_t>::max()) {
      fail(ErrorKind::kOutOfRange, "[gemv] one transfer has %lld words; split W",
           static_cast<long long>(words));
    }
    arch::Bd bd;
    bd.length = static_cast<uint32_t>(words);
    bd.burst = model_.shim_burst;
    bd.axcache = kAxCache;
    return bd;
  }

  void collect_weights() {
    for (int c = 0; c < array_.columns; ++c) {
      for (int index = 0; index < array_.ports(c); ++index) {
        const GemvShare& share = plan_.shares[static_cast<size_t>(c)];
        if (share.rounds == 0) continue;
        const int cores = array_.cores_per_port();
        const int64_t first = share.first[static_cast<size_t>(index * cores)];
        Channel channel{port(strf("W%d_%d", c, index)), {}, false};
        channel.tasks =
            cores == 1 ? straight(first, share.rounds) : dealt(first, share.rounds, cores);
        channel.tokens = channel.tasks.size() > kRing;
        weights_.push_back(std::move(channel));
      }
    }
  }

  // Row-block by row-block, each in one run.
  std::vector<Task> straight(int64_t first, int64_t rounds) const {
    const int64_t row_block = problem_.column_blocks * kQ4BlockBytes;
    std::vector<Task> tasks;
    for (int64_t round = 0; round < rounds; round += max_iteration()) {
      const int64_t count = std::min(max_iteration(), rounds - round);
      arch::Bd bd = shim_bd(row_block / 4);
      bd.iteration_step = static_cast<uint32_t>(row_block / 4);
      bd.iteration_wrap = static_cast<uint32_t>(count);
      tasks.push_back({(first + round) * row_block, bd, count});
    }
    return tasks;
  }

  // Round by round: for each column block, the blocks of `cores` neighbouring row-blocks.
  std::vector<Task> dealt(int64_t first, int64_t rounds, int cores) const {
    const int64_t row_block = problem_.column_blocks * kQ4BlockBytes;
    const int64_t most = max_iteration();
    std::vector<Task> tasks;
    for (int64_t round = 0; round < rounds; ++round) {
      for (int64_t q = 0; q < problem_.column_blocks; q += most) {
        const int64_t count = std::min(most, problem_.column_blocks - q);
        arch::Bd bd = shim_bd(cores * kQ4BlockBytes / 4);
        bd.wrap[0] = bd.step[1] = kHalfBlockWords;
        bd.wrap[1] = 2;
        bd.step[2] = static_cast<uint32_t>(row_block / 4);
        bd.iteration_step = kQ4BlockBytes / 4;
        bd.iteration_wrap = static_cast<uint32_t>(count);
        tasks.push_back({(first + round * cores) * row_block + q * kQ4BlockBytes, bd, count});
      }
    }
    return tasks;
  }

  static int weight_bd(const Port& at, size_t index) {
    return static_cast<int>(index % kRing) * 2 + at.channel;
  }

  // The first task of every channel; the two BDs of a column in one write. x follows when the
  // channels that run take half of the memory's bandwidth: later, cores would wait for it, sooner,
  // it would delay weights.
  void push_first() {
    const arch::Timing timing(configuration_.generation, arch::TimingTable());
    const auto enough = static_cast<size_t>(timing.dram_read / timing.stream / 2);
    bool x_pushed = false;
    for (size_t c = 0; c < weights_.size();) {
      const Port& at = *weights_[c].port;
      size_t end = c + 1;
      if (end < weights_.size() && weights_[end].port->col == at.col) ++end;
      std::vector<uint32_t> words;
      for (size_t i = c; i < end; ++i) {
        if (weights_[i].tokens) route_tokens(*weights_[i].port);
        const std::vector<uint32_t> bd =
            arch::encode_bd(arch::TileKind::kShim, weights_[i].tasks[0].bd);
        words.insert(words.end(), bd.begin(), bd.end());
      }
      const uint32_t base = arch::tile_address(at.col, 0,
                                               arch::tile_model(arch::TileKind::kShim).bd_base +
                                                   0x20u * static_cast<uint32_t>(weight_bd(at, 0)));
      builder_.block_write(base, words);
      for (size_t i = c; i < end; ++i) {
        const Task& task = weights_[i].tasks[0];
        builder_.address_patch(base + 0x20u * static_cast<uint32_t>(i - c) + 4, kGemvW,
                               static_cast<uint64_t>(task.offset));
        queue(*weights_[i].port, weight_bd(*weights_[i].port, 0), task.repeats, weights_[i].tokens);
      }
      c = end;
      if (!x_pushed && (c >= enough || c == weights_.size())) {
        x_pushed = true;
        push_x();
      }
    }
  }

  void push_weights(Channel& channel, size_t index) {
    const Task& task = channel.tasks[index];
    const int id = weight_bd(*channel.port, index);
    write_bd(*channel.port, id, task.bd, kGemvW, task.offset);
    queue(*channel.port, id, task.repeats, channel.tokens);
  }

  // The setup and x once, then x again for every further round: a task repeats a BD up to 256
  // times.
  void push_x() {
    const Port& at = *port("X");
    const int64_t words = plan_.x_objects * array_.x_bytes / 4;
    x_left_ = plan_.x_sends - 1;
    x_tokens_ = x_left_ > kMostRepeats * (kRing - 1);
    if (x_tokens_) route_tokens(at);
    write_bd(at, kXBd, shim_bd(words + array_.x_bytes / 4), kGemvX, 0);
    queue(at, kXBd, 1, x_tokens_);
    if (x_left_ == 0) return;
    write_bd(at, kXBd + 1, shim_bd(words), kGemvX, array_.x_bytes);
    for (int queued = 1; x_left_ > 0 && queued < kRing; ++queued) repeat_x(at);
  }

  void push_more_x() {
    const Port& at = *port("X");
    wait(at);
    ++x_waited_;
    repeat_x(at);
  }

  // While the stream feeds weights, it may wait for x only once the weights that let x pass have
  // gone: those of `rounds` rounds, behind which cores lag by less than kLag.
  void refill_x(int64_t rounds) {
    constexpr int64_t kLag = 64;
    if (x_left_ > 0 && rounds >= x_waited_ * kMostRepeats + kLag) push_more_x();
  }

  void repeat_x(const Port& at) {
    const int64_t repeats = std::min<int64_t>(x_left_, kMostRepeats);
    queue(at, kXBd + 1, repeats, x_tokens_);
    x_left_ -= repeats;
  }

  void push_results() {
    for (int c = 0; c < array_.columns; ++c) {
      const GemvShare& share = plan_.shares[static_cast<size_t>(c)];
      if (share.rounds == 0) continue;
      const Port& at = *port(strf("Y%d", c));
      route_tokens(at);
      write_bd(at, kYBd, shim_bd(share.y_objects * array_.cores(c) * array_.y_bytes / 4), kGemvY,
               share.y_offset);
      queue(at, kYBd, 1, true);
      results_.push_back(&at);
    }
  }

  // Every token that was asked for is taken, so that none is left for the next stream.
  void finish_waits() {
    for (const Channel& channel : weights_) {
      if (!channel.tokens) continue;
      for (int i = 0; i < kRing; ++i) wait(*channel.port);
    }
    if (x_tokens_) {
      for (int i = 0; i < kRing; ++i) wait(*port("X"));
    }
    // Columns that work are neighbours and their results use the same channel.
    const Port& first = *results_.front();
    bool together = true;
    for (size_t i = 0; i < results_.size(); ++i) {
      together &= results_[i]->col == first.col + static_cast<int>(i) &&
                  results_[i]->channel == first.channel;
    }
    if (together) {
      wait(first, static_cast<int>(results_.size()));
      return;
    }
    for (const Port* at : results_) wait(*at);
  }

  GemvArray array_;
  const GemvProblem& problem_;
  const GemvPlan& plan_;
  std::vector<Channel> weights_;
  std::vector<const Port*> results_;
  bool x_tokens_ = false;
  int64_t x_left_ = 0, x_waited_ = 0;  // rounds still to push, tokens taken
};

}  // namespace

std::vector<uint32_t> build_gemv_stream(const Configuration& configuration,
                                        const GemvProblem& problem, const GemvPlan& plan) {
  return GemvStream(configuration, problem, plan).build();
}

}  // namespace npu::ops
