// Kernel costs (kernel_cost.h).
#include "model/kernel_cost.h"

#include <algorithm>
#include <array>

#include "model/gemv_cost.h"

namespace npu::model {

namespace {

constexpr double kBfp16Bytes = 1.125;  // 8 mantissas and an exponent

struct TypeName {
  std::string_view text;
  double bytes;
  bool integer;
};
constexpr TypeName kTypes[] = {
    {"bf16", 2, false},
    {"bf16bfp16", 2, false},
    {"f32", 4, false},
    {"i8", 1, true},
    {"i16", 2, true},
    {"i32", 4, true},
    {"bfp16", kBfp16Bytes, false},
};

const TypeName* type_of(std::string_view part) {
  for (const TypeName& type : kTypes) {
    if (part == type.text) return &type;
  }
  return nullptr;
}

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

// Per 2x2 cluster of 8x8 C blocks and 8 steps of k: four multiplications and the loads of two A and
// two B blocks; per cluster the loads and stores of four C blocks. Loads have two slots, stores
// one. With five accumulator registers C blocks of v > 1 vectors are not stored and the next ones
// loaded in time: 3 v - 4 cycles are lost per cluster
// (tests/python/perf/test_pipelined_schedule.py).
double pipelined_cycles(const arch::Timing& timing, InputKind input, double c_bytes, double m,
                        double k, double n) {
  constexpr double kBlock = 64, kSide = 8;
  const bool floats = input == InputKind::kBfp16;
  const double steps = k / kSide, port = timing.l1_port;
  const double block_bytes = kBlock * (floats ? kBfp16Bytes : 1);
  const double products = 4 * steps * kBlock * kSide / peak_of(timing, input);
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

KernelCost KernelCost::of(std::string_view name) {
  KernelCost cost;
  if (name == "dequant_q4nx") {
    cost.family = KernelFamily::kDequant;
    cost.known = true;
    return cost;
  }
  if (name == "gemv_q4nx" || name == "gemv_setup") {
    cost.family = name == "gemv_q4nx" ? KernelFamily::kGemv : KernelFamily::kGemvSetup;
    cost.known = true;
    return cost;
  }
  std::array<const TypeName*, 2> types{};
  size_t found = 0;
  std::string_view verb;
  for (size_t start = 0; start <= name.size();) {
    const size_t end = std::min(name.find('_', start), name.size());
    const std::string_view part = name.substr(start, end - start);
    if (start == 0) verb = part;
    if (part == "pipelined") cost.pipelined = true;
    if (const TypeName* type = type_of(part); type && found < 2) types[found++] = type;
    start = end + 1;
  }
  if (found == 0) return cost;
  const TypeName& in = *types[0];
  const TypeName& out = *types[found - 1];
  cost.known = true;
  cost.input_bytes = in.bytes;
  cost.output_bytes = out.bytes;
  cost.integer_output = out.integer;
  if (in.integer) {
    cost.input = in.bytes == 1 ? InputKind::kInt8 : InputKind::kInt16;
  } else {
    cost.input = in.text == "bfp16"       ? InputKind::kBfp16
                 : in.text == "bf16bfp16" ? InputKind::kBf16
                                          : InputKind::kBf16Native;
  }
  if (verb == "matmul" && found == 2) {
    cost.family = KernelFamily::kMatmul;
  } else if (verb == "zero") {
    cost.family = KernelFamily::kZero;
  } else if (verb == "convert" && out.text == "bfp16") {
    cost.family = KernelFamily::kBlockFloat;
  }
  return cost;
}

double KernelCost::cycles(const arch::Timing& timing, const int64_t* operands, int count) const {
  if (family == KernelFamily::kMatmul && count >= 3) {
    const auto m = static_cast<double>(operands[0]), k = static_cast<double>(operands[1]),
               n = static_cast<double>(operands[2]);
    return pipelined ? pipelined_cycles(timing, input, output_bytes, m, k, n)
                     : matmul_cycles(timing, input, output_bytes, integer_output, m, k, n);
  }
  if (family == KernelFamily::kDequant) return dequant_cycles(timing.generation);
  if (family == KernelFamily::kGemv) {
    return gemv_cycles(timing.generation, count > 0 ? operands[0] : 1);
  }
  if (family == KernelFamily::kGemvSetup) return gemv_setup_cycles();
  const double elements = count > 0 ? static_cast<double>(operands[0]) : 0;
  if (family == KernelFamily::kZero) {  // the first call of an output tile
    return elements * output_bytes / timing.l1_port + timing.round;
  }
  if (family == KernelFamily::kBlockFloat) return bfp16_cycles(timing, elements);
  return elements * (input_bytes + output_bytes) / timing.l1_port;
}

}  // namespace npu::model
