// Runs of a series (Array::begin_series), which may put off what they leave. Asserts, against an
// array that executes every run at register level, that results and reports are those of runs by
// themselves, and all memories, locks and registers after the series; that what was put off is
// left before a run that does not repeat a record, before memories are compared with words that
// steer, and where a series ends early; that copies which the next run makes needless are not made,
// others are; which bytes a run has touched.
#include <bitset>
#include <random>

#include "devices/emulator/replay/byte_ranges.h"
#include "devices/emulator/replay/last_copies.h"
#include "replay_fixture.h"

using namespace npu;
using namespace npu::test;
using emulator::ByteRanges;

TEST_SUITE_BEGIN("columns");  // which ThreadSanitizer runs

namespace {

// Of one design whose cores read objects where the host has them (Design::started).
struct Recorded {
  Recorded() : design(SteeredBy::kStream, true), plain(SteeredBy::kStream, true) {
    for (const auto& [loops, parts] : {std::pair{3u, 1u}, {2u, 1u}, {2u, 2u}}) {
      streams.push_back(std::make_unique<Prepared>(loops, memory, Design::started(loops, parts)));
    }
    for (const auto& stream : streams) {
      for (uint32_t i = 0; i < 3; ++i) {
        Data data(3, i);
        CHECK(run(design, *stream, data) == (i == 2));
        run_plainly(plain, *stream, data.arguments());
      }
    }
  }
  // A run on both arrays, and whether it was a replay.
  bool both(Prepared& stream, Data& data) {
    Data expected = data;
    const bool replays = run(design, stream, data);
    run_plainly(plain, stream, expected.arguments());
    CHECK(data == expected);
    CHECK(same_report(design.m.array.report(), plain.m.array.report()));
    return replays;
  }
  Words core_words(int at) { return design.m.words(kCore, uint32_t(at) / 4, kWords); }
  bool same_state() { return state(design.m) == state(plain.m); }

  std::shared_ptr<ReplayMemory> memory = std::make_shared<ReplayMemory>();
  Design design, plain;
  std::vector<std::unique_ptr<Prepared>> streams;
};

}  // namespace

TEST_CASE("a series leaves what its runs by themselves leave, in any order") {
  Recorded all;
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    std::vector<std::unique_ptr<Data>> data;  // lasts as long as the series
    all.design.m.array.begin_series();
    const auto count = 1 + random() % 5;
    for (uint32_t i = 0; i < count; ++i) {
      data.push_back(std::make_unique<Data>(3, uint32_t(random() % 1000)));
      CHECK(all.both(*all.streams[random() % all.streams.size()], *data.back()));
    }
    all.design.m.array.end_series();
    REQUIRE(all.same_state());
  }
}

TEST_CASE("a replay of a series leaves what it read last only at the end") {
  Recorded all;
  Array& array = all.design.m.array;
  Prepared& stream = *all.streams[0];
  Data first(3, 10), second(3, 11), third(3, 12);
  const auto last = [](const Data& data) {
    return Words(data.in.begin() + 2 * kWords, data.in.begin() + 3 * kWords);
  };
  CHECK(all.both(stream, first));
  CHECK(all.core_words(kIn) == last(first));
  array.begin_series();
  CHECK(all.both(stream, second));
  CHECK(all.both(stream, third));
  CHECK(all.core_words(kIn) == last(first));
  array.end_series();
  CHECK(all.core_words(kIn) == last(third));
  CHECK(all.same_state());
  CHECK(all.both(stream, second));  // by itself again
  CHECK(all.core_words(kIn) == last(second));
}

// Objects that the memtile turns around have another place there.
TEST_CASE("what a run of a series read last comes before one that does not replace it") {
  Recorded all;
  Array& array = all.design.m.array;
  Data first(3, 20), second(3, 21);
  const auto in_memtile = [&] { return all.design.m.words(kMem, kWords, kWords); };
  const Words last(first.in.begin() + kWords, first.in.begin() + 2 * kWords);
  array.begin_series();
  CHECK(all.both(*all.streams[1], first));
  CHECK(in_memtile() != last);
  CHECK(all.both(*all.streams[2], second));
  CHECK(in_memtile() == last);
  array.end_series();
  CHECK(all.same_state());
}

TEST_CASE("a run of a series that is no replay begins with what the one before leaves") {
  Recorded all;
  Array& array = all.design.m.array;
  Prepared fresh(3, all.memory, Design::started(3, 1));
  Data data[] = {Data(3, 30), Data(3, 31), Data(3, 32), Data(3, 33)};
  array.begin_series();
  CHECK(all.both(*all.streams[0], data[0]));
  CHECK(!all.both(fresh, data[1]));  // executes, and the second time it is recorded
  CHECK(all.both(*all.streams[2], data[2]));
  CHECK(!all.both(fresh, data[3]));
  CHECK(all.same_state());
  CHECK(all.both(fresh, data[0]));
  CHECK(array.return_to_rest());  // leaves what was put off
  run_plainly(all.plain, fresh, Data(data[0]).arguments());
  array.end_series();
  all.plain.m.array.return_to_rest();
  CHECK(all.same_state());
}

