// Writing down what a run does (action_log.h).
#include "devices/emulator/replay/action_log.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <iterator>
#include <optional>
#include <ranges>
#include <utility>

#include "devices/emulator/array.h"
#include "kernels/call.h"

namespace npu::emulator {

namespace {

thread_local ActionLog* current_log = nullptr;
thread_local Lane* current_lane = nullptr;  // null: the serial one

// Lanes of fewer actions than this are not worth waking threads for.
constexpr size_t kFewActions = 4;

// Lists of operands that a call is compared with: those of a column's cores and their buffers.
constexpr size_t kRecentLists = 48;

constexpr size_t kMostKnown = 64;  // words of a lane

constexpr uint64_t kMostWritten = uint64_t{1} << 32;  // where it is not known: more than a tile has

template <typename T>
size_t bytes_of(const std::vector<T>& list) {
  return list.size() * sizeof(T);
}

template <typename T>
void append_list(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

size_t Lane::bytes() const {
  return bytes_of(actions) + bytes_of(walks) + bytes_of(calls) + bytes_of(operands) +
         bytes_of(blocks) + bytes_of(traces) + bytes_of(values) + bytes_of(first_copies) +
         bytes_of(copies) + bytes_of(lists) + bytes_of(known);
}

void Lane::append(Lane&& other) {
  for (Action& action : other.actions) {
    switch (action.kind) {
      case Action::Kind::kGather:
      case Action::Kind::kScatter:
      case Action::Kind::kReorder:
        action.index += static_cast<uint32_t>(walks.size());
        break;
      case Action::Kind::kUnpack:
        action.index += static_cast<uint32_t>(blocks.size());
        break;
      case Action::Kind::kCall:
        action.index += static_cast<uint32_t>(calls.size());
        break;
      case Action::Kind::kCopy:
      case Action::Kind::kWord:
      case Action::Kind::kSteer:
        break;
    }
  }
  for (CallAction& call : other.calls) call.first += static_cast<uint32_t>(operands.size());
  append_list(actions, other.actions);
  append_list(walks, other.walks);
  append_list(calls, other.calls);
  append_list(operands, other.operands);
  append_list(blocks, other.blocks);
}

ActionLog::ActionLog(std::span<const Argument> arguments, std::span<const ArgumentShape> shapes,
                     size_t columns, std::span<PatchUse> patches, size_t most_bytes)
    : patches_(patches), most_bytes_(most_bytes) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].bytes == 0 || shapes[i].first != i) continue;
    arguments_.push_back({arguments[i].data, arguments[i].data + shared_bytes(shapes, i),
                          static_cast<uint32_t>(i) + 1});
  }
  std::ranges::sort(arguments_, {}, &Range::begin);
  for (size_t c = 0; c < columns; ++c) {
    pools_.push_back(std::make_unique<BlockPool>(BlockPool::Sizes::kFixed));
  }
}

ActionLog* ActionLog::current() { return current_log; }

ActionLog::Scope::Scope(ActionLog* log) : before_(std::exchange(current_log, log)) {}

ActionLog::Scope::~Scope() { current_log = before_; }

ActionLog::LaneScope::LaneScope(ActionLog* log, size_t number)
    : before_(std::exchange(current_log, log)),
      lane_before_(std::exchange(current_lane, log ? &log->lanes_[number] : nullptr)) {}

ActionLog::LaneScope::~LaneScope() {
  current_log = before_;
  current_lane = lane_before_;
}

void ActionLog::close_serial() {
  if (serial_.actions.empty()) return;
  phases_.emplace_back();
  phases_.back().push_back(std::exchange(serial_, {}));
  bytes_ += phases_.back()[0].bytes();
}

void ActionLog::begin_lanes(size_t count) {
  assert(current_lane == nullptr);
  if (refused() || full()) phases_.clear();  // the memory is of no use any more
  close_serial();
  lanes_.resize(count);
}

