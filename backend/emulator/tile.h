// State of one emulated tile: memory, locks, BDs, DMA channels, stream switch. The register map
// (registers.cpp) is the only way it is configured.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aligned.h"
#include "arch/bd.h"
#include "arch/device_model.h"
#include "emulator/agent.h"
#include "emulator/aliasing.h"
#include "emulator/walk.h"
#include "error.h"

namespace npu::emulator {

struct Tile;
class Core;

// A counting semaphore with the hardware's rules (hardware.md 1.6).
struct Lock {
  int value = 0;
  WaitList waiters;
};

// One side of an 8-arbiter, 4-msel stream switch. Indices are the register map's port numbers.
struct StreamSwitch {
  static constexpr int kMaxPorts = 25;
  static constexpr int kSlots = 4;
  static constexpr int kArbiters = 8;
  std::array<uint32_t, kMaxPorts> master{};
  std::array<uint32_t, kMaxPorts> slave{};
  std::array<std::array<uint32_t, kSlots>, kMaxPorts> slot{};
  // A packet holds its arbiters from header to TLAST.
  std::array<const Agent*, kArbiters> holder{};
  std::array<WaitList, kArbiters> waiters;
};

// Number of master or slave ports of a tile's switch (stream_switch.cpp).
int switch_ports(arch::TileKind kind, bool master);

// A BD's register words with what follows from them kept beside.
struct BdSlot {
  std::array<uint32_t, 8> words{};
  bool stale = true;  // the rest is older than `words`
  arch::Bd bd;
  Walk pattern;             // at base 0 and iteration 0
  uint64_t last = 0;        // largest word offset of that walk
  bool fills = false;       // Walk::fills of the BD's length
  bool neighbours = false;  // names locks or memory of tiles beside
};

class Channel;

// Where a stream goes: the S2MM channels it reaches and the arbiters a packet holds on the way.
struct Route {
  struct Sink {
    Channel* channel;
    bool keeps_header;
  };
  std::vector<Sink> sinks;
  std::vector<std::pair<Tile*, int>> arbiters;
};

// One DMA channel. An MM2S channel moves data; an S2MM channel only offers room for it. Tasks, BDs
// and locks: dma.cpp; routes, packets and moves: dma_stream.cpp.
class Channel final : public Agent {
 public:
  Channel(Array& array, Tile& tile, arch::Direction direction, int index);

  void push(uint32_t queue_word);  // a write to the task-queue register
  uint32_t control = 0;            // the control register
  uint32_t status() const;         // the status register
  void reset();                    // drops queue, running task and packet
  bool idle() const { return !active_ && queued_ == 0; }
  bool moving() const { return state_ == State::kBusy; }  // a posted job sends from or to it
  // Whether a queued or running task can still execute this BD.
  bool uses_bd(int bd) const;
  // "moved 12 of 512 words of BD 3" - empty when idle.
  std::string progress() const;
  bool has_moved() const { return left_ != total_; }  // part of the running BD

  void advance() override;
  void execute() override;
  void complete() override;
  void start(Timeline& timeline) override;
  std::string name() const override;
  std::string waiting() const override;

  const Tile& tile() const { return tile_; }
  arch::Direction direction() const { return direction_; }
  int index() const { return index_; }
  // An error of what this channel was told to do: "[submit] <name> <text>".
  [[noreturn]] void error(ErrorKind kind, const std::string& text) const;

 private:
  friend class Recorder;
  enum class State : uint8_t { kIdle, kAcquire, kMove, kBusy };
  struct Task {
    int bd = 0;
    int repeats = 1;
    bool token = false;
  };

  // dma.cpp
  bool crosses() const;
  bool belongs_elsewhere();
  bool within_part(const Tile& other) const;
  bool start_task();
  void start_bd(int bd);
  BdSlot& decoded(int bd) const;
  bool acquire();
  void begin_transfer();
  void check_padding() const;
  void finish_bd();
  void release_lock();
  void accepted(uint64_t words);                         // S2MM: the mover delivered words
  Tile* lock_owner(uint32_t id, uint32_t* local) const;  // null where the id reaches no lock
  Lock& lock_of(uint32_t id, const char* what) const;
  std::string lock_name(uint32_t id) const;
  std::byte* resolve(uint64_t* words);
  std::byte* resolve_host(uint64_t* words);
  bool chain_contains(int start, int bd) const;
  void check_modes() const;
  // dma_stream.cpp
  int slave_port() const;
  bool route_stands() const;
  bool open_route();  // MM2S: false while an arbiter is taken
  bool take_arbiters(const Route& route);
  void close_packet();
  bool sinks_ready(uint64_t* words);
  bool begin_move(uint64_t words);
  void finish_move();
  bool whole_tiles(uint64_t words) const;
  bool can_share(uint64_t words) const;
  bool alias_argument(uint64_t words);
  uint32_t packet_header() const;
  void move_header();
  const std::byte* copy_words(Walk& to);

  Array& array_;
  Tile& tile_;
  arch::Direction direction_;
  int index_;

  std::array<Task, arch::kTaskQueueDepth> queue_{};
  int queued_ = 0;
  bool active_ = false;
  Task task_;
  int repeats_left_ = 0;
  int bds_in_pass_ = 0;  // BDs finished since the start of the chain
  State state_ = State::kIdle;
  int bd_id_ = 0;
  arch::Bd bd_;  // latched when the BD starts
  Walk walk_;
  uint64_t left_ = 0, total_ = 0;  // words of this BD execution
  bool read_only_ = false;         // the argument a shim BD reads
  uint64_t spanned_ = 0;           // bytes from its base to the end of what it touches
  std::vector<std::byte> staged_;  // MM2S: padded or gathered data
  // MM2S
  Route route_;
  bool route_open_ = false, in_packet_ = false;
  bool route_crosses_ = false;  // to other columns, or through arbiters
  uint64_t route_epoch_ = 0;
  bool header_pending_ = false;
  uint32_t header_ = 0;
  uint64_t move_words_ = 0;  // words of the posted job
  AliasSource alias_;        // what its receivers' memories alias instead of being written
  // What an MM2S channel in kMove waits for: a receiver, or an arbiter of a tile.
  const Channel* blocked_sink_ = nullptr;
  Tile* blocked_tile_ = nullptr;
  int blocked_arbiter_ = 0;
  // S2MM: senders blocked until this channel is ready again.
  WaitList senders_;
};

struct Tile {
  Tile(Array& array, int col, int row);
  ~Tile();
  Tile(const Tile&) = delete;
  Tile& operator=(const Tile&) = delete;
  // Power-on state; memory is cleared too.
  void reset();
  std::string name() const;  // "core (0,2)"
  Channel& channel(arch::Direction direction, int index) {
    return *channels[static_cast<size_t>(direction)][static_cast<size_t>(index)];
  }

  const int col, row;
  const arch::TileModel& model;
  std::shared_ptr<AlignedBytes> memory;  // shared with views given to callbacks
  AliasTable aliases;                    // of `memory`
  std::vector<Lock> locks;
  std::vector<BdSlot> bds;
  std::array<std::vector<std::unique_ptr<Channel>>, 2> channels;  // [direction][index]
  StreamSwitch stream_switch;
  uint32_t shim_mux = 0, shim_demux = 0;
  std::array<uint32_t, 6> pad_value{};           // memtile MM2S constants (npu2)
  std::map<uint32_t, uint32_t> other_registers;  // read-back storage of undecoded writes
  std::unique_ptr<Core> core;
};

}  // namespace npu::emulator
