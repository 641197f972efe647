// The pool of instruction buffers by itself: a stream that a run uses is neither evicted nor
// forgotten, others go in the order of their last use, and a larger heap than the driver gives is
// never asked for.
#include "devices/xrt/module/failure.h"
#include "devices/xrt/module/instruction_pool.h"
#include "xrt_fixture.h"

namespace {

using npu::test::XrtMachine;
using npu::xrt_module::InstructionPool;
using npu::xrt_module::kGranule;
using npu::xrt_module::kHeapBudget;

}  // namespace

TEST_CASE("xrt: a stream in use is neither evicted nor forgotten") {
  XrtMachine machine;
  npu::xrt_module::HeapUse use;
  const xrt::device device(0);
  InstructionPool pool(device, 0, use);
  const std::vector<uint32_t> some(10);
  const std::vector<npu_xrt_words> words = {{some.data(), 4}, {some.data() + 4, 6}};
  pool.pin(1, words);
  pool.pin(2, words);
  pool.pin(3, words);
  CHECK(use.bytes == 3 * kGranule);
  pool.pin(1, words);
  CHECK(use.uploads == 3);
  CHECK(pool.evict_one());  // 2
  CHECK(pool.evict_one());  // 3
  CHECK_FALSE(pool.evict_one());
  pool.forget(1);
  CHECK(use.bytes == kGranule);
  pool.pin(3, words);
  CHECK(use.uploads == 4);
  CHECK(pool.evict_one());  // 1, which no run uses any more
  pool.unpin();
  pool.forget(3);
  CHECK(use.bytes == 0);
  CHECK(use.evictions == 3);
}

TEST_CASE("xrt: words far apart are synchronised apart, in any order") {
  XrtMachine machine;
  npu::xrt_module::HeapUse use;
  const xrt::device device(0);
  InstructionPool pool(device, 0, use);
  const std::vector<uint32_t> some(6000, 1);
  const npu_xrt_words words{some.data(), some.size()};
  pool.pin(1, {&words, 1});
  pool.unpin();
  const uint64_t before = xrt_double::counters().stream_bytes;
  CHECK(before == 4 * some.size());
  const npu_xrt_patch patches[] = {{5999, 9}, {3, 7}, {5, 8}, {1029, 6}};
  pool.patch(1, patches);
  CHECK(xrt_double::counters().stream_bytes - before == 4 * (1029 - 3 + 1) + 4);
  pool.patch(1, {});
  pool.patch(2, patches);  // not there
  const npu_xrt_patch outside[] = {{uint64_t{1} << 40, 1}};
  CHECK_THROWS_AS(pool.patch(1, outside), npu::xrt_module::Failure);
}

TEST_CASE("xrt: the pool stays within its budget") {
  XrtMachine machine;
  npu::xrt_module::HeapUse use;
  const xrt::device device(0);
  InstructionPool pool(device, 0, use);
  const std::vector<uint32_t> large(kHeapBudget / 4 + 1);
  const npu_xrt_words quarter{large.data(), kHeapBudget / 4 / 4};
  for (uint64_t id = 1; id <= 9; ++id) {
    pool.pin(id, {&quarter, 1});
    CHECK(use.bytes <= kHeapBudget);
  }
  CHECK(use.bytes == kHeapBudget);
  CHECK(use.evictions == 5);
  const npu_xrt_words too_large{large.data(), large.size()};
  CHECK_THROWS_AS(pool.pin(10, {&too_large, 1}), npu::xrt_module::Failure);
  CHECK(use.bytes == kHeapBudget);
}