void ActionLog::end_lanes() {
  std::erase_if(lanes_, [](const Lane& lane) { return lane.actions.empty(); });
  for (const Lane& lane : lanes_) bytes_ += lane.bytes();
  if (!lanes_.empty()) phases_.push_back(std::exchange(lanes_, {}));
  lanes_.clear();
  for (auto& pool : pools_) pool->reuse();
}

Lane& ActionLog::lane() { return current_lane ? *current_lane : serial_; }

Place ActionLog::place(const std::byte* address) const {
  const auto behind = std::ranges::upper_bound(arguments_, address, {}, &Range::begin);
  if (behind != arguments_.begin()) {
    const Range& range = *std::prev(behind);
    if (address < range.end) return {address - range.begin, range.base};
  }
  return {static_cast<int64_t>(reinterpret_cast<intptr_t>(address)), Place::kAbsolute};
}

void ActionLog::put(Action action) {
  if (refused() || full()) return;
  Lane& into = lane();
  switch (action.kind) {
    case Action::Kind::kCopy:
    case Action::Kind::kGather:
      forget(into, action.to, action.bytes);
      break;
    case Action::Kind::kWord:
      forget(into, action.to, kWordBytes);
      break;
    case Action::Kind::kScatter:
    case Action::Kind::kReorder:
      into.known.clear();
      break;
    case Action::Kind::kUnpack:
    case Action::Kind::kCall:
    case Action::Kind::kSteer:
      break;
  }
  into.actions.push_back(action);
}

void ActionLog::move(const Walk& from, const Walk& to, uint64_t words, uint32_t from_patch,
                     uint32_t to_patch) {
  const auto next = [&](const Walk& walk) {
    Place at = place(walk.base() + static_cast<int64_t>(walk.next()) * 4);
    if (at.base != Place::kAbsolute) at.patch = &walk == &from ? from_patch : to_patch;
    return at;
  };
  // The base of a walk may lie outside of the argument that its words are in.
  const auto begin = [&](const Walk& walk) {
    Place at = next(walk);
    at.offset -= static_cast<int64_t>(walk.next()) * 4;
    return at;
  };
  const bool linear_from = from.contiguous() >= words, linear_to = to.contiguous() >= words;
  Lane& into = lane();
  Action action{Action::Kind::kCopy, static_cast<uint32_t>(into.walks.size()), words * 4, {}, {}};
  action.from = linear_from ? next(from) : begin(from);
  action.to = linear_to ? next(to) : begin(to);
  if (!linear_from) into.walks.push_back(from);
  if (!linear_to) into.walks.push_back(to);
  if (!linear_from) action.kind = linear_to ? Action::Kind::kGather : Action::Kind::kReorder;
  if (linear_from && !linear_to) action.kind = Action::Kind::kScatter;
  put(action);
}

void ActionLog::copy(std::byte* to, const std::byte* from, uint64_t bytes) {
  put({Action::Kind::kCopy, 0, bytes, place(to), place(from)});
}

void ActionLog::word(std::byte* to, uint32_t value) {
  put({Action::Kind::kWord, 0, value, place(to), {}});
}

void ActionLog::uses_patch(uint32_t number, uint64_t bytes, bool constant) {
  assert(number <= patches_.size());
  PatchUse& patch = patches_[number - 1];
  patch.reach = std::max(patch.reach, bytes);
  patch.fixed |= constant;
}

void ActionLog::block_taken(SharedBlock* block) {
  lane().blocks.push_back(block);
  put({Action::Kind::kUnpack, static_cast<uint32_t>(lane().blocks.size() - 1), 0, {}, {}});
}

