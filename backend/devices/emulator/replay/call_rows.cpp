// Finding calls that make rows (call_rows.h).
#include "devices/emulator/replay/call_rows.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace npu::emulator {

namespace {

// Cores that take turns may have reasons to, such as an operand that is in the cache: another order
// has to leave at most this part of the actions.
constexpr size_t kWorth = 2;

// What the calls of a core touch, by Place::base: operands of calls are where they are in every
// run, as address patches of results that go to arguments at once are fixed.
class Touched {
 public:
  void add(const Lane& lane, size_t number) {
    lane.each_buffer(number, [&](const Place& place, const OperandTrace& trace, uint64_t bytes) {
      Bytes& known = all_[place.base];
      const ByteRanges::Range range{place.offset, place.offset + static_cast<int64_t>(bytes)};
      known.touched.add(range);
      if (trace.written != 0) known.written.add(range);
    });
  }
  void close() {
    for (auto& [base, bytes] : all_) {
      bytes.touched.close();
      bytes.written.close();
    }
  }
  // Whether it writes what the other one touches.
  bool disturbs(const Touched& other) const {
    return std::ranges::any_of(all_, [&](const auto& own) {
      const auto same = other.all_.find(own.first);
      return same != other.all_.end() && own.second.written.meets(same->second.touched);
    });
  }

 private:
  struct Bytes {
    ByteRanges touched, written;
  };
  std::map<uint32_t, Bytes> all_;
};

class Rows {
 public:
  explicit Rows(Lane& lane) : lane_(lane) {}

  void run() {
    std::vector<Action> left;
    for (auto at = lane_.actions.begin(); at != lane_.actions.end();) {
      const auto is_call = [](const Action& a) { return a.kind == Action::Kind::kCall; };
      const auto calls = std::find_if(at, lane_.actions.end(), is_call);
      const auto end = std::find_if_not(calls, lane_.actions.end(), is_call);
      left.insert(left.end(), at, calls);
      shorten({calls, end});
      left.insert(left.end(), calls, calls + static_cast<std::ptrdiff_t>(calls_.size()));
      at = end;
    }
    lane_.actions = std::move(left);
    leave_out_calls();
  }

 private:
  using Calls = std::vector<std::pair<uint32_t, CallAction>>;  // with their numbers

  void shorten(std::span<Action> actions);
  bool shorten(std::span<Action> actions, std::span<const uint32_t> order, size_t most);
  void leave_out_calls();
  std::optional<std::vector<uint32_t>> by_core(std::span<const Action> actions) const;
  void join(std::span<const uint32_t> order);
  void find_rows();
  uint32_t rows_from(size_t first, Step& own, Step& next) const;
  std::optional<Step> step(const CallAction& from, const CallAction& to) const;

