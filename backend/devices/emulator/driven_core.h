// A core whose program is a callback: asked for one operation after the other, it names a lock to
// acquire or release, words for the core's stream port or for the cascade; what it computes in
// between it does in the tiles' memories itself. It reaches what the hardware's cores reach: its
// own tile and its southern, western and northern neighbours (hardware.md 1.4). Runs on the calling
// thread, in the serial part of a round, so that callbacks need no synchronisation. In timed runs
// what it computes takes the cycles that its kWork operations name, and with them those of the lock
// and cascade operations since the one before.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "devices/emulator/core.h"

namespace npu::emulator {

struct Cascade;

// The tiles whose locks and memory a core reaches, in the order of its address map: locks 0-15 are
// the south's, memory from 0x40000 on, and so on; "own" is what the hardware calls east.
enum class CoreSide : uint8_t { kSouth, kWest, kNorth, kOwn };
// Null where there is no core tile.
Tile* reached_by_core(const Array& array, int col, int row, CoreSide side);

struct CoreOperation {
  enum class Code : uint8_t {
    kAcquireGe,   // lock, value
    kAcquireEq,   // lock, value
    kRelease,     // lock, value
    kPut,         // words, tlast
    kGet,         // count
    kPutCascade,  // words: a multiple of Cascade::kWords
    kGetCascade,  // count: likewise
    kWork,        // cycles, in timed runs, under a name for their traces
    kEnd,         // the program has returned
  };
  Code code = Code::kEnd;
  int lock = 0;  // 0-63: 16 of each CoreSide
  int value = 0;
  std::vector<uint32_t> words;
  size_t count = 0;
  bool tlast = false;
  double cycles = 0;
  std::string name;
};

struct CoreDriver {
  // The next operation; result: the words of the last one. restart: from the program's beginning.
  std::function<CoreOperation(bool restart, std::span<const uint32_t> result)> next;
  std::function<std::string()> place;  // where the program is, for messages; may be empty
};

class DrivenCore final : public Core {
 public:
  DrivenCore(Array& array, Tile& tile, CoreDriver driver);

  void control(uint32_t value) override;
  uint32_t status() const override;
  bool calling() const override;
  void advance() override;
  void complete() override;
  void start(Timeline& timeline) override;
  std::string waiting() const override;
  bool reaches(const Tile& tile) const override;
  // Nothing is known of its program: as long as it runs, it may release all that it reaches but
  // what it waits for.
  bool releases(const Tile& owner, int lock) const override;

 private:
  friend class Recorder;
  void fetch();
  // These return false while the operation waits.
  bool perform();
  bool acquire();
  void release();
  bool put();
  bool get();
  bool put_cascade();
  bool get_cascade();
  Tile& lock_owner() const;
  bool waits_for(const Tile& owner, int lock) const;
  Cascade& cascade_output() const;
  void check_stream_input() const;
  void check_cascade_input() const;
  std::string place() const;

  CoreDriver driver_;
  CoreOperation operation_;
  bool fresh_ = true, pending_ = false, blocked_ = false, done_ = false, halted_ = false;
  bool begun_ = false;  // of a stream port's operation
  std::vector<uint32_t> result_;
  size_t cascaded_ = 0;                                   // words of a cascade operation
  bool working_ = false;                                  // in simulated time
  uint64_t lock_operations_ = 0, cascade_transfers_ = 0;  // of timed runs, since the last work
};

}  // namespace npu::emulator
