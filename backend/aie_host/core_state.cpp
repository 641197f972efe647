// The thread's current core, the C functions through which aie_api reads and writes its modes, and
// the thread's memory for packed operands.
#include "aie_host/core_state.h"

#include <new>
#include <utility>

#include "error.h"

namespace npu::aie_host {

namespace {

thread_local CoreState no_core;  // for code that runs outside a kernel call
thread_local CoreState* current = &no_core;

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

// Grows only; contents do not outlive a kernel call.
struct Scratch {
  static constexpr size_t kAlignment = 64;
  void* data = nullptr;
  size_t bytes = 0;

  ~Scratch() { ::operator delete(data, std::align_val_t{kAlignment}); }
  void* grow(size_t wanted) {
    if (wanted > bytes) {
      ::operator delete(std::exchange(data, nullptr), std::align_val_t{kAlignment});
      bytes = 0;
      data = ::operator new(wanted, std::align_val_t{kAlignment});
      bytes = wanted;
    }
    return data;
  }
};
thread_local Scratch scratch;

}  // namespace

CoreScope::CoreScope(CoreState& core) : previous_(current) {
  check_rounding(core.rounding);
  check_saturation(core.saturation);
  current = &core;
}

CoreScope::~CoreScope() { current = previous_; }

}  // namespace npu::aie_host

extern "C" {

uint8_t npu_host_rounding() { return npu::aie_host::current->rounding; }

void npu_host_set_rounding(uint8_t mode) {
  npu::aie_host::check_rounding(mode);
  npu::aie_host::current->rounding = mode;
}

uint8_t npu_host_saturation() { return npu::aie_host::current->saturation; }

void npu_host_set_saturation(uint8_t mode) {
  npu::aie_host::check_saturation(mode);
  npu::aie_host::current->saturation = mode;
}

void* npu_host_scratch(uint64_t bytes) { return npu::aie_host::scratch.grow(bytes); }

}  // extern "C"
