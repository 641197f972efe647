// Where the words that steer a run come from (steering.h).
#include "devices/emulator/replay/steering.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <memory_resource>
#include <ranges>
#include <set>
#include <utility>

namespace npu::emulator {

namespace {

using Key = std::pair<uint32_t, int64_t>;  // base and offset of a place

// How many words begin in each stretch of memory, roughly: most places that a run writes are far
// from all of them.
class Filter {
 public:
  void add(const Key& word) { ++counts_[slot(word.first, word.second >> kBits)]; }
  void remove(const Key& word) { --counts_[slot(word.first, word.second >> kBits)]; }
  bool may_touch(const Place& place, uint64_t bytes) const {
    const int64_t first = (place.offset - kWordBytes + 1) >> kBits;
    const int64_t last = (place.offset + static_cast<int64_t>(bytes) - 1) >> kBits;
    if (last - first >= kMost) return true;
    for (int64_t stretch = first; stretch <= last; ++stretch) {
      if (counts_[slot(place.base, stretch)] != 0) return true;
    }
    return false;
  }

 private:
  static constexpr int kBits = 8;         // 256 bytes
  static constexpr int64_t kMost = 64;    // stretches that are looked at
  static constexpr size_t kSlots = 8192;  // 2 MiB of one base without collisions
  static size_t slot(uint32_t base, int64_t stretch) {
    return (static_cast<size_t>(stretch) + base * size_t{977}) % kSlots;
  }
  std::array<uint32_t, kSlots> counts_{};
};

class Search {
 public:
  // The actions of a lane, from the last one to the first. False if a word's origin is not known.
  bool pass(const Lane& lane);
  std::vector<SteeringWord> found() const;
  const std::set<uint32_t>& bases() const { return bases_; }  // of arguments

 private:
  using Words = std::pmr::map<Key, uint32_t>;

  static Key key(const Place& place) { return {place.base, place.offset}; }
  bool touches(const Place& place, uint64_t bytes) const {
    if (!filter_.may_touch(place, bytes)) return false;
    const auto first = first_in(place);
    return first != words_.end() && first->first < behind(place, bytes);
  }
  static Key behind(const Place& place, uint64_t bytes) {
    return {place.base, place.offset + static_cast<int64_t>(bytes)};
  }
  Words::const_iterator first_in(const Place& place) const {
    return words_.lower_bound({place.base, place.offset - kWordBytes + 1});
  }
  Words::const_iterator first_behind(const Place& place, uint64_t bytes) const {
    return words_.lower_bound(behind(place, bytes));
  }
  bool add(const Key& where, uint32_t value);
  Words::iterator erase(Words::const_iterator word) {
    filter_.remove(word->first);
    return words_.erase(word);
  }
  bool pass(const Lane& lane, const Action& action);
  bool pass_move(const Action& action, const Walk* from, const Walk* to);
  bool pass_word(const Action& action);
  bool pass_call(const Lane& lane, size_t number);
  static bool pass_copies(std::span<const Place> places, std::span<const kernels::WordCopy> copies,
                          const Words& left, std::vector<std::pair<Key, uint32_t>>& copied);
  bool add_read(std::span<const Place> places, std::span<const OperandTrace> traces);

