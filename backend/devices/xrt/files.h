// Where the files that hardware needs lie on this machine: the cache and the xclbins in it.
#pragma once

#include <filesystem>

#include "runtime/configuration.h"

namespace npu::xrt {

// The folder of the library or program that this code is part of; empty if it cannot be told.
std::filesystem::path own_folder();
// NPU_CACHE, if it is a folder and not `off`, else `npu-xdna` in the user's cache; empty if there
// is no home.
std::filesystem::path cache_root();
// NPU_XCLBINS, else `xclbins` in the cache.
std::filesystem::path xclbin_folder();
// GENERATION/ARTEFACT/design.xclbin in that folder. Throws Error(kUnavailable), which names the
// file and the command that builds it.
std::filesystem::path find_xclbin(const Configuration& configuration);

}  // namespace npu::xrt
