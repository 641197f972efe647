// Finding and loading libnpu_xrt.so, which calls XRT (module/module_abi.h), and its calls with
// errors as exceptions. Looked for, in this order: the file NPU_XRT_MODULE and nothing else if the
// variable is set; beside the library (or program) that this code is part of; `xrt` in the cache.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "devices/xrt/module/module_abi.h"

namespace npu::xrt {

inline constexpr const char* kModuleFile = "libnpu_xrt.so";

// Where the module is looked for.
std::vector<std::filesystem::path> module_places();
// The first of them that is there.
std::optional<std::filesystem::path> find_module();
// The module, loaded once per process. Throws Error(kMissingXrt): there is none, it does not load
// (XRT is not installed), or it has another interface.
const npu_xrt_module& load_module();

}  // namespace npu::xrt