  std::pmr::unsynchronized_pool_resource memory_;
  Words words_{&memory_};  // where they lie at this point of the run
  Filter filter_{};
  std::set<uint32_t> bases_;
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

bool Search::add(const Key& where, uint32_t value) {
  const auto near = words_.lower_bound({where.first, where.second - kWordBytes + 1});
  if (near != words_.end() && near->first.first == where.first &&
      near->first.second < where.second + kWordBytes) {
    return near->first == where && near->second == value;
  }
  words_.emplace_hint(near, where, value);
  filter_.add(where);
  if (where.first != Place::kAbsolute) bases_.insert(where.first);
  return true;
}

bool Search::pass_move(const Action& action, const Walk* from_walk, const Walk* to_walk) {
  if (to_walk == nullptr && !touches(action.to, action.bytes)) return true;
  const auto of_base = words_.lower_bound({action.to.base, INT64_MIN});
  if (of_base == words_.end() || of_base->first.first != action.to.base) return true;
  Places from(action.from, from_walk), to(action.to, to_walk);
  std::pmr::map<Key, std::pair<Key, uint32_t>> moved(&memory_);  // by where they lay after
  for (uint64_t left = action.bytes / kWordBytes; left > 0;) {
    const uint64_t words = std::min({left, from.contiguous(), to.contiguous()});
    const Place source = from.next(words), target = to.next(words);
    const int64_t end = target.offset + static_cast<int64_t>(words) * kWordBytes;
    left -= words;
    const auto last = first_behind(target, words * kWordBytes);
    for (auto word = first_in(target); word != last; ++word) {
      const int64_t offset = word->first.second;
      if (offset < target.offset || offset + kWordBytes > end) return false;  // a part of it
      moved[word->first] = {{source.base, source.offset + (offset - target.offset)}, word->second};
    }
  }
  // Within an argument, what the move has written may be what it reads.
  if (!moved.empty() && action.from.base == action.to.base && action.to.base != Place::kAbsolute) {
    return false;
  }
  for (const auto& [after, word] : moved) erase(words_.find(after));
  return std::ranges::all_of(
      moved, [&](const auto& word) { return add(word.second.first, word.second.second); });
}

bool Search::pass_word(const Action& action) {
  if (!filter_.may_touch(action.to, kWordBytes)) return true;
  const auto first = first_in(action.to), last = first_behind(action.to, kWordBytes);
  if (first == last) return true;
  if (first->first != key(action.to) || std::next(first) != last) return false;
  if (first->second != static_cast<uint32_t>(action.bytes)) return false;
  erase(first);
  return true;
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
  std::vector<std::pair<Key, uint32_t>> copied;
  Words left(&memory_);  // that the call has written otherwise
  for (size_t i = 0; i < places.size(); ++i) {
    const Place& place = places[i];
    const OperandTrace& trace = traces[i];
    if (trace.written == 0 || !filter_.may_touch(place, trace.written)) continue;
    const int64_t begin = place.offset + kWordBytes * trace.first;
    const Key end_of_operand = behind(place, trace.written);
    for (auto word = first_in(place); word != words_.end() && word->first < end_of_operand;) {
      const int64_t offset = word->first.second - begin;
      const bool among = offset >= 0 && offset + kWordBytes <= kWordBytes * trace.words;
      if (among && trace.steering == kernels::Steering::kKeeps) {
        ++word;
        continue;
      }
      const auto [at, value] = *word;
      word = erase(word);
      if (!among || offset % kWordBytes != 0) {
        if (copies.empty()) return false;
        left.emplace(at, value);
        continue;
      }
      made |= trace.steering == kernels::Steering::kSets ||
              trace.steering == kernels::Steering::kUpdates;
      if (trace.steering != kernels::Steering::kCopies) continue;
      const int64_t index = offset / kWordBytes;
      if (source == traces.end() || index >= source->words) return false;
      const Place& from = places[static_cast<size_t>(source - traces.begin())];
      copied.push_back({{from.base, from.offset + kWordBytes * (source->first + index)}, value});
    }
  }
  if (!left.empty()) {
    if (!pass_copies(places, copies, left, copied)) return false;
    made = true;
  }
  for (const auto& [where, value] : copied) {
    if (!add(where, value)) return false;
  }
  return !made || add_read(places, traces);
}

// From the last copy to the first. False if one of the words is none of those that were copied.
bool Search::pass_copies(std::span<const Place> places, std::span<const kernels::WordCopy> copies,
                         const Words& left, std::vector<std::pair<Key, uint32_t>>& copied) {
  for (const auto& [where, value] : left) {
    Key at = where;
    bool moved = false;
    for (const kernels::WordCopy& copy : std::views::reverse(copies)) {
      const Place& to = places[static_cast<size_t>(copy.to)];
      const Place& from = places[static_cast<size_t>(copy.from)];
      const int64_t offset = at.second - (to.offset + kWordBytes * copy.to_first);
      if (at.first != to.base || offset < 0 || offset >= kWordBytes * copy.words) continue;
      if (offset % kWordBytes != 0) return false;
      at = {from.base, from.offset + kWordBytes * copy.from_first + offset};
      moved = true;
    }
    if (!moved) return false;
    copied.emplace_back(at, value);
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
      if (!add({place.base, offset}, trace.values[w])) return false;
    }
  }
  return true;
}

bool Search::pass(const Lane& lane, const Action& action) {
  const Walk* const walk = lane.walks.data() + action.index;
  switch (action.kind) {
    case Action::Kind::kSteer:
      return add(key(action.from), static_cast<uint32_t>(action.bytes));
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

std::vector<SteeringWord> Search::found() const {
  std::vector<SteeringWord> all;
  for (const auto& [where, value] : words_) all.push_back({{where.second, where.first}, value});
  return all;
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
  return std::ranges::any_of(
      runs_, [](const Run& run) { return run.place.base == Place::kAbsolute; });
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
