// Tiles, configuration, attached programs and host buffers of the emulated array (array.h).
#include "emulator/array.h"

#include <algorithm>
#include <cstring>

#include "error.h"

namespace npu::emulator {

using arch::Direction;

namespace {

constexpr size_t kMaxArguments = 512;

}  // namespace

Tile::Tile(Array& array, int c, int r)
    : col(c),
      row(r),
      model(arch::tile_model(arch::tile_kind(r))),
      memory(std::make_shared<std::vector<std::byte>>(model.memory_bytes)),
      locks(static_cast<size_t>(model.locks)),
      bds(static_cast<size_t>(model.bds)) {
  for (int d = 0; d < 2; ++d) {
    for (int i = 0; i < model.channels; ++i) {
      channels[static_cast<size_t>(d)].push_back(
          std::make_unique<Channel>(array, *this, static_cast<Direction>(d), i));
    }
  }
}

Tile::~Tile() = default;

void Tile::reset() {
  std::fill(memory->begin(), memory->end(), std::byte{0});
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
  core.reset();
}

std::string Tile::name() const { return strf("%s (%d,%d)", model.name, col, row); }

Array::Array(const arch::DeviceModel& device) : device_(device) {
  for (int col = 0; col < device.columns; ++col) {
    for (int row = 0; row < arch::kRows; ++row) {
      tiles_.push_back(std::make_unique<Tile>(*this, col, row));
    }
  }
}

Array::~Array() = default;

const Tile* Array::find_tile(int col, int row) const {
  if (col < 0 || col >= device_.columns || row < 0 || row >= arch::kRows) return nullptr;
  return tiles_[static_cast<size_t>(col * arch::kRows + row)].get();
}

Tile& Array::tile(int col, int row) {
  const Tile* found = find_tile(col, row);
  if (!found) {
    fail(ErrorKind::kArgument, "[array] there is no tile (%d,%d); %s has columns 0..%d, rows 0..%d",
         col, row, device_.name, device_.columns - 1, arch::kRows - 1);
  }
  return const_cast<Tile&>(*found);
}

void Array::add_token(int col, int row, Direction direction, int channel) {
  ++tokens_[arch::tile_address(col, row, static_cast<uint32_t>(direction) * 16u +
                                             static_cast<uint32_t>(channel))];
}

std::byte* Array::host_memory(uint64_t address, uint64_t* left, bool* writable) const {
  const uint64_t window = address >> kArgumentWindowBits;
  if (window == 0 || window > buffers_.size()) return nullptr;
  const BufferView& buffer = buffers_[window - 1];
  const uint64_t offset = address & ((uint64_t{1} << kArgumentWindowBits) - 1);
  if (offset >= buffer.bytes) return nullptr;
  *left = buffer.bytes - offset;
  *writable = buffer.writable;
  return buffer.data + offset;
}

std::string Array::describe_buffers() const {
  if (buffers_.empty()) return "no arguments were given";
  std::string text;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    text += strf("%sargument %zu at 0x%llx, %zu bytes", i ? ", " : "", i,
                 static_cast<unsigned long long>(uint64_t{i + 1} << kArgumentWindowBits),
                 buffers_[i].bytes);
    if (i == 5 && buffers_.size() > 7) {
      text += strf(", ... (%zu arguments)", buffers_.size());
      break;
    }
  }
  return text;
}

RunReport Array::configure(std::span<const std::byte> txn) {
  const stream::Stream parsed = stream::Stream::parse(txn);
  scheduler_.reset();
  for (auto& t : tiles_) t->reset();
  tokens_.clear();
  buffers_.clear();
  report_ = RunReport{};
  undecoded_since_configure_ = 0;
  ++switch_epoch_;
  configured_ = faulted_ = false;
  configuring_ = true;
  try {
    execute(parsed);
  } catch (...) {
    configuring_ = false;
    faulted_ = true;
    throw;
  }
  configuring_ = false;
  configured_ = true;
  report_.undecoded_writes = undecoded_since_configure_;
  return report_;
}

void Array::attach(int col, int row, Program program, std::vector<KernelFunction> functions) {
  Tile& target = tile(col, row);
  if (target.model.kind != arch::TileKind::kCore) {
    fail(ErrorKind::kArgument, "[attach] %s has no core; cores are in rows %d..%d",
         target.name().c_str(), arch::kFirstCoreRow, arch::kRows - 1);
  }
  if (!configured_) {
    fail(ErrorKind::kArgument, "[attach] configure the array before attaching programs to cores");
  }
  if (functions.size() != program.functions.size()) {
    fail(ErrorKind::kKernel, "[attach] %s: the program names %zu functions, %zu were given",
         target.name().c_str(), program.functions.size(), functions.size());
  }
  for (const Instruction& instruction : program.code) {
    for (const Operand& operand : instruction.operands) {
      auto inside = [&](int64_t address) {
        if (address >= 0 && address < static_cast<int64_t>(target.memory->size())) return;
        fail(ErrorKind::kOutOfRange,
             "[attach] %s: an operand of a call is at address %lld, outside its %zu bytes of memory",
             target.name().c_str(), static_cast<long long>(address), target.memory->size());
      };
      if (operand.kind == Operand::Kind::kBuffer || operand.kind == Operand::Kind::kRtp) {
        inside(operand.value);
      }
      for (uint32_t address : operand.addresses) inside(address);
    }
  }
  target.core = std::make_unique<Core>(*this, target, std::move(program), std::move(functions));
}

void Array::start_cores() {
  for (auto& t : tiles_) {
    if (t->core) scheduler_.wake(t->core.get());
    for (auto& side : t->channels) {
      for (auto& channel : side) {
        if (!channel->idle()) scheduler_.wake(channel.get());
      }
    }
  }
}

RunReport Array::submit(std::span<const std::byte> txn, std::span<const BufferView> buffers) {
  return submit(stream::Stream::parse(txn), buffers);
}

RunReport Array::submit(const stream::Stream& stream, std::span<const BufferView> buffers) {
  if (!configured_) {
    fail(ErrorKind::kArgument, "[submit] the array has no configuration; call configure first");
  }
  if (faulted_) {
    fail(ErrorKind::kArgument,
         "[submit] the array stopped on an error in an earlier run; configure it again first");
  }
  if (buffers.size() > kMaxArguments) {
    fail(ErrorKind::kArgument, "[submit] %zu arguments were given; at most %zu are possible",
         buffers.size(), kMaxArguments);
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].bytes >> kArgumentWindowBits) {
      fail(ErrorKind::kArgument, "[submit] argument %zu has %zu bytes; at most 2^%d are possible",
           i, buffers[i].bytes, kArgumentWindowBits);
    }
  }
  buffers_.assign(buffers.begin(), buffers.end());
  report_ = RunReport{};
  try {
    start_cores();
    execute(stream);
    scheduler_.drain();
    check_finished();
  } catch (...) {
    faulted_ = true;
    buffers_.clear();
    throw;
  }
  buffers_.clear();
  report_.undecoded_writes = undecoded_since_configure_;
  return report_;
}

}  // namespace npu::emulator
