// When the array advances between stream operations (docs/reference/command_stream.md). The command
// processor runs ahead: only SYNC and MASKPOLL wait for the array, and what a stream writes between
// them reaches it at once. On hardware the array is faster than the command processor, so before an
// operation whose effect depends on that, the array settles, that is, advances until nothing can
// progress:
//   - before a stream's first operation, and after a LOADPDI;
//   - before a write to memory, locks or BDs of a tile that the stream has stirred: pushed a task
//     there, written a lock, or reset or enabled its core;
//   - before routes, program memory, pad values, core control or a channel reset are written;
//   - before a BD changes that a task still needs, and before a push on a full queue, unless the
//     stream has to wait for those itself (Array::require_waits).
// Timed runs have a clock that orders agents and operations instead.
#include <utility>

#include "devices/emulator/array.h"

namespace npu::emulator {

using stream::Opcode;
using stream::Operation;

void Array::stir(Tile& tile) {
  if (control_sender_) return;  // not the stream's doing
  settled_ = false;
  if (tile.stirred) return;
  tile.stirred = true;
  stirred_.push_back(&tile);
}

// False when paused_.
bool Array::settle() {
  while (step()) {
    if (paused_) return false;
  }
  for (Tile* tile : stirred_) tile->stirred = false;
  stirred_.clear();
  settled_ = true;
  return true;
}

bool Array::settle_before(const Operation& operation) {
  if (timeline_ || configuring_) return true;
  if (!fresh_ && (settled_ || !must_settle(operation))) return true;
  if (!settle()) return false;
  if (!std::exchange(fresh_, false) && waited_for_) ++unwaited_count_;
  return true;
}

bool Array::must_settle(const Operation& op) {
  waited_for_ = false;
  uint32_t value = op.value;
  std::span<const uint32_t> words{&value, 1};
  const uint32_t address = static_cast<uint32_t>(op.address);
  switch (op.opcode) {
    case Opcode::kLoadPdi:
      return true;
    case Opcode::kBlockWrite:
      words = op.data;
      break;
    case Opcode::kWrite:
      break;
    case Opcode::kMaskWrite:
    case Opcode::kAddressPatch:
      words = {};  // whatever they write: it differs
      break;
    default:
      return false;
  }
  Tile* tile = find_tile(arch::address_col(address), arch::address_row(address));
  if (!tile) return false;
  const arch::TileGeometry& geometry = tile->geometry;
  const uint32_t offset = arch::address_offset(address);
  const uint32_t bds_end = geometry.bd_base + 0x20u * static_cast<uint32_t>(geometry.bds);
  if (offset >= geometry.bd_base && offset < bds_end) {
    if (tile->stirred && geometry.kind != arch::TileKind::kShim) return true;
    return waited_for_ = !waits_required_ && finds_in_use(*tile, offset, words);
  }
  const uint32_t channels = 8u * static_cast<uint32_t>(geometry.channels);
  for (const uint32_t first : {geometry.s2mm_base, geometry.mm2s_base}) {
    if (offset < first || offset >= first + channels) continue;
    if ((offset - first) % 8 == 0) {
      return geometry.kind != arch::TileKind::kShim && (op.value >> 1 & 1) != 0;
    }
    const size_t direction = first == geometry.mm2s_base;
    return waited_for_ =
               !waits_required_ && tile->channels[direction][(offset - first) / 8]->full();
  }
  const uint32_t locks_end = geometry.lock_base + 0x10u * static_cast<uint32_t>(geometry.locks);
  if (offset < geometry.memory_bytes || (offset >= geometry.lock_base && offset < locks_end)) {
    return tile->stirred;
  }
  return configures(geometry.kind, offset);
}

// Whether a write to BDs changes one that a task needs. words: empty for any.
bool Array::finds_in_use(Tile& tile, uint32_t offset, std::span<const uint32_t> words) {
  const uint32_t first = (offset - tile.geometry.bd_base) / 4;
  const size_t count = words.empty() ? 2 : words.size();  // an ADDRESS_PATCH writes two
  for (size_t i = 0; i < count; ++i) {
    const size_t bd = (first + i) / 8, word = (first + i) % 8;
    if (bd >= tile.bds.size()) return false;
    if (!words.empty() && !tile.bds[bd].differs(word, words[i], starts_at_own(tile, words[i]))) {
      continue;
    }
    if (user_of(tile, static_cast<int>(bd))) return true;
  }
  return false;
}

}  // namespace npu::emulator
