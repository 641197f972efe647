// One emulated tile (tile.h).
#include "devices/emulator/tile.h"

#include <algorithm>
#include <utility>

#include "devices/emulator/core.h"
#include "devices/emulator/ports.h"
#include "devices/emulator/receiver.h"
#include "devices/emulator/sender.h"
#include "runtime/overlay.h"

namespace npu::emulator {

Tile::Tile(Array& array, int c, int r, std::shared_ptr<TileMemories> of)
    : col(c),
      row(r),
      geometry(arch::tile_geometry(arch::tile_kind(r))),
      memories(std::move(of)),
      memory(memories->of(number())),
      aliases(memory),
      locks(static_cast<size_t>(geometry.locks)),
      bds(static_cast<size_t>(geometry.bds)),
      program_memory(geometry.kind == arch::TileKind::kCore ? kProgramMemoryBytes / 4 : 0),
      ports(std::make_unique<Ports>(array, *this)) {
  for (int i = 0; i < geometry.channels; ++i) {
    receivers.push_back(std::make_unique<Receiver>(array, *this, i));
    senders.push_back(std::make_unique<Sender>(array, *this, i));
    channels[static_cast<size_t>(arch::Direction::kS2MM)].push_back(receivers.back().get());
    channels[static_cast<size_t>(arch::Direction::kMM2S)].push_back(senders.back().get());
  }
}

Tile::~Tile() = default;

void Tile::reset(std::optional<std::byte> contents) {
  if (!contents) aliases.flush_all();
  aliases.clear();
  keeps_blocks = true;
  if (contents) std::ranges::fill(memory, *contents);
  for (Lock& lock : locks) {
    lock.value = 0;
    lock.waiters.clear();
  }
  std::fill(bds.begin(), bds.end(), BdSlot{});
  for (auto& side : channels) {
    for (auto& channel : side) {
      channel->reset();
      channel->control = 0;
    }
  }
  stream_switch = StreamSwitch{};
  shim_mux = shim_demux = 0;
  pad_value = {};
  other_registers.clear();
  std::fill(program_memory.begin(), program_memory.end(), 0u);
  ports->reset();
  core.reset();
  program_lost = stirred = false;
}

std::string Tile::name() const { return strf("%s (%d,%d)", geometry.name, col, row); }

}  // namespace npu::emulator
