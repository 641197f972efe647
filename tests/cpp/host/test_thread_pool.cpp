// The thread pool: every index once, whatever the counts and threads; many rounds after pauses long
// enough for workers to fall asleep; what threads do while they wait for others; callers from
// several threads; no thread at all; on which CPUs workers wake up.
#include <doctest/doctest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "error.h"
#include "host/thread_pool.h"

using npu::ThreadPool;

TEST_SUITE_BEGIN("columns");  // which ThreadSanitizer runs

TEST_CASE("every index is visited once") {
  for (const int threads : {0, 1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == std::max(threads, 1));
    for (size_t count = 0; count < 70; ++count) {
      std::vector<int> visits(count, 0);  // distinct elements: no two threads share one
      pool.parallel_for(count, [&](size_t i) { ++visits[i]; });
      REQUIRE(visits == std::vector<int>(count, 1));
    }
  }
}

TEST_CASE("what the first of several bodies has thrown is thrown when all have ended") {
  for (const int threads : {1, 2, 8}) {
    ThreadPool pool(threads);
    std::vector<int> visits(70, 0);
    const auto body = [&](size_t i) {
      ++visits[i];
      if (i % 20 == 13) throw i;
    };
    size_t thrown = 0;
    try {
      npu::for_all(pool, visits.size(), body);
    } catch (const size_t i) {
      thrown = i;
    }
    CHECK(thrown == 13);
    CHECK(visits == std::vector<int>(70, 1));
    npu::for_all(pool, 13, body);
    npu::for_all(pool, 0, body);
  }
}

TEST_CASE("results of a round are visible to the next and to the caller") {
  ThreadPool pool(4);
  std::vector<uint64_t> values(97);
  std::iota(values.begin(), values.end(), 0);
  for (int round = 0; round < 3000; ++round) {
    std::vector<uint64_t> next(values.size());
    pool.parallel_for(values.size(),
                      [&](size_t i) { next[i] = values[i] + values[(i + 1) % values.size()]; });
    values.swap(next);
  }
  std::vector<uint64_t> expected(97);
  std::iota(expected.begin(), expected.end(), 0);
  for (int round = 0; round < 3000; ++round) {
    std::vector<uint64_t> next(expected.size());
    for (size_t i = 0; i < 97; ++i) next[i] = expected[i] + expected[(i + 1) % 97];
    expected.swap(next);
  }
  CHECK(values == expected);
}

TEST_CASE("threads that wait call idle while an item is left, and not after") {
  for (const size_t count : {1, 2, 5}) {
    CAPTURE(count);
    ThreadPool pool(3);
    std::atomic<int> waiting{0};
    const auto body = [&](size_t i) {
      while (i == 0 && waiting < 2) std::this_thread::yield();  // both of the others wait
    };
    std::array<std::atomic<int>, 3> calls{};
    const auto idle = [&](size_t thread) {
      if (++calls[thread] == 1) ++waiting;
      return true;
    };
    pool.parallel_for(count, body, idle);
    const int before = calls[0] + calls[1] + calls[2];
    CHECK(before >= 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    CHECK(calls[0] + calls[1] + calls[2] == before);
  }
}

TEST_CASE("a thread that has nothing to do while it waits is not asked again") {
  for (const size_t slow : {0, 1}) {  // the thread with the long item; the other waits for it
    CAPTURE(slow);
    ThreadPool pool(2);
    std::atomic<bool> started{false};
    std::array<std::atomic<int>, 2> calls{};
    const auto body = [&](size_t i) {
      if (i != slow) {
        while (!started) std::this_thread::yield();
        return;
      }
      started = true;
      while (calls[0] + calls[1] == 0) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
    pool.parallel_for(2, body, [&](size_t thread) {
      ++calls[thread];
      return false;
    });
    CHECK(calls[1 - slow] == 1);
    CHECK(calls[slow] <= 1);  // once, where the end of the round has not been told yet
  }
}

TEST_CASE("no thread waits beside a body when the pool has none") {
  ThreadPool pool(1);
  int items = 0;
  pool.parallel_for(
      3, [&](size_t) { ++items; }, [](size_t) -> bool { throw std::logic_error("idle"); });
  CHECK(items == 3);
}

TEST_CASE("idle is not called for a round that has ended, however late a worker is") {
  constexpr size_t kRounds = 3000;
  ThreadPool pool(3);
  std::vector<std::atomic<bool>> ended(kRounds);
  std::atomic<bool> late{false};
  for (size_t round = 0; round < kRounds; ++round) {
    // Workers that sleep begin after others, or not before the round has ended.
    if (round % 1000 == 999) std::this_thread::sleep_for(std::chrono::milliseconds(8));
    std::vector<size_t> calls(3);  // the caller's own, which is gone then
    std::atomic<size_t> sum{0};
    const size_t count = 1 + round % 5;
    const auto idle = [&, round](size_t thread) {
      if (ended[round]) late = true;
      return ++calls[thread] < 20;
    };
    pool.parallel_for(count, [&](size_t i) { sum += i + 1; }, idle);
    ended[round] = true;
    REQUIRE(sum == count * (count + 1) / 2);
  }
  CHECK_FALSE(late);
}

TEST_CASE("workers that fell asleep wake up") {
  ThreadPool pool(3);
  for (int round = 0; round < 15; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(round % 3 == 0 ? 8 : 0));
    std::atomic<size_t> sum{0};
    pool.parallel_for(50, [&](size_t i) { sum += i; });
    REQUIRE(sum == 50 * 49 / 2);
  }
}

namespace {

// Whether a thread of this process sleeps: neither runs nor waits for a CPU.
bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t name = text.rfind(')');
  return name != std::string::npos && text.compare(name, 4, ") S ") == 0;
}

// The calling thread stays on the CPU where it is.
class Pinned {
 public:
  Pinned() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu = sched_getcpu();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(cpu), &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~Pinned() { sched_setaffinity(0, sizeof before_, &before_); }
  int cpu;

 private:
  cpu_set_t before_;
};

}  // namespace

