// Test modes of the emulated device for the residency rule (docs/architecture.md, "Residency"): a
// stream must be correct after a fresh load and after any other stream of its configuration,
// because another process, five idle seconds or a timeout reload a real NPU between two
// submissions.
//
// Written behind the device's name: "emu:npu2+reload" reloads the configuration before every
// submission, "+reload-second" before every second one, "+reload-random-7" before random ones
// (seed 7); "+intruder" runs a stream seen earlier, of this or another configuration, on a copy
// of its arguments in between; "+replay" makes the submission a replay (replay/rehearsal.h). After
// a reload the tiles' memories hold an arbitrary pattern, and after every run all locks must have
// the values that they had at rest before it.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "devices/emulator/array.h"
#include "runtime/device.h"

namespace npu::emulator {

struct Residency {
  enum class Reload : uint8_t { kNever, kEvery, kSecond, kRandom };
  Reload reload = Reload::kNever;
  uint32_t seed = 0;
  bool intruder = false, replay = false;
  bool on() const { return reload != Reload::kNever || intruder || replay; }

  // The text behind the plus sign. Throws Error(kDevice).
  static Residency parse(std::string_view text);
};

// When to reload.
class ReloadSchedule {
 public:
  explicit ReloadSchedule(const Residency& residency)
      : reload_(residency.reload), random_(residency.seed) {}
  bool next();  // before the next submission?

 private:
  Residency::Reload reload_;
  std::mt19937 random_;
  uint64_t submissions_ = 0;
};

// Streams that ran, each with a copy of what its arguments held before.
class Intruders {
 public:
  struct Stream {
    std::shared_ptr<const Configuration> configuration;
    std::shared_ptr<const PreparedStream> prepared;
    std::vector<std::vector<std::byte>> arguments;
    std::vector<bool> writable;
    uint64_t patches;  // of the stream when it ran: another value, and it goes elsewhere now
  };
  // Keeps the latest few; large ones are left out.
  void remember(std::shared_ptr<const Configuration> configuration,
                std::shared_ptr<const PreparedStream> prepared, std::span<const BufferRef> refs);
  // One that is not `stream`, in turn; null if there is none.
  const Stream* other_than(const PreparedStream* stream);

 private:
  std::vector<Stream> streams_;
  size_t next_ = 0;
};

// Values of all locks of core and memory tiles, at rest.
std::vector<int> lock_values(const Array& array);
// Throws Error(kLock) for the first lock of `array` that differs from `expected`.
void check_locks(const Array& array, const std::vector<int>& expected);
// What a reload leaves in memories that the configuration does not write: anything.
inline constexpr std::byte kLeftOver{0xA5};

}  // namespace npu::emulator
