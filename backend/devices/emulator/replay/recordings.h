// Which recorded runs (recording.h) are kept: those of every prepared stream, in the memory that
// the streams of a device share for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "devices/emulator/replay/recording.h"
#include "runtime/device.h"
#include "stream/txn.h"

namespace npu::emulator {

class Recordings;

// What the recordings of a device hold, and how much that may be: those that were repeated least
// recently leave for new ones. Streams may end on any thread while another one of theirs runs.
class ReplayMemory {
 public:
  static constexpr size_t kMost = size_t{512} << 20, kLeastSpare = size_t{2} << 20;
  explicit ReplayMemory(size_t most = kMost) : most_(most) {}

  void limit(size_t most);
  size_t bytes() const;
  size_t most() const;  // 0: nothing is recorded

 private:
  friend class Recordings;
  // These need the mutex.
  bool make_room(size_t bytes, const Recordings& stream);  // among what other streams have
  void keep_spare(PackedPhases phases);
  PackedPhases take_spare();

  mutable std::mutex mutex_;
  size_t most_, bytes_ = 0;
  PackedPhases spare_;  // of the last large recording that has left; counted in bytes_
  uint64_t uses_ = 0;   // of all recordings, so far
  std::vector<Recordings*> streams_;
};

// Those of one prepared stream: one for each of its versions and of the words that steer its cores.
class Recordings {
 public:
  // Of more, those leave that no run has come back to, then the one used least recently.
  static constexpr size_t kMost = 12;

  Recordings(std::shared_ptr<ReplayMemory> memory, const stream::Stream& stream);
  ~Recordings();
  Recordings(const Recordings&) = delete;
  Recordings& operator=(const Recordings&) = delete;

  // The one that fits, and how far its address patches have moved since, or none. Brings the
  // array's memories up to date if there may be one.
  struct Found {
    std::shared_ptr<const Recording> recording;
    std::vector<int64_t> moved;
  };
  std::optional<Found> find(Array& array, std::span<const Argument> arguments);
  // Whether for that memories of tiles are compared, too.
  bool steered_by_memories() const;
  bool enabled() const;  // there is memory for recordings
  StreamVersion& version() { return version_; }
  // The first run is worth recording; later ones have other addresses in these ranges.
  void expect_repeats(std::span<const ArgumentRange> moving);
  // Of the address patches, in the stream's order: those whose places have moved, or will.
  std::vector<bool> moving() const;
  // Whether a run that has not found one is to be recorded. Counts these runs.
  bool wants(const stream::Stream& stream);
  // The run was not recorded, for a reason that may pass: the next attempt waits twice as long.
  void postpone();
  size_t most_bytes() const;  // of the next one
  // Memory for phases that need so many bytes: of one that has left, if it had not much more.
  PackedPhases take_spare(size_t needed);
  void add(Recording recording);
  // No run of the stream can be recorded.
  void refuse();
  bool refused() const;  // or the last attempt was postponed
  // Words of the stream get other values. Other data of BDs make other runs, of which the first is
  // recorded if those before were repeated.
  void patch(stream::Stream& stream, std::span<const StreamPatch> patches);

 private:
  friend class ReplayMemory;
  struct Kept {
    std::shared_ptr<Recording> recording;
    size_t bytes;
    uint64_t last_use;  // ReplayMemory::uses_
    bool repeated;
  };
  std::optional<std::vector<int64_t>> moved(const Recording& recording,
                                            std::span<const Argument> arguments) const;
  void drop_all();
  void drop(size_t number);
  size_t least_useful() const;  // its number
  void wait_longer();
  void drop_others(uint64_t epoch);  // than those of this Array::epoch()

  const std::shared_ptr<ReplayMemory> memory_;  // whose mutex guards all of this
  StreamVersion version_;
  std::vector<ArgumentRange> moving_;  // as expected
  std::vector<Kept> all_;
  size_t bytes_ = 0;  // of all_
  uint64_t runs_ = 0, first_recorded_;
  bool refused_ = false, postponed_ = false;
  bool repeated_ = true;  // a run, since the stream's data were changed last
};

}  // namespace npu::emulator
