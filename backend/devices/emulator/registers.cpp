// The register map: what a write to each offset of each kind of tile does (hardware.md 1.3, 2.5,
// 3.1; aie-rt xaiemlgbl_params.h). A write to a known block without a modelled effect is stored and
// counted as undecoded; a write where no register exists is an error.
#include <algorithm>
#include <cstring>

#include "devices/emulator/array.h"
#include "devices/emulator/replay/action_log.h"
#include "error.h"
#include "runtime/overlay.h"

namespace npu::emulator {

using arch::Direction;
using arch::TileKind;

namespace {

enum class Block : uint8_t {
  kMemory,
  kBd,
  kS2mm,
  kMm2s,
  kLock,
  kSwitch,
  kProgramMemory,  // not executed: tells which overlay a core runs, if it has overlays
  kCoreControl,
  kCoreStatus,  // live for cores with a program
  kShimMux,
  kPadValue,
  kStored,  // performance counters, timers, events, clocks, status: kept for read-back only
};

struct Range {
  uint32_t begin, end;
  Block block;
};

constexpr Range kCoreMap[] = {
    {0x00000, 0x10000, Block::kMemory},
    {0x11000, 0x1D000, Block::kStored},
    {0x1D000, 0x1D200, Block::kBd},
    {0x1DE00, 0x1DE10, Block::kS2mm},
    {0x1DE10, 0x1DE20, Block::kMm2s},
    {0x1DF00, 0x1E000, Block::kStored},
    {0x1F000, 0x1F100, Block::kLock},
    {0x1F100, 0x1F130, Block::kStored},
    {kProgramMemory, kProgramMemory + kProgramMemoryBytes, Block::kProgramMemory},
    {kCoreControl, kCoreControl + 4, Block::kCoreControl},
    {0x32004, 0x32008, Block::kCoreStatus},
    {0x30000, 0x3F000, Block::kStored},
    {0x3F000, 0x3F400, Block::kSwitch},
    {0x3F800, 0x3F820, Block::kStored},
    {0x3FF00, 0x3FF3C, Block::kStored},
    {0x60000, 0x60100, Block::kStored},
};
constexpr Range kMemMap[] = {
    {0x00000, 0x80000, Block::kMemory},   {0x91000, 0xA0000, Block::kStored},
    {0xA0000, 0xA0600, Block::kBd},       {0xA0600, 0xA0630, Block::kS2mm},
    {0xA0630, 0xA0660, Block::kMm2s},     {0xA0660, 0xA06E0, Block::kStored},
    {0xA06E0, 0xA06F8, Block::kPadValue}, {0xB0000, 0xB0400, Block::kSwitch},
    {0xB0800, 0xB0820, Block::kStored},   {0xB0F00, 0xB0F3C, Block::kStored},
    {0xC0000, 0xC0400, Block::kLock},     {0xC0400, 0xC0440, Block::kStored},
    {0xFFF00, 0xFFF40, Block::kStored},
};
constexpr Range kShimMap[] = {
    {0x14000, 0x14100, Block::kLock},    {0x14100, 0x14130, Block::kStored},
    {0x15000, 0x1D000, Block::kStored},  {0x1D000, 0x1D200, Block::kBd},
    {0x1D200, 0x1D210, Block::kS2mm},    {0x1D210, 0x1D220, Block::kMm2s},
    {0x1D220, 0x1D300, Block::kStored},  {0x1E000, 0x1F000, Block::kStored},
    {0x1F000, 0x1F008, Block::kShimMux}, {0x30000, 0x3F000, Block::kStored},
    {0x3F000, 0x3F400, Block::kSwitch},  {0x3F800, 0x3F820, Block::kStored},
    {0x3FF00, 0x3FF3C, Block::kStored},  {0xFFF00, 0xFFF60, Block::kStored},
};

bool runs_overlays(const Tile& tile) { return tile.core && tile.core->has_overlays(); }

const Range* find_range(const arch::Geometry& device, TileKind kind, uint32_t offset) {
  const std::span<const Range> map = kind == TileKind::kCore  ? std::span<const Range>(kCoreMap)
                                     : kind == TileKind::kMem ? std::span<const Range>(kMemMap)
                                                              : kShimMap;
  for (const Range& range : map) {
    if (offset < range.begin || offset >= range.end) continue;
    // npu1 pads with zeros and has no registers for it.
    const bool missing =
        range.block == Block::kPadValue && device.generation == arch::Generation::kNpu1;
    return missing ? nullptr : &range;
  }
  return nullptr;
}

}  // namespace

bool Array::configures(arch::TileKind kind, uint32_t offset) const {
  const Range* range = find_range(device_, kind, offset);
  if (!range) return false;
  return range->block == Block::kSwitch || range->block == Block::kShimMux ||
         range->block == Block::kProgramMemory || range->block == Block::kCoreControl ||
         range->block == Block::kPadValue;
}

void Array::write_register(uint32_t address, uint32_t value) {
  left_by_.reset();
  const int col = arch::address_col(address), row = arch::address_row(address);
  const uint32_t offset = arch::address_offset(address);
  Tile* target = find_tile(col, row);
  if (!target) {
    fail(ErrorKind::kUnknownRegister,
         "[%s] writes address 0x%08x of tile (%d,%d), but %s has columns 0..%d and rows 0..%d",
         who().c_str(), address, col, row, device_.name, device_.columns - 1, arch::kRows - 1);
  }
  const Range* range = find_range(device_, target->geometry.kind, offset);
  if (!range) {
    fail(ErrorKind::kUnknownRegister,
         "[%s] writes address 0x%08x, but %s of %s has no register at offset 0x%05x; check the "
         "address",
         who().c_str(), address, target->name().c_str(), device_.name, offset);
  }
  if (offset % 4 != 0) {
    fail(ErrorKind::kMisaligned,
         "[%s] writes address 0x%08x; register addresses must be multiples of 4", who().c_str(),
         address);
  }
  switch (range->block) {
    case Block::kMemory:
      target->aliases.flush(offset, 4);
      if (log_) log_->word(target->memory.data() + offset, value);
      std::memcpy(target->memory.data() + offset, &value, 4);
      return;
    case Block::kBd:
      return write_bd(*target, offset, value);
    case Block::kS2mm:
    case Block::kMm2s:
      return write_channel(*target, offset, value);
    case Block::kLock:
      return write_lock(*target, offset, value);
    case Block::kSwitch:
      return write_switch(*target, offset, value);
    case Block::kProgramMemory:
      return write_program(*target, offset - range->begin, std::span(&value, 1));
    case Block::kCoreControl:
      return write_core_control(*target, value);
    case Block::kPadValue:
      reconfigured_ |= !configuring_;
      target->pad_value[(offset - range->begin) / 4] = value;
      return;
    case Block::kShimMux:
      (offset == range->begin ? target->shim_mux : target->shim_demux) = value;
      switches_changed();
      return;
    case Block::kCoreStatus:
    case Block::kStored:
      break;
  }
  target->other_registers[offset] = value;
  ++undecoded_since_configure_;
}

// A channel with a queued or running task that can still execute this BD.
const BdEngine* Array::user_of(const Tile& target, int bd) const {
  for (const auto& side : target.channels) {
    for (const auto& channel : side) {
      if (channel->uses_bd(bd)) return channel;
    }
  }
  return nullptr;
}

// A BD in use must not change: the hardware would read old or new words depending on timing.
void Array::check_bd_free(const Tile& target, int bd) const {
  const BdEngine* channel = user_of(target, bd);
  if (!channel) return;
  const std::string progress = channel->progress();
  fail(ErrorKind::kBdInUse,
       "[%s] rewrites BD %d of %s while %s still needs it (%s); wait for that transfer's token "
       "first",
       who().c_str(), bd, target.name().c_str(), channel->name().c_str(),
       progress.empty() ? "queued" : progress.c_str());
}

// On npu1, mlir-aie gives memtile BDs that a stream writes addresses from 0 in the tile's own
// memory, those of a configuration addresses in the window of west, own and east (hardware.md 1.4).
// A configuration that comes as a stream names the west's locks, too, where it means the west's
// memory (BdSlot::addresses_own).
bool Array::starts_at_own(const Tile& target, uint32_t word) const {
  return device_.generation == arch::Generation::kNpu1 && !configuring_ && !control_sender_ &&
         target.geometry.kind == TileKind::kMem &&
         (word & 0x7FFFF) * 4 < target.geometry.memory_bytes;
}

void Array::write_bd(Tile& target, uint32_t offset, uint32_t value) {
  const uint32_t relative = offset - target.geometry.bd_base;
  const int bd = static_cast<int>(relative / 0x20);
  const int word = static_cast<int>(relative % 0x20 / 4);
  if (word >= target.geometry.bd_words) {
    fail(ErrorKind::kUnknownRegister,
         "[%s] writes word %d of BD %d of %s, but its BDs have %d words; write only those",
         who().c_str(), word, bd, target.name().c_str(), target.geometry.bd_words);
  }
  BdSlot& slot = target.bds[static_cast<size_t>(bd)];
  const bool own_from_zero = starts_at_own(target, value);
  if (word == 1 || word == 2) slot.patch = 0;
  if (!slot.differs(static_cast<size_t>(word), value, own_from_zero)) {
    if (word + 1 < target.geometry.bd_words) return;
    for (BdEngine* receiver : target.channels[static_cast<size_t>(Direction::kS2MM)]) {
      receiver->rearm(bd);
    }
    return;
  }
  check_bd_free(target, bd);
  slot.write(static_cast<size_t>(word), value, own_from_zero);
}

// In a timed run a register may be written during a transfer or a call; what a reset leaves of it
// is not modelled.
void Array::check_at_rest(bool busy, const std::string& name) const {
  if (!busy) return;
  fail(ErrorKind::kUnsupported,
       "[%s] resets %s in the middle of a transfer or kernel call, which the emulator does not "
       "model; wait for its end first",
       who().c_str(), name.c_str());
}

void Array::write_channel(Tile& target, uint32_t offset, uint32_t value) {
  const bool mm2s = offset >= target.geometry.mm2s_base;
  const uint32_t relative = offset - (mm2s ? target.geometry.mm2s_base : target.geometry.s2mm_base);
  BdEngine& channel =
      target.channel(mm2s ? Direction::kMM2S : Direction::kS2MM, static_cast<int>(relative / 8));
  stir(target);
  if (relative % 8 == 4) return channel.push(value);
  const bool reset_bit = target.geometry.kind != TileKind::kShim && (value >> 1 & 1);
  if (reset_bit) check_at_rest(channel.moving(), channel.name());
  channel.control = value;
  if (reset_bit) channel.reset();
}

void Array::write_lock(Tile& target, uint32_t offset, uint32_t value) {
  const uint32_t id = (offset - target.geometry.lock_base) / 0x10;
  if (offset % 0x10 != 0 || id >= target.locks.size()) {
    fail(ErrorKind::kUnknownRegister,
         "[%s] no lock register at offset 0x%05x of %s; lock i is at 0x%05x + 0x10 * i, i < %d",
         who().c_str(), offset, target.name().c_str(), target.geometry.lock_base,
         target.geometry.locks);
  }
  stir(target);
  // The register is six bits wide; aie-rt writes negative initial values sign-extended.
  Lock& lock = target.locks[id];
  lock.value = static_cast<int>(value & 0x3F);
  ++lock.written;
  scheduler_.wake_all(lock.waiters, nullptr);
}

void Array::write_switch(Tile& target, uint32_t offset, uint32_t value) {
  const uint32_t relative = offset - target.geometry.switch_base;
  StreamSwitch& sw = target.stream_switch;
  const uint32_t index = relative % 0x100 / 4, slot_port = (relative - 0x200) / 0x10;
  const auto ports = [&](bool master) {
    return static_cast<uint32_t>(switch_ports(target.geometry.kind, master));
  };
  switches_changed();
  if (relative < 0x100 && index < ports(true)) {
    sw.master[index] = value;
  } else if (relative >= 0x100 && relative < 0x200 && index < ports(false)) {
    sw.slave[index] = value;
  } else if (relative >= 0x200 && slot_port < ports(false)) {
    sw.slot[slot_port][relative % 0x10 / 4] = value;
  } else {
    fail(ErrorKind::kUnknownRegister,
         "[%s] no stream-switch register at offset 0x%05x of %s, which has %u master and %u slave "
         "ports",
         who().c_str(), offset, target.name().c_str(), ports(true), ports(false));
  }
}

// A core that no stream ever wrote to runs from the moment its program is attached: configurations
// without program memory do not enable it either. Cores with overlays have to be reset and enabled.
void Array::write_core_control(Tile& target, uint32_t value) {
  if (target.core && !runs_overlays(target) && (value & kCoreReset) != 0) {
    check_at_rest(target.core->calling(), target.name());
  }
  target.other_registers[kCoreControl] = value;
  reconfigured_ |= !configuring_ && !runs_overlays(target);
  if (!target.core) return;
  stir(target);
  target.core->control(target.program_lost ? value & ~kCoreEnable : value);
  scheduler_.wake(target.core.get(), nullptr);
}

void Array::write_program(Tile& target, uint32_t offset, std::span<const uint32_t> words) {
  if (target.core) {
    if (const std::string why = target.core->unfinished(); !why.empty()) {
      fail(ErrorKind::kKernel,
           "[%s] writes the program memory of %s, %s; reset the core first, once its program has "
           "ended",
           who().c_str(), target.name().c_str(), why.c_str());
    }
    // What ran in an earlier run is gone. A program attached since stands for what is written now.
    if (!runs_overlays(target)) target.program_lost = target.attached_in_run != runs_;
  }
  reconfigured_ |= !configuring_ && !runs_overlays(target);
  std::copy(words.begin(), words.end(), target.program_memory.begin() + offset / 4);
}

// Consecutive registers, as a control packet writes them.
void Array::write_registers(Tile& target, uint32_t offset, std::span<const uint32_t> words) {
  const uint32_t end = offset + static_cast<uint32_t>(4 * words.size());
  if (target.geometry.kind == TileKind::kCore && offset % 4 == 0 && offset >= kProgramMemory &&
      end <= kProgramMemory + kProgramMemoryBytes) {
    return write_program(target, offset - kProgramMemory, words);
  }
  for (const uint32_t word : words) {
    write_register(arch::tile_address(target.col, target.row, offset), word);
    offset += 4;
  }
}

uint32_t Array::read_switch(const Tile& target, uint32_t relative) const {
  const StreamSwitch& sw = target.stream_switch;
  const uint32_t index = relative % 0x100 / 4, port = (relative - 0x200) / 0x10;
  if (relative >= 0x200) {
    return port < StreamSwitch::kMaxPorts ? sw.slot[port][relative % 0x10 / 4] : 0;
  }
  if (index >= StreamSwitch::kMaxPorts) return 0;
  return relative < 0x100 ? sw.master[index] : sw.slave[index];
}

// Channel status registers are live; everything else reads back what was written.
uint32_t Array::read_stored(const Tile& target, uint32_t offset) const {
  constexpr struct {
    TileKind kind;
    uint32_t s2mm, mm2s;
  } kStatuses[] = {{TileKind::kCore, 0x1DF00, 0x1DF10},
                   {TileKind::kMem, 0xA0660, 0xA0680},
                   {TileKind::kShim, 0x1D220, 0x1D228}};
  for (const auto& entry : kStatuses) {
    if (entry.kind != target.geometry.kind) continue;
    for (size_t direction = 0; direction < 2; ++direction) {
      const uint32_t first = direction == 0 ? entry.s2mm : entry.mm2s;
      const uint32_t channel = (offset - first) / 4;
      if (offset >= first && channel < static_cast<uint32_t>(target.geometry.channels)) {
        return target.channels[direction][channel]->status();
      }
    }
  }
  const auto found = target.other_registers.find(offset);
  return found == target.other_registers.end() ? 0 : found->second;
}

uint32_t Array::read_register(uint32_t address) {
  Tile* found = find_tile(arch::address_col(address), arch::address_row(address));
  const uint32_t offset = arch::address_offset(address);
  const Range* range = found ? find_range(device_, found->geometry.kind, offset) : nullptr;
  if (!range || offset % 4 != 0) {
    fail(ErrorKind::kUnknownRegister,
         "[%s] reads address 0x%08x, where %s has no register; check the address",
         operation_ ? who().c_str() : "read_register", address, device_.name);
  }
  Tile& target = *found;
  const arch::TileGeometry& geometry = target.geometry;
  switch (range->block) {
    case Block::kMemory: {
      uint32_t value;
      target.aliases.flush(offset, 4);
      std::memcpy(&value, target.memory.data() + offset, 4);
      return value;
    }
    case Block::kBd:
      return target.bds[(offset - geometry.bd_base) / 0x20]
          .words[(offset - geometry.bd_base) % 0x20 / 4];
    case Block::kS2mm:
    case Block::kMm2s: {
      if ((offset - range->begin) % 8 == 4) return 0;  // the task queue is write-only
      const size_t direction = range->block == Block::kMm2s;
      return target.channels[direction][(offset - range->begin) / 8]->control;
    }
    case Block::kLock: {
      const uint32_t id = (offset - geometry.lock_base) / 0x10;
      return offset % 0x10 == 0 && id < target.locks.size()
                 ? static_cast<uint32_t>(target.locks[id].value)
                 : 0;
    }
    case Block::kSwitch:
      return read_switch(target, offset - geometry.switch_base);
    case Block::kShimMux:
      return offset == range->begin ? target.shim_mux : target.shim_demux;
    case Block::kPadValue:
      return target.pad_value[(offset - range->begin) / 4];
    case Block::kProgramMemory:
      return target.program_memory[(offset - range->begin) / 4];
    case Block::kCoreStatus:
      return target.core ? target.core->status() : 0;
    case Block::kCoreControl:
    case Block::kStored:
      break;
  }
  return read_stored(target, offset);
}

}  // namespace npu::emulator
