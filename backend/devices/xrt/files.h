// Where the files that hardware needs lie on this machine: the cache and the xclbins in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/configuration.h"

namespace npu::xrt {

// The folder of the library or program that this code is part of; empty if it cannot be told.
std::filesystem::path own_folder();
// NPU_CACHE unless it is empty or `off`, else `npu-xdna` in XDG_CACHE_HOME or ~/.cache. Absolute,
// "~" expanded: the same folders as in Python (npu/cache_folder.py).
std::filesystem::path cache_root();
// NPU_XCLBINS, else `xclbins` in the cache.
std::filesystem::path xclbin_folder();
// The command that builds a configuration.
std::string build_command(const Configuration& configuration);
// GENERATION/ARTEFACT/design.xclbin in that folder. Throws Error(kMissingBuild), which names the
// file and the command that builds it.
std::filesystem::path find_xclbin(const Configuration& configuration);

// What program memory holds of an overlay: NAME.overlay.bin beside that file. Both throw
// Error(kMissingBuild) if one is not there or has another size, with the command.
void check_overlays(const Configuration& configuration);
std::vector<uint32_t> read_overlay(const Configuration& configuration, size_t overlay);

}  // namespace npu::xrt
