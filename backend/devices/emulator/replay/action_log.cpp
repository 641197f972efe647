// Writing down what a run does (action_log.h).
#include "devices/emulator/replay/action_log.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <ranges>
#include <utility>

#include "devices/emulator/array.h"
#include "devices/emulator/replay/call_rows.h"
#include "devices/emulator/replay/forwarding.h"
#include "host/thread_pool.h"
#include "kernels/call.h"

namespace npu::emulator {

namespace {

thread_local ActionLog* current_log = nullptr;
thread_local Lane* current_lane = nullptr;  // null: the serial one

// Lanes of fewer actions than this are not worth waking threads for.
constexpr size_t kFewActions = 4;

constexpr size_t kMostKnown = 64;  // words of a lane

// With every call.
size_t actions_in(const Lane& lane) {
  size_t all = lane.actions.size();
  for (const CallAction& call : lane.calls) {
    all += (call.times + size_t{call.next != 0}) * call.rows - 1;
  }
  return all;
}

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
  return bytes_of(actions) + bytes_of(walks) + bytes_of(calls) + bytes_of(moves) +
         bytes_of(blocks) + bytes_of(traces) + bytes_of(first_copies) + bytes_of(copies) +
         bytes_of(known);
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
  for (CallAction& call : other.calls) {
    call.first_move += static_cast<uint32_t>(moves.size());
    if (call.next != 0) call.next += static_cast<uint32_t>(calls.size());
  }
  append_list(actions, other.actions);
  append_list(walks, other.walks);
  append_list(moves, other.moves);
  append_list(calls, other.calls);
  append_list(blocks, other.blocks);
}

ActionLog::ActionLog(std::span<const Argument> arguments, std::span<const ArgumentShape> shapes,
                     size_t columns, std::span<PatchUse> patches, size_t most_bytes)
    : patches_(patches), most_bytes_(most_bytes) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].bytes == 0 || shapes[i].first != i) continue;
    arguments_.push_back({arguments[i].data, arguments[i].data + shared_bytes(shapes, i),
                          static_cast<uint32_t>(i) + 1, shapes[i].writable});
  }
  std::ranges::sort(arguments_, {}, &Range::begin);
  for (size_t c = 0; c < columns; ++c) {
    pools_.push_back(std::make_unique<BlockPool>(BlockPool::Sizes::kFixed));
  }
  lists_.push_back(std::make_unique<OperandLists>());
  touched_.push_back(std::make_unique<ByteRanges>());
  serial_.lists = lists_[0].get();
  serial_.touched = touched_[0].get();
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
  serial_.lists = lists_[0].get();
  serial_.touched = touched_[0].get();
  count(phases_.back()[0].bytes());
}

// Lists may shrink again.
void ActionLog::count(size_t bytes) {
  bytes_ += bytes;
  full_ = full_ || bytes_ > most_bytes_;
}

void ActionLog::begin_lanes(size_t count) {
  assert(current_lane == nullptr);
  if (refused() || full()) phases_.clear();  // the memory is of no use any more
  close_serial();
  lanes_.resize(count);
  while (lists_.size() <= count) {
    lists_.push_back(std::make_unique<OperandLists>());
    touched_.push_back(std::make_unique<ByteRanges>());
  }
  for (size_t i = 0; i < count; ++i) {
    lanes_[i].lists = lists_[i + 1].get();
    lanes_[i].touched = touched_[i + 1].get();
  }
}

void ActionLog::end_lanes() {
  std::erase_if(lanes_, [](const Lane& lane) { return lane.actions.empty(); });
  bytes_ -= std::exchange(lists_bytes_, 0);
  for (const auto& lists : lists_) lists_bytes_ += lists->bytes();
  for (const auto& ranges : touched_) lists_bytes_ += ranges->bytes();
  size_t all = lists_bytes_;
  for (const Lane& lane : lanes_) all += lane.bytes();
  count(all);
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
  touch(from, words);
  touch(to, words);
  if (!linear_from) action.kind = linear_to ? Action::Kind::kGather : Action::Kind::kReorder;
  if (linear_from && !linear_to) action.kind = Action::Kind::kScatter;
  put(action);
}

