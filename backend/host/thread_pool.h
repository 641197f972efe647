// A small thread pool. The emulator's parallel rounds last microseconds, so idle workers spin
// briefly before they sleep. Size: as set, else NPU_THREADS, else the usable CPUs.
#pragma once

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace npu {

class ThreadPool {
 public:
  static ThreadPool& shared();
  // How many threads shared() has from its next call on; 0: as the environment says.
  static void set_shared_threads(int threads);
  static int shared_threads();
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(threads_); }
  // The first of the items that thread t of T starts with; behind the last thread, their number.
  static size_t share(size_t t, size_t threads, size_t count) { return t * count / threads; }

  // Calls body(i) for i in [0, count), in any order and on any thread; returns when all are done.
  // Thread t of T starts with the t-th of T equal parts (share()), then helps the others: callers
  // that keep the order of their items keep each item's data in one CPU's cache. `body` must not
  // throw. Only one call at a time per pool (callers are serialised).
  template <typename Body>
  void parallel_for(size_t count, const Body& body) {
    if (count == 0) return;
    if (count == 1 || workers_.empty()) {
      for (size_t i = 0; i < count; ++i) body(i);
      return;
    }
    run(count, [](const void* b, size_t i) { (*static_cast<const Body*>(b))(i); }, &body, {});
  }

  // The same; a thread that waits for others calls idle(t), t being its number, again and again,
  // until all items are done or it returns false. `idle` must not throw, and takes microseconds at
  // most: the round ends no earlier.
  template <typename Body, typename Idle>
  void parallel_for(size_t count, const Body& body, const Idle& idle) {
    if (count == 0 || workers_.empty()) return parallel_for(count, body);
    const auto wait = [](const void* b, size_t t) { return (*static_cast<const Idle*>(b))(t); };
    run(count, [](const void* b, size_t i) { (*static_cast<const Body*>(b))(i); }, &body,
        {wait, &idle});
  }

 private:
  using Call = void (*)(const void*, size_t);
  // What threads do while they wait; null: nothing.
  struct Waiting {
    bool (*call)(const void*, size_t) = nullptr;
    const void* body = nullptr;
  };
  // What a round does. Rounds alternate between two of these, so a worker that wakes late reads the
  // one its own round was described in.
  struct Round {
    std::atomic<size_t> count{0};
    std::atomic<Call> call{nullptr};
    std::atomic<const void*> body{nullptr};
    Waiting waiting;  // published by idle_round_, and put when nobody is idling
  };
  // One thread's share of the items: the round in the high half, the next unclaimed item in the low
  // half. Items are claimed by compare-and-swap, so nobody can touch a finished round.
  struct alignas(64) Share {
    std::atomic<uint64_t> ticket{0};
  };
  // A worker that waits for started_.
  struct Sleeper {
    bool asleep = false;
    bool moved = false;   // it may not run on the CPU of the thread that has woken it,
    cpu_set_t allowed{};  // but could before
  };
  void run(size_t count, Call call, const void* body, Waiting waiting);
  void idle(uint32_t round, size_t self);
  void work(uint32_t round, size_t self);
  void wake();
  void sleep(size_t self, uint32_t seen);
  void worker(size_t self);

  std::vector<std::thread> workers_;
  std::unique_ptr<Share[]> shares_;
  size_t threads_ = 1;
  std::mutex serial_;  // one parallel_for at a time
  std::mutex mutex_;
  std::condition_variable started_;
  std::unique_ptr<Sleeper[]> sleeping_;  // by thread, with mutex_
  // On cache lines of their own: polling one must not contend with writes of another.
  alignas(64) Round rounds_[2];
  alignas(64) std::atomic<uint32_t> round_{0};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<size_t> done_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  // The round in which workers may call what its description says, and how many do.
  static constexpr uint64_t kNoRound = ~uint64_t{0};
  alignas(64) std::atomic<uint64_t> idle_round_{kNoRound};
  std::atomic<int> idling_{0};
};

// body(i) for i in [0, count) on the threads of a pool, which calls idle, if anything, as its
// parallel_for says. Throws the exception of the lowest i, when all have ended.
template <typename Body, typename... Idle>
void for_all(ThreadPool& pool, size_t count, const Body& body, const Idle&... idle) {
  std::vector<std::exception_ptr> errors(count);
  const auto item = [&](size_t i) {
    try {
      body(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  pool.parallel_for(count, item, idle...);
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace npu
