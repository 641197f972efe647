// Implementation of the spinning thread pool (thread_pool.h).
#include "thread_pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstdlib>

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
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { worker(); });
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
  // Items are numbered in 32 bits; nobody comes near.
  assert(count < UINT32_MAX);
  const uint32_t round = static_cast<uint32_t>(ticket_.load() >> 32) + 1;
  count_ = count;
  call_ = call;
  body_ = body;
  done_ = 0;
  ticket_ = uint64_t{round} << 32;
  if (sleepers_ > 0) {
    const std::lock_guard<std::mutex> guard(mutex_);
    started_.notify_all();
  }
  work(round);
  for (int spins = 0; done_.load(std::memory_order_acquire) != count; ++spins) {
    if (spins < kSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::work(uint32_t round) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(ticket >> 32) == round) {
    const size_t item = static_cast<uint32_t>(ticket);
    if (item >= count_) return;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
    // The claim holds the round open, so call_ and body_ are this round's.
    call_.load()(body_.load(), item);
    done_.fetch_add(1, std::memory_order_release);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::worker() {
  uint32_t seen = 0;
  const auto current = [&] { return static_cast<uint32_t>(ticket_.load() >> 32); };
  while (true) {
    int spins = 0;
    while (current() == seen && !stop_) {
      if (++spins < kSpins) {
        relax();
        continue;
      }
      std::unique_lock<std::mutex> lock(mutex_);
      ++sleepers_;
      started_.wait(lock, [&] { return current() != seen || stop_; });
      --sleepers_;
    }
    if (stop_) return;
    seen = current();
    work(seen);
  }
}

}  // namespace npu
