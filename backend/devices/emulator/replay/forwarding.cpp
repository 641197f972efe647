// Finding copies of results that can be left out (forwarding.h).
#include "devices/emulator/replay/forwarding.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace npu::emulator {

namespace {

constexpr size_t kNone = SIZE_MAX;

// Bytes of an argument that an action reads or writes.
struct Access {
  size_t action;
  Place place;
  uint64_t bytes;
  bool overlaps(const Place& other, uint64_t count) const {
    return place.offset < other.offset + static_cast<int64_t>(count) &&
           other.offset < place.offset + static_cast<int64_t>(bytes);
  }
};

// What lies in a range of a tile's memory, from the action that wrote it all to the next such one.
struct Content {
  size_t writer;
  uint64_t bytes;
  size_t reader = kNone;  // a copy of all of it
  bool spoiled = false;   // read or written otherwise
};

// One that only one copy has read: nothing needs it where it lies.
struct Passed {
  size_t writer, reader;
};

class Forwarding {
 public:
  Forwarding(Lane& lane, Patches& patches)
      : lane_(lane),
        patches_(patches),
        read_by_(lane.actions.size(), kNone),
        passed_to_(lane.actions.size(), kNone) {}

  void run() {
    for (size_t i = 0; i < lane_.actions.size(); ++i) visit(i);
    if (passed_.empty()) return;
    for (const Passed& content : passed_) {
      if (passed_to_[content.reader] == kNone) shorten(content);
    }
    if (!redirected_.empty()) redirect();
    std::vector<Action> left;
    for (size_t i = 0; i < lane_.actions.size(); ++i) {
      if (!left_out_.contains(i)) left.push_back(lane_.actions[i]);
    }
    lane_.actions = std::move(left);
  }

 private:
  using Contents = std::map<int64_t, Content>;  // of memories, by address

  void visit(size_t number);
  void visit_call(size_t number);
  Contents::iterator first_in(const Place& place);
  void read(size_t number, const Place& place, uint64_t bytes, bool copy);
  void write(size_t number, const Place& place, uint64_t bytes, bool whole);
  void walk(size_t number, Walk walk, const Place& base, uint64_t words);
  void shorten(const Passed& last);
  std::span<const Access> between(size_t first, size_t last) const;
  bool free_between(size_t first, size_t last, const Place& place, uint64_t bytes) const;
  bool may_begin(const Action& writer) const;
  void redirect();

