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

ThreadPool::ThreadPool(int threads) : threads_(static_cast<size_t>(std::max(1, threads))) {
  shares_.reset(new Share[threads_]);
  for (size_t i = 1; i < threads_; ++i) workers_.emplace_back([this, i] { worker(i); });
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
  assert(count < UINT32_MAX);  // items are numbered in 32 bits
  const uint32_t round = round_.load() + 1;
  Round& description = rounds_[round & 1];
  description.count = count;
  description.call = call;
  description.body = body;
  done_ = 0;
  for (size_t t = 0; t < threads_; ++t) {
    shares_[t].ticket = uint64_t{round} << 32 | static_cast<uint32_t>(t * count / threads_);
  }
  round_ = round;
  if (sleepers_ > 0) {
    const std::lock_guard<std::mutex> guard(mutex_);
    started_.notify_all();
  }
  work(round, 0);
  for (int spins = 0; done_.load(std::memory_order_acquire) != count; ++spins) {
    if (spins < kSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::work(uint32_t round, size_t self) {
  const Round& description = rounds_[round & 1];
  const size_t count = description.count;
  for (size_t i = 0; i < threads_; ++i) {
    const size_t owner = (self + i) % threads_;
    const size_t end = (owner + 1) * count / threads_;
    std::atomic<uint64_t>& shared = shares_[owner].ticket;
    uint64_t ticket = shared.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(ticket >> 32) == round && static_cast<uint32_t>(ticket) < end) {
      if (!shared.compare_exchange_weak(ticket, ticket + 1)) continue;
      // The claim holds the round open, so the description is this round's.
      description.call.load()(description.body.load(), static_cast<uint32_t>(ticket));
      done_.fetch_add(1, std::memory_order_release);
      ticket = shared.load(std::memory_order_acquire);
    }
  }
}

void ThreadPool::worker(size_t self) {
  uint32_t seen = 0;
  while (true) {
    int spins = 0;
    while (round_.load(std::memory_order_acquire) == seen && !stop_) {
      if (++spins < kSpins) {
        relax();
        continue;
      }
      std::unique_lock<std::mutex> lock(mutex_);
      ++sleepers_;
      started_.wait(lock, [&] { return round_.load() != seen || stop_; });
      --sleepers_;
    }
    if (stop_) return;
    seen = round_.load(std::memory_order_acquire);
    work(seen, self);
  }
}

}  // namespace npu