TEST_CASE("workers that fell asleep wake up on another CPU, and may use all of them then") {
  cpu_set_t allowed;
  REQUIRE(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  if (CPU_COUNT(&allowed) < 2) return;
  ThreadPool pool(2);
  const Pinned caller;
  const std::thread::id id = std::this_thread::get_id();
  constexpr int kRounds = 20;
  int elsewhere = 0;
  pid_t worker = 0;
  for (int round = 0; round <= kRounds; ++round) {
    std::atomic<int> there{-1};
    cpu_set_t of_worker;
    pool.parallel_for(2, [&](size_t) {  // an item each: nobody ends before the worker has begun
      if (std::this_thread::get_id() != id) {
        worker = gettid();
        sched_getaffinity(0, sizeof of_worker, &of_worker);
        there = sched_getcpu();
      }
      while (there < 0) std::this_thread::yield();
    });
    REQUIRE(CPU_EQUAL(&of_worker, &allowed));
    if (round > 0) elsewhere += there != caller.cpu;  // the first one found it awake, or not begun
    for (int waits = 0; !sleeps(worker); ++waits) {
      REQUIRE(waits < 10000);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  CHECK(elsewhere > kRounds / 2);
}

TEST_CASE("callers from several threads take turns") {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<size_t> total{0};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        std::atomic<size_t> sum{0};
        pool.parallel_for(20, [&](size_t i) { sum += i; });
        total += sum;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(total == size_t{4} * 200 * 190);
}

TEST_CASE("pools come and go") {
  for (int i = 0; i < 30; ++i) {
    ThreadPool pool(1 + i % 4);
    std::atomic<int> calls{0};
    if (i % 2) pool.parallel_for(5, [&](size_t) { ++calls; });
    CHECK(calls == (i % 2 ? 5 : 0));
  }
}

TEST_CASE("the shared pool has as many threads as were set, and sizes keep their pools") {
  ThreadPool::set_shared_threads(3);
  ThreadPool& three = ThreadPool::shared();
  CHECK(three.threads() == 3);
  ThreadPool::set_shared_threads(1);
  CHECK(ThreadPool::shared().threads() == 1);
  CHECK(ThreadPool::shared_threads() == 1);
  // A reference taken before stays good.
  std::atomic<int> sum{0};
  three.parallel_for(100, [&](size_t i) { sum += static_cast<int>(i); });
  CHECK(sum == 4950);
  ThreadPool::set_shared_threads(3);
  CHECK(&ThreadPool::shared() == &three);
  CHECK_THROWS_AS(ThreadPool::set_shared_threads(257), npu::Error);
  CHECK_THROWS_AS(ThreadPool::set_shared_threads(-1), npu::Error);
  ThreadPool::set_shared_threads(0);
  CHECK(ThreadPool::shared_threads() >= 1);
}

TEST_SUITE_END();
