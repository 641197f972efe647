// Taking, comparing and restoring the state of an array between two runs (control_state.h).
#include "devices/emulator/replay/control_state.h"

#include <cassert>

#include "devices/emulator/array.h"
#include "devices/emulator/receiver.h"
#include "devices/emulator/sender.h"

namespace npu::emulator {

std::optional<ControlState> ControlState::of(Array& array) {
  ControlState state;
  std::shared_ptr<const std::vector<uint32_t>> program;
  for (const auto& tile : array.tiles()) {
    TileState& of = state.tiles_.emplace_back();
    for (const Lock& lock : tile->locks) {
      of.locks.push_back(lock.value);
      of.written.push_back(lock.written);
    }
    of.bds = tile->bds;
    for (const auto& side : tile->channels) {
      for (BdEngine* channel : side) {
        std::optional<BdEngine::Rest> rest = channel->rest();
        if (!rest) return std::nullopt;
        of.channels.push_back(std::move(*rest));
      }
    }
    if (tile->core == nullptr) continue;
    const auto* core = dynamic_cast<const ProgramCore*>(tile->core.get());
    if (core == nullptr) return std::nullopt;
    of.core = core->rest();
    if (!core->has_overlays()) continue;
    const auto control = tile->other_registers.find(kCoreControl);
    of.core_control = control == tile->other_registers.end() ? 0 : control->second;
    if (!program || *program != tile->program_memory) {  // most cores have the same one
      program = std::make_shared<const std::vector<uint32_t>>(tile->program_memory);
      state.program_bytes_ += 4 * program->size();
    }
    of.program = program;
  }
  return state;
}

bool ControlState::leaves_nothing(const Array& array) const {
  for (size_t t = 0; t < tiles_.size(); ++t) {
    const Tile& tile = *array.tiles()[t];
    const TileState& here = tiles_[t];
    if (tile.core && !tile.core->unfinished().empty()) return false;
    for (size_t i = 0; i < here.locks.size(); ++i) {
      if (tile.locks[i].value != here.locks[i]) return false;
    }
    size_t next = 0;
    for (const auto& side : tile.channels) {
      for (const BdEngine* channel : side) {
        const BdEngine::Rest& rest = here.channels[next++];
        if (channel->tasks() != rest.queue.size() + (rest.task ? 1 : 0)) return false;
      }
    }
  }
  return true;
}

void ControlState::install(Array& array, std::span<const int64_t> moved) const {
  for (size_t t = 0; t < tiles_.size(); ++t) {
    Tile& tile = *array.tiles()[t];
    const TileState& to = tiles_[t];
    for (size_t i = 0; i < to.locks.size(); ++i) {
      tile.locks[i].value = to.locks[i];
      tile.locks[i].written = to.written[i];
    }
    for (size_t i = 0; i < to.bds.size(); ++i) {
      const BdSlot& slot = to.bds[i];
      const int64_t distance = slot.patch < moved.size() ? moved[slot.patch] : 0;
      if (distance == 0 && tile.bds[i].same(slot)) continue;
      tile.bds[i] = slot;
      if (distance != 0) tile.bds[i].move_address(distance);
    }
    size_t next = 0;
    for (const auto& side : tile.channels) {
      for (BdEngine* channel : side) channel->put(to.channels[next++]);
    }
    if (to.core) static_cast<ProgramCore&>(*tile.core).put(*to.core);
    if (!to.program) continue;
    tile.program_memory = *to.program;
    if (to.core_control == 0) {
      tile.other_registers.erase(kCoreControl);
    } else {
      tile.other_registers[kCoreControl] = to.core_control;
    }
  }
}

void ControlState::move_addresses(Array& array, std::span<const int64_t> before,
                                  std::span<const int64_t> moved) {
  for (const auto& tile : array.tiles()) {
    if (tile->geometry.kind != arch::TileKind::kShim) continue;  // no other BD is patched
    for (BdSlot& slot : tile->bds) {
      assert(slot.patch < moved.size() && moved.size() == before.size());
      const int64_t distance = moved[slot.patch] - before[slot.patch];
      if (distance != 0) slot.move_address(distance);
    }
  }
}

size_t ControlState::bytes() const {
  size_t sum = program_bytes_;
  for (const TileState& tile : tiles_) {
    sum += sizeof tile + tile.locks.size() * 8 + tile.bds.size() * (sizeof(BdSlot)) +
           tile.channels.size() * sizeof(BdEngine::Rest);
  }
  return sum;
}

}  // namespace npu::emulator