void ActionLog::copy(std::byte* to, const std::byte* from, uint64_t bytes) {
  touch(place(from), bytes);
  touch(place(to), bytes);
  put({Action::Kind::kCopy, 0, bytes, place(to), place(from)});
}

void ActionLog::word(std::byte* to, uint32_t value) {
  touch(place(to), kWordBytes);
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
  std::array<Place, kernels::kMaxOperands> places;
  for (size_t i = 0; i < arguments.size(); ++i) {
    places[i] = arguments[i].data ? place(arguments[i].data) : Place{};
  }
  const OperandLists::Operands operands{arguments, std::span(places).first(arguments.size())};
  CallAction call;
  call.function = &function;
  call.state = &state;
  call.count = static_cast<uint8_t>(arguments.size());
  Moves moves;
  const OperandTrace* traces = into.lists->find(call, operands, kernel, moves);
  if (traces == nullptr) {
    traces = into.lists->add(call, operands, kernel);
    for (size_t i = 0; i < arguments.size(); ++i) touch(places[i], traces[i].bytes);
  } else {
    for (const Move& move : moves.all()) {
      touch(places[move.operand], traces[move.operand].bytes);
    }
    if (joins(into, call, moves)) return;
  }
  call.first_move = static_cast<uint32_t>(into.moves.size());
  call.moves = static_cast<uint8_t>(moves.all().size());
  into.moves.insert(into.moves.end(), moves.all().begin(), moves.all().end());
  into.first_copies.push_back(into.copies.size());
  if (kernel.copies != nullptr) copy_words(into, kernel, arguments);
  forget_written(into, call, traces);
  into.calls.push_back(call);
  into.traces.push_back(traces);
  put({Action::Kind::kCall, static_cast<uint32_t>(into.calls.size() - 1), 0, {}, {}});
}

// The call is one more of those that the lane has made last.
bool ActionLog::joins(Lane& lane, const CallAction& call, const Moves& moves) {
  if (lane.actions.empty() || lane.actions.back().kind != Action::Kind::kCall) return false;
  CallAction& last = lane.calls.back();
  return OperandLists::join(last, lane.moves_of(last), call, moves.all());
}

