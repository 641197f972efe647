// The list of array operations (runtime/operation_type.h): a new one adds its type.
#include <string>

#include "error.h"
#include "runtime/operation_type.h"

#define NPU_OPERATIONS(TYPE) \
  TYPE(kCopyType)            \
  TYPE(kGemmType)            \
  TYPE(kGemvType)            \
  TYPE(kDequantType)         \
  TYPE(kRmsNormType)         \
  TYPE(kRopeType)            \
  TYPE(kGegluType)           \
  TYPE(kAttentionType)       \
  TYPE(kDecoderType)         \
  TYPE(kPrefillType)

namespace npu {

#define NPU_DECLARED(type) extern const OperationType type;
#define NPU_LISTED(type) &ops::type,

namespace ops {
NPU_OPERATIONS(NPU_DECLARED)
}

std::span<const OperationType* const> operation_types() {
  static const OperationType* const kTypes[] = {NPU_OPERATIONS(NPU_LISTED)};
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