TEST_CASE("a run of a series that leaves something for the next one is known to") {
  Recorded all;
  Array& array = all.design.m.array;
  Prepared leaves(3, all.memory, Design::started(3, 1).lock(kCore, 9, 1));
  Prepared takes(3, all.memory, Design::started(3, 1).lock(kCore, 9, 0));
  Data data(3, 60);
  for (int i = 0; i < 2; ++i) {
    CHECK(!all.both(leaves, data));
    all.both(takes, data);
  }
  array.begin_series();
  CHECK(all.both(*all.streams[0], data));
  CHECK(all.both(leaves, data));
  all.design.m.array.begin(all.streams[1]->parsed, data.arguments(), &all.streams[1]->recordings);
  CHECK(!array.replaying());
  CHECK(array.resume(Array::Deadline::max()));
  CHECK(all.design.m.lock(kCore, 9) == 1);
  array.end_series();
}

// The second stream's cores go by the object that the first one's left in their memory.
TEST_CASE("words that steer are compared with what a run of a series leaves") {
  Design design(SteeredBy::kTakenData, true), plain(SteeredBy::kTakenData, true);
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared first(2, memory, Design::started(2, 1));
  Script script;
  for (const At core : {kCore, kCoreEast}) script.lock(core, 4, 1).lock(core, 1, 2);
  script.host_bd(0, 1, linear(kWords), 1).push(kShim, kS2MM, 0, 1, 1, true);
  script.host_bd(1, 1, linear(kWords), 2).push(kEast, kS2MM, 0, 1, 1, true);
  script.sync(kShim, kS2MM, 0).sync(kEast, kS2MM, 0);
  for (const At core : {kCore, kCoreEast}) script.lock(core, 0, 0);
  Prepared second(2, memory, script);
  const auto both = [&](Prepared& stream, Data& data) {
    Data expected = data;
    const bool replays = run(design, stream, data);
    run_plainly(plain, stream, expected.arguments());
    CHECK(data == expected);
    return replays;
  };
  // Two loops; so many words of an object, whose second word it is, as nothing turns it around.
  const auto counted = [](uint32_t count, uint32_t seed) {
    Data data = steering(2, 0, seed);
    for (uint32_t object = 0; object < 2; ++object) data.in[kWords * object + 1] = count;
    return data;
  };
  for (uint32_t i = 0; i < 3; ++i) {
    Data data = counted(kWords, i), other(2, i);
    CHECK(both(first, data) == (i == 2));
    CHECK(both(second, other) == (i == 2));
  }
  for (const uint32_t count : {kWords, kWords / 2, kWords}) {
    CAPTURE(count);
    for (uint32_t i = 0; i < 2; ++i) {  // by itself, so that there is a record
      Data data = counted(count, i);
      both(first, data);
    }
    Data known = counted(kWords, 5), data = counted(count, 6), other(2, 7);
    both(first, known);
    design.m.array.begin_series();
    CHECK(both(first, data));
    CHECK(both(second, other) == (count == kWords));
    design.m.array.end_series();
    CHECK(state(design.m) == state(plain.m));
  }
}

TEST_CASE("a run of a series that fails, or is ended, leaves an array to configure") {
  Recorded all;
  Array& array = all.design.m.array;
  Data data(3, 40), other(3, 41);
  array.begin_series();
  CHECK(all.both(*all.streams[0], data));
  fails = true;
  CHECK_THROWS_AS(run(all.design, *all.streams[0], other), Error);
  CHECK(array.faulted());
  array.end_series();
  all.design.configure();
  all.plain.configure();
  for (uint32_t i = 0; i < 3; ++i) all.both(*all.streams[0], data);
  array.begin_series();
  CHECK(all.both(*all.streams[0], data));
  array.begin(all.streams[0]->parsed, other.arguments(), &all.streams[0]->recordings);
  array.abort();
  array.end_series();
  all.design.configure();
  all.plain.configure();
  CHECK(!all.both(*all.streams[0], data));
  CHECK(all.same_state());
}

