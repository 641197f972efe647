// The thread's current core, the C functions through which aie_api reads and writes its modes, and
// the memory for packed operands: of the operand itself where several cores share it, else of the
// thread.
#include "kernels/host/core_state.h"

#include "error.h"

namespace npu::aie_host {

namespace {

constinit thread_local CoreState no_core;  // for code that runs outside a kernel call
constinit thread_local CoreState* running = nullptr;

CoreState& current() { return running != nullptr ? *running : no_core; }

bool is_rounding_mode(uint8_t mode) { return mode <= 3 || (mode >= 8 && mode <= 13); }
bool is_saturation_mode(uint8_t mode) { return mode == 0 || mode == 1 || mode == 3; }

void check_rounding(uint8_t mode) {
  if (!is_rounding_mode(mode)) {
    fail(ErrorKind::kKernel, "[set_rounding] mode %d is reserved; modes are 0-3 and 8-13", mode);
  }
}

void check_saturation(uint8_t mode) {
  if (!is_saturation_mode(mode)) {
    fail(ErrorKind::kKernel, "[set_saturation] mode %d is reserved; modes are 0, 1 and 3", mode);
  }
}

// One operand of the call that this thread executes.
struct Operand {
  PackedOperand* shared = nullptr;
  bool packing = false;  // `shared` is this thread's to fill
  AlignedBytes scratch;  // otherwise; grows only
};
thread_local Operand operands[kPackedOperands];

std::byte* grown(AlignedBytes& bytes, uint64_t wanted) {
  if (bytes.size() < wanted) bytes.resize(wanted);
  return bytes.data();
}

}  // namespace

CoreScope::CoreScope(CoreState& core) : running_(&running), previous_(*running_) {
  check_rounding(core.rounding);
  check_saturation(core.saturation);
  *running_ = &core;
}

CoreScope::~CoreScope() { *running_ = previous_; }

void set_packed_operands(std::span<const KernelArgument> arguments) {
  for (size_t i = 0; i < kPackedOperands; ++i) {
    operands[i].shared = i < arguments.size() ? arguments[i].packed : nullptr;
  }
}

}  // namespace npu::aie_host

extern "C" {

uint8_t npu_host_rounding() { return npu::aie_host::current().rounding; }

void npu_host_set_rounding(uint8_t mode) {
  npu::aie_host::check_rounding(mode);
  npu::aie_host::current().rounding = mode;
}

uint8_t npu_host_saturation() { return npu::aie_host::current().saturation; }

void npu_host_set_saturation(uint8_t mode) {
  npu::aie_host::check_saturation(mode);
  npu::aie_host::current().saturation = mode;
}

void* npu_host_pack_begin(uint32_t operand, const void* form, int64_t shape, uint64_t bytes,
                          int* found) {
  using npu::PackedOperand;
  auto& mine = npu::aie_host::operands[operand];
  mine.packing = false;
  *found = 0;
  if (PackedOperand* shared = mine.shared) {
    // Read before it is written: mostly it is ready, and in several CPUs' caches.
    int state = shared->state.load(std::memory_order_acquire);
    if (state == PackedOperand::kEmpty &&
        shared->state.compare_exchange_strong(state, PackedOperand::kBeingPacked,
                                              std::memory_order_acquire)) {
      shared->form = form;
      shared->shape = shape;
      mine.packing = true;
      return npu::aie_host::grown(shared->bytes, bytes);
    }
    // Another thread may still be packing: rather than wait, this one packs for itself.
    const bool done = state == PackedOperand::kReady || state == PackedOperand::kRefused;
    if (done && shared->form == form && shared->shape == shape) {
      *found = state == PackedOperand::kReady ? 1 : -1;
      return shared->bytes.data();
    }
  }
  return npu::aie_host::grown(mine.scratch, bytes);
}

int npu_host_pack_shared(uint32_t operand) {
  return npu::aie_host::operands[operand].packing ? 1 : 0;
}

void npu_host_pack_end(uint32_t operand, int good) {
  using npu::PackedOperand;
  auto& mine = npu::aie_host::operands[operand];
  if (!mine.packing) return;
  mine.packing = false;
  mine.shared->state.store(good ? PackedOperand::kReady : PackedOperand::kRefused,
                           std::memory_order_release);
}

}  // extern "C"