void ActionLog::call(const CallAction::Function& function, const kernels::Declaration& kernel,
                     std::span<const KernelArgument> arguments, CoreState& state) {
  if (refused() || full()) return;
  Lane& into = lane();
  std::array<OperandAction, kernels::kMaxOperands> list;
  for (size_t i = 0; i < arguments.size(); ++i) {
    list[i] = {arguments[i].data ? place(arguments[i].data) : Place{}, arguments[i]};
  }
  const auto operands = std::span(list).first(arguments.size());
  CallAction call{&function, &state, static_cast<uint32_t>(into.operands.size()),
                  static_cast<uint32_t>(operands.size())};
  if (joins(into, call, operands, kernel)) return;
  into.first_copies.push_back(into.copies.size());
  if (!finds_list(into, call, operands, kernel)) {
    into.lists.push_back(static_cast<uint32_t>(into.calls.size()));
    into.operands.insert(into.operands.end(), operands.begin(), operands.end());
    trace(into, kernel, arguments);
  }
  for (uint32_t i = 0; i < call.count; ++i) {
    const uint64_t written = into.traces[call.first + i].written;
    if (written > 0) forget(into, into.operands[call.first + i].place, written);
  }
  into.calls.push_back(call);
  put({Action::Kind::kCall, static_cast<uint32_t>(into.calls.size() - 1), 0, {}, {}});
}

namespace {

struct Moved {
  uint32_t operand = 0;
  int64_t bytes = 0;
};

// How the operands of `now` differ from the list of `before`: nothing, or only the place of one
// that is only read, and no call reads or leaves words that steer.
std::optional<Moved> moved(const Lane& lane, const CallAction& before, const CallAction& now,
                           std::span<const OperandAction> operands,
                           const kernels::Declaration& kernel) {
  if (before.function != now.function || before.state != now.state || before.count != now.count ||
      now.count == 0 || kernel.copies != nullptr) {
    return std::nullopt;
  }
  std::optional<Moved> moved;
  for (uint32_t i = 0; i < now.count; ++i) {
    const OperandAction &old = lane.operands[before.first + i], &operand = operands[i];
    if (lane.traces[before.first + i].steering != kernels::Steering::kNone) return std::nullopt;
    if (old.argument.value != operand.argument.value || old.place.base != operand.place.base ||
        old.argument.packed != operand.argument.packed ||
        (old.argument.data == nullptr) != (operand.argument.data == nullptr)) {
      return std::nullopt;
    }
    if (old.place.offset == operand.place.offset) continue;
    if (moved || !kernel.operands[i].read_only) return std::nullopt;
    moved = {i, operand.place.offset - old.place.offset};
  }
  return moved.value_or(Moved{});
}

}  // namespace

// The call is one more of those that the lane has made last.
bool ActionLog::joins(Lane& lane, const CallAction& call, std::span<const OperandAction> operands,
                      const kernels::Declaration& kernel) {
  if (lane.actions.empty() || lane.actions.back().kind != Action::Kind::kCall) return false;
  CallAction& last = lane.calls.back();
  const std::optional<Moved> to = moved(lane, last, call, operands, kernel);
  if (!to) return false;
  const uint32_t operand = to->bytes != 0 ? to->operand : last.moving;
  const int64_t distance = to->bytes - last.start;
  if ((last.times > 1 || last.start != 0) && operand != last.moving) return false;
  if (last.times > 1 && distance != last.stride * last.times) return false;
  last.moving = operand;
  if (last.times == 1) last.stride = distance;
  ++last.times;
  return true;
}

// One of the lane's last lists serves the call as well.
bool ActionLog::finds_list(const Lane& lane, CallAction& call,
                           std::span<const OperandAction> operands,
                           const kernels::Declaration& kernel) {
  size_t left = std::min(lane.lists.size(), kRecentLists);
  for (const uint32_t number : std::views::reverse(lane.lists)) {
    if (left-- == 0) return false;
    const CallAction& before = lane.calls[number];
    const std::optional<Moved> to = moved(lane, before, call, operands, kernel);
    if (!to) continue;
    call.first = before.first;
    call.moving = to->operand;
    call.start = to->bytes;
    return true;
  }
  return false;
}

