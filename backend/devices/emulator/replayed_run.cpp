// Runs of the array that are recorded, and runs that repeat recorded ones (replay/recordings.h).
#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <utility>

#include "devices/emulator/array.h"
#include "devices/emulator/replay/joint_replay.h"
#include "devices/emulator/replay/recordings.h"
#include "stream/txn.h"

namespace npu::emulator {

namespace {

constexpr std::chrono::milliseconds kBetweenChecks{20};  // for Ctrl-C

}  // namespace

BlockPool& Array::blocks(int col) {
  return log_ ? log_->blocks(col) : blocks_[static_cast<size_t>(col)];
}

void Array::begin_epoch() {
  static std::atomic<uint64_t> all{0};
  epoch_ = ++all;
  epoch_runs_ = runs_;
  left_by_.reset();
  put_off_ = nullptr;
  replay_ = nullptr;  // which refers to the copies
  drop_copies();
}

// Recorded runs begin and end without aliases, so that memories hold what they show.
bool Array::begin_replay(Recordings& recordings) {
  replay_ = nullptr;
  if (put_off_ && recordings.steered_by_memories()) leave_put_off();
  std::optional<Recordings::Found> found = recordings.find(*this, buffers_);
  if (!found) return false;
  if (put_off_) put_off_->copy_last_before(*found->recording);
  Replay run(std::move(found->recording), buffers_, found->moved);
  if (series_) run.put_off_last_copies();
  replay_ = std::make_unique<JointReplay>(std::move(run));
  return true;
}

void Array::leave_put_off() {
  if (put_off_ == nullptr) return;
  const std::unique_ptr<const Replay> run = std::move(put_off_);
  run->copy_last();
  leave_state_of(*run);
}

void Array::end_series() {
  leave_put_off();
  series_ = false;
}

bool Array::joinable() const {
  return replay_ && !replay_->begun() && replay_->runs().size() < JointReplay::kMost;
}

size_t Array::copy_bytes() const {
  size_t sum = 0;
  for (const auto& memory : beside_) sum += memory->bytes();
  return sum;
}

void Array::drop_copies() { beside_.clear(); }

// Words that steer cores are compared before any of the runs: they lie in arguments.
std::optional<RunReport> Array::join(std::span<const Argument> buffers, Recordings& recordings) {
  const Entry entry(*this, run_function());
  if (!joinable()) return std::nullopt;
  check_arguments(run_function(), buffers);
  std::optional<Recordings::Found> found = recordings.find(*this, buffers);
  if (!found || found->recording->steering.in_memory()) return std::nullopt;
  const size_t number = replay_->runs().size() - 1;
  if (beside_.size() == number) {
    beside_.push_back(std::make_unique<OwnMemory>(*memories_, number));
  }
  beside_[number]->serve(*found->recording);
  RunReport report = found->recording->report;
  report.undecoded_writes = undecoded_since_configure_;
  replay_->add(Replay(std::move(found->recording), buffers, found->moved, beside_[number].get()));
  return report;
}

void Array::begin_recording(const stream::Stream& stream, Recordings& recordings) {
  for (auto& tile : tiles_) tile->aliases.flush_all();
  rest_->install(*this);
  if (!recordings.wants(stream)) return;
  std::optional<std::vector<ArgumentShape>> shapes = argument_shapes(buffers_);
  if (!shapes) return recordings.postpone();
  recorded_ = std::make_unique<Recording>();
  recorded_->epoch = epoch_;
  recorded_->arguments = std::move(*shapes);
  recorded_->data = recordings.version().data();
  const StreamVersion& version = recordings.version();
  for (size_t i = 0; i < version.offsets().size(); ++i) {
    recorded_->patches.push_back({version.offsets()[i], version.address_patches()[i]->argument});
  }
  recordings_ = &recordings;
  log_ = std::make_unique<ActionLog>(buffers_, recorded_->arguments, blocks_.size(),
                                     recorded_->patches, recordings.most_bytes());
  for (const auto& tile : tiles_) {
    if (tile->core) tile->core->reserve_state(*log_);
  }
  scheduler_.set_log(log_.get());
}

// Whether recorded runs may begin: the state in which loading left the array is known, and nothing
// waits that a run has left.
bool Array::find_rest() {
  if (timed() || !configured_ || faulted_ || reconfigured_ || stream_ != nullptr) return false;
  if (rest_epoch_ != epoch_) {
    rest_epoch_ = epoch_;
    rest_ = nullptr;
    if (runs_ == epoch_runs_ && settles_untouched()) {
      std::optional<ControlState> state = ControlState::of(*this);
      if (state) rest_ = std::make_shared<const ControlState>(std::move(*state));
      keep_loaded();
    }
  }
  if (!rest_ || has_tokens()) return false;
  if (put_off_) return put_off_->recording().leaves_nothing;
  const bool unchanged = !left_by_.expired();
  if (unchanged && left_nothing_) return true;
  left_nothing_ = rest_->leaves_nothing(*this);
  return left_nothing_;
}

// Channels and cores take what they take before any stream runs. Whether they leave all data alone.
bool Array::settles_untouched() {
  for (const auto& tile : tiles_) {
    if (tile->geometry.kind != arch::TileKind::kShim) continue;
    for (const auto& side : tile->channels) {
      // Of tasks that a stream is to complete a run without one would be an error.
      for (const BdEngine* channel : side) {
        if (!channel->idle()) return false;
      }
    }
  }
  const std::vector<uint32_t> nothing =
      stream::Builder(device_.generation, device_.columns).finish();
  const stream::Stream stream = stream::Stream::parse(std::as_bytes(std::span(nothing)));
  begin(stream, {});
  resume(Deadline::max());
  return report_.kernel_calls == 0 && report_.core_read_bytes == 0 &&
         report_.core_write_bytes == 0 && report_.memtile_read_bytes == 0 &&
         report_.memtile_write_bytes == 0;
}

void Array::keep_loaded() {
  loaded_undecoded_ = undecoded_since_configure_;
  loaded_.clear();
  for (const auto& tile : tiles_) {
    const std::span<const std::byte> memory(tile->memory);
    const auto last = std::find_if(memory.rbegin(), memory.rend(),
                                   [](std::byte byte) { return byte != std::byte{0}; });
    loaded_.push_back({tile->other_registers, {memory.begin(), last.base()}});
  }
}

bool Array::reload() {
  const Entry entry(*this, "configure");
  if (!return_to_rest()) return false;
  for (size_t t = 0; t < tiles_.size(); ++t) {
    Tile& tile = *tiles_[t];
    tile.other_registers = loaded_[t].registers;
    const auto rest = std::ranges::copy(loaded_[t].memory, tile.memory.begin()).out;
    std::fill(rest, tile.memory.end(), std::byte{0});
  }
  undecoded_since_configure_ = loaded_undecoded_;
  report_ = RunReport{};
  return true;
}

bool Array::return_to_rest() {
  leave_put_off();
  if (!find_rest()) return false;
  for (auto& tile : tiles_) tile->aliases.flush_all();
  left_by_.reset();
  rest_->install(*this);
  return true;
}

bool Array::has_tokens() const {
  return std::ranges::any_of(tokens_, [](const auto& token) { return token.second != 0; });
}

// Whether a word can be compared before a run. What nothing writes is still what it was.
bool Array::comparable(const SteeringWord& word, const Recording& run) const {
  if (word.place.base != Place::kAbsolute) {
    const Argument& argument = buffers_[word.place.base - 1];
    const size_t bytes = shared_bytes(run.arguments, word.place.base - 1);
    if (word.place.offset < 0 || word.place.offset + int64_t{4} > static_cast<int64_t>(bytes)) {
      return false;
    }
    return argument.writable ||
           std::memcmp(argument.data + word.place.offset, &word.value, sizeof word.value) == 0;
  }
  return std::ranges::any_of(tiles_, [&](const std::unique_ptr<Tile>& tile) {
    const auto begin = static_cast<int64_t>(reinterpret_cast<intptr_t>(tile->memory.data()));
    const auto end = begin + static_cast<int64_t>(tile->memory.size());
    return word.place.offset >= begin && word.place.offset + 4 <= end;
  });
}

// Brings memories up to date: in replays the threads share the tiles.
void Array::flush_recorded() {
  log_->begin_lanes(tiles_.size());
  for (size_t i = 0; i < tiles_.size(); ++i) {
    const ActionLog::LaneScope scope(log_.get(), i);
    tiles_[i]->aliases.flush_all();
  }
  log_->end_lanes();
}

void Array::end_recording() {
  log_->end_run();
  flush_recorded();
  scheduler_.set_log(nullptr);
  const std::unique_ptr<ActionLog> log = std::exchange(log_, nullptr);
  const std::unique_ptr<Recording> run = std::exchange(recorded_, nullptr);
  std::optional<ControlState> end = ControlState::of(*this);
  if (log->refused()) return recordings_->refuse();
  if (log->full() || !end || has_tokens() || !dropped_.empty() || unwaited_count_ > 0) {
    return recordings_->postpone();
  }
  std::vector<uint32_t> fixed;
  std::optional<std::vector<SteeringWord>> steering = steering_words(log->phases(), &fixed);
  const auto can_compare = [&](const SteeringWord& word) { return comparable(word, *run); };
  if (!steering || !std::ranges::all_of(*steering, can_compare)) return recordings_->refuse();
  run->steering = SteeringRuns(*steering);
  run->steering_bytes = log->take_steering();
  run->end = std::move(*end);
  run->leaves_nothing = rest_->leaves_nothing(*this);
  for (PatchUse& patch : run->patches) {
    const uint32_t base = run->arguments[patch.argument].first + 1;
    patch.fixed |= std::ranges::find(fixed, base) != fixed.end();
  }
  Patches patches(recordings_->moving());
  auto [phases, last] = log->take_phases(patches);
  PackedPhases spare = recordings_->take_spare(PackedPhases::needed(phases));
  run->phases = PackedPhases(std::move(phases), std::move(spare));
  run->last = LastCopies(run->phases, last, log->take_touched());
  for (const uint32_t patch : patches.fixed()) run->patches[patch - 1].fixed = true;
  run->operands = log->take_operands();
  run->keep_blocks(log->take_blocks());
  run->report = report_;
  recordings_->add(std::move(*run));
}

void Array::leave_state_of(const Replay& run) {
  const std::shared_ptr<const Recording> left = left_by_.lock();
  const std::span<const int64_t> moved = run.moved();
  if (left.get() == &run.recording()) {
    ControlState::move_addresses(*this, left_moved_, moved);
  } else {
    run.recording().end.install(*this, moved);
    left_by_ = run.shared_recording();
    left_nothing_ = run.recording().leaves_nothing;
  }
  left_moved_.assign(moved.begin(), moved.end());
}

// False when the deadline has passed.
bool Array::resume_replay(std::chrono::steady_clock::time_point begin) {
  const auto pause = [this] {
    if (!interrupt_ && deadline_ == Deadline::max()) return false;
    const auto now = std::chrono::steady_clock::now();
    if (interrupt_ && now > next_check_) {
      next_check_ = now + kBetweenChecks;
      interrupt_();
    }
    return now >= deadline_;
  };
  try {
    const bool ended = replay_->resume(pause);
    array_time_ += std::chrono::steady_clock::now() - begin;
    if (!ended) return false;
  } catch (...) {
    abort();
    throw;
  }
  Replay first = replay_->take_first();
  report_ = first.recording().report;
  report_.undecoded_writes = undecoded_since_configure_;
  report_.array_ns = static_cast<uint64_t>(array_time_.count());
  if (series_) {
    put_off_ = std::make_unique<const Replay>(std::move(first));
  } else {
    leave_state_of(first);
  }
  replay_ = nullptr;
  stream_ = nullptr;
  buffers_.clear();
  return true;
}

}  // namespace npu::emulator
