// Appends the commands of a GEMV (gemv_schedule.h).
#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "arch/bd.h"
#include "arch/geometry.h"
#include "arch/timing.h"
#include "error.h"
#include "formats/weight_blocks.h"
#include "ops/gemv/gemv_schedule.h"
#include "ops/shim_commands.h"

namespace npu::ops {

namespace {

constexpr int kMaxRepeats = 256;  // executions of one task
constexpr int kRing = 4;          // tasks in flight per weight channel, a BD each
// BD numbers of a shim tile: weights (those of the two channels in turn), x, results.
constexpr int kXBd = 2 * kRing, kYBd = kXBd + 2;

class GemvCommands : private ShimCommands {
 public:
  GemvCommands(stream::Builder& builder, const Configuration& configuration,
               const GemvProblem& problem, const GemvSchedule& schedule)
      : ShimCommands(builder, configuration),
        array_(GemvArray::of(configuration)),
        problem_(problem),
        schedule_(schedule) {}

  void append() {
    collect_weights();
    size_t max_tasks = 0;
    for (const Channel& channel : weights_) max_tasks = std::max(max_tasks, channel.tasks.size());
    push_first();
    for (size_t i = 1; i < std::min<size_t>(max_tasks, kRing); ++i) push_next(i);
    push_results();
    // Rounds that the first i tasks of a channel cover.
    const auto rounds = [&](size_t i) {
      const auto tasks = static_cast<int64_t>(i);
      if (array_.cores_per_port() == 1) return (tasks - 1) * max_iteration();
      return tasks / ((problem_.column_blocks + max_iteration() - 1) / max_iteration());
    };
    for (size_t i = kRing; i < max_tasks; ++i) {
      refill_x(rounds(i - kRing));
      for (const Channel& channel : weights_) {
        if (i < channel.tasks.size()) wait(*channel.port);
      }
      push_next(i);
    }
    while (x_left_ > 0) push_more_x();
    finish_waits();
  }

 private:
  struct Task {
    int64_t offset;  // bytes into W
    arch::Bd bd;
    int64_t repeats;
    bool preconfigured = false;  // the configuration has written its BD
  };
  struct Channel {
    const Port* port;
    std::vector<Task> tasks;
    bool tokens = false;  // needs waits to refill its BDs
  };

  static int64_t max_iteration() {
    return arch::tile_geometry(arch::TileKind::kShim).max_iteration;
  }

  arch::Bd shim_bd(int64_t words) const {
    if (words > std::numeric_limits<uint32_t>::max()) {
      fail(ErrorKind::kOutOfRange, "[gemv] one transfer has %lld words; split W",
           static_cast<long long>(words));
    }
    return linear_bd(static_cast<uint32_t>(words));
  }

  void collect_weights() {
    for (int c = 0; c < array_.columns; ++c) {
      for (int index = 0; index < array_.ports(c); ++index) {
        const GemvShare& share = schedule_.shares[static_cast<size_t>(c)];
        if (share.rounds == 0) continue;
        const int cores = array_.cores_per_port();
        const int64_t first = share.first[static_cast<size_t>(index * cores)];
        Channel channel{port(strf("W%d_%d", c, index)), {}, false};
        channel.tasks = cores == 1 ? linear_tasks(first, share.rounds)
                                   : interleaved_tasks(first, share.rounds, cores);
        channel.tokens = channel.tasks.size() > kRing;
        weights_.push_back(std::move(channel));
      }
    }
  }

  // Whether a channel has blocks for its preconfigured BD.
  bool uses_preconfigured(int64_t rounds) const {
    return array_.preconfigured_blocks > 0 &&
           rounds * problem_.column_blocks >= array_.preconfigured_blocks;
  }

  // The preconfigured BD, then transfers of a row-block's length.
  std::vector<Task> linear_tasks(int64_t first, int64_t rounds) const {
    const int64_t row_block = problem_.column_blocks;
    int64_t at = first * row_block, left = rounds * row_block;  // blocks
    std::vector<Task> tasks;
    if (uses_preconfigured(rounds)) {
      tasks.push_back({at * array_.block_bytes, {}, 1, true});
      at += array_.preconfigured_blocks;
      left -= array_.preconfigured_blocks;
    }
    while (left > 0) {
      const int64_t length = std::min(left, row_block);
      const int64_t count = std::min(max_iteration(), left / length);
      arch::Bd bd = shim_bd(length * array_.block_bytes / 4);
      bd.iteration_step = bd.length;
      bd.iteration_wrap = static_cast<uint32_t>(count);
      tasks.push_back({at * array_.block_bytes, bd, count});
      at += count * length;
      left -= count * length;
    }
    return tasks;
  }

  // Round by round: for each column block, the blocks of `cores` neighbouring row-blocks.
  std::vector<Task> interleaved_tasks(int64_t first, int64_t rounds, int cores) const {
    const int64_t row_block = problem_.column_blocks * array_.block_bytes;
    const int64_t limit = max_iteration();
    std::vector<Task> tasks;
    for (int64_t round = 0; round < rounds; ++round) {
      for (int64_t q = 0; q < problem_.column_blocks; q += limit) {
        const int64_t count = std::min(limit, problem_.column_blocks - q);
        arch::Bd bd = shim_bd(cores * array_.block_bytes / 4);
        // A block is longer than a wrap field.
        bd.wrap[0] = bd.step[1] = static_cast<uint32_t>(array_.block_bytes / 8);
        bd.wrap[1] = 2;
        bd.step[2] = static_cast<uint32_t>(row_block / 4);
        bd.iteration_step = static_cast<uint32_t>(array_.block_bytes / 4);
        bd.iteration_wrap = static_cast<uint32_t>(count);
        tasks.push_back({(first + round * cores) * row_block + q * array_.block_bytes, bd, count});
      }
    }
    return tasks;
  }