// A call with smaller operands fails, like one that copies to places outside of them.
void ActionLog::copy_words(Lane& lane, const kernels::Declaration& kernel,
                           std::span<const KernelArgument> arguments) {
  const kernels::OperandUses uses = kernels::operand_uses(kernel, arguments);
  const bool whole =
      std::ranges::all_of(std::views::iota(size_t{0}, arguments.size()), [&](size_t i) {
        return arguments[i].data == nullptr || arguments[i].bytes >= uses[i].bytes;
      });
  if (!whole) return;
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

void ActionLog::reserve(const std::byte* begin, uint64_t bytes) {
  const Place at = place(begin);
  assert(at.base == Place::kAbsolute);
  const std::pair range(at.offset, at.offset + static_cast<int64_t>(bytes));
  reserved_.insert(std::ranges::upper_bound(reserved_, range), range);
}

void ActionLog::check_reserved(const ByteRanges::Range& range) {
  const auto next =
      std::ranges::upper_bound(reserved_, range.begin, {}, &std::pair<int64_t, int64_t>::second);
  if (next == reserved_.end() || next->first >= range.end) return;
  refuse("a move to or from the state of a core");
}

void ActionLog::touch(const Place& place, uint64_t bytes) {
  if (place.base != Place::kAbsolute || bytes == 0) return;
  const ByteRanges::Range range{place.offset, place.offset + static_cast<int64_t>(bytes)};
  check_reserved(range);
  if (end_ == SIZE_MAX) lane().touched->add(range);
}

// Between the words of a walk, too.
void ActionLog::touch(Walk walk, uint64_t words) {
  const Place begin = place(walk.base());
  if (begin.base != Place::kAbsolute) return;
  ByteRanges::Range all{INT64_MAX, INT64_MIN};
  while (words > 0) {
    const uint64_t run = std::min(words, walk.contiguous());
    const int64_t first = begin.offset + static_cast<int64_t>(walk.next()) * kWordBytes;
    const ByteRanges::Range one{first, first + static_cast<int64_t>(run) * kWordBytes};
    check_reserved(one);
    all = {std::min(all.begin, one.begin), std::max(all.end, one.end)};
    walk.skip(run);
    words -= run;
  }
  if (end_ == SIZE_MAX) lane().touched->add(all);
}

// Once for each place that the stream sends them from.
void ActionLog::steers(std::span<const std::byte> bytes, bool constant, uint32_t patch) {
  const Place at = place(bytes.data());
  if (!constant || at.base == Place::kAbsolute) return refuse("control packets that may change");
  if (patch != 0) fixes_patch(patch);
  const std::lock_guard<std::mutex> guard(steering_mutex_);
  std::vector<std::byte>& known = steering_[{at.base, at.offset}];
  if (known.size() < bytes.size()) known.assign(bytes.begin(), bytes.end());
}

// All that a call writes but the words that it keeps.
void ActionLog::forget_written(Lane& lane, const CallAction& call, const OperandTrace* traces) {
  for (uint32_t i = 0; i < call.count; ++i) {
    const OperandTrace& trace = traces[i];
    Place place = call.places[i];
    uint64_t written = trace.written;
    if (written == 0) continue;
    if (trace.steering == kernels::Steering::kKeeps) {
      forget(lane, place, uint64_t{trace.first} * kWordBytes);
      const uint64_t kept = (uint64_t{trace.first} + trace.words) * kWordBytes;
      place.offset += static_cast<int64_t>(kept);
      written -= std::min(written, kept);
    }
    forget(lane, place, written);
  }
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

std::vector<OperandLists::Kept> ActionLog::take_operands() {
  std::vector<OperandLists::Kept> all;
  for (const auto& lists : lists_) all.push_back(lists->take());
  return all;
}

// The first operand of each call that lies in an argument which the run does not write.
void ActionLog::find_shared(Lane& lane) const {
  const auto constant = [&](const Place& place) {
    return std::ranges::any_of(arguments_, [&](const Range& range) {
      return range.base == place.base && !range.writable;
    });
  };
  for (CallAction& call : lane.calls) {
    for (uint8_t i = 0; i < call.count && call.shared == 0; ++i) {
      const Place place = call.operand(i, lane.moves_of(call)).place;
      if (constant(place)) call.shared = static_cast<uint8_t>(i + 1);
    }
  }
}

void ActionLog::shorten(Phase& phase, Patches& patches) const {
  for (Lane& lane : phase) {
    std::erase_if(lane.actions, [](const Action& a) { return a.kind == Action::Kind::kSteer; });
    forward_results(lane, patches);
    find_shared(lane);
    put_calls_in_rows(lane);
    lane.lists = nullptr;
    lane.touched = nullptr;
    lane.traces = {};
    lane.first_copies = {};
    lane.copies = {};
    lane.known = {};
  }
  std::erase_if(phase, [](const Lane& lane) { return lane.actions.empty(); });
}

void ActionLog::end_run() {
  close_serial();
  end_ = phases_.size();
}

ByteRanges ActionLog::take_touched() {
  ByteRanges all;
  for (const auto& ranges : touched_) all.add(*ranges);
  all.close();
  touched_.clear();
  return all;
}

// Neighbours of one lane each become one, and so do the lanes of a phase that has little to do. The
// last copies stay apart.
std::pair<std::vector<Phase>, size_t> ActionLog::take_phases(Patches& patches) {
  close_serial();
  for_all(ThreadPool::shared(), phases_.size(), [&](size_t i) { shorten(phases_[i], patches); });
  std::vector<Phase> joined;
  size_t end = SIZE_MAX;  // of the run, in `joined`
  for (size_t p = 0; p < phases_.size(); ++p) {
    Phase& phase = phases_[p];
    if (p == end_) end = joined.size();
    if (phase.empty()) continue;
    size_t actions = 0;
    for (const Lane& lane : phase) actions += actions_in(lane);
    const bool few = actions < kFewActions, first = joined.empty() || joined.size() == end;
    for (size_t i = 1; few && i < phase.size(); ++i) phase[0].append(std::move(phase[i]));
    if (few) phase.resize(1);
    if (phase.size() == 1 && !first && joined.back().size() == 1) {
      joined.back()[0].append(std::move(phase[0]));
    } else {
      joined.push_back(std::move(phase));
    }
  }
  phases_.clear();
  end = std::min(end, joined.size());
  return {std::move(joined), end};
}

}  // namespace npu::emulator
