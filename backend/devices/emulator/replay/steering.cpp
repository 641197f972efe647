// Where the words that steer a run come from (steering.h).
#include "devices/emulator/replay/steering.h"

#include <algorithm>
#include <cstring>
#include <ranges>
#include <set>
#include <utility>

namespace npu::emulator {

namespace {

class Search {
 public:
  // The actions of a lane, from the last one to the first. False if a word's origin is not known.
  bool pass(const Lane& lane);
  std::vector<SteeringWord> found() const { return words_.all(); }
  const std::set<uint32_t>& bases() const { return bases_; }  // of arguments

 private:
  bool add(const Place& place, uint32_t value);
  bool add(std::span<const SteeringWord> words);
  bool pass(const Lane& lane, const Action& action);
  bool pass_move(const Action& action, const Walk* from, const Walk* to);
  bool pass_word(const Action& action);
  bool pass_call(const Lane& lane, size_t number);
  static bool pass_copies(std::span<const Place> places, std::span<const kernels::WordCopy> copies,
                          std::span<const SteeringWord> left, std::vector<SteeringWord>& copied);
  bool add_read(std::span<const Place> places, std::span<const OperandTrace> traces);

  WordMap words_;  // where they lie at this point of the run
  std::set<uint32_t> bases_;
  struct Moved {
    Place from, to;
    uint32_t value;
  };
  std::vector<Moved> moved_;       // of the move that is passed
  std::vector<SteeringWord> met_;  // of the operand that is passed
};

// The places of a move's words on one side: a walk's, or one after the other.
class Places {
 public:
  Places(const Place& begin, const Walk* walk)
      : begin_(begin), walk_(walk ? *walk : Walk::linear(nullptr)) {}
  uint64_t contiguous() const { return walk_.contiguous(); }
  Place next(uint64_t words) {
    Place place = begin_;
    place.offset += static_cast<int64_t>(walk_.next()) * kWordBytes;
    walk_.skip(words);
    return place;
  }

