// Kernel costs (kernel_cost.h).
#include "model/kernel_cost.h"

#include <algorithm>
#include <array>

#include "model/gemv_cost.h"

namespace npu::model {

namespace {

struct TypeName {
  std::string_view text;
  double bytes;
  bool integer;
};
constexpr TypeName kTypes[] = {
    {"bf16", 2, false}, {"bf16bfp16", 2, false}, {"f32", 4, false},
    {"i8", 1, true},    {"i16", 2, true},        {"i32", 4, true},
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

KernelCost KernelCost::of(std::string_view name) {
  KernelCost cost;
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
    cost.input = in.text == "bf16bfp16" ? InputKind::kBf16 : InputKind::kBf16Native;
  }
  if (verb == "matmul" && found == 2) {
    cost.family = KernelFamily::kMatmul;
  } else if (verb == "zero") {
    cost.family = KernelFamily::kZero;
  }
  return cost;
}

double KernelCost::cycles(const arch::Timing& timing, const int64_t* operands, int count) const {
  if (family == KernelFamily::kMatmul && count >= 3) {
    return matmul_cycles(timing, input, output_bytes, integer_output,
                         static_cast<double>(operands[0]), static_cast<double>(operands[1]),
                         static_cast<double>(operands[2]));
  }
  if (family == KernelFamily::kGemv) {
    return gemv_cycles(timing.generation, count > 0 ? operands[0] : 1);
  }
  if (family == KernelFamily::kGemvSetup) return gemv_setup_cycles();
  const double elements = count > 0 ? static_cast<double>(operands[0]) : 0;
  if (family == KernelFamily::kZero) {  // the first call of an output tile
    return elements * output_bytes / timing.l1_port + timing.round;
  }
  return elements * (input_bytes + output_bytes) / timing.l1_port;
}

}  // namespace npu::model
