// Keeping and repeating recorded runs (recording.h).
#include "devices/emulator/replay/recording.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <functional>

#include "devices/emulator/array.h"
#include "host/thread_pool.h"

namespace npu::emulator {

using stream::Opcode;
using stream::Operation;

namespace {

// A stream that runs once is not worth recording.
constexpr uint64_t kFirstRecorded = 2;

// Whether an operation writes what recorded runs may write: data memory, locks, BDs and task queues
// of shim tiles.
bool recordable(const Operation& operation) {
  switch (operation.opcode) {
    case Opcode::kSync:
    case Opcode::kNoop:
    case Opcode::kPreempt:
    case Opcode::kRecordTimer:
      return true;
    case Opcode::kWrite:
    case Opcode::kBlockWrite:
    case Opcode::kMaskWrite:
    case Opcode::kAddressPatch:
      break;
    default:
      return false;
  }
  const auto address = static_cast<uint32_t>(operation.address);
  const int row = arch::address_row(address);
  if (row >= arch::kRows) return false;
  const arch::TileGeometry& tile = arch::tile_geometry(arch::tile_kind(row));
  const uint32_t offset = arch::address_offset(address);
  const auto within = [&](uint32_t begin, int count, uint32_t step) {
    return offset >= begin && offset < begin + static_cast<uint32_t>(count) * step;
  };
  const bool channel =
      within(tile.s2mm_base, tile.channels, 8) || within(tile.mm2s_base, tile.channels, 8);
  if (operation.opcode == Opcode::kMaskWrite) {  // what it reads is part of the state
    return tile.kind == arch::TileKind::kShim && channel;
  }
  if (within(tile.lock_base, tile.locks, 0x10)) return true;
  if (tile.kind == arch::TileKind::kShim) return channel || within(tile.bd_base, tile.bds, 0x20);
  return operation.opcode != Opcode::kAddressPatch && offset < tile.memory_bytes;
}

std::vector<ArgumentShape> shapes(std::span<const Argument> arguments) {
  std::vector<ArgumentShape> of;
  for (const Argument& a : arguments) of.push_back({a.bytes, a.writable});
  return of;
}

bool share_memory(std::span<const Argument> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Argument &a = arguments[i], &b = arguments[j];
      const std::less<const std::byte*> before;
      if (before(a.data, b.data + b.bytes) && before(b.data, a.data + a.bytes)) return true;
    }
  }
  return false;
}

}  // namespace

size_t Recording::bytes() const {
  size_t sum = sizeof *this + start.bytes() + end.bytes();
  for (const Phase& phase : phases) {
    for (const Lane& lane : phase) sum += sizeof lane + lane.bytes();
  }
  for (const auto& pool : blocks) sum += pool->bytes();
  return sum;
}

std::shared_ptr<const Recording> Recordings::find(const Array& array,
                                                  std::span<const Argument> arguments) const {
  if (all_.empty() || share_memory(arguments)) return nullptr;
  const std::vector<ArgumentShape> given = shapes(arguments);
  for (const auto& recording : all_) {
    if (recording->epoch == array.epoch() && recording->arguments == given &&
        recording->start.holds(array)) {
      return recording;
    }
  }
  return nullptr;
}

bool Recordings::wants(const stream::Stream& stream) {
  if (refused_ || ++runs_ < kFirstRecorded || all_.size() == kMostStates) return false;
  refused_ = most_bytes() == 0 || !std::ranges::all_of(stream.operations(), recordable);
  return !refused_;
}

void Recordings::add(Recording recording) {
  const size_t bytes = recording.bytes();
  if (bytes > most_bytes()) return refuse();
  bytes_ += bytes;
  memory_->bytes += bytes;
  all_.push_back(std::make_shared<const Recording>(std::move(recording)));
}

void Recordings::clear() {
  memory_->bytes -= bytes_;
  bytes_ = 0;
  all_.clear();
  runs_ = 0;
  refused_ = false;
}

Replay::Replay(std::shared_ptr<const Recording> recording, std::span<const Argument> arguments)
    : recording_(std::move(recording)), bases_{nullptr} {
  for (const Argument& argument : arguments) bases_.push_back(argument.data);
}

void Replay::call(const Lane& lane, const CallAction& call) const {
  std::array<KernelArgument, kernels::kMaxOperands> arguments;
  for (uint32_t i = 0; i < call.count; ++i) {
    const OperandAction& operand = lane.operands[call.first + i];
    arguments[i] = operand.argument;
    if (operand.argument.data != nullptr) arguments[i].data = at(operand.place);
  }
  (*call.function)(std::span(arguments).first(call.count), *call.state);
}

void Replay::run(const Lane& lane) const {
  std::vector<std::byte> staged;
  for (const Action& action : lane.actions) {
    const auto walk = [&](size_t number, const Place& from) {
      Walk copy = lane.walks[action.index + number];
      copy.move_to(at(from));
      return copy;
    };
    switch (action.kind) {
      case Action::Kind::kCopy:
        std::memmove(at(action.to), at(action.from), action.bytes);
        break;
      case Action::Kind::kGather:
        walk(0, action.from).gather(at(action.to), action.bytes / 4);
        break;
      case Action::Kind::kScatter:
        walk(0, action.to).scatter(at(action.from), action.bytes / 4);
        break;
      case Action::Kind::kReorder:
        staged.resize(action.bytes);
        walk(0, action.from).gather(staged.data(), action.bytes / 4);
        walk(1, action.to).scatter(staged.data(), action.bytes / 4);
        break;
      case Action::Kind::kWord: {
        const auto value = static_cast<uint32_t>(action.bytes);
        std::memcpy(at(action.to), &value, sizeof value);
        break;
      }
      case Action::Kind::kUnpack:
        lane.blocks[action.index]->packed.clear();
        break;
      case Action::Kind::kCall:
        call(lane, lane.calls[action.index]);
        break;
    }
  }
}

bool Replay::resume(const std::function<bool()>& pause) {
  for (; next_ < recording_->phases.size(); ++next_) {
    if (pause()) return false;
    const Phase& phase = recording_->phases[next_];
    if (phase.size() == 1) {
      run(phase[0]);
      continue;
    }
    std::vector<std::exception_ptr> errors(phase.size());
    ThreadPool::shared().parallel_for(phase.size(), [&](size_t i) {
      try {
        run(phase[i]);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }
  return true;
}

}  // namespace npu::emulator
