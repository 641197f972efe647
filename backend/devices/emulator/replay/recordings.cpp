// Keeping recorded runs, the least recently used of which leave (recordings.h).
#include "devices/emulator/replay/recordings.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "devices/emulator/array.h"

namespace npu::emulator {

using stream::Opcode;
using stream::Operation;

namespace {

// A stream that runs once is not worth recording, unless it is expected to repeat. One whose
// recordings leave before they are repeated, or whose run was not recorded, waits twice as long for
// the next one, up to so many runs.
constexpr uint64_t kFirstRecorded = 2, kLastRecorded = 64;

// Whether an operation writes what recorded runs may write: data memory, locks, BDs, channels and
// their task queues.
bool recordable(const Operation& operation) {
  switch (operation.opcode) {
    case Opcode::kSync:
    case Opcode::kNoop:
    case Opcode::kPreempt:
    case Opcode::kRecordTimer:
      return true;
    case Opcode::kWrite:
    case Opcode::kBlockWrite:
    case Opcode::kMaskWrite:
    case Opcode::kAddressPatch:
      break;
    default:
      return false;
  }
  const auto address = static_cast<uint32_t>(operation.address);
  const int row = arch::address_row(address);
  if (row >= arch::kRows) return false;
  const arch::TileGeometry& tile = arch::tile_geometry(arch::tile_kind(row));
  const uint32_t offset = arch::address_offset(address);
  const bool block = operation.opcode == Opcode::kBlockWrite;
  const size_t bytes = block ? operation.data.size_bytes() : 4;
  const auto within = [&](uint32_t begin, int count, uint32_t step) {
    const uint32_t end = begin + static_cast<uint32_t>(count) * step;
    return offset >= begin && offset < end && bytes <= end - offset;
  };
  const bool channel =
      within(tile.s2mm_base, tile.channels, 8) || within(tile.mm2s_base, tile.channels, 8);
  if (operation.opcode == Opcode::kMaskWrite) return channel;  // what it reads is part of the state
  const bool bd = within(tile.bd_base, tile.bds, 0x20);
  if (operation.opcode == Opcode::kAddressPatch) {
    return bd && tile.kind == arch::TileKind::kShim && (offset - tile.bd_base) % 0x20 == 4;
  }
  return channel || bd || within(tile.lock_base, tile.locks, 0x10) ||
         within(0, static_cast<int>(tile.memory_bytes), 1);
}

// Whether the words that decide what cores do are those of the recorded run.
bool steered_the_same(const Recording& recording, std::span<std::byte* const> arguments) {
  const auto same_bytes = [&](const SteeringBytes::value_type& range) {
    const auto& [place, bytes] = range;
    return std::memcmp(arguments[place.first - 1] + place.second, bytes.data(), bytes.size()) == 0;
  };
  return recording.steering.hold(arguments) &&
         std::ranges::all_of(recording.steering_bytes, same_bytes);
}

}  // namespace

void ReplayMemory::limit(size_t most) {
  const std::lock_guard<std::mutex> guard(mutex_);
  most_ = most;
}

size_t ReplayMemory::bytes() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return bytes_;
}

size_t ReplayMemory::most() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return most_;
}

// Small ones lie in pages that the process has anyway.
void ReplayMemory::keep_spare(PackedPhases phases) {
  if (phases.bytes() < kLeastSpare) return;
  take_spare();
  bytes_ += phases.bytes();
  spare_ = std::move(phases);
}

PackedPhases ReplayMemory::take_spare() {
  bytes_ -= spare_.bytes();
  return std::exchange(spare_, {});
}

// What `stream` has itself stays: it makes room among its own by itself.
bool ReplayMemory::make_room(size_t bytes, const Recordings& stream) {
  if (bytes > most_ - std::min(most_, stream.bytes_)) return false;
  while (bytes_ + bytes > most_) {
    if (spare_.bytes() > 0) {
      take_spare();
      continue;
    }
    Recordings* owner = nullptr;
    size_t oldest = 0;
    for (Recordings* other : streams_) {
      if (other == &stream) continue;
      for (size_t i = 0; i < other->all_.size(); ++i) {
        if (owner && other->all_[i].last_use >= owner->all_[oldest].last_use) continue;
        owner = other;
        oldest = i;
      }
    }
    owner->drop(oldest);
  }
  return true;
}

Recordings::Recordings(std::shared_ptr<ReplayMemory> memory, const stream::Stream& stream)
    : memory_(std::move(memory)), version_(stream), first_recorded_(kFirstRecorded) {
  const std::lock_guard<std::mutex> guard(memory_->mutex_);
  memory_->streams_.push_back(this);
}

Recordings::~Recordings() {
  const std::lock_guard<std::mutex> guard(memory_->mutex_);
  drop_all();
  std::erase(memory_->streams_, this);
  if (memory_->streams_.empty()) memory_->take_spare();
}

bool Recordings::enabled() const { return memory_->most() > 0; }

// None if what has moved makes another run.
std::optional<std::vector<int64_t>> Recordings::moved(const Recording& recording,
                                                      std::span<const Argument> arguments) const {
  std::vector<int64_t> all;
  all.reserve(recording.patches.size());
  for (size_t i = 0; i < recording.patches.size(); ++i) {
    const PatchUse& use = recording.patches[i];
    const uint64_t offset = version_.offsets()[i];
    all.push_back(static_cast<int64_t>(offset - use.offset));
    if (offset == use.offset) continue;
    // Where the register level refuses the patch or the BD.
    const uint64_t bytes = arguments[use.argument].bytes;
    if (use.fixed || offset % 4 != 0 || offset >= bytes || use.reach > bytes - offset) {
      return std::nullopt;
    }
  }
  return all;
}