void ActionLog::trace(Lane& lane, const kernels::Declaration& kernel,
                      std::span<const KernelArgument> arguments) {
  const kernels::OperandUses uses = kernels::operand_uses(kernel, arguments);
  const kernels::SteeringFirsts firsts = kernels::steering_firsts(kernel, arguments);
  for (size_t i = 0; i < arguments.size(); ++i) {
    OperandTrace& trace = lane.traces.emplace_back();
    const KernelArgument& argument = arguments[i];
    const kernels::Operand& operand = kernel.operands[i];
    if (argument.data == nullptr) continue;
    if (!uses[i].read_only) trace.written = std::min(uses[i].bytes, kMostWritten);
    const uint64_t end = (uint64_t{firsts[i]} + static_cast<uint64_t>(operand.steering_words)) * 4;
    // A call with such operands fails.
    if (operand.steering == kernels::Steering::kNone || end > argument.bytes) continue;
    trace.steering = operand.steering;
    trace.first = firsts[i];
    trace.words = static_cast<uint32_t>(operand.steering_words);
    trace.values = lane.values.size();
    lane.values.resize(lane.values.size() + trace.words);
    std::memcpy(lane.values.data() + trace.values, argument.data + 4 * uint64_t{trace.first},
                size_t{4} * trace.words);
  }
  // A call with smaller operands fails, like one that copies to places outside of them.
  const bool whole =
      std::ranges::all_of(std::views::iota(size_t{0}, arguments.size()), [&](size_t i) {
        return arguments[i].data == nullptr || arguments[i].bytes >= uses[i].bytes;
      });
  if (kernel.copies == nullptr || !whole) return;
  kernels::WordCopies copies;
  kernel.copies(arguments.data(), copies);
  lane.copies.insert(lane.copies.end(), copies.list, copies.list + copies.count);
}

// Once for as long as the lane leaves the word alone: lanes of a phase touch nothing of each
// other's.
void ActionLog::steers(const std::byte* word, uint32_t value) {
  const Place at = place(word);
  std::vector<Lane::Known>& known = lane().known;
  const auto same = std::ranges::find_if(known, [&](const Lane::Known& other) {
    return other.place.offset == at.offset && other.place.base == at.base;
  });
  if (same != known.end() && same->value == value) return;
  if (same == known.end() && known.size() < kMostKnown) known.push_back({at, value});
  put({Action::Kind::kSteer, 0, value, {}, at});
}

void ActionLog::forget(Lane& lane, const Place& place, uint64_t bytes) {
  std::erase_if(lane.known, [&](const Lane::Known& word) {
    return word.place.base == place.base && word.place.offset + kWordBytes > place.offset &&
           word.place.offset < place.offset + static_cast<int64_t>(bytes);
  });
}

void ActionLog::refuse(const char* why) { refused_.store(why, std::memory_order_relaxed); }

std::span<const Phase> ActionLog::phases() {
  close_serial();
  return phases_;
}

// Neighbours of one lane each become one, and so do the lanes of a phase that has little to do.
std::vector<Phase> ActionLog::take_phases() {
  close_serial();
  std::vector<Phase> joined;
  for (Phase& phase : phases_) {
    for (Lane& lane : phase) {
      std::erase_if(lane.actions, [](const Action& a) { return a.kind == Action::Kind::kSteer; });
      lane.traces = {};
      lane.values = {};
      lane.first_copies = {};
      lane.copies = {};
      lane.lists = {};
      lane.known = {};
    }
    std::erase_if(phase, [](const Lane& lane) { return lane.actions.empty(); });
    if (phase.empty()) continue;
    size_t actions = 0;
    for (const Lane& lane : phase) actions += lane.actions.size();
    const bool few = actions < kFewActions;
    for (size_t i = 1; few && i < phase.size(); ++i) phase[0].append(std::move(phase[i]));
    if (few) phase.resize(1);
    if (phase.size() == 1 && !joined.empty() && joined.back().size() == 1) {
      joined.back()[0].append(std::move(phase[0]));
    } else {
      joined.push_back(std::move(phase));
    }
  }
  phases_.clear();
  return joined;
}

}  // namespace npu::emulator
