// The command processor: executes TXN operations one after the other (hardware.md 4.5). It runs
// ahead of the array, which advances while an operation waits, before those that
// advance_policy.cpp names, and after the last one.
#include <cstring>

#include "devices/emulator/array.h"
#include "devices/emulator/replay/action_log.h"
#include "devices/emulator/replay/stream_version.h"
#include "devices/emulator/sender.h"
#include "error.h"

namespace npu::emulator {

using stream::Opcode;
using stream::Operation;

namespace {

uint32_t token_key(int col, int row, arch::Direction direction, int channel) {
  return arch::tile_address(
      col, row, static_cast<uint32_t>(direction) * 16u + static_cast<uint32_t>(channel));
}

}  // namespace

std::string Array::who() const {
  if (control_sender_) {
    return strf("%s: control packet of %s", function(), control_sender_->name().c_str());
  }
  if (!operation_) return function();
  return strf("%s: operation %u %s", function(), operation_->index,
              opcode_name(operation_->opcode));
}

void Array::add_token(int col, int row, arch::Direction direction, int channel) {
  const uint32_t key = token_key(col, row, direction, channel);
  if (timeline_) return timeline_->token(key, timeline_->timing().token);
  column_counts_[static_cast<size_t>(col)].tokens.push_back(key);
}

void Array::check_generation(const char* function, const stream::Stream& parsed) const {
  const stream::Header& header = parsed.header();
  if (header.generation == static_cast<uint8_t>(device_.generation)) return;
  fail(ErrorKind::kFormat,
       "[%s] the stream is for device generation %d, this array is %s (generation %d); build the "
       "stream for %s",
       function, header.generation, device_.name, static_cast<int>(device_.generation),
       device_.name);
}

// Begins a stream; execute() goes through its operations.
void Array::start_stream(const stream::Stream& parsed) {
  check_generation(function(), parsed);
  stream_ = &parsed;
  next_operation_ = 0;
  operation_begun_ = false;
}

bool Array::execute() {
  // The pointer must not outlive the stream, whatever is thrown.
  struct Reset {
    const Operation*& pointer;
    ~Reset() { pointer = nullptr; }
  } reset{operation_};
  const std::vector<Operation>& operations = stream_->operations();
  for (; next_operation_ < operations.size(); ++next_operation_) {
    operation_ = &operations[next_operation_];
    if (!operation_begun_) {
      if (timeline_ && !configuring_) spend(*operation_);
      operation_begun_ = true;
      synced_ = 0;
    }
    if (!settle_before(*operation_) || !run_operation(*operation_)) return false;
    operation_begun_ = false;
    ++report_.operations;
    scheduler_.progressed();
  }
  return true;
}

bool Array::run_operation(const Operation& op) {
  const uint32_t address = static_cast<uint32_t>(op.address);
  if (op.address >> 32 && op.opcode != Opcode::kLoadPdi) {
    fail(ErrorKind::kUnknownRegister,
         "[%s] address 0x%llx: register addresses have 32 bits; the high word must be 0",
         who().c_str(), static_cast<unsigned long long>(op.address));
  }
  switch (op.opcode) {
    case Opcode::kWrite:
      write_register(address, op.value);
      return true;
    case Opcode::kBlockWrite:
      for (size_t i = 0; i < op.data.size(); ++i) {
        write_register(address + 4 * static_cast<uint32_t>(i), op.data[i]);
      }
      return true;
    case Opcode::kMaskWrite:
      write_register(address, (read_register(address) & ~op.mask) | (op.value & op.mask));
      return true;
    case Opcode::kMaskPoll:
    case Opcode::kMaskPollBusy:
      return poll(op);
    case Opcode::kSync:
      return sync(op);
    case Opcode::kAddressPatch:
      patch(op);
      return true;
    case Opcode::kLoadPdi:
      load_pdi(op);
      return true;
    case Opcode::kNoop:
    case Opcode::kPreempt:
    case Opcode::kRecordTimer:
    case Opcode::kReadRegs:
    case Opcode::kMergeSync:
      return true;  // no functional effect
    default:
      break;
  }
  fail(ErrorKind::kUnknownOperation,
       "[%s] (opcode 0x%02x at byte %u) needs firmware state that the emulator does not model; "
       "remove it from the stream",
       who().c_str(), static_cast<unsigned>(op.opcode), op.byte_offset);
}

bool Array::poll(const Operation& op) {
  const uint32_t address = static_cast<uint32_t>(op.address);
  while ((read_register(address) & op.mask) != op.value) {
    if (paused_) return false;
    if (step()) continue;
    deadlock(Awaited::kRegister, strf("register 0x%08x & 0x%08x to be 0x%08x (it is 0x%08x)",
                                      address, op.mask, op.value, read_register(address)));
  }
  return true;
}

bool Array::sync(const Operation& op) {
  for (; synced_ < op.columns * op.rows; ++synced_) {
    const int col = op.column + synced_ / op.rows, row = op.row + synced_ % op.rows;
    Tile* target = find_tile(col, row);
    if (!target || op.channel >= target->geometry.channels) {
      fail(ErrorKind::kArgument,
           "[%s] waits on tile (%d,%d) channel %d, which %s does not have; check the rectangle and "
           "the channel",
           who().c_str(), col, row, op.channel, device_.name);
    }
    int& count = tokens_[token_key(col, row, op.direction, op.channel)];
    while (count == 0) {
      if (paused_) return false;
      if (step()) continue;
      deadlock(Awaited::kToken, strf("a task-complete token of %s",
                                     target->channel(op.direction, op.channel).name().c_str()));
    }
    --count;
  }
  return true;
}

BdSlot* Array::find_bd(uint32_t address) {
  Tile* target = find_tile(arch::address_col(address), arch::address_row(address));
  const uint32_t at = arch::address_offset(address) - target->geometry.bd_base;
  return at / 0x20 < static_cast<uint32_t>(target->geometry.bds) ? &target->bds[at / 0x20]
                                                                 : nullptr;
}

// A BD that a task still uses may only get the address that it has.
void Array::log_in_use(uint32_t address, const BdSlot& bd) {
  const Tile& target = *find_tile(arch::address_col(address), arch::address_row(address));
  if (user_of(target, static_cast<int>(&bd - target.bds.data())) == nullptr) return;
  if (bd.patch) log_->fixes_patch(bd.patch);
  log_->fixes_patch(address_patches_);
}

void Array::patch(const Operation& op) {
  if (op.argument >= buffers_.size()) {
    fail(ErrorKind::kArgument,
         "[%s] patches argument %u into a BD, but %zu arguments were given; pass one buffer for "
         "each "
         "argument",
         who().c_str(), op.argument, buffers_.size());
  }
  const uint64_t offset = patched_offset(op);
  ++address_patches_;
  if (offset >= buffers_[op.argument].bytes) {
    fail(ErrorKind::kOutOfRange,
         "[%s] patches byte offset %llu of argument %u, which has %zu bytes; pass a larger buffer "
         "or "
         "correct the offset",
         who().c_str(), static_cast<unsigned long long>(offset), op.argument,
         buffers_[op.argument].bytes);
  }
  if (offset % 4 != 0) {
    fail(ErrorKind::kMisaligned,
         "[%s] patches byte offset %llu of argument %u; DMA addresses must be multiples of 4 bytes",
         who().c_str(), static_cast<unsigned long long>(offset), op.argument);
  }
  const uint64_t base = ((uint64_t{op.argument} + 1) << kArgumentWindowBits) + offset;
  const uint32_t address = static_cast<uint32_t>(op.address);
  const uint32_t high = read_register(address + 4);
  BdSlot* const bd = find_bd(address + 4);
  if (log_ && bd) log_in_use(address, *bd);
  write_register(address, static_cast<uint32_t>(base) & ~3u);
  write_register(address + 4, (high & 0xFFFF0000u) | static_cast<uint32_t>(base >> 32));
  if (bd && arch::address_offset(address) % 0x20 == 4) bd->patch = address_patches_;
}

}  // namespace npu::emulator
