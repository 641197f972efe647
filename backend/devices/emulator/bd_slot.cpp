// Decoded buffer descriptors (bd_slot.h).
#include "devices/emulator/bd_slot.h"

namespace npu::emulator {

using arch::TileKind;

namespace {

// Lock ids 64-127 and word addresses from 0x20000 on are a memtile's own.
bool names_neighbour(const arch::TileGeometry& geometry, const arch::Bd& bd, bool addresses_own) {
  if (geometry.kind != TileKind::kMem) return false;
  const uint64_t side = bd.base * 4 / geometry.memory_bytes;
  return (bd.acquire_enable && bd.acquire_id / 64 != 1) ||
         (bd.release_value != 0 && bd.release_id / 64 != 1) ||
         (side != 1 && !(side == 0 && addresses_own));
}

bool names_west_lock(const arch::Bd& bd) {
  return (bd.acquire_enable && bd.acquire_id < 64) || (bd.release_value != 0 && bd.release_id < 64);
}

// Bit position of the 6-bit iteration counter in a BD's register words.
struct CounterField {
  size_t word;
  int low;
};
CounterField iteration_field(TileKind kind) {
  switch (kind) {
    case TileKind::kShim:
      return {6, 26};
    case TileKind::kMem:
      return {6, 23};
    case TileKind::kCore:
      break;
  }
  return {4, 19};
}

}  // namespace

void BdSlot::decode_words(const arch::TileGeometry& geometry) {
  bd = arch::decode_bd(geometry.kind, words);
  arch::Bd first = bd;
  first.iteration_current = 0;
  pattern = Walk(nullptr, first, geometry.address_dims);
  last = last_offset(first, geometry.address_dims, data_words(first));
  fills = pattern.fills(first.length);
  padded = has_padding(bd);
  addresses_own = own_from_zero && !names_west_lock(bd);
  reaches_neighbour = names_neighbour(geometry, bd, addresses_own);
  stale_ = false;
}

void BdSlot::move_address(int64_t bytes) {
  constexpr uint32_t kHigh = 0xFFFF;  // of word 2
  const uint64_t base = words[1] | static_cast<uint64_t>(words[2] & kHigh) << 32;
  const uint64_t moved = base + static_cast<uint64_t>(bytes);
  words[1] = static_cast<uint32_t>(moved);
  words[2] = (words[2] & ~kHigh) | (static_cast<uint32_t>(moved >> 32) & kHigh);
  stale_ = true;
}

void BdSlot::set_iteration(const arch::TileGeometry& geometry, uint32_t current) {
  bd.iteration_current = current;
  const CounterField field = iteration_field(geometry.kind);
  words[field.word] = (words[field.word] & ~(0x3Fu << field.low)) | current << field.low;
}

}  // namespace npu::emulator
