// When the array advances between stream operations (docs/reference/command_stream.md). The command
// processor runs ahead: only SYNC and MASKPOLL wait for the array, and what a stream writes between
// them reaches it at once. On hardware the array is faster than the command processor, so before an
// operation whose effect depends on that, the array settles, that is, advances until nothing can
// progress:
//   - before a stream's first operation, and after a LOADPDI;
//   - before a write to memory, locks or BDs of a tile that the stream has stirred (pushed a task
//     there, written a lock, or reset or enabled its core), or that is reached by a core or a
//     memtile's channel which a stirred tile may have made go on;
//   - before routes, program memory, pad values, core control or a channel reset are written;
//   - before a BD changes that a task still needs, and before a push on a full queue, unless the
//     stream has to wait for those itself (Array::require_waits).
// Timed runs have a clock that orders agents and operations instead: there only the last two lines
// hold, and the operation waits for no longer than that.
#include <algorithm>
#include <utility>

#include "devices/emulator/array.h"
#include "devices/emulator/sender.h"

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

namespace {

// Whether a BD of a memtile names locks or memory of the tile so many columns to the east.
bool names_beside(Tile& tile, int side) {
  if (side == 0) return true;
  const uint64_t bytes = tile.geometry.memory_bytes;
  return std::ranges::any_of(tile.bds, [&](BdSlot& slot) {
    const arch::Bd& bd = slot.decode(tile.geometry).bd;
    if (!bd.valid || !slot.reaches_neighbour) return false;
    const int base =
        slot.addresses_own && bd.base * 4 < bytes ? 0 : static_cast<int>(bd.base * 4 / bytes) - 1;
    return base == side ||
           (bd.acquire_enable && static_cast<int>(bd.acquire_id / 64) - 1 == side) ||
           (bd.release_value != 0 && static_cast<int>(bd.release_id / 64) - 1 == side);
  });
}

// Whether a core or a channel of tile `from` reaches the locks and memory of `to`.
bool reaches(Tile& from, const Tile& to) {
  if (from.geometry.kind != to.geometry.kind) return false;
  if (from.geometry.kind == arch::TileKind::kMem) return names_beside(from, to.col - from.col);
  return from.core && from.core->reaches(to);
}

}  // namespace

// Whether what the stream has done may have made something go on that reaches this tile.
bool Array::stirred(Tile& tile) {
  if (tile.stirred || stirred_.empty()) return tile.stirred;
  if (tile.geometry.kind == arch::TileKind::kShim) return false;
  constexpr std::pair<int, int> kNear[] = {{0, 0}, {-1, 0}, {1, 0}, {0, -1}, {0, 1}};
  for (const auto& [col, row] : kNear) {
    Tile* agents = find_tile(tile.col + col, tile.row + row);
    if (!agents) continue;
    for (const auto& [cols, rows] : kNear) {
      const Tile* other = find_tile(agents->col + cols, agents->row + rows);
      if (other && other->stirred && reaches(*agents, *other) && reaches(*agents, tile)) {
        return true;
      }
    }
  }
  return false;
}

// The stream, or a control packet, may make the route after the push.
bool Array::wait_for_route(Sender& sender, std::exception_ptr missing) {
  if (waits_required_) return false;
  end_wait_for_route(sender);
  routeless_.push_back({&sender, std::move(missing)});
  return true;
}

void Array::end_wait_for_route(const Sender& sender) {
  std::erase_if(routeless_, [&](const Routeless& waiting) { return waiting.sender == &sender; });
}

void Array::switches_changed() {
  ++switch_epoch_;
  reconfigured_ |= !configuring_;
  for (const Routeless& waiting : routeless_) {
    const Tile& at = waiting.sender->tile();
    scheduler_.wake(waiting.sender, nullptr);
    stir(*find_tile(at.col, at.row));
  }
}

// When nothing can make a route any more.
void Array::check_routes() const {
  if (!routeless_.empty()) std::rethrow_exception(routeless_.front().missing);
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
  if (configuring_) return true;
  if (timeline_) return wait_until_free(operation);
  if (!fresh_ && (settled_ || !must_settle(operation))) return true;
  if (!settle()) return false;
  if (!std::exchange(fresh_, false) && waited_for_) ++unwaited_count_;
  return true;
}

// In a timed run. False when paused_.
bool Array::wait_until_free(const Operation& operation) {
  const Written written = written_by(operation);
  if (waits_required_ || !finds_busy(written)) return true;
  while (finds_busy(written) && step()) {
    if (paused_) return false;
  }
  ++unwaited_count_;
  return true;
}

bool Array::must_settle(const Operation& operation) {
  const Written written = written_by(operation);
  waited_for_ = false;
  if (operation.opcode == Opcode::kLoadPdi || finds_stirred(written)) return true;
  return waited_for_ = !waits_required_ && finds_busy(written);
}

// No tile: the operation writes none.
Array::Written Array::written_by(const Operation& op) const {
  Written written;
  switch (op.opcode) {
    case Opcode::kBlockWrite:
      written.words = op.data;
      break;
    case Opcode::kWrite:
      written.words = {&op.value, 1};
      break;
    case Opcode::kMaskWrite:  // whatever these write: it differs
    case Opcode::kAddressPatch:
      break;
    default:
      return written;
  }
  const auto address = static_cast<uint32_t>(op.address);
  written.tile = find_tile(arch::address_col(address), arch::address_row(address));
  written.offset = arch::address_offset(address);
  written.value = op.value;
  return written;
}

namespace {

bool is_bd(const arch::TileGeometry& geometry, uint32_t offset) {
  return offset >= geometry.bd_base &&
         offset < geometry.bd_base + 0x20u * static_cast<uint32_t>(geometry.bds);
}

// The channel whose control register (or the task queue behind it) is at an offset, or null.
BdEngine* channel_at(Tile& tile, uint32_t offset) {
  const arch::TileGeometry& geometry = tile.geometry;
  for (const uint32_t first : {geometry.s2mm_base, geometry.mm2s_base}) {
    if (offset < first || offset >= first + 8u * static_cast<uint32_t>(geometry.channels)) continue;
    return tile.channels[first == geometry.mm2s_base][(offset - first) / 8];
  }
  return nullptr;
}

}  // namespace

// Whether the effect of a write depends on what the array does with those before it.
bool Array::finds_stirred(const Written& written) {
  if (!written.tile) return false;
  Tile& tile = *written.tile;
  const arch::TileGeometry& geometry = tile.geometry;
  const uint32_t offset = written.offset;
  const bool shim = geometry.kind == arch::TileKind::kShim;
  if (is_bd(geometry, offset)) return !shim && stirred(tile);
  if (channel_at(tile, offset)) return offset % 8 == 0 && !shim && (written.value >> 1 & 1) != 0;
  const uint32_t locks_end = geometry.lock_base + 0x10u * static_cast<uint32_t>(geometry.locks);
  if (offset < geometry.memory_bytes || (offset >= geometry.lock_base && offset < locks_end)) {
    return stirred(tile);
  }
  return configures(geometry.kind, offset);
}

// Whether a write changes a BD that a task needs, or pushes a task on a full queue.
bool Array::finds_busy(const Written& written) {
  if (!written.tile) return false;
  Tile& tile = *written.tile;
  if (is_bd(tile.geometry, written.offset)) {
    return finds_in_use(tile, written.offset, written.words);
  }
  const BdEngine* channel = channel_at(tile, written.offset);
  return channel && written.offset % 8 == 4 && channel->full();
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
