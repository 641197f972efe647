// The list of array operations: a new one adds its line (operation_type.h).
#include <string>

#include "error.h"
#include "ops/dequant/dequant.h"
#include "ops/gemm/gemm.h"
#include "ops/gemv/gemv.h"
#include "runtime/operation_type.h"

namespace npu {

namespace ops {
extern const OperationType kRmsNormType;
}

std::span<const OperationType* const> operation_types() {
  static const OperationType* const kTypes[] = {&ops::kGemmType, &ops::kGemvType,
                                                &ops::kDequantType, &ops::kRmsNormType};
  return kTypes;
}

const OperationType& operation_type(std::string_view name) {
  std::string names;
  for (const OperationType* type : operation_types()) {
    if (name == type->name) return *type;
    names += (names.empty() ? "" : ", ") + std::string(type->name);
  }
  fail(ErrorKind::kArgument, "[operation] \"%.*s\" is unknown; there are %s",
       static_cast<int>(name.size()), name.data(), names.c_str());
}

}  // namespace npu
