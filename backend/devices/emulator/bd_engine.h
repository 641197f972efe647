// The BD engine of a DMA channel, the half that both directions share: a queue of tasks, each of
// them a chain of buffer descriptors (BDs); the locks that a BD acquires and releases; the walk
// over its memory. Sender (MM2S) and Receiver (S2MM) add the stream side. Semantics: hardware.md
// 2.6. Tasks and BDs: bd_engine.cpp; what a BD's locks and addresses refer to: bd_access.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arch/bd.h"
#include "arch/geometry.h"
#include "devices/emulator/agent.h"
#include "devices/emulator/walk.h"
#include "error.h"

namespace npu::emulator {

struct BdSlot;
struct Lock;
struct Tile;

class BdEngine : public Agent {
 public:
  BdEngine(Array& array, Tile& tile, arch::Direction direction, int index);
  // A stream port (ports.h), to which transfers come by run_words() instead of BDs.
  struct NoBds {};
  BdEngine(Array& array, Tile& tile, arch::Direction direction, NoBds);

  // The channel's registers; a write to the task queue is a push.
  uint32_t control = 0;
  uint32_t status() const;
  void push(uint32_t queue_word);
  virtual void reset();  // drops the queue and the running task
  // Its BD has been written again with the words that it has. If it waits for the BD's first word
  // and the lock that it has acquired was written since, it acquires the lock anew: the stream has
  // configured both afresh (docs/reference/command_stream.md, "Loading configurations").
  void rearm(int bd);

  bool idle() const { return !task_ && queue_.empty(); }
  size_t tasks() const { return queue_.size() + (task_ ? 1 : 0); }
  bool full() const { return task_ && queue_.size() == arch::kTaskQueueDepth; }
  bool moving() const { return state_ == State::kBusy; }  // a posted job sends from or to it
  // Whether a queued or running task can still execute this BD.
  bool uses_bd(int bd) const;
  // "moved 12 of 512 words of BD 3" - empty when idle.
  std::string progress() const;
  bool has_moved() const { return current_.left != current_.total; }  // part of the running BD
  // Whether the next step of the running BD may touch other columns: a lock or memory of a
  // neighbour, or what the stream side reaches.
  bool crosses() const;

  // Where it is between two runs; none if it is in the middle of what only the register level can
  // go on with.
  struct Rest;
  virtual std::optional<Rest> rest() const;
  void put(const Rest& rest);

  void advance() final;
  std::string name() const override;
  std::string waiting() const final;

  const Tile& tile() const { return tile_; }
  arch::Direction direction() const { return direction_; }
  int index() const { return index_; }
  bool is_channel() const { return index_ >= 0; }  // not a stream port
  // An error of what this channel was told to do: "[submit] <name> <text>".
  [[noreturn]] void error(ErrorKind kind, const std::string& text) const;

 protected:
  friend class Recorder;
  // kStray: it will not be sent anything, and where its BD points there is no memory either.
  enum class State : uint8_t { kIdle, kAcquire, kMove, kBusy, kStray };
  // The BD that runs, latched when it starts.
  struct Current {
    int id = 0;
    arch::Bd bd;
    Walk walk;
    uint64_t left = 0, total = 0;  // words
    // Its base and what it touches from there on, bytes of a tile's memory; null: of an argument.
    Tile* owner = nullptr;
    uint64_t offset = 0, span = 0;
    bool readable = true;       // false: a run without data does not have its words
    uint32_t lock_written = 0;  // Lock::written of its lock when it was acquired
    uint32_t patch = 0;         // BdSlot::patch, if its base is in an argument

    void rest(State state);
  };
  // What a BD's base points at.
  struct Memory {
    std::byte* data;
    uint64_t words;         // to its end
    bool constant;          // nothing writes it during the run
    bool readable;          // a run without data has only arguments that were given
    Tile* owner = nullptr;  // and where in its memory
    uint64_t offset = 0;
  };

  // What the stream side adds. In kMove, transfer() moves data while there is work left; false when
  // it is blocked or has posted a job.
  virtual bool transfer() = 0;
  virtual bool has_work_left() const { return current_.left > 0; }  // words or a packet header
  virtual void prepare_transfer(const Memory&) {}  // after the walk has been set up
  virtual void end_of_data() {}                    // TLAST of a BD that does not suppress it
  virtual void task_ended() {}
  virtual bool stream_crosses() const { return false; }  // to other columns
  virtual std::string waiting_for_stream() const = 0;

  // Whether this part of the round may touch a tile.
  bool within_part(const Tile& other) const;
  // Memtile BDs also name locks and memory of the tiles beside: -1 is west, 0 own, 1 east.
  Tile* tile_beside(int side) const;  // null where this channel does not reach it
  Tile* lock_owner(uint32_t id, uint32_t* local) const;  // null where the id reaches no lock
  bool acquire();
  bool is_stray() const;  // see State
  void begin_transfer();
  void finish_bd();
  // Of a stream port: a transfer from or to these words, which must stay where they are.
  void run_words(std::span<uint32_t> words, bool tlast);

  Array& array_;
  Tile& tile_;
  State state_ = State::kIdle;
  Current current_;

 private:
  struct Task {
    int bd = 0;  // the first of its chain
    int repeats_left = 0;
    bool token = false;
    int bds_in_pass = 0;  // finished since the start of the chain
  };
  bool defer_to_other_part();
  bool start_task();
  void start_bd(int bd);
  BdSlot& slot(int bd) const;
  bool chain_contains(int start, int bd) const;
  void check_modes() const;
  void check_padding() const;
  void release_lock();
  Lock& lock_of(uint32_t id, const char* what) const;
  std::string lock_name(uint32_t id) const;
  Memory resolve() const;
  Memory resolve_host() const;

  const arch::Direction direction_;
  const int index_;
  std::vector<Task> queue_;
  std::optional<Task> task_;  // the running one
};

struct BdEngine::Rest {
  uint32_t control = 0;
  State state = State::kIdle;
  Current current;
  std::vector<Task> queue;
  std::optional<Task> task;
};

}  // namespace npu::emulator
