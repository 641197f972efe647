// What every stream of a configuration does first (setup.h).
#include "devices/xrt/setup.h"

#include <algorithm>

#include "error.h"
#include "stream/txn.h"

namespace npu::xrt {

namespace {

// Of a shim tile: 16 BDs of 32 bytes, then control and queue registers of four channels
// (docs/reference/hardware.md).
constexpr uint64_t kFirst = 0x1D000, kEnd = 0x1D220;
constexpr uint64_t kTileBytes = uint64_t{1} << 20, kRow = 0x1F;

// Whether a register is one that an xclbin does not write.
bool is_setup(uint64_t address) {
  const uint64_t within = address % kTileBytes;
  return (address / kTileBytes & kRow) == 0 && within >= kFirst && within < kEnd;
}

}  // namespace

Setup setup_of(const Configuration& configuration) {
  Setup setup;
  const stream::Stream all = stream::Stream::parse(configuration.txn);
  for (const stream::Operation& one : all.operations()) {
    if (!is_setup(one.address)) continue;
    const auto words = all.words().subspan(one.byte_offset / 4, one.bytes / 4);
    setup.words.insert(setup.words.end(), words.begin(), words.end());
    ++setup.operations;
  }
  return setup;
}

HeaderWords header_after(const Setup& setup, std::span<const uint32_t> words) {
  HeaderWords header;
  std::copy_n(words.begin(), kHeaderWords, header.begin());
  if (setup.operations == 0) return header;
  if ((header[0] & 0xFF) != 0) {  // major version: the other one has shorter operations
    fail(ErrorKind::kFormat,
         "[prepare] a stream of version %u.%u; the device xrt runs those of version 0.1",
         header[0] & 0xFF, header[0] >> 8 & 0xFF);
  }
  header[2] += setup.operations;
  header[3] += static_cast<uint32_t>(4 * setup.words.size());
  return header;
}

}  // namespace npu::xrt