  Lane& lane_;
  Patches& patches_;
  Contents contents_;
  std::vector<Passed> passed_;
  std::vector<size_t> read_by_, passed_to_;  // by action: of passed_, what it reads and writes
  std::vector<Access> accesses_;             // of arguments, in order
  std::map<size_t, Place> redirected_;       // calls, by number: where their result goes
  std::set<size_t> left_out_;
};

// The first content that reaches into a range, or lies behind it.
Forwarding::Contents::iterator Forwarding::first_in(const Place& place) {
  const auto behind = contents_.upper_bound(place.offset);
  if (behind == contents_.begin()) return behind;
  const auto before = std::prev(behind);
  return before->first + static_cast<int64_t>(before->second.bytes) > place.offset ? before
                                                                                   : behind;
}

void Forwarding::read(size_t number, const Place& place, uint64_t bytes, bool copy) {
  if (place.base != Place::kAbsolute) return accesses_.push_back({number, place, bytes});
  const int64_t end = place.offset + static_cast<int64_t>(bytes);
  for (auto at = first_in(place); at != contents_.end() && at->first < end; ++at) {
    Content& found = at->second;
    const bool all = copy && at->first == place.offset && found.bytes == bytes;
    found.spoiled |= !all || found.reader != kNone;
    found.reader = number;
  }
}

void Forwarding::write(size_t number, const Place& place, uint64_t bytes, bool whole) {
  if (place.base != Place::kAbsolute) return accesses_.push_back({number, place, bytes});
  const int64_t end = place.offset + static_cast<int64_t>(bytes);
  for (auto at = first_in(place); at != contents_.end() && at->first < end;) {
    const Content& old = at->second;
    const int64_t old_end = at->first + static_cast<int64_t>(old.bytes);
    const bool gone = whole && at->first >= place.offset && old_end <= end;
    if (gone && !old.spoiled && old.reader != kNone) {
      read_by_[old.reader] = passed_to_[old.writer] = passed_.size();
      passed_.push_back({old.writer, old.reader});
    }
    at = contents_.erase(at);
  }
  if (whole) contents_[place.offset] = {number, bytes};
}

// Of words that lie apart: everything between them as well.
void Forwarding::walk(size_t number, Walk walk, const Place& base, uint64_t words) {
  int64_t first = INT64_MAX, last = INT64_MIN;
  while (words > 0) {
    const uint64_t run = std::min(words, walk.contiguous());
    const auto next = static_cast<int64_t>(walk.next());
    first = std::min(first, next);
    last = std::max(last, next + static_cast<int64_t>(run));
    walk.skip(run);
    words -= run;
  }
  if (first >= last) return;
  const Place begin{base.offset + first * kWordBytes, base.base, base.patch};
  const auto bytes = static_cast<uint64_t>((last - first) * kWordBytes);
  read(number, begin, bytes, false);
  write(number, begin, bytes, false);
}

void Forwarding::visit_call(size_t number) {
  const size_t index = lane_.actions[number].index;
  lane_.each_buffer(index, [&](const Place& place, const OperandTrace& trace, uint64_t bytes) {
    if (!trace.filled) read(number, place, bytes, false);
  });
  lane_.each_buffer(index, [&](const Place& place, const OperandTrace& trace, uint64_t bytes) {
    if (trace.written != 0)
      write(number, place, bytes, trace.filled && lane_.calls[index].times == 1);
  });
}

void Forwarding::visit(size_t number) {
  const Action& action = lane_.actions[number];
  switch (action.kind) {
    case Action::Kind::kCopy:
      read(number, action.from, action.bytes, true);
      write(number, action.to, action.bytes, true);
      break;
    case Action::Kind::kGather:
      walk(number, lane_.walks[action.index], action.from, action.bytes / 4);
      write(number, action.to, action.bytes, false);
      break;
    case Action::Kind::kScatter:
      read(number, action.from, action.bytes, false);
      walk(number, lane_.walks[action.index], action.to, action.bytes / 4);
      break;
    case Action::Kind::kReorder:
      walk(number, lane_.walks[action.index], action.from, action.bytes / 4);
      walk(number, lane_.walks[action.index + 1], action.to, action.bytes / 4);
      break;
    case Action::Kind::kWord:
      write(number, action.to, kWordBytes, false);
      break;
    case Action::Kind::kCall:
      visit_call(number);
      break;
    case Action::Kind::kUnpack:
    case Action::Kind::kSteer:
      break;
  }
}

std::span<const Access> Forwarding::between(size_t first, size_t last) const {
  const auto begin = std::ranges::upper_bound(accesses_, first, {}, &Access::action);
  return {begin, std::ranges::lower_bound(begin, accesses_.end(), last, {}, &Access::action)};
}

// Whether no action between two others touches these bytes of an argument, in any run.
bool Forwarding::free_between(size_t first, size_t last, const Place& place, uint64_t bytes) const {
  return std::ranges::none_of(between(first, last), [&](const Access& access) {
    if (access.place.base != place.base) return false;
    const bool together = access.place.patch == place.patch;
    return (!together && patches_.moves(access.place.patch)) || access.overlaps(place, bytes);
  });
}

// Whether what an action writes may go elsewhere: a call's only result, or what a copy copies.
bool Forwarding::may_begin(const Action& writer) const {
  if (writer.kind == Action::Kind::kCopy) return true;
  const CallAction& call = lane_.calls[writer.index];
  const std::span traces(lane_.traces[writer.index], call.count);
  return std::ranges::count(traces, true, &OperandTrace::filled) == 1;
}

// Back from the copy to an argument to the first action from which the bytes may go there.
void Forwarding::shorten(const Passed& last) {
  const Action copy = lane_.actions[last.reader];
  if (copy.to.base == Place::kAbsolute || patches_.moves(copy.to.patch)) return;
  std::vector<size_t> copies;  // that need not be made if the one before them is shortened to
  size_t first = kNone, made = 0;
  for (size_t at = last.reader; read_by_[at] != kNone;) {
    copies.push_back(at);
    at = passed_[read_by_[at]].writer;
    if (!may_begin(lane_.actions[at])) break;
    if (!free_between(at, last.reader, copy.to, copy.bytes)) break;
    first = at;
    made = copies.size();
  }
  if (first == kNone) return;
  left_out_.insert(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(made));
  patches_.fix(copy.to.patch);
  for (const Access& access : between(first, last.reader)) {
    if (access.place.base == copy.to.base) patches_.fix(access.place.patch);
  }
  Action& writer = lane_.actions[first];
  if (writer.kind == Action::Kind::kCopy) {
    writer.to = copy.to;
  } else {
    redirected_.emplace(writer.index, copy.to);
  }
}

void Forwarding::redirect() {
  std::vector<Move> moves;
  for (size_t i = 0; i < lane_.calls.size(); ++i) {
    CallAction& call = lane_.calls[i];
    const std::span<const Move> own = lane_.moves_of(call);
    call.first_move = static_cast<uint32_t>(moves.size());
    moves.insert(moves.end(), own.begin(), own.end());
    const auto to = redirected_.find(i);
    if (to == redirected_.end()) continue;
    const std::span traces(lane_.traces[i], call.count);
    const auto result = std::ranges::find(traces, true, &OperandTrace::filled);
    const auto operand = static_cast<uint32_t>(result - traces.begin());
    const auto behind = std::ranges::upper_bound(own, operand, {}, &Move::operand);
    moves.insert(moves.end() - (own.end() - behind), {to->second, nullptr, operand});
    ++call.moves;
  }
  lane_.moves = std::move(moves);
}

}  // namespace

void forward_results(Lane& lane, Patches& patches) {
  const auto sends = [](const Action& action) {
    return action.kind == Action::Kind::kCopy && action.from.base == Place::kAbsolute &&
           action.to.base != Place::kAbsolute;
  };
  if (std::ranges::none_of(lane.actions, sends)) return;
  Forwarding(lane, patches).run();
}

}  // namespace npu::emulator
