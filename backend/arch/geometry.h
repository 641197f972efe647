// Geometry and limits of the two NPU generations: data only. Sources in brackets name the tables of
// AMD's public register database (aie-rt) and mlir-aie's target model they were read from.
#pragma once

#include <cstdint>
#include <string_view>

namespace npu::arch {

enum class Generation : uint8_t { kNpu1 = 3, kNpu2 = 4 };  // the TXN header's DevGen byte
enum class TileKind : uint8_t { kShim, kMem, kCore };
enum class Direction : uint8_t { kS2MM = 0, kMM2S = 1 };  // as encoded in a TCT operation

inline constexpr int kRows = 6;      // shim 0, memtile 1, compute 2..5
inline constexpr int kCoreRows = 4;  // compute rows
inline constexpr int kFirstCoreRow = 2;
inline constexpr int kMemTileRows = 1;
inline constexpr int kColShift = 25;  // absolute address = col<<25 | row<<20 | offset
inline constexpr int kRowShift = 20;
inline constexpr uint32_t kOffsetMask = 0xFFFFF;
inline constexpr int kTaskQueueDepth = 4;  // tasks waiting per channel, the running one not counted
inline constexpr int kMaxLockValue = 63;   // 6-bit register
inline constexpr uint64_t kDdrAperture = 0x80000000;  // folded into arg_plus for arguments >= 5
inline constexpr int kFirstFoldedArgument = 5;

// What one kind of tile has. Steps, lengths and wraps are in 32-bit words.
struct TileGeometry {
  TileKind kind;
  const char* name;
  uint32_t memory_bytes;
  int locks;
  int bds;
  int channels;            // per direction
  int bd_words;            // 32-bit words per BD that are decoded
  int address_dims;        // excluding the iteration dimension
  uint32_t max_length;     // words per BD
  uint32_t max_step;       // words
  uint32_t max_wrap;       // elements of a dimension with a wrap field
  uint32_t max_iteration;  // executions before the iteration counter returns to 0
  // Register offsets inside the tile.
  uint32_t lock_base, bd_base, s2mm_base, mm2s_base, switch_base;
};

struct Geometry {
  const char* name;  // "npu1", "npu2"
  Generation generation;
  int columns;
  uint32_t shim_burst;  // largest shim burst length code: 2 = 256 B, 3 = 512 B
  double clock_hz;      // array clock at the highest power level
};

const TileGeometry& tile_geometry(TileKind kind);
// The kind of tile in a row: 0 shim, 1 memtile, 2..5 compute.
TileKind tile_kind(int row);
const Geometry& device_geometry(Generation generation);
// Looks up "npu1" or "npu2"; throws Error(kDevice) otherwise.
const Geometry& device_geometry(std::string_view name);

constexpr uint32_t tile_address(int col, int row, uint32_t offset) {
  return static_cast<uint32_t>(col) << kColShift | static_cast<uint32_t>(row) << kRowShift |
         (offset & kOffsetMask);
}
constexpr int address_col(uint32_t address) { return static_cast<int>(address >> kColShift); }
constexpr int address_row(uint32_t address) {
  return static_cast<int>(address >> kRowShift & 0x1F);
}
constexpr uint32_t address_offset(uint32_t address) { return address & kOffsetMask; }

// Register offsets of a DMA channel's control word and task queue.
uint32_t channel_control(TileKind kind, Direction direction, int channel);
inline uint32_t channel_queue(TileKind kind, Direction direction, int channel) {
  return channel_control(kind, direction, channel) + 4;
}
// Whether a channel may execute a BD: memtile even channels use BDs 0-23, odd ones 24-47.
bool bd_reachable(TileKind kind, int channel, int bd);

}  // namespace npu::arch
