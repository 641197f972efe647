// The command processor: executes TXN operations one after the other (hardware.md 4.5). Queue pushes
// run ahead of the array; waits let the array run until they are satisfied.
#include <cstring>

#include "emulator/array.h"
#include "error.h"

namespace npu::emulator {

using stream::Opcode;
using stream::Operation;

namespace {

uint32_t token_key(int col, int row, arch::Direction direction, int channel) {
  return arch::tile_address(col, row,
                            static_cast<uint32_t>(direction) * 16u + static_cast<uint32_t>(channel));
}

}  // namespace

void Array::execute(const stream::Stream& parsed) {
  const stream::Header& header = parsed.header();
  if (header.generation != static_cast<uint8_t>(device_.generation)) {
    fail(ErrorKind::kFormat,
         "[%s] the stream is for device generation %d, this array is %s (generation %d)",
         configuring_ ? "configure" : "submit", header.generation, device_.name,
         static_cast<int>(device_.generation));
  }
  for (const Operation& operation : parsed.operations()) {
    run_operation(operation);
    ++report_.operations;
  }
}

void Array::run_operation(const Operation& op) {
  // Built only for messages; keep it cheap.
  const auto who = [&] {
    return strf("%s: operation %u %s", configuring_ ? "configure" : "submit", op.index,
                opcode_name(op.opcode));
  };
  const uint32_t address = static_cast<uint32_t>(op.address);
  switch (op.opcode) {
    case Opcode::kWrite: return write_register(address, op.value, who());
    case Opcode::kBlockWrite: {
      const std::string name = who();
      for (size_t i = 0; i < op.data.size(); ++i) {
        write_register(address + 4 * static_cast<uint32_t>(i), op.data[i], name);
      }
      return;
    }
    case Opcode::kMaskWrite: {
      const uint32_t old = read_register(address, who());
      return write_register(address, (old & ~op.mask) | (op.value & op.mask), who());
    }
    case Opcode::kMaskPoll:
    case Opcode::kMaskPollBusy:
      while ((read_register(address, who()) & op.mask) != op.value) {
        if (!scheduler_.round()) {
          deadlock(strf("%s waits for register 0x%08x & 0x%08x to be 0x%08x (it is 0x%08x)",
                        who().c_str(), address, op.mask, op.value,
                        read_register(address, who())));
        }
      }
      return;
    case Opcode::kSync: return sync(op, who());
    case Opcode::kAddressPatch: return patch(op, who());
    case Opcode::kNoop:
    case Opcode::kPreempt:
    case Opcode::kRecordTimer:
    case Opcode::kReadRegs:
    case Opcode::kMergeSync: return;  // no functional effect
    default: break;
  }
  fail(ErrorKind::kUnknownOperation,
       "[%s] (opcode 0x%02x at byte %u) decodes but cannot be executed by the emulator; it needs "
       "firmware state that is not modelled",
       who().c_str(), static_cast<unsigned>(op.opcode), op.byte_offset);
}

void Array::sync(const Operation& op, const std::string& who) {
  for (int col = op.column; col < op.column + op.columns; ++col) {
    for (int row = op.row; row < op.row + op.rows; ++row) {
      const Tile* target = find_tile(col, row);
      if (!target || op.channel >= target->model.channels) {
        fail(ErrorKind::kArgument, "[%s] waits on tile (%d,%d) channel %d, which does not exist",
             who.c_str(), col, row, op.channel);
      }
      int& count = tokens_[token_key(col, row, op.direction, op.channel)];
      while (count == 0) {
        if (scheduler_.round()) continue;
        const Channel& channel = tile(col, row).channel(op.direction, op.channel);
        deadlock(strf("%s waits for a task-complete token of %s", who.c_str(),
                      channel.name().c_str()));
      }
      --count;
    }
  }
}

void Array::patch(const Operation& op, const std::string& who) {
  if (op.argument >= buffers_.size()) {
    fail(ErrorKind::kArgument, "[%s] patches argument %u into a BD, but %zu arguments were given",
         who.c_str(), op.argument, buffers_.size());
  }
  // The compiler folds the DDR aperture into the offset of arguments the firmware does not handle.
  uint64_t offset = op.argument_offset;
  if (op.argument >= static_cast<uint32_t>(arch::kFirstFoldedArgument) &&
      offset >= arch::kDdrAperture) {
    offset -= arch::kDdrAperture;
  }
  if (offset >= buffers_[op.argument].bytes) {
    fail(ErrorKind::kOutOfRange,
         "[%s] patches byte offset %llu of argument %u, which has %zu bytes", who.c_str(),
         static_cast<unsigned long long>(offset), op.argument, buffers_[op.argument].bytes);
  }
  if (offset % 4 != 0) {
    fail(ErrorKind::kMisaligned,
         "[%s] patches byte offset %llu of argument %u; DMA addresses are multiples of 4 bytes",
         who.c_str(), static_cast<unsigned long long>(offset), op.argument);
  }
  const uint64_t base = ((uint64_t{op.argument} + 1) << kArgumentWindowBits) + offset;
  const uint32_t address = static_cast<uint32_t>(op.address);
  const uint32_t high = read_register(address + 4, who);
  write_register(address, static_cast<uint32_t>(base) & ~3u, who);
  write_register(address + 4, (high & 0xFFFF0000u) | static_cast<uint32_t>(base >> 32), who);
}

}  // namespace npu::emulator