  static int weight_bd(const Port& at, size_t index) {
    return static_cast<int>(index % kRing) * 2 + at.channel;
  }

  // The first task of every channel, and x among them: after the first column if its BD is there,
  // else when the running channels take half of the memory's bandwidth. Later, cores would wait for
  // it, sooner, it would delay weights.
  void push_first() {
    const arch::Timing timing(configuration_.generation, arch::TimingTable());
    const double half = timing.dram_read / timing.stream / 2;
    const size_t enough = schedule_.x_objects == 1 ? 1 : static_cast<size_t>(half);
    bool x_pushed = false;
    for (size_t c = 0; c < weights_.size();) {
      const size_t end = column_end(c);
      push_tasks(c, end, 0);
      c = end;
      if (!x_pushed && (c >= enough || c == weights_.size())) {
        x_pushed = true;
        push_x();
      }
    }
  }

  // Task `index` of every channel that has so many.
  void push_next(size_t index) {
    for (size_t c = 0; c < weights_.size(); c = column_end(c)) {
      if (index < weights_[c].tasks.size()) push_tasks(c, column_end(c), index);
    }
  }

  // The channels of a column are neighbours, with equally many tasks.
  size_t column_end(size_t begin) const {
    size_t end = begin + 1;
    while (end < weights_.size() && weights_[end].port->col == weights_[begin].port->col) ++end;
    return end;
  }

  // A task of each of a column's channels; the BDs that are not there yet in one write.
  void push_tasks(size_t begin, size_t end, size_t index) {
    std::vector<uint32_t> words;
    for (size_t i = begin; i < end; ++i) {
      const Task& task = weights_[i].tasks[index];
      if (task.preconfigured) continue;
      const std::vector<uint32_t> bd = arch::encode_bd(arch::TileKind::kShim, task.bd);
      words.insert(words.end(), bd.begin(), bd.end());
    }
    const Port& first = *weights_[begin].port;
    if (!words.empty()) builder_.block_write(bd_address(first, weight_bd(first, index)), words);
    for (size_t i = begin; i < end; ++i) {
      const Port& at = *weights_[i].port;
      const Task& task = weights_[i].tasks[index];
      const int id = task.preconfigured ? kGemvWeightBd + at.channel : weight_bd(at, index);
      patch_bd(at, id, kGemvW, task.offset);
      queue(at, id, task.repeats, weights_[i].tokens);
    }
  }

  // Once, a BD that the configuration has written.
  void push_preconfigured(const Port& at, int id, uint32_t argument, int64_t offset, bool token) {
    patch_bd(at, id, argument, offset);
    queue(at, id, 1, token);
  }

  // The setup and x once, then x again for every further round: a task repeats a BD up to 256
  // times.
  void push_x() {
    const Port& at = *port("X");
    const int64_t words = schedule_.x_objects * array_.x_bytes / 4;
    x_left_ = schedule_.x_sends - 1;
    x_tokens_ = x_left_ > kMaxRepeats * (kRing - 1);
    if (schedule_.x_objects == 1) {
      push_preconfigured(at, kGemvXBd, kGemvX, 0, x_tokens_);
    } else {
      write_bd(at, kXBd, shim_bd(words + array_.x_bytes / 4), kGemvX, 0);
      queue(at, kXBd, 1, x_tokens_);
    }
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
    if (x_left_ > 0 && rounds >= x_waited_ * kMaxRepeats + kLag) push_more_x();
  }

  void repeat_x(const Port& at) {
    const int64_t repeats = std::min<int64_t>(x_left_, kMaxRepeats);
    queue(at, kXBd + 1, repeats, x_tokens_);
    x_left_ -= repeats;
  }

  void push_results() {
    for (int c = 0; c < array_.columns; ++c) {
      const GemvShare& share = schedule_.shares[static_cast<size_t>(c)];
      if (share.rounds == 0) continue;
      const Port& at = *port(strf("Y%d", c));
      if (share.y_objects == 1) {
        push_preconfigured(at, kGemvYBd, kGemvY, share.y_offset, true);
      } else {
        write_bd(at, kYBd, shim_bd(share.y_objects * array_.cores(c) * array_.y_bytes / 4), kGemvY,
                 share.y_offset);
        queue(at, kYBd, 1, true);
      }
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
  const GemvSchedule& schedule_;
  std::vector<Channel> weights_;
  std::vector<const Port*> results_;
  bool x_tokens_ = false;
  int64_t x_left_ = 0, x_waited_ = 0;  // rounds still to push, tokens taken
};

}  // namespace

void append_gemv(stream::Builder& builder, const Configuration& configuration,
                 const GemvProblem& problem, const GemvSchedule& schedule) {
  GemvCommands(builder, configuration, problem, schedule).append();
}

}  // namespace npu::ops
