// Kernel costs (kernel_cost.h).
#include "perf/kernel_cost.h"

#include <algorithm>

namespace npu::perf {

namespace {

constexpr double kBfp16Bytes = 1.125;  // 8 mantissas and an exponent

double peak_of(const arch::Timing& timing, InputKind input) {
  switch (input) {
    case InputKind::kInt8:
      return timing.mac_int8;
    case InputKind::kInt16:
      return timing.mac_int16;
    case InputKind::kBf16Native:
      return timing.mac_bf16_native;
    case InputKind::kBfp16:
      return timing.mac_bfp16;
    case InputKind::kBf16:
      break;
  }
  return timing.mac_bf16;
}

}  // namespace

double matmul_cycles(const arch::Timing& timing, InputKind input, double c_bytes, bool integer,
                     double m, double k, double n) {
  const double h = (integer ? timing.integer_move : 0) + 2 * c_bytes / timing.l1_port;
  return m * n * (k / peak_of(timing, input) + h);
}

// By hand, for the profile "published" and for what has no schedule. Per 2x2 cluster of 8x8 C
// blocks and 8 steps of k: four multiplications and the loads of two A and two B blocks; per
// cluster the loads and stores of four C blocks. Loads have two slots, stores one. In a block's
// order five accumulator registers are too few for C blocks of v > 1 vectors: 3 v - 4 cycles per
// cluster. A C block in BFP16 enters its accumulators by a multiplication with the identity: 64 of
// them take 68 slots in the published kernel of the ATB paper (mlir-aie, all operands in BFP16, k =
// 128).
double pipelined_cycles(const arch::Timing& timing, InputKind input, double c_bytes, double m,
                        double k, double n) {
  constexpr double kBlock = 64, kSide = 8;
  const bool floats = input == InputKind::kBfp16;
  const double steps = k / kSide, port = timing.l1_port;
  const double block_bytes = kBlock * (floats ? kBfp16Bytes : 1);
  const double widened = c_bytes == kBfp16Bytes ? 1 : 0;
  const double products = 4 * (steps + widened) * kBlock * kSide / peak_of(timing, input);
  const double stores = 4 * kBlock * c_bytes / port;
  const double loads = 4 * steps * block_bytes / port + stores;
  const double interval = floats ? timing.mac_interval_bfp16 : timing.mac_interval;
  const double wait = std::max(0.0, 3 * kBlock * c_bytes / port - 4);
  const double clusters = m * n / (4 * kBlock);
  return clusters * interval * std::max({products + wait, loads / 2, stores}) + timing.kernel_call;
}

double bfp16_cycles(const arch::Timing& timing, double elements) {
  return elements * (2 + kBfp16Bytes) / timing.l1_port + timing.kernel_call;
}

double elementwise_cycles(const arch::Timing& timing, double elements, double in_bytes,
                          double out_bytes) {
  return elements * (in_bytes + out_bytes) / timing.l1_port;
}

double zero_cycles(const arch::Timing& timing, double elements, double bytes) {
  return elements * bytes / timing.l1_port + timing.round;
}

}  // namespace npu::perf
