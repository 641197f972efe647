// A small thread pool. The emulator's parallel rounds last microseconds, so idle workers spin
// briefly before they sleep. Size: NPU_THREADS, else the number of usable CPUs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace npu {

class ThreadPool {
 public:
  static ThreadPool& shared();
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(i) for i in [0, count), in any order and on any thread; returns when all are done.
  // `body` must not throw. Only one call at a time per pool (callers are serialised).
  template <typename Body>
  void parallel_for(size_t count, const Body& body) {
    if (count == 0) return;
    if (count == 1 || workers_.empty()) {
      for (size_t i = 0; i < count; ++i) body(i);
      return;
    }
    run(count, [](const void* b, size_t i) { (*static_cast<const Body*>(b))(i); }, &body);
  }

 private:
  using Call = void (*)(const void*, size_t);
  void run(size_t count, Call call, const void* body);
  void work();
  void worker();

  std::vector<std::thread> workers_;
  std::mutex serial_;  // one parallel_for at a time
  std::mutex mutex_;
  std::condition_variable started_;
  std::atomic<uint64_t> round_{0};  // bumped for each parallel_for
  std::atomic<int> busy_{0};        // workers that have not finished the current round
  std::atomic<size_t> next_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};
  size_t count_ = 0;
  Call call_ = nullptr;
  const void* body_ = nullptr;
};

}  // namespace npu
