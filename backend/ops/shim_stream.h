// What the runtime streams of all operations have in common: shim BDs, task queues and tokens.
#pragma once

#include <cstdint>

#include "arch/bd.h"
#include "arch/device_model.h"
#include "configuration.h"
#include "stream/txn.h"

namespace npu::ops {

constexpr uint32_t kAxCache = 2;  // NoC upsizing, as mlir-aie's runtime sequences set it
// Packet id of a shim tile's task-complete tokens, as mlir-aie numbers row 0.
constexpr uint32_t kShimControllerId = 15;

// Base of the classes that build a stream.
class ShimStream {
 protected:
  using Port = Configuration::Port;

  explicit ShimStream(const Configuration& configuration)
      : configuration_(configuration),
        model_(arch::device_model(configuration.generation)),
        builder_(configuration.generation, model_.columns) {}
  ~ShimStream() = default;

  // A BD and the address it gets: `offset` bytes into the runtime argument.
  void write_bd(const Port& at, int id, const arch::Bd& bd, uint32_t argument, int64_t offset) {
    const uint32_t base =
        arch::tile_model(arch::TileKind::kShim).bd_base + 0x20u * static_cast<uint32_t>(id);
    const uint32_t address = arch::tile_address(at.col, 0, base);
    builder_.block_write(address, arch::encode_bd(arch::TileKind::kShim, bd));
    builder_.address_patch(address + 4, argument, static_cast<uint64_t>(offset));
  }

  void queue(const Port& at, int id, int64_t repeats, bool token) {
    const uint32_t offset = arch::channel_queue(arch::TileKind::kShim, at.direction, at.channel);
    builder_.write(arch::tile_address(at.col, 0, offset),
                   static_cast<uint32_t>(id) | static_cast<uint32_t>(repeats - 1) << 16 |
                       (token ? 1u << 31 : 0u));
  }

  // Tokens travel as packets under the shim tile's controller id.
  void route_tokens(const Port& at) {
    const uint32_t control = arch::channel_control(arch::TileKind::kShim, at.direction, at.channel);
    builder_.mask_write(arch::tile_address(at.col, 0, control), kShimControllerId << 8, 0x1F00);
  }

  // For the tokens of `columns` neighbouring shim tiles.
  void wait(const Port& at, int columns = 1) {
    builder_.sync(at.col, 0, at.direction, at.channel, columns);
  }

  const Configuration& configuration_;
  const arch::DeviceModel& model_;
  stream::Builder builder_;
};

}  // namespace npu::ops
