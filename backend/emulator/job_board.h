// Hands a round's jobs to threads while the round is still being posted and completed: the serial
// work of a round, which one thread does, then holds up nobody else.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace npu::emulator {

class Agent;

class JobBoard {
 public:
  static constexpr size_t kColumns = 16, kSlots = 64;  // powers of two

  JobBoard() : columns_(new Column[kColumns]) {}
  // Columns of the array; the jobs of more than kColumns share.
  void set_columns(int columns);

  // The pool's workers begin to run what is posted. False if there are none to be had.
  bool open();
  // A job of an array column: its place, or -1 if the column is full. For the opening thread, like
  // all below.
  int post(Agent* agent, int column);
  // Runs one posted job that nobody has begun; false if there is none.
  bool run_one() { return run_one(0); }
  bool done(int place) const;
  // What the job threw, or null.
  std::exception_ptr error(int place);
  // All jobs have been posted: threads may take those of columns that are not theirs.
  void all_posted() { posted_.store(true, std::memory_order_release); }
  // All jobs have been posted and begun.
  void no_more() { closed_.store(true, std::memory_order_release); }
  // Withdraws the jobs that nobody has begun and waits for the others.
  void close();
  bool is_open() const { return open_; }

 private:
  enum State : uint8_t { kPosted, kDone, kFailed };
  struct alignas(64) Column {
    std::array<Agent*, kSlots> jobs{};
    alignas(64) std::array<std::atomic<uint8_t>, kSlots> states{};
    alignas(64) size_t posted = 0;
  };
  struct Failure {
    size_t place;
    std::exception_ptr error;
  };
  // What workers call: run jobs until there are no more.
  struct Helper {
    JobBoard* board;
    void operator()(size_t thread) const { board->help(thread); }
  };
  void help(size_t thread);
  bool run_one(size_t thread);
  void run(size_t column, size_t slot);

  // A bit per job that nobody has begun; idle threads poll them all.
  alignas(64) std::array<std::atomic<uint64_t>, kColumns> waiting_{};
  alignas(64) std::atomic<bool> closed_{true};
  std::atomic<bool> posted_{true};
  std::unique_ptr<Column[]> columns_;
  size_t used_ = kColumns, threads_ = 1;
  bool open_ = false;
  Helper helper_{this};
  std::mutex mutex_;  // of failures_
  std::vector<Failure> failures_;
};

}  // namespace npu::emulator
