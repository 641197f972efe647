// Memtiles that keep an operand: which one a problem keeps, and the tasks that its stream starts,
// counted by walking the chains that they begin in: every object is taken and sent as often as the
// rounds need it, and never more than a queue of four holds.
#include <doctest/doctest.h>

#include <map>
#include <utility>
#include <vector>

#include "arch/geometry.h"
#include "error.h"
#include "ops/gemm/gemm_store.h"
#include "stream/txn.h"

namespace {

using namespace npu;
using ops::GemmKept;

// 12 objects of A, 3 of B, rings of two; registers are numbers that tell them apart.
ops::GemmStoreSide side(int first_bd, std::vector<int64_t> groups, int64_t times,
                        uint32_t registers) {
  ops::GemmStoreSide::Registers of_column{registers, registers + 4, {}};
  for (uint32_t i = 0; i < groups.size(); ++i) of_column.gates.push_back(registers + 8 + 4 * i);
  return {first_bd, first_bd + 14, first_bd + 12,     first_bd + 18, first_bd + 20,
          2,        times,         std::move(groups), {of_column}};
}

const ops::GemmStore kStore{side(0, {3, 3, 1, 2, 1, 2}, 3, 0x100000),
                            side(24, {1, 2}, 1, 0x200000)};

ops::GemmTile tile() {
  ops::GemmTile out{};
  out.m = out.n = out.k = 64;
  out.k_mt = 256;
  out.rows = out.columns = 4;
  return out;
}

GemmKept kept(int64_t m, int64_t k, int64_t n, int64_t panels = 5) {
  return ops::kept_operand(kStore, tile(), {m, k, n}, panels);
}

// Values written to each register, in order.
std::map<uint32_t, std::vector<uint32_t>> written(const ops::GemmProblem& problem) {
  stream::Builder builder(arch::Generation::kNpu1, 4);
  const GemmKept which = ops::kept_operand(kStore, tile(), problem, 5);
  ops::append_store_tasks(builder, kStore, tile(), problem, which);
  ops::append_store_end(builder, kStore, tile(), problem, which);
  const std::vector<uint32_t> words = builder.finish();
  std::map<uint32_t, std::vector<uint32_t>> out;
  const auto parsed = stream::Stream::parse(std::as_bytes(std::span(words)));
  for (const stream::Operation& op : parsed.operations()) {
    out[static_cast<uint32_t>(op.address)].push_back(op.value);
  }
  return out;
}

// Executions of the BDs of a chain [first, first + count) by tasks that begin in it.
std::vector<int> executions(const std::vector<uint32_t>& tasks, uint32_t first, uint32_t count) {
  CHECK(tasks.size() <= 5);  // one runs, four wait
  std::vector<int> out(count);
  for (const uint32_t task : tasks) {
    const uint32_t bd = task & 0x3F;
    REQUIRE(bd >= first);
    for (uint32_t i = bd; i < first + count; ++i) {
      out[i - first] += static_cast<int>(task >> 16 & 0xFF) + 1;
    }
  }
  return out;
}

TEST_SUITE_BEGIN("gemm");

TEST_CASE("gemm store: the operand is kept whose reads cost most, if it fits in whole groups") {
  CHECK(kept(256, 768, 2304) == GemmKept::kA);
  CHECK(kept(256, 3072, 768) == GemmKept::kA);
  CHECK(kept(2304, 256, 768) == GemmKept::kB);
  CHECK(kept(768, 256, 3072) == GemmKept::kA);
  CHECK(kept(256, 50176, 768) == GemmKept::kNone);  // 196 objects
  CHECK(kept(256, 1024, 768) == GemmKept::kNone);   // four
  CHECK(kept(256, 768, 256) == GemmKept::kNone);    // sent once
  CHECK(kept(1536, 256, 1024) == GemmKept::kNone);  // six panels
}

TEST_CASE("gemm store: an A that is kept is taken once and sent for every column of blocks") {
  const auto found = written({256, 2304, 2560});
  CHECK(executions(found.at(0x100000), 0, 12) ==
        std::vector<int>{0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  CHECK(executions(found.at(0x100004), 14, 6) == std::vector<int>{0, 10, 10, 10, 10, 10});
  CHECK(found.count(0x100008) == 0);  // the gate of a group that is not used
  for (uint32_t gate = 0x10000C; gate <= 0x10001C; gate += 4) {
    CHECK(found.at(gate) == std::vector<uint32_t>{0});
  }
  CHECK(executions(found.at(0x200000), 36, 2) == std::vector<int>{45, 45});  // 9 x 10 objects
  CHECK(executions(found.at(0x200004), 42, 2) == std::vector<int>{45, 45});
}

TEST_CASE("gemm store: odd and long rings, and the longest") {
  for (const int64_t columns : {int64_t{197}, int64_t{512}}) {
    const auto found = written({256, 768, 256 * columns});
    const std::vector<int> ring = executions(found.at(0x200000), 36, 2);
    CHECK(ring[0] + ring[1] == 3 * columns);
    CHECK(ring[1] - ring[0] == columns % 2);  // an odd object is the second slot's
    CHECK((found.at(0x200000)[0] & 0x3F) == (columns % 2 == 1 ? 37 : 36));
    CHECK(executions(found.at(0x200004), 42, 2) == ring);
  }
  CHECK(ops::store_rounds(tile(), 768) == 512);
  CHECK_THROWS_AS(written({256, 768, 256 * 513}), Error);
}

TEST_CASE("gemm store: a B that is kept, and nothing") {
  const auto weights = written({50432, 256, 768});
  CHECK(executions(weights.at(0x200000), 24, 3) == std::vector<int>{1, 1, 1});
  CHECK(executions(weights.at(0x200004), 38, 2) == std::vector<int>{197, 197});
  const std::vector<int> again = executions(weights.at(0x100004), 20, 6);
  CHECK(again == std::vector<int>{98, 98, 98, 99, 99, 99});  // each of 197 objects three times
  CHECK(executions(weights.at(0x100000), 12, 2) == std::vector<int>{98, 99});
  const auto none = written({256, 1024, 768});
  CHECK(executions(none.at(0x100000), 12, 2) == std::vector<int>{6, 6});
  CHECK(executions(none.at(0x200004), 42, 2) == std::vector<int>{6, 6});
}

TEST_SUITE_END();

}  // namespace