 private:
  const Place begin_;
  Walk walk_;
};

bool Search::add(const Place& place, uint32_t value) {
  if (place.base != Place::kAbsolute) bases_.insert(place.base);
  return words_.add(place, value);
}

bool Search::add(std::span<const SteeringWord> words) {
  return std::ranges::all_of(words,
                             [&](const SteeringWord& word) { return add(word.place, word.value); });
}

bool Search::pass_move(const Action& action, const Walk* from_walk, const Walk* to_walk) {
  if (!words_.any(action.to.base)) return true;
  Places from(action.from, from_walk), to(action.to, to_walk);
  moved_.clear();
  bool whole = true;
  for (uint64_t left = action.bytes / kWordBytes; left > 0;) {
    const uint64_t words = std::min({left, from.contiguous(), to.contiguous()});
    const Place source = from.next(words), target = to.next(words);
    const int64_t end = target.offset + static_cast<int64_t>(words) * kWordBytes;
    left -= words;
    words_.each(target, words * kWordBytes, [&](const SteeringWord& word) {
      const int64_t offset = word.place.offset;
      whole &= offset >= target.offset && offset + kWordBytes <= end;  // no part of it
      moved_.push_back(
          {{source.offset + (offset - target.offset), source.base}, word.place, word.value});
    });
  }
  if (moved_.empty()) return true;
  // Within an argument, what the move has written may be what it reads.
  if (!whole || (action.from.base == action.to.base && action.to.base != Place::kAbsolute)) {
    return false;
  }
  std::vector<SteeringWord> before;
  for (const Moved& word : std::views::reverse(moved_)) {
    if (words_.erase(word.to)) before.push_back({word.from, word.value});  // the last write counts
  }
  return add(before);
}

bool Search::pass_word(const Action& action) {
  bool same = true, any = false;
  words_.each(action.to, kWordBytes, [&](const SteeringWord& word) {
    any = true;
    same &=
        word.place.offset == action.to.offset && word.value == static_cast<uint32_t>(action.bytes);
  });
  return !any || (same && words_.erase(action.to));
}

// Words that a call has left are looked for in those that its kernel declares to make them of.
bool Search::pass_call(const Lane& lane, size_t number) {
  const CallAction& call = lane.calls[number];
  const std::span places(call.places, call.count);
  const std::span traces(lane.traces[number], call.count);
  const auto source = std::ranges::find(traces, kernels::Steering::kReads, &OperandTrace::steering);
  const size_t first = lane.first_copies[number];
  const size_t end =
      number + 1 < lane.calls.size() ? lane.first_copies[number + 1] : lane.copies.size();
  const auto copies = std::span(lane.copies).subspan(first, end - first);
  bool made = false;
  std::vector<SteeringWord> copied, left;  // left: that the call has written otherwise
  for (size_t i = 0; i < places.size(); ++i) {
    const Place& place = places[i];
    const OperandTrace& trace = traces[i];
    if (trace.written == 0) continue;
    met_.clear();
    words_.each(place, trace.written, [&](const SteeringWord& word) { met_.push_back(word); });
    const int64_t begin = place.offset + kWordBytes * trace.first;
    for (const SteeringWord& word : met_) {
      const int64_t offset = word.place.offset - begin;
      const bool among = offset >= 0 && offset + kWordBytes <= kWordBytes * trace.words;
      if (among && trace.steering == kernels::Steering::kKeeps) continue;
      words_.erase(word.place);
      if (!among || offset % kWordBytes != 0) {
        if (copies.empty()) return false;
        left.push_back(word);
        continue;
      }
      made |= trace.steering == kernels::Steering::kSets ||
              trace.steering == kernels::Steering::kUpdates;
      if (trace.steering != kernels::Steering::kCopies) continue;
      const int64_t index = offset / kWordBytes;
      if (source == traces.end() || index >= source->words) return false;
      const Place& from = places[static_cast<size_t>(source - traces.begin())];
      copied.push_back(
          {{from.offset + kWordBytes * (source->first + index), from.base}, word.value});
    }
  }
  if (!left.empty()) {
    if (!pass_copies(places, copies, left, copied)) return false;
    made = true;
  }
  return add(copied) && (!made || add_read(places, traces));
}

// From the last copy to the first. False if one of the words is none of those that were copied.
bool Search::pass_copies(std::span<const Place> places, std::span<const kernels::WordCopy> copies,
                         std::span<const SteeringWord> left, std::vector<SteeringWord>& copied) {
  for (const SteeringWord& word : left) {
    Place at = word.place;
    bool moved = false;
    for (const kernels::WordCopy& copy : std::views::reverse(copies)) {
      const Place& to = places[static_cast<size_t>(copy.to)];
      const Place& from = places[static_cast<size_t>(copy.from)];
      const int64_t offset = at.offset - (to.offset + kWordBytes * copy.to_first);
      if (at.base != to.base || offset < 0 || offset >= kWordBytes * copy.words) continue;
      if (offset % kWordBytes != 0) return false;
      at = {from.offset + kWordBytes * copy.from_first + offset, from.base};
      moved = true;
    }
    if (!moved) return false;
    copied.push_back({at, word.value});
  }
  return true;
}

bool Search::add_read(std::span<const Place> places, std::span<const OperandTrace> traces) {
  for (size_t i = 0; i < places.size(); ++i) {
    const OperandTrace& trace = traces[i];
    if (trace.steering != kernels::Steering::kReads &&
        trace.steering != kernels::Steering::kUpdates) {
      continue;
    }
    const Place& place = places[i];
    for (uint32_t w = 0; w < trace.words; ++w) {
      const int64_t offset = place.offset + kWordBytes * (int64_t{trace.first} + w);
      if (!add({offset, place.base}, trace.values[w])) return false;
    }
  }
  return true;
}

bool Search::pass(const Lane& lane, const Action& action) {
  const Walk* const walk = lane.walks.data() + action.index;
  switch (action.kind) {
    case Action::Kind::kSteer:
      return add(action.from, static_cast<uint32_t>(action.bytes));
    case Action::Kind::kCopy:
      return pass_move(action, nullptr, nullptr);
    case Action::Kind::kGather:
      return pass_move(action, walk, nullptr);
    case Action::Kind::kScatter:
      return pass_move(action, nullptr, walk);
    case Action::Kind::kReorder:
      return pass_move(action, walk, walk + 1);
    case Action::Kind::kWord:
      return pass_word(action);
    case Action::Kind::kCall:
      return pass_call(lane, action.index);
    case Action::Kind::kUnpack:
      return true;
  }
  return false;
}

bool Search::pass(const Lane& lane) {
  for (const Action& action : std::views::reverse(lane.actions)) {
    if (!pass(lane, action)) return false;
  }
  return true;
}

}  // namespace

SteeringRuns::SteeringRuns(std::span<const SteeringWord> words) {
  for (const SteeringWord& word : words) {
    const Run* const last = runs_.empty() ? nullptr : &runs_.back();
    const bool follows =
        last != nullptr && last->place.base == word.place.base &&
        last->place.offset + static_cast<int64_t>(last->words) * kWordBytes == word.place.offset;
    if (!follows) runs_.push_back({word.place, 0});
    ++runs_.back().words;
    values_.push_back(word.value);
  }
}

bool SteeringRuns::hold(std::span<std::byte* const> arguments) const {
  constexpr size_t kAhead = 32;  // runs, whose lines are under way
  const auto at = [&](const Place& place) {
    return place.base == Place::kAbsolute
               ? reinterpret_cast<const std::byte*>(static_cast<intptr_t>(place.offset))
               : arguments[place.base - 1] + place.offset;
  };
  const uint32_t* expected = values_.data();
  for (size_t i = 0; i < runs_.size(); ++i) {
    if (i + kAhead < runs_.size()) __builtin_prefetch(at(runs_[i + kAhead].place));
    const std::byte* next = at(runs_[i].place);
    uint32_t different = 0;  // a few words, for which a call of memcmp takes longer
    for (size_t w = 0; w < runs_[i].words; ++w, next += kWordBytes) {
      uint32_t value = 0;
      std::memcpy(&value, next, sizeof value);
      different |= value ^ *expected++;
    }
    if (different != 0) return false;
  }
  return true;
}

bool SteeringRuns::in_memory() const {
  return std::ranges::any_of(runs_,
                             [](const Run& run) { return run.place.base == Place::kAbsolute; });
}

size_t SteeringRuns::bytes() const {
  return runs_.size() * sizeof(Run) + values_.size() * sizeof values_[0];
}

// Lanes of a phase touch nothing of each other's, so their order is of no importance.
std::optional<std::vector<SteeringWord>> steering_words(std::span<const Phase> phases,
                                                        std::vector<uint32_t>* arguments) {
  Search search;
  for (const Phase& phase : std::views::reverse(phases)) {
    for (const Lane& lane : phase) {
      if (!search.pass(lane)) return std::nullopt;
    }
  }
  if (arguments != nullptr) arguments->assign(search.bases().begin(), search.bases().end());
  return search.found();
}

}  // namespace npu::emulator
