// Shim registers of a configuration that its xclbin does not have. In mlir-aie, shim BDs and the
// packet ids of completion tokens belong to streams, so that loading an xclbin does not write them,
// and the driver may load it again before any run. Every stream therefore begins with these writes
// of the configuration's static stream: at most 2 KB.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/configuration.h"

namespace npu::xrt {

struct Setup {
  std::vector<uint32_t> words;  // operations of a TXN stream
  uint32_t operations = 0;
};

// What the configuration's static stream writes to such registers.
Setup setup_of(const Configuration& configuration);

inline constexpr size_t kHeaderWords = 4;  // of a TXN stream
using HeaderWords = std::array<uint32_t, kHeaderWords>;
// The header of the stream that does the setup's operations and then `words`. Throws
// Error(kFormat) for a stream of another form than the setup.
HeaderWords header_after(const Setup& setup, std::span<const uint32_t> words);

}  // namespace npu::xrt