  Lane& lane_;
  Calls calls_;   // of the actions that are being shortened
  Calls behind_;  // those behind each of their rows
};

// The order of calls with those of each core together; nullopt if that is the same, or another one
// than the cores rely on.
std::optional<std::vector<uint32_t>> Rows::by_core(std::span<const Action> actions) const {
  std::vector<const CoreState*> cores;
  std::vector<std::vector<uint32_t>> numbers;
  for (const Action& action : actions) {
    const CoreState* const core = lane_.calls[action.index].state;
    const auto known = static_cast<size_t>(std::ranges::find(cores, core) - cores.begin());
    if (known == cores.size()) {
      cores.push_back(core);
      numbers.emplace_back();
    }
    numbers[known].push_back(action.index);
  }
  if (cores.size() < 2) return std::nullopt;
  std::vector<Touched> touched(cores.size());
  for (size_t i = 0; i < cores.size(); ++i) {
    for (const uint32_t number : numbers[i]) touched[i].add(lane_, number);
    touched[i].close();
  }
  std::vector<uint32_t> order;
  for (size_t i = 0; i < cores.size(); ++i) {
    for (size_t other = 0; other < cores.size(); ++other) {
      if (other != i && touched[i].disturbs(touched[other])) return std::nullopt;
    }
    order.insert(order.end(), numbers[i].begin(), numbers[i].end());
  }
  return order;
}

void Rows::join(std::span<const uint32_t> order) {
  calls_.clear();
  for (const uint32_t number : order) {
    const CallAction& call = lane_.calls[number];
    if (!calls_.empty()) {
      CallAction& last = calls_.back().second;
      if (OperandLists::join(last, lane_.moves_of(last), call, lane_.moves_of(call))) continue;
    }
    calls_.emplace_back(number, call);
  }
}

// Between calls of one kernel by one core, which are as many; only within arguments: what is left
// of a tile's memory is another number of bytes.
std::optional<Step> Rows::step(const CallAction& from, const CallAction& to) const {
  if (from.function != to.function || from.state != to.state || from.count != to.count ||
      from.shared != to.shared || from.times != to.times || from.stride != to.stride ||
      (from.times > 1 && from.moving != to.moving)) {
    return std::nullopt;
  }
  const std::span<const Move> moves = lane_.moves_of(from);
  const std::optional<Step> found = Step::between(from, moves, to, lane_.moves_of(to));
  if (!found || found->distance == 0) return found;
  if (from.operand(found->operand, moves).place.base == Place::kAbsolute) return std::nullopt;
  return found;
}

// How often a call and the one behind it come, each as far from the one before.
uint32_t Rows::rows_from(size_t first, Step& own, Step& next) const {
  uint32_t rows = 1;
  const auto follows = [&](size_t number, Step& all) {
    const std::optional<Step> found = step(calls_[number].second, calls_[number + 2 * rows].second);
    if (!found) return false;
    if (rows == 1) all = *found;
    return found->distance == all.distance * rows &&
           (found->distance == 0 || found->operand == all.operand);
  };
  while (first + 2 * rows + 1 < calls_.size() && follows(first, own) && follows(first + 1, next)) {
    ++rows;
  }
  return rows;
}

void Rows::find_rows() {
  Calls left;
  behind_.clear();
  for (size_t i = 0; i < calls_.size();) {
    auto& [number, call] = calls_[i];
    left.emplace_back(number, call);
    Step own, next;
    const bool may = i + 1 < calls_.size() && calls_[i + 1].second.times == 1 &&
                     calls_[i + 1].second.shared == 0;
    const uint32_t rows = may ? rows_from(i, own, next) : 1;
    if (rows == 1) {
      ++i;
      continue;
    }
    CallAction& first = left.back().second;
    first.rows = rows;
    first.row_stride = own.distance;
    if (own.distance != 0) first.moving = own.operand;
    first.next = calls_[i + 1].first + 1;
    behind_.push_back(calls_[i + 1]);
    behind_.back().second.moving = next.operand;
    behind_.back().second.stride = next.distance;
    i += 2 * size_t{rows};
  }
  calls_ = std::move(left);
}

// Puts what is left of them, in this order, first. False, with nothing changed, if that is more.
bool Rows::shorten(std::span<Action> actions, std::span<const uint32_t> order, size_t most) {
  join(order);
  find_rows();
  if (calls_.size() > most) return false;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const auto& [number, call] = calls_[i];
    actions[i].index = number;
    lane_.calls[number] = call;
  }
  for (const auto& [number, call] : behind_) lane_.calls[number] = call;
  return true;
}

void Rows::shorten(std::span<Action> actions) {
  std::vector<uint32_t> order;
  for (const Action& action : actions) order.push_back(action.index);
  const std::optional<std::vector<uint32_t>> cores = by_core(actions);
  if (cores && shorten(actions, *cores, actions.size() / kWorth)) return;
  shorten(actions, order, actions.size());
}

// Of the lane's calls, with their moves, those that are no longer made.
void Rows::leave_out_calls() {
  std::vector<CallAction> calls;
  std::vector<Move> moves;
  const auto keep = [&](uint32_t number) {
    CallAction call = lane_.calls[number];
    const std::span<const Move> own = lane_.moves_of(call);
    call.first_move = static_cast<uint32_t>(moves.size());
    moves.insert(moves.end(), own.begin(), own.end());
    calls.push_back(call);
    return static_cast<uint32_t>(calls.size() - 1);
  };
  for (Action& action : lane_.actions) {
    if (action.kind != Action::Kind::kCall) continue;
    action.index = keep(action.index);
    const uint32_t next = calls.back().next;
    if (next != 0) calls[action.index].next = keep(next - 1) + 1;
  }
  lane_.calls = std::move(calls);
  lane_.moves = std::move(moves);
}

}  // namespace

void put_calls_in_rows(Lane& lane) { Rows(lane).run(); }

}  // namespace npu::emulator
