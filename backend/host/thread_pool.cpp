// Implementation of the thread pool (host/thread_pool.h).
#include "host/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <map>
#include <system_error>
#include <utility>

#include "error.h"

namespace npu {

namespace {

constexpr int kMaxThreads = 256;
// Waiting is polling for some 30 us, which rounds rarely need, then yielding the CPU: where other
// processes want it, a waiting thread that kept it would be preempted later, in the middle of an
// item, and hold up the round. A worker that has yielded some 100 us long goes to sleep.
constexpr int kPolls = 2000, kYields = 200;

// One step of waiting for another thread, the `waits`-th in a row.
void relax(int waits) {
  if (waits < kPolls) {
    __builtin_ia32_pause();
  } else {
    std::this_thread::yield();
  }
}

// Polls until another thread has made it so.
template <typename Condition>
void wait_until(const Condition& condition) {
  for (int waits = 0; !condition();) {
    relax(waits);
    if (waits < kPolls) ++waits;
  }
}

int default_threads() {
  const char* text = std::getenv("NPU_THREADS");
  if (text && *text) {
    char* end = nullptr;
    const long n = std::strtol(text, &end, 10);
    if (end == text || *end != 0 || n < 1 || n > kMaxThreads) {
      fail(ErrorKind::kArgument, "[threads] NPU_THREADS is \"%.40s\"; use a number from 1 to %d",
           text, kMaxThreads);
    }
    return static_cast<int>(n);
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

std::mutex chosen_mutex;
int chosen = 0;  // by set_shared_threads; 0: default_threads

}  // namespace

ThreadPool& ThreadPool::shared() {
  // One pool per size that was ever chosen, so that nobody's reference dangles. Threads do not
  // survive fork(): a child gets pools of its own and leaks its parent's objects.
  static std::map<int, ThreadPool*>* pools = nullptr;
  static pid_t owner = 0;
  const std::lock_guard<std::mutex> guard(chosen_mutex);
  if (chosen == 0) chosen = default_threads();
  if (!pools || owner != getpid()) {
    pools = new std::map<int, ThreadPool*>;
    owner = getpid();
  }
  ThreadPool*& pool = (*pools)[chosen];
  if (!pool) pool = new ThreadPool(chosen);
  return *pool;
}

void ThreadPool::set_shared_threads(int threads) {
  if (threads < 0 || threads > kMaxThreads) {
    fail(ErrorKind::kArgument, "[threads] %d threads; use a number from 1 to %d", threads,
         kMaxThreads);
  }
  const std::lock_guard<std::mutex> guard(chosen_mutex);
  chosen = threads;
}

int ThreadPool::shared_threads() {
  const std::lock_guard<std::mutex> guard(chosen_mutex);
  return chosen != 0 ? chosen : default_threads();
}

ThreadPool::ThreadPool(int threads) : threads_(static_cast<size_t>(std::max(1, threads))) {
  shares_.reset(new Share[threads_]);
  sleeping_.reset(new Sleeper[threads_]);
  workers_.reserve(threads_);
  try {
    for (size_t i = 1; i < threads_; ++i) workers_.emplace_back([this, i] { worker(i); });
  } catch (const std::system_error&) {
    // The system gives no more threads; those that exist take over the shares of the others.
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

void ThreadPool::run(size_t count, Call call, const void* body, Waiting waiting) {
  const std::lock_guard<std::mutex> one(serial_);
  assert(count < UINT32_MAX);  // items are numbered in 32 bits
  const uint32_t round = round_.load() + 1;
  Round& description = rounds_[round & 1];
  description.count = count;
  description.call = call;
  description.body = body;
  description.waiting = waiting;
  if (waiting.call != nullptr) idle_round_ = round;
  done_ = 0;
  for (size_t t = 0; t < threads_; ++t) {
    shares_[t].ticket = uint64_t{round} << 32 | static_cast<uint32_t>(share(t, threads_, count));
  }
  round_ = round;
  if (sleepers_ > 0) wake();
  work(round, 0);
  const auto ended = [&] { return done_.load(std::memory_order_acquire) == count; };
  if (waiting.call == nullptr) return wait_until(ended);
  while (!ended() && waiting.call(waiting.body, 0)) {
  }
  wait_until(ended);
  idle_round_ = kNoRound;
  wait_until([&] { return idling_ == 0; });  // whoever came before that is among them
}

// All threads see accesses to idle_round_ and idling_ in one order: a worker that finds its round
// open has been counted before run() waits for those that are. One that is preempted here holds up
// the round, as in an item, beside which the time here is short.
void ThreadPool::idle(uint32_t round, size_t self) {
  if (idle_round_ != round) return;
  ++idling_;
  while (idle_round_ == round) {
    const Waiting& waiting = rounds_[round & 1].waiting;
    if (!waiting.call(waiting.body, self)) break;
  }
  --idling_;
}

// Linux may wake a thread on the CPU of the one that wakes it although another CPU is idle, and
// leave both there for milliseconds: on two CPUs it always does. So they must run elsewhere first.
void ThreadPool::wake() {
  const std::lock_guard<std::mutex> guard(mutex_);
  const int here = sched_getcpu();
  for (size_t i = 1; i <= workers_.size() && here >= 0; ++i) {
    Sleeper& sleeper = sleeping_[i];
    if (!std::exchange(sleeper.asleep, false)) continue;
    const pthread_t thread = workers_[i - 1].native_handle();
    if (pthread_getaffinity_np(thread, sizeof sleeper.allowed, &sleeper.allowed) != 0) continue;
    cpu_set_t others = sleeper.allowed;
    CPU_CLR(static_cast<size_t>(here), &others);
    sleeper.moved =
        CPU_COUNT(&others) > 0 && pthread_setaffinity_np(thread, sizeof others, &others) == 0;
  }
  started_.notify_all();
}

void ThreadPool::sleep(size_t self, uint32_t seen) {
  std::unique_lock<std::mutex> lock(mutex_);
  Sleeper& me = sleeping_[self];
  me.asleep = true;
  ++sleepers_;
  started_.wait(lock, [&] { return round_.load() != seen || stop_; });
  --sleepers_;
  me.asleep = false;
  if (std::exchange(me.moved, false)) sched_setaffinity(0, sizeof me.allowed, &me.allowed);
}

void ThreadPool::work(uint32_t round, size_t self) {
  const Round& description = rounds_[round & 1];
  const size_t count = description.count;
  Call call = nullptr;
  const void* body = nullptr;
  size_t finished = 0;
  for (size_t i = 0; i < threads_; ++i) {
    const size_t owner = (self + i) % threads_;
    const size_t end = share(owner + 1, threads_, count);
    std::atomic<uint64_t>& shared = shares_[owner].ticket;
    uint64_t ticket = shared.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(ticket >> 32) == round && static_cast<uint32_t>(ticket) < end) {
      if (!shared.compare_exchange_weak(ticket, ticket + 1)) continue;
      // A claim holds the round open, so the description is this round's.
      if (!call) {
        call = description.call;
        body = description.body;
      }
      call(body, static_cast<uint32_t>(ticket));
      ++finished;
      ticket = shared.load(std::memory_order_acquire);
    }
  }
  // Told once: every write to this line takes it away from the thread that polls it.
  if (finished > 0) done_.fetch_add(finished, std::memory_order_release);
}

void ThreadPool::worker(size_t self) {
  uint32_t seen = 0;
  while (true) {
    int waits = 0;
    while (round_.load(std::memory_order_acquire) == seen && !stop_) {
      if (waits < kPolls + kYields) {
        relax(waits++);
        continue;
      }
      sleep(self, seen);
      waits = 0;
    }
    if (stop_) return;
    seen = round_.load(std::memory_order_acquire);
    work(seen, self);
    idle(seen, self);
  }
}

}  // namespace npu
