// Memtiles that keep an operand: which one a problem keeps, and the tasks that its stream starts,
// counted by the BDs that they begin with: every object is taken and sent as often as the rounds
// need it, never more tasks than a queue holds, and BDs that advance are left at their first slot.
#include <doctest/doctest.h>

#include <map>
#include <utility>
#include <vector>

#include "arch/bd.h"
#include "arch/geometry.h"
#include "error.h"
#include "ops/gemm/gemm_store.h"
#include "stream/txn.h"

namespace {

using namespace npu;
using ops::GemmKept;

// BDs of A and of B, and queues; registers are numbers that tell them apart.
constexpr int kKeepIn = 0, kRingIn = 1, kBesideIn = 2, kSecondIn = 3;
constexpr int kKeepOut = 24, kKeepOn = 25, kRingOut = 26, kAgainOut = 27;
constexpr int kBKeepIn = 30, kAheadIn = 31, kBRingIn = 32, kBFirstIn = 34;
constexpr int kBKeepOut = 4, kBKeepOn = 5, kBRingOut = 6, kBAgainOut = 9;
constexpr uint32_t kAIn = 0x100000, kAOut = 0x100004, kBIn = 0x200000, kBOut = 0x200004;
constexpr uint32_t kTurns = 0x300000, kLengths = 0x400000;  // of BD i: + 4 i
constexpr uint32_t kObject = 64 * 256 / 2;                  // words

ops::GemmStore store_of() {
  ops::GemmStoreSide a{}, b{};
  a.keep_in = kKeepIn, a.keep_out = kKeepOut, a.keep_on = kKeepOn;
  a.ring_in = kRingIn, a.ring_out = kRingOut, a.again_out = kAgainOut;
  a.objects = 12, a.ring = 2, a.times = 3, a.halves = false;
  a.columns = {{kAIn, kAOut}};
  b.keep_in = kBKeepIn, b.keep_out = kBKeepOut, b.keep_on = kBKeepOn;
  b.ring_in = kBRingIn, b.ring_out = kBRingOut, b.again_out = kBAgainOut;
  b.first_in = kBFirstIn, b.second_in = kSecondIn, b.beside_in = kBesideIn, b.ahead_in = kAheadIn;
  b.objects = 3, b.ring = 3, b.times = 3, b.halves = true, b.ahead = 7;
  b.columns = {{kBIn, kBOut}};
  ops::GemmStore store{a, b, {}, {}};
  for (int bd = 0; bd < 48; ++bd) store.turns[bd] = {kTurns + 4 * static_cast<uint32_t>(bd)};
  for (const int bd : {kKeepOn, kBKeepOn}) {
    store.turns.erase(bd);
    store.lengths[bd] = {kLengths + 4 * static_cast<uint32_t>(bd)};
  }
  return store;
}

ops::GemmTile tile() {
  ops::GemmTile out{};
  out.m = out.n = out.k = 64;
  out.k_mt = 256;
  out.rows = out.columns = 4;
  out.a.bytes = out.b.bytes = out.c.bytes = 2;
  return out;
}

ops::GemmStorePlan plan(const ops::GemmProblem& problem, int64_t panels = 5) {
  return ops::plan_store(store_of(), tile(), problem, panels);
}

// Executions per BD by the tasks of each queue, and the words written to each BD, in order.
struct Found {
  std::map<uint32_t, std::map<int, int64_t>> tasks;
  std::map<uint32_t, size_t> queued;
  std::map<uint32_t, std::vector<uint32_t>> words;
};

template <typename Append>
Found written(const Append& append) {
  stream::Builder builder(arch::Generation::kNpu1, 4);
  append(builder);
  const std::vector<uint32_t> stream = builder.finish();
  Found out;
  const auto parsed = stream::Stream::parse(std::as_bytes(std::span(stream)));
  for (const stream::Operation& op : parsed.operations()) {
    const auto address = static_cast<uint32_t>(op.address);
    if (address >= kTurns) {
      out.words[address].push_back(op.value);
    } else {
      out.tasks[address][static_cast<int>(op.value & 0x3F)] += (op.value >> 16 & 0xFF) + 1;
      CHECK(++out.queued[address] <= 4);
    }
  }
  return out;
}

Found whole(const ops::GemmProblem& problem) {
  const ops::GemmStore store = store_of();
  const ops::GemmStorePlan planned = plan(problem);
  return written([&](stream::Builder& builder) {
    ops::append_store_in(builder, store, tile(), problem, planned, 0);
    ops::append_store_out(builder, store, tile(), problem, planned);
    ops::append_store_settled(builder, store, tile(), problem, planned);
    ops::append_store_end(builder, store, tile(), problem, planned);
  });
}

// The words of a BD that goes through so many objects, and of one that sends them at once.
uint32_t turns(uint32_t objects, uint32_t current = 0) {
  arch::Bd bd;
  bd.iteration_wrap = objects;
  bd.iteration_step = kObject;
  bd.iteration_current = current;
  return arch::encode_bd(arch::TileKind::kMem, bd)[6];
}
uint32_t length(uint32_t objects) {
  arch::Bd bd;
  bd.length = objects * kObject;
  return arch::encode_bd(arch::TileKind::kMem, bd)[0];
}

using Tasks = std::map<int, int64_t>;
using Words = std::vector<uint32_t>;

TEST_SUITE_BEGIN("gemm");

TEST_CASE("gemm store: the operand is kept whose reads cost most, if it fits") {
  CHECK(plan({256, 768, 2304}).kept == GemmKept::kA);
  CHECK(plan({256, 3072, 768}).kept == GemmKept::kA);
  CHECK(plan({256, 1024, 768}).kept == GemmKept::kA);
  CHECK(plan({2304, 256, 768}).kept == GemmKept::kB);
  CHECK(plan({768, 256, 768}).kept == GemmKept::kB);  // either; B leaves its channels idle
  CHECK(plan({768, 256, 3072}).kept == GemmKept::kA);
  CHECK(plan({256, 50176, 768}).kept == GemmKept::kNone);  // 196 objects
  CHECK(plan({256, 768, 256}).kept == GemmKept::kNone);    // sent once
  CHECK(plan({1536, 256, 1024}).kept == GemmKept::kNone);  // six panels, and four objects of B
  CHECK(plan({256, 768, 2304}).beside);
  CHECK_FALSE(plan({512, 768, 2304}).beside);  // A's channels have a second row to read
  CHECK(plan({768, 256, 3072}).again);
  CHECK(plan({2304, 256, 768}).again);
  CHECK_FALSE(plan({2304, 256, 512}).again);  // twice, not three times
}

TEST_CASE("gemm store: an A that is kept is taken once beside B and sent for every column") {
  Found found = whole({256, 2304, 2560});  // nine objects; 90 of B
  CHECK(found.tasks[kAIn] == Tasks{{kBesideIn, 9}, {kSecondIn, 81}});
  CHECK(found.tasks[kAOut] == Tasks{{kKeepOut, 9}, {kKeepOn, 9}});
  CHECK(found.tasks[kBIn] == Tasks{{kBFirstIn, 90}});
  CHECK(found.tasks[kBOut] == Tasks{{kBRingOut, 90}});
  CHECK(found.words[kTurns + 4 * kBesideIn] == Words{turns(9), turns(12)});
  CHECK(found.words[kTurns + 4 * kKeepOut] == Words{turns(9), turns(12)});
  CHECK(found.words[kLengths + 4 * kKeepOn] == Words{length(9), length(12)});
  CHECK(found.words.size() == 3);   // 90 are whole turns of a ring of three
  found = whole({256, 3072, 768});  // as many as there can be
  CHECK(found.words.empty());
  found = whole({256, 1024, 512});  // eight of B leave the ring at its third slot
  for (const int bd : {kBFirstIn, kSecondIn, kBRingOut, kBRingOut + 1, kBRingOut + 2}) {
    CHECK(found.words[kTurns + 4 * static_cast<uint32_t>(bd)] == Words{turns(3)});
  }
}

TEST_CASE("gemm store: the longest, and one more") {
  Found found = whole({256, 768, 256 * 256});
  CHECK(found.tasks[kBIn] == Tasks{{kBFirstIn, 768}});
  CHECK(found.tasks[kAOut] == Tasks{{kKeepOut, 3}, {kKeepOn, 255}});
  CHECK(ops::store_rounds(tile(), 768) == 256);
  CHECK_THROWS_AS(whole({256, 768, 256 * 257}), Error);
}

TEST_CASE("gemm store: a B that is kept, and nothing") {
  Found weights = whole({50432, 256, 768});  // 197 rows
  CHECK(weights.tasks[kBIn] == Tasks{{kBKeepIn, 3}});
  CHECK(weights.tasks[kBOut] == Tasks{{kBKeepOut, 3}, {kBKeepOn, 196}});
  CHECK(weights.tasks[kAIn] == Tasks{{kRingIn, 197}});
  CHECK(weights.tasks[kAOut] == Tasks{{kAgainOut, 197}});  // each three times
  for (const int bd : {kRingIn, kAgainOut, kAgainOut + 1, kAgainOut + 2}) {
    CHECK(weights.words[kTurns + 4 * static_cast<uint32_t>(bd)] == Words{turns(2)});
  }
  Found none = whole({256, 50176, 768});
  CHECK(none.tasks[kAIn] == Tasks{{kRingIn, 588}});
  CHECK(none.tasks[kBIn] == Tasks{{kBRingIn, 588}});
  CHECK(none.tasks[kBOut] == Tasks{{kBRingOut, 588}});
  CHECK(none.words.empty());
}

TEST_CASE("gemm store: what is read ahead, and the rest of it") {
  const ops::GemmStore store = store_of();
  const ops::GemmProblem problem{256, 2304, 768};
  ops::GemmStorePlan planned = plan(problem);
  planned.ahead = ops::ahead_of(store, tile(), problem, planned);
  CHECK(planned.ahead == 7);
  Found found = written([&](stream::Builder& builder) {
    ops::append_store_in(builder, store, tile(), problem, planned, 0);
  });
  CHECK(found.tasks[kBIn] == Tasks{{kAheadIn, 7}, {kBFirstIn, 27}});
  CHECK(found.tasks[kAIn] == Tasks{{kSecondIn, 3}});  // a ring full
  CHECK(found.words[kTurns + 4 * kAheadIn] == Words{turns(7)});
  found = written([&](stream::Builder& builder) {
    ops::append_store_rest(builder, store, tile(), problem, planned, 0);
    ops::append_store_settled(builder, store, tile(), problem, planned);
  });
  CHECK(found.tasks[kAIn] == Tasks{{kBesideIn, 2}, {kSecondIn, 22}});
  CHECK(found.words[kTurns + 4 * kBesideIn] == Words{turns(9, 7), turns(12)});
  CHECK(found.words[kTurns + 4 * kAheadIn] == Words{turns(12)});
  CHECK(ops::ahead_of(store, tile(), {256, 768, 3072}, plan({256, 768, 3072})) == 3);
  CHECK(ops::ahead_of(store, tile(), {512, 768, 768}, plan({512, 768, 768})) == 0);
  CHECK(ops::ahead_of(store, tile(), {256, 768, 256 * 90}, plan({256, 768, 256 * 90})) == 0);
}

TEST_SUITE_END();

}  // namespace
