// What the runtime streams of all operations have in common: shim BDs, task queues and tokens,
// appended to the builder of a stream.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <span>
#include <string>

#include "arch/bd.h"
#include "arch/geometry.h"
#include "runtime/configuration.h"
#include "stream/txn.h"

namespace npu::ops {

constexpr uint32_t kAxCache = 2;  // NoC upsizing, as mlir-aie's runtime sequences set it
// Packet id of a shim tile's task-complete tokens, as mlir-aie numbers row 0.
constexpr uint32_t kShimControllerId = 15;

// Tasks in flight: a task is pushed into the next of `slots` slots, once no more than `in_flight`
// are under way; `wait` waits for the oldest.
class TaskRing {
 public:
  explicit TaskRing(int64_t slots, int64_t in_flight = 0)
      : slots_(slots), in_flight_(in_flight > 0 ? in_flight : slots) {
    assert(in_flight_ <= slots_);
  }
  // The slot of the next task.
  template <typename Wait>
  int next(const Wait& wait) {
    if (pushed_ - done_ == in_flight_) {
      wait();
      ++done_;
    }
    return static_cast<int>(pushed_++ % slots_);
  }
  template <typename Wait>
  void drain(const Wait& wait) {
    for (; done_ < pushed_; ++done_) wait();
  }

 private:
  int64_t slots_, in_flight_, pushed_ = 0, done_ = 0;
};

// Base of the classes that append an operation's commands.
class ShimCommands {
 protected:
  using Port = Configuration::Port;

  ShimCommands(stream::Builder& builder, const Configuration& configuration)
      : configuration_(configuration),
        model_(arch::device_geometry(configuration.generation)),
        builder_(builder) {}
  ~ShimCommands() = default;

  const Port* port(const std::string& name) const { return &configuration_.port(name); }

  // A BD for `words` contiguous 32-bit words.
  arch::Bd linear_bd(uint32_t words) const {
    arch::Bd bd;
    bd.length = words;
    bd.burst = model_.shim_burst;
    bd.axcache = kAxCache;
    return bd;
  }

  static uint32_t bd_address(const Port& at, int id) {
    const uint32_t base = arch::tile_geometry(arch::TileKind::kShim).bd_base;
    return arch::tile_address(at.col, 0, base + 0x20u * static_cast<uint32_t>(id));
  }

  // The address of BD `id`: `offset` bytes into the runtime argument.
  void patch_bd(const Port& at, int id, uint32_t argument, int64_t offset) {
    builder_.address_patch(bd_address(at, id) + 4, argument, static_cast<uint64_t>(offset));
  }

  // A BD and the address it gets.
  void write_bd(const Port& at, int id, const arch::Bd& bd, uint32_t argument, int64_t offset) {
    builder_.block_write(bd_address(at, id), arch::encode_bd(arch::TileKind::kShim, bd));
    patch_bd(at, id, argument, offset);
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

  // Runtime parameters of the cores in columns that `uses(col)` picks, then the locks that let the
  // workers read them. value(rtp): of a Configuration::Rtp; workers read an int32.
  template <typename Uses, typename Value>
  void write_rtps(const Uses& uses, const Value& value) {
    for (const Configuration::Rtp& rtp : configuration_.rtps) {
      if (!uses(rtp.col)) continue;
      builder_.write(arch::tile_address(rtp.col, rtp.row, rtp.address), value(rtp));
    }
    const uint32_t locks = arch::tile_geometry(arch::TileKind::kCore).lock_base;
    for (const Configuration::RtpLock& lock : configuration_.rtp_locks) {
      if (!uses(lock.col)) continue;
      const uint32_t offset = locks + 0x10u * static_cast<uint32_t>(lock.lock);
      builder_.write(arch::tile_address(lock.col, lock.row, offset), 1);
    }
  }

  // For the tokens of `columns` neighbouring shim tiles.
  void wait(const Port& at, int columns = 1) {
    builder_.sync(at.col, 0, at.direction, at.channel, columns);
  }

  const Configuration& configuration_;
  const arch::Geometry& model_;
  stream::Builder& builder_;
};

}  // namespace npu::ops
