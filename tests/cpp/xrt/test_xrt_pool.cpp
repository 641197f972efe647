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
  const std::vector<uint32_t> words(10);
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

TEST_CASE("xrt: the pool stays within its budget") {
  XrtMachine machine;
  npu::xrt_module::HeapUse use;
  const xrt::device device(0);
  InstructionPool pool(device, 0, use);
  const std::vector<uint32_t> words(kHeapBudget / 4 / 4);  // a quarter
  for (uint64_t id = 1; id <= 9; ++id) {
    pool.pin(id, words);
    CHECK(use.bytes <= kHeapBudget);
  }
  CHECK(use.bytes == kHeapBudget);
  CHECK(use.evictions == 5);
  const std::vector<uint32_t> large(kHeapBudget / 4 + 1);
  CHECK_THROWS_AS(pool.pin(10, large), npu::xrt_module::Failure);
  CHECK(use.bytes == kHeapBudget);
}
