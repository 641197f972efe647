// A stream as text: a header line, then one line per operation with its index, byte offset,
// register name and, where the register has fields (BDs, task queues), what they say.
#include <string>

#include "arch/bd.h"
#include "error.h"
#include "stream/register_name.h"
#include "stream/txn.h"

namespace npu::stream {

namespace {

using Area = RegisterPlace::Area;

// Payload words printed before "...".
constexpr size_t kShownWords = 8;

const char* direction_name(arch::Direction direction) {
  return direction == arch::Direction::kS2MM ? "s2mm" : "mm2s";
}

// Where a 32-bit address lies, if some tile has it.
bool locate(uint64_t address, arch::TileKind& kind, RegisterPlace& place) {
  if (address >> 32 != 0) return false;
  const uint32_t narrow = static_cast<uint32_t>(address);
  const int row = arch::address_row(narrow);
  if (row >= arch::kRows) return false;
  kind = arch::tile_kind(row);
  place = locate_register(kind, arch::address_offset(narrow));
  return true;
}

// "*x64x8 step 64,256,1": sizes and steps outermost first; a dimension without a wrap prints as *.
std::string dimensions(const arch::TileGeometry& tile, const arch::Bd& bd) {
  std::string sizes, steps;
  for (int d = tile.address_dims - 1; d >= 0; --d) {
    const size_t i = static_cast<size_t>(d);
    const bool outermost = d == tile.address_dims - 1;
    const uint32_t wrap = i < bd.wrap.size() ? bd.wrap[i] : 0;
    if (!outermost) {
      sizes += 'x';
      steps += ',';
    }
    sizes += wrap == 0 ? strf("*") : strf("%u", wrap);
    steps += strf("%u", bd.step[i]);
  }
  return sizes + " step " + steps;
}

std::string padding(const arch::Bd& bd) {
  std::string text;
  for (size_t d = 0; d < bd.pad_before.size(); ++d) {
    if (bd.pad_before[d] == 0 && bd.pad_after[d] == 0) continue;
    text += strf(" pad d%zu %u+%u", d, bd.pad_before[d], bd.pad_after[d]);
  }
  return text;
}

std::string bd_text(arch::TileKind kind, std::span<const uint32_t> words) {
  const arch::TileGeometry& tile = arch::tile_geometry(kind);
  const arch::Bd bd = arch::decode_bd(kind, words);
  std::string text = strf("length %u base 0x%llx dims %s", bd.length,
                          static_cast<unsigned long long>(bd.base), dimensions(tile, bd).c_str());
  if (bd.iteration_wrap != 1 || bd.iteration_current != 0) {
    text += strf(" iteration %u/%u step %u", bd.iteration_current, bd.iteration_wrap,
                 bd.iteration_step);
  }
  text += padding(bd);
  if (bd.packet_enable) text += strf(" packet id %u type %u", bd.packet_id, bd.packet_type);
  if (bd.out_of_order_id != 0) text += strf(" out-of-order %u", bd.out_of_order_id);
  if (bd.acquire_enable) {
    text += strf(" acquire lock[%u] %s %d", bd.acquire_id, bd.acquire_value < 0 ? ">=" : "==",
                 bd.acquire_value < 0 ? -bd.acquire_value : bd.acquire_value);
  }
  if (bd.release_value != 0) text += strf(" release lock[%u] %+d", bd.release_id, bd.release_value);
  if (bd.use_next) text += strf(" next bd[%u]", bd.next_bd);
  if (bd.compression) text += " compressed";
  if (bd.tlast_suppress) text += " no-tlast";
  if (kind == arch::TileKind::kShim) {
    text += strf(" burst %u axcache %u", 64u << bd.burst, bd.axcache);
    if (bd.axqos != 0 || bd.smid != 0) text += strf(" qos %u smid %u", bd.axqos, bd.smid);
    if (bd.secure) text += " secure";
  }
  if (!bd.valid) text += " INVALID";
  return text;
}

std::string queue_text(uint32_t value) {
  return strf("push bd[%u] runs %u%s", value & 0x3F, (value >> 16 & 0xFF) + 1,
              value >> 31 != 0 ? " token" : "");
}

std::string words_text(std::span<const uint32_t> words) {
  std::string text = strf("%zu words", words.size());
  for (size_t i = 0; i < words.size() && i < kShownWords; ++i) text += strf(" %08x", words[i]);
  return words.size() > kShownWords ? text + " ..." : text;
}

// Two or more BDs in one block stay on one line, separated by "; ".
std::string block_text(const Operation& op) {
  arch::TileKind kind{};
  RegisterPlace place;
  const bool known = locate(op.address, kind, place);
  const size_t needed = static_cast<size_t>(arch::tile_geometry(kind).bd_words);
  if (!known || place.area != Area::kBd || place.within != 0 || op.data.size() < needed) {
    return words_text(op.data);
  }
  constexpr size_t kSlotWords = 8;  // BDs are 0x20 bytes apart
  const size_t available = static_cast<size_t>(arch::tile_geometry(kind).bds - place.index);
  std::string text = bd_text(kind, op.data);
  size_t used = 1;
  while (used < available && op.data.size() >= used * kSlotWords + needed) {
    text += strf("; bd[%zu] ", static_cast<size_t>(place.index) + used) +
            bd_text(kind, op.data.subspan(used * kSlotWords));
    ++used;
  }
  const size_t rest = (used - 1) * kSlotWords + needed;
  if (op.data.size() > rest) text += "; then " + words_text(op.data.subspan(rest));
  return text;
}

std::string write_text(const Operation& op) {
  arch::TileKind kind{};
  RegisterPlace place;
  if (locate(op.address, kind, place)) {
    if (place.area == Area::kQueue) return queue_text(op.value);
    if (place.area == Area::kLock) return strf("= %u", op.value);
    if (place.area == Area::kMemory) return strf("= %d", static_cast<int32_t>(op.value));
  }
  return strf("= 0x%08x", op.value);
}

std::string sync_text(const Operation& op) {
  std::string tiles = tile_name(op.column, op.row);
  if (op.columns != 1 || op.rows != 1) {
    tiles += ".." + tile_name(op.column + op.columns - 1, op.row + op.rows - 1);
  }
  return strf("%s.%s[%d]", tiles.c_str(), direction_name(op.direction), op.channel);
}

std::string operation_text(const Operation& op) {
  const std::string name = register_name(op.address);
  switch (op.opcode) {
    case Opcode::kWrite:
      return name + " " + write_text(op);
    case Opcode::kBlockWrite:
      return name + " " + block_text(op);
    case Opcode::kMaskWrite:
      return name + strf(" = 0x%08x mask 0x%08x", op.value, op.mask);
    case Opcode::kMaskPoll:
    case Opcode::kMaskPollBusy:
      return name + strf(" until 0x%08x mask 0x%08x", op.value, op.mask);
    case Opcode::kPreempt:
      return strf("level %u", op.level);
    case Opcode::kLoadPdi:
      return strf("id %u, %u bytes at 0x%llx", op.pdi_id, op.pdi_bytes,
                  static_cast<unsigned long long>(op.address));
    case Opcode::kLoadPmStart:
      return strf("sequences %u memory %u", op.value, op.pdi_id);
    case Opcode::kCreateScratchpad:
      return strf("usage %u, %u bytes", op.level, op.value);
    case Opcode::kUpdateReg:
      return name +
             strf(" state[%u] function %u argument %u", op.state_index, op.function, op.value);
    case Opcode::kSync:
      return sync_text(op);
    case Opcode::kAddressPatch:
      return name + strf(" <- argument %u + 0x%llx", op.argument,
                         static_cast<unsigned long long>(op.argument_offset));
    case Opcode::kReadRegs:
    case Opcode::kRecordTimer:
    case Opcode::kMergeSync:
      return words_text(op.data);
    default:
      return "";
  }
}

}  // namespace

std::string disassemble(const Stream& stream) {
  const Header& h = stream.header();
  std::string text = strf("txn %u.%u %s, %u columns, %u operations, %u bytes\n", h.major, h.minor,
                          arch::device_geometry(static_cast<arch::Generation>(h.generation)).name,
                          h.columns, h.operations, h.bytes);
  for (const Operation& op : stream.operations()) {
    std::string line = strf("%5u %06x %-13s ", op.index, op.byte_offset, opcode_name(op.opcode)) +
                       operation_text(op);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace npu::stream