TEST_CASE("runs beside each other in a series") {
  Recorded all;
  Array& array = all.design.m.array;
  std::vector<std::unique_ptr<Data>> data;
  array.begin_series();
  for (uint32_t round = 0; round < 3; ++round) {
    const auto number = data.size();
    for (uint32_t i = 0; i < 3; ++i) data.push_back(std::make_unique<Data>(3, 50 + i));
    Prepared& first = *all.streams[round % 2];
    array.begin(first.parsed, data[number]->arguments(), &first.recordings);
    REQUIRE(array.replaying());
    for (uint32_t i = 1; i < 3; ++i) {
      Prepared& stream = *all.streams[i % 2];
      REQUIRE(array.join(data[number + i]->arguments(), stream.recordings).has_value());
    }
    CHECK(array.resume(Array::Deadline::max()));
    for (uint32_t i = 0; i < 3; ++i) {
      Data expected(3, 50 + i);
      // The array is as the first one leaves it.
      Design fresh(SteeredBy::kStream, true);
      run_plainly(i == 0 ? all.plain : fresh, i == 0 ? first : *all.streams[i % 2],
                  expected.arguments());
      CHECK(*data[number + i] == expected);
    }
  }
  array.end_series();
  CHECK(all.same_state());
}

// Of a lane that copies from an argument to these ranges of bytes, or between them.
TEST_CASE(
    "last copies: needless are those whose places the next run writes last and leaves alone") {
  using emulator::Action;
  using emulator::Place;
  const auto argument = [](int64_t at) { return Place{at, 1}; };
  const auto memory = [](int64_t at) { return Place{at, Place::kAbsolute}; };
  const auto recorded = [](std::vector<Action> actions, size_t first) {
    std::vector<emulator::Phase> phases(2);
    phases[0].resize(1);
    phases[0][0].actions.assign(actions.begin(), actions.begin() + std::ptrdiff_t(first));
    phases[1].resize(1);
    phases[1][0].actions.assign(actions.begin() + std::ptrdiff_t(first), actions.end());
    return emulator::PackedPhases(std::move(phases));
  };
  const auto copy = [](Place to, Place from, uint64_t bytes) {
    return Action{Action::Kind::kCopy, 0, bytes, to, from};
  };
  const std::vector<Action> copies{
      copy(argument(0), memory(64), 8),    // to an argument: always
      copy(memory(100), argument(0), 40),  // as the next run does
      copy(memory(200), argument(0), 40),  // of which it leaves a part
      copy(memory(300), argument(0), 40),  // which it reads before
      copy(memory(400), argument(0), 40),  // which another copy reads
      copy(memory(500), memory(436), 4),
      copy(memory(600), argument(0), 8)};  // which a copy of the next run reads
  const emulator::PackedPhases phases = recorded(copies, 0);
  const emulator::LastCopies last(phases, 1, {});
  ByteRanges touched;
  touched.add({339, 340});
  touched.close();
  const emulator::PackedPhases others =
      recorded({copy(memory(0), argument(0), 4), copy(memory(100), argument(8), 40),
                copy(memory(204), argument(8), 40), copy(memory(300), argument(8), 310),
                copy(memory(700), memory(604), 4)},
               1);
  const emulator::LastCopies next(others, 1, touched);
  std::vector<size_t> left;
  for (const auto& [lane, number] : emulator::copies_left(phases, last, next)) {
    CHECK(lane == &phases[1][0]);
    left.push_back(number);
  }
  CHECK(left == std::vector<size_t>{0, 2, 3, 4, 6});
}

TEST_CASE("ranges of bytes: thousands of them take the room of those that are apart") {
  ByteRanges ranges;
  for (int64_t i = 0; i < 20000; ++i) {
    const int64_t at = i * 7919 % 20000 * 8;
    ranges.add({at, at + 8});
  }
  ranges.add({200000, 200008});
  CHECK(ranges.bytes() < 10000 * sizeof(ByteRanges::Range));
  ranges.close();
  CHECK(ranges.bytes() == 2 * sizeof(ByteRanges::Range));
  CHECK(ranges.holds({0, 160000}));
  CHECK(!ranges.meets({160000, 200000}));
  CHECK(ranges.holds({200000, 200008}));
}

TEST_CASE("ranges of bytes, against one bit for each") {
  std::mt19937 random(3);
  const auto below = [&](int most) { return int64_t(random() % unsigned(most)); };
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    constexpr size_t kBytes = 400;
    std::bitset<kBytes> bits;
    ByteRanges ranges, others;
    for (int64_t i = below(30); i > 0; --i) {
      const int64_t begin = below(kBytes), end = std::min<int64_t>(begin + below(20), kBytes);
      ranges.add({begin, end});
      if (below(3) == 0) ranges.add({begin, end});
      for (int64_t at = begin; at < end; ++at) bits.set(size_t(at));
    }
    if (below(2) == 0) {
      others.add(ranges);
      std::swap(ranges, others);
    }
    ranges.close();
    for (int i = 0; i < 100; ++i) {
      const int64_t begin = below(kBytes), end = std::min<int64_t>(begin + below(12), kBytes);
      int64_t set = 0;
      for (int64_t at = begin; at < end; ++at) set += bits[size_t(at)];
      CHECK(ranges.meets({begin, end}) == (set > 0));
      if (begin < end) CHECK(ranges.holds({begin, end}) == (set == end - begin));
    }
  }
}

TEST_SUITE_END();