std::optional<Recordings::Found> Recordings::find(Array& array,
                                                  std::span<const Argument> arguments) {
  const std::lock_guard<std::mutex> guard(memory_->mutex_);
  drop_others(array.epoch());
  if (all_.empty()) return std::nullopt;
  const std::optional<std::vector<ArgumentShape>> given = argument_shapes(arguments);
  if (!given) return std::nullopt;
  for (const auto& tile : array.tiles()) tile->aliases.flush_all();
  std::vector<std::byte*> begins;
  for (const Argument& argument : arguments) begins.push_back(argument.data);
  for (Kept& kept : all_) {
    const Recording& recording = *kept.recording;
    if (recording.arguments != *given || recording.data != version_.data() ||
        !steered_the_same(recording, begins)) {
      continue;
    }
    std::optional<std::vector<int64_t>> distances = moved(recording, arguments);
    if (!distances) continue;
    kept.last_use = ++memory_->uses_;
    kept.repeated = repeated_ = true;
    return Found{kept.recording, std::move(*distances)};
  }
  return std::nullopt;
}

bool Recordings::steered_by_memories() const {
  const std::lock_guard<std::mutex> guard(memory_->mutex_);
  return std::ranges::any_of(all_,
                             [](const Kept& kept) { return kept.recording->steering.in_memory(); });
}

void Recordings::expect_repeats(std::span<const ArgumentRange> moving) {
  const std::lock_guard<std::mutex> guard(memory_->mutex_);
  first_recorded_ = 1;
  moving_.assign(moving.begin(), moving.end());
}

std::vector<bool> Recordings::moving() const {
  const std::lock_guard<std::mutex> guard(memory_->mutex_);
  std::vector<bool> all = version_.moved();
  for (size_t i = 0; i < all.size(); ++i) {
    const uint32_t argument = version_.address_patches()[i]->argument;
    const uint64_t offset = version_.offsets()[i];
    all[i] = all[i] || std::ranges::any_of(moving_, [&](const ArgumentRange& range) {
               return range.argument == argument && offset >= range.begin && offset < range.end;
             });
  }
  return all;
}

bool Recordings::wants(const stream::Stream& stream) {
  const std::lock_guard<std::mutex> guard(memory_->mutex_);
  if (refused_ || memory_->most_ == 0 || ++runs_ < first_recorded_) return false;
  refused_ = !std::ranges::all_of(stream.operations(), recordable);
  return !refused_;
}

void Recordings::postpone() {
  const std::lock_guard<std::mutex> guard(memory_->mutex_);
  wait_longer();
  postponed_ = true;
}

void Recordings::wait_longer() {
  first_recorded_ = std::min(2 * first_recorded_, kLastRecorded);
  runs_ = 0;
}

size_t Recordings::least_useful() const {
  const auto worth = [](const Kept& kept) { return std::pair(kept.repeated, kept.last_use); };
  return static_cast<size_t>(std::ranges::min_element(all_, {}, worth) - all_.begin());
}

size_t Recordings::most_bytes() const {
  const std::lock_guard<std::mutex> guard(memory_->mutex_);
  return memory_->most_ - std::min(memory_->most_, bytes_);
}

PackedPhases Recordings::take_spare(size_t needed) {
  const std::lock_guard<std::mutex> guard(memory_->mutex_);
  return memory_->spare_.bytes() > needed + needed / 4 ? PackedPhases() : memory_->take_spare();
}

void Recordings::add(Recording recording) {
  const size_t bytes = recording.bytes();
  const std::lock_guard<std::mutex> guard(memory_->mutex_);
  if (!memory_->make_room(bytes, *this)) {  // of its own ones, those that were repeated stay
    if (!all_.empty() && !all_[least_useful()].repeated) drop(least_useful());
    wait_longer();
    postponed_ = true;
    return;
  }
  if (all_.size() == kMost) drop(least_useful());
  postponed_ = false;
  bytes_ += bytes;
  memory_->bytes_ += bytes;
  all_.push_back(
      {std::make_shared<Recording>(std::move(recording)), bytes, ++memory_->uses_, false});
}

void Recordings::drop(size_t number) {
  const Kept kept = std::move(all_[number]);
  all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(number));
  bytes_ -= kept.bytes;
  memory_->bytes_ -= kept.bytes;
  if (kept.recording.use_count() == 1) memory_->keep_spare(std::move(kept.recording->phases));
  if (kept.repeated) first_recorded_ = kFirstRecorded;
  if (!kept.repeated && runs_ > 0) wait_longer();
  runs_ = 0;
}

// A configuration that is loaded again has other cores.
void Recordings::drop_others(uint64_t epoch) {
  for (size_t i = all_.size(); i-- > 0;) {
    if (all_[i].recording->epoch != epoch) drop(i);
  }
}

void Recordings::refuse() {
  const std::lock_guard<std::mutex> guard(memory_->mutex_);
  refused_ = true;
}

bool Recordings::refused() const {
  const std::lock_guard<std::mutex> guard(memory_->mutex_);
  return refused_ || postponed_;
}

void Recordings::drop_all() {
  while (!all_.empty()) drop(all_.size() - 1);
}

void Recordings::patch(stream::Stream& stream, std::span<const StreamPatch> patches) {
  const std::lock_guard<std::mutex> guard(memory_->mutex_);
  bool changed = false;
  for (const StreamPatch& patch : patches) {
    changed |= version_.patch(stream, patch.word, patch.value);
  }
  if (!changed) return;
  if (std::exchange(repeated_, false)) {
    runs_ = 0;
    first_recorded_ = 1;
  } else {
    first_recorded_ = std::min(2 * first_recorded_, kLastRecorded);
  }
}

}  // namespace npu::emulator
