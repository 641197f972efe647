// Cycles of one kernel call on a core, from the kernel's name and its integer operands. Used by the
// timed emulator and by the closed form.
#pragma once

#include <cstdint>
#include <string_view>

#include "arch/timing.h"

namespace npu::model {

enum class KernelFamily : uint8_t {
  kMatmul,
  kZero,
  kBlockFloat,
  kElementwise,
  kGemv,
  kGemvSetup,
  kDequant
};
// kBf16 on npu2: computed through BFP16; kBf16Native: by the bf16 multiply-adds; kBfp16: the
// operands are BFP16 in memory already.
enum class InputKind : uint8_t { kInt8, kInt16, kBf16, kBf16Native, kBfp16 };

// What a kernel's name says: matmul_<in>_<out>[_pipelined]..., zero_<type>, <verb>_<in>_<out>. The
// input type bf16bfp16 is bf16 multiplied through BFP16.
struct KernelCost {
  KernelFamily family = KernelFamily::kElementwise;
  InputKind input = InputKind::kBf16;
  double input_bytes = 4, output_bytes = 4;
  bool integer_output = false;
  bool pipelined = false;
  bool known = false;  // false: charged as an elementwise kernel on 4-byte elements

  static KernelCost of(std::string_view name);
  // `operands` are the call's integers: m, k, n of a product, the element count of anything else.
  double cycles(const arch::Timing& timing, const int64_t* operands, int count) const;
};

// m x k x n product: cycles = m n (k / peak + h), h = moves + 2 bytes(C) / port. The load and the
// store of a C element cannot share an instruction, hence 2.
double matmul_cycles(const arch::Timing& timing, InputKind input, double c_bytes, bool integer,
                     double m, double k, double n);

// The same by a kernel that loads and stores C in the free slots of the multiplications: slots of
// 2x2 C blocks, see docs/timing.md. npu2, int8 or BFP16 operands.
double pipelined_cycles(const arch::Timing& timing, InputKind input, double c_bytes, double m,
                        double k, double n);

// `elements` bf16 values converted to BFP16 in memory, before a pipelined kernel multiplies them.
double bfp16_cycles(const arch::Timing& timing, double elements);

}  // namespace npu::model
