// What a runtime stream may do: program the DMA and locks of shim tiles, write the RTP words and
// RTP locks it was given, and wait for shim tokens. Anything else would change the configuration
// that other streams rely on, so it is rejected before submission.
#include "error.h"
#include "stream/register_name.h"
#include "stream/txn.h"

namespace npu::stream {

namespace {

using Area = RegisterPlace::Area;

[[noreturn]] void forbid(const Operation& op, const std::string& what) {
  fail(ErrorKind::kForbidden, "[check_runtime_stream] operation %u (%s) at byte 0x%x: %s", op.index,
       opcode_name(op.opcode), op.byte_offset, what.c_str());
}

bool shim_register(Area area) {
  return area == Area::kBd || area == Area::kLock || area == Area::kControl || area == Area::kQueue;
}

bool permitted_word(uint32_t address, const Permissions& permissions) {
  const int col = arch::address_col(address), row = arch::address_row(address);
  const uint32_t offset = arch::address_offset(address);
  for (const Permissions::Range& range : permissions.rtp_words) {
    // Subtraction first: offset + bytes may not fit 32 bits.
    if (range.col == col && range.row == row && offset >= range.offset && range.bytes >= 4 &&
        offset - range.offset <= range.bytes - 4) {
      return true;
    }
  }
  if (row <= 0 || row >= arch::kRows) return false;
  const RegisterPlace place = locate_register(arch::tile_kind(row), offset);
  if (place.area != Area::kLock || place.within != 0) return false;
  for (const Permissions::Lock& lock : permissions.rtp_locks) {
    if (lock.col == col && lock.row == row && lock.id == place.index) return true;
  }
  return false;
}

// `words` consecutive registers from `address`, all of which must be permitted.
void check_registers(const Operation& op, uint64_t address, size_t words, int columns,
                     const Permissions& permissions) {
  for (size_t i = 0; i < words; ++i) {
    const uint64_t at = address + 4 * i;
    const uint32_t narrow = static_cast<uint32_t>(at);
    if (at >> 32 != 0 || at % 4 != 0) {
      forbid(op, "writes " + register_name(at) + ", which is not a register address");
    }
    if (arch::address_col(narrow) >= columns) {
      forbid(op, strf("writes %s; the stream's header names %d columns", register_name(at).c_str(),
                      columns));
    }
    const bool shim = arch::address_row(narrow) == 0;
    const Area area = locate_register(arch::TileKind::kShim, arch::address_offset(narrow)).area;
    if (shim && shim_register(area)) continue;
    if (permitted_word(narrow, permissions)) continue;
    forbid(op, "writes " + register_name(at) +
                   "; a runtime stream may write shim BDs, channels and locks, and the "
                   "configuration's RTP words and RTP locks");
  }
}

void check_sync(const Operation& op, int columns) {
  if (op.row != 0 || op.rows != 1) {
    forbid(op, strf("waits for rows %d..%d; a runtime stream may wait for shim tiles (row 0) only",
                    op.row, op.row + op.rows - 1));
  }
  if (op.column + op.columns > columns) {
    forbid(op, strf("waits for columns %d..%d; the stream's header names %d columns", op.column,
                    op.column + op.columns - 1, columns));
  }
  const int channels = arch::tile_geometry(arch::TileKind::kShim).channels;
  if (op.channel >= channels) {
    forbid(op, strf("waits for channel %d; a shim tile has %d", op.channel, channels));
  }
}

// A poll changes nothing; it may look at any register of a shim tile (channel status, say).
void check_poll(const Operation& op, int columns) {
  const uint32_t address = static_cast<uint32_t>(op.address);
  if (op.address >> 32 != 0 || arch::address_row(address) != 0 ||
      arch::address_col(address) >= columns) {
    forbid(op, "polls " + register_name(op.address) +
                   "; a runtime stream may poll registers of shim tiles only");
  }
}

// The BD whose base address an ADDRESS_PATCH replaces: word 1 and 2 of a shim BD.
void check_patch(const Operation& op, int columns, const Permissions& permissions) {
  check_registers(op, op.address, 2, columns, permissions);
  const uint32_t address = static_cast<uint32_t>(op.address);
  const RegisterPlace place = locate_register(arch::TileKind::kShim, arch::address_offset(address));
  if (arch::address_row(address) != 0 || place.area != Area::kBd || place.within != 4) {
    forbid(op, "patches " + register_name(op.address) +
                   "; only word 1 of a shim BD holds an "
                   "address");
  }
}

}  // namespace

void check_runtime_stream(const Stream& stream, const Permissions& permissions) {
  const int columns = stream.header().columns;
  for (const Operation& op : stream.operations()) {
    switch (op.opcode) {
      case Opcode::kWrite:
      case Opcode::kMaskWrite:
        check_registers(op, op.address, 1, columns, permissions);
        break;
      case Opcode::kBlockWrite:
        check_registers(op, op.address, op.data.size(), columns, permissions);
        break;
      case Opcode::kSync:
        check_sync(op, columns);
        break;
      case Opcode::kAddressPatch:
        check_patch(op, columns, permissions);
        break;
      case Opcode::kMaskPoll:
      case Opcode::kMaskPollBusy:
        check_poll(op, columns);
        break;
      // These change no register.
      case Opcode::kNoop:
      case Opcode::kPreempt:
      case Opcode::kReadRegs:
      case Opcode::kRecordTimer:
      case Opcode::kMergeSync:
        break;
      default:
        forbid(op, "a runtime stream may not contain this operation");
    }
  }
}

}  // namespace npu::stream
