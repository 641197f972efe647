// Implementation of the spinning thread pool (thread_pool.h).
#include "thread_pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>

namespace npu {

namespace {

// About 50 us of polling before a worker goes to sleep; rounds usually follow each other faster.
constexpr int kSpins = 20000;

void relax() { __builtin_ia32_pause(); }

int default_threads() {
  if (const char* text = std::getenv("NPU_THREADS")) {
    const int n = std::atoi(text);
    if (n >= 1) return std::min(n, 256);
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

ThreadPool& ThreadPool::shared() {
  // Threads do not survive fork(): a child gets a pool of its own and leaks its parent's object.
  static ThreadPool* pool = nullptr;
  static pid_t owner = 0;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> guard(mutex);
  if (!pool || owner != getpid()) {
    pool = new ThreadPool(default_threads());
    owner = getpid();
  }
  return *pool;
}

ThreadPool::ThreadPool(int threads) {
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { worker(); });
  } catch (const std::system_error&) {
    // The system gives no more threads: make do with what there is.
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    stop_ = true;
  }
  started_.notify_all();
  for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::run(size_t count, Call call, const void* body) {
  const std::lock_guard<std::mutex> one(serial_);
  count_ = count;
  call_ = call;
  body_ = body;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1);
  if (sleepers_.load() > 0) {
    const std::lock_guard<std::mutex> guard(mutex_);
    started_.notify_all();
  }
  work();
  for (int spins = 0; busy_.load(std::memory_order_acquire) != 0;) {
    if (spins < kSpins) {
      ++spins;
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::work() {
  for (size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) call_(body_, i);
}

void ThreadPool::worker() {
  uint64_t seen = 0;
  while (true) {
    int spins = 0;
    while (round_.load(std::memory_order_acquire) == seen && !stop_) {
      if (++spins < kSpins) {
        relax();
        continue;
      }
      std::unique_lock<std::mutex> lock(mutex_);
      sleepers_.fetch_add(1);
      started_.wait(lock, [&] { return round_.load() != seen || stop_; });
      sleepers_.fetch_sub(1);
    }
    if (stop_) return;
    seen = round_.load(std::memory_order_acquire);
    work();
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace npu
