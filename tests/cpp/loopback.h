// The smallest configuration that moves data, for tests of devices, and streams for it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "arch/bd.h"
#include "error.h"
#include "runtime/configuration.h"
#include "stream/txn.h"

namespace npu::test {

// Shim (0,0): MM2S 0 looped straight back to S2MM 0 through its own switch.
inline std::string loopback_file(arch::Generation generation, const char* name = "loopback") {
  stream::Builder builder(generation, arch::device_geometry(generation).columns);
  const uint32_t switch_base = arch::tile_geometry(arch::TileKind::kShim).switch_base;
  builder.write(switch_base + 4 * 4, 1u << 31 | 5);      // master South 2 <- slave South 3
  builder.write(switch_base + 0x100 + 4 * 5, 1u << 31);  // slave South 3
  builder.write(0x1F000, 1u << 10);
  builder.write(0x1F004, 1u << 4);
  const std::vector<uint32_t> txn = builder.finish();
  std::string text = strf(
      "npu-config 1\nname %s\ngeneration %s\n"
      "source 0000000000000000000000000000000000000000000000000000000000000000\n"
      "port in 0 mm2s 0\nport out 0 s2mm 0\nrtp word 0 2 1024\nrtplock 0 2 0\ntxn %zu\n",
      name, arch::device_geometry(generation).name, txn.size() * 4);
  return text.append(reinterpret_cast<const char*>(txn.data()), txn.size() * 4);
}
inline std::shared_ptr<const Configuration> loopback(arch::Generation generation,
                                                     const char* name = "loopback") {
  const std::string file = loopback_file(generation, name);
  return std::make_shared<const Configuration>(
      Configuration::parse(std::as_bytes(std::span(file.data(), file.size()))));
}

// Copies `words` words from argument 0 to argument 1 `copies` times; `poke` adds a write the
// device must judge.
inline std::vector<uint32_t> copy_stream(arch::Generation generation, uint32_t words,
                                         uint32_t poke = 0, uint32_t copies = 1) {
  stream::Builder builder(generation, arch::device_geometry(generation).columns);
  if (poke) builder.write(poke, 7);
  arch::Bd bd;
  bd.length = words;
  const std::vector<uint32_t> encoded = arch::encode_bd(arch::TileKind::kShim, bd);
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t address = arch::tile_geometry(arch::TileKind::kShim).bd_base + 0x20 * i;
    builder.block_write(address, encoded);
    builder.address_patch(address + 4, i, 0);
  }
  const auto queue = [](arch::Direction direction) {
    return arch::channel_queue(arch::TileKind::kShim, direction, 0);
  };
  for (uint32_t i = 0; i < copies; ++i) {
    builder.write(queue(arch::Direction::kMM2S), 0);
    builder.write(queue(arch::Direction::kS2MM), 1 | 1u << 31);
    builder.sync(0, 0, arch::Direction::kS2MM, 0);
  }
  return builder.finish();
}

}  // namespace npu::test
