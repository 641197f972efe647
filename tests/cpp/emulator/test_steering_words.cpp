// Where the words that steer a run come from (devices/emulator/replay/steering.h). Asserts of
// random moves between an argument and two memories, done for real with numbers that are all
// different, that the words found had before the moves what was read after them; of calls, that
// their declarations are followed; that words of unknown origin are none.
#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "devices/emulator/replay/steering.h"
#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;
using emulator::ActionLog;
using emulator::Place;
using emulator::SteeringWord;
using emulator::Walk;
using kernels::Steering;

namespace {

constexpr uint32_t kSize = 600;  // of each memory, words

std::byte* bytes(Words& words) { return reinterpret_cast<std::byte*>(words.data()); }

// An argument, and memories of the array.
struct Memories {
  Memories()
      : log(std::vector{view(words[0])},
            emulator::argument_shapes(std::vector{view(words[0])}).value(), 1, {},
            size_t{1} << 30) {
    for (Words& memory : words) {
      for (uint32_t& word : memory) word = next++;
    }
    before = words;
  }

  void move(Words& from, Walk source, Words& to, Walk target, uint64_t count) {
    source.move_to(bytes(from));
    target.move_to(bytes(to));
    log.move(source, target, count, 0, 0);
    std::vector<std::byte> staged(count * 4);
    source.gather(staged.data(), count);
    target.scatter(staged.data(), count);
  }
  void steers(Words& memory, size_t word) {
    log.steers(bytes(memory) + 4 * word, memory[word]);
    steered[memory[word]] = true;
  }
  // The word that a place had before everything.
  uint32_t old(const Place& place) {
    if (place.base != Place::kAbsolute) return before[0][static_cast<size_t>(place.offset) / 4];
    for (size_t i = 1; i < words.size(); ++i) {
      const auto at =
          place.offset - static_cast<int64_t>(reinterpret_cast<intptr_t>(bytes(words[i])));
      if (at >= 0 && at < 4 * int64_t{kSize}) return before[i][static_cast<size_t>(at) / 4];
    }
    FAIL("a place outside of all memories");
    return 0;
  }
  std::optional<std::vector<SteeringWord>> found() {
    return emulator::steering_words(log.phases());
  }

  uint32_t next = 1000;
  std::vector<Words> words = std::vector(3, Words(kSize)), before;
  std::map<uint32_t, bool> steered;
  ActionLog log;
};

// So many words in one run, or in three dimensions.
Walk random_walk(std::mt19937& random, uint64_t count) {
  const auto up_to = [&](uint32_t most) { return std::uniform_int_distribution(1u, most)(random); };
  if (up_to(2) == 1) {
    Walk walk = Walk::linear(nullptr);
    walk.rebase(nullptr, up_to(static_cast<uint32_t>(kSize - count)));
    return walk;
  }
  arch::Bd bd = linear(static_cast<uint32_t>(count));
  bd.wrap[0] = 2 + up_to(4);
  bd.step[0] = up_to(2);
  bd.wrap[1] = 2 + up_to(3);
  bd.step[1] = up_to(12);
  bd.step[2] = up_to(14);
  return {nullptr, bd, 3};
}

KernelArgument operand(Words& words) {
  return {bytes(words), static_cast<uint32_t>(words.size() * 4), 0};
}

consteval kernels::Operand words(const char* name, bool read_only, Steering steering,
                                 kernels::Size first = 0) {
  kernels::Operand operand = kernels::buffer(name, 8, 4);
  operand.element = kernels::Element::kInt32;
  operand.read_only = read_only;
  return operand.steers(steering, 4, first);
}

template <Steering kSteering>
constexpr kernels::Declaration kKernel = kernels::resolved(
    "kernel", {.operands = {words("from", true, Steering::kReads, "4 * index"),
                            words("to", false, kSteering), kernels::integer("index", 0, 9)}});

// The words that steer once a kernel has made word `number` of its result of the argument's.
std::optional<std::vector<SteeringWord>> made(const kernels::Declaration& kernel, size_t number) {
  static const emulator::CallAction::Function nothing = [](auto, auto&) {};
  Memories m;
  CoreState state;
  m.log.call(nothing, kernel,
             std::vector<KernelArgument>{operand(m.words[0]), operand(m.words[1]), {nullptr, 0, 1}},
             state);
  m.steers(m.words[1], number);
  return m.found();
}

// Words 1 and 2 of the argument become 4 and 5 of the result, then these 6 and 7 of it.
void chain(const KernelArgument*, kernels::WordCopies& out) {
  out.add({1, 4, 0, 1, 2});
  out.add({1, 6, 1, 4, 2});
}
constexpr kernels::Declaration chained() {
  kernels::Declaration kernel = kKernel<Steering::kNone>;
  kernel.operands[1].size = kernel.operands[0].size;
  kernel.copies = chain;
  return kernel;
}

}  // namespace

TEST_CASE("words that moves brought are those that lay there before") {
  std::mt19937 random(11);
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    Memories m;
    for (int step = 0; step < 6; ++step) {
      const uint64_t count = 1 + random() % 60;
      Words& from = m.words[random() % 3];
      Words& to = m.words[1 + random() % 2];
      if (&from == &to) continue;
      m.move(from, random_walk(random, count), to, random_walk(random, count), count);
      for (int i = 0; i < 3; ++i) m.steers(m.words[1 + random() % 2], random() % kSize);
      if (step == 3) {  // what the stream writes is the same in every run
        const size_t at = random() % kSize;
        m.log.word(bytes(m.words[1]) + 4 * at, 77);
        m.words[1][at] = 77;
        m.log.steers(bytes(m.words[1]) + 4 * at, 77);
      }
    }
    m.steered.erase(77);
    const auto found = m.found();
    REQUIRE(found.has_value());
    CHECK(found->size() == m.steered.size());
    for (const SteeringWord& word : *found) {
      CHECK(m.steered.contains(word.value));
      CHECK(m.old(word.place) == word.value);
    }
  }
}

TEST_CASE("words that calls leave are followed as their kernels declare") {
  const auto offsets = [](const std::optional<std::vector<SteeringWord>>& found) {
    std::vector<int64_t> all;
    for (const SteeringWord& word : *found) {
      if (word.place.base == 1) all.push_back(word.place.offset);
    }
    return all;
  };
  const auto copied = made(kKernel<Steering::kCopies>, 2);
  CHECK(copied->size() == 1);
  CHECK(offsets(copied) == std::vector<int64_t>{4 * (4 + 2)});
  const auto set = made(kKernel<Steering::kSets>, 2);
  CHECK(set->size() == 4);
  CHECK(offsets(set) == std::vector<int64_t>{16, 20, 24, 28});
  const auto updated = made(kKernel<Steering::kUpdates>, 2);
  CHECK(updated->size() == 8);
  CHECK(offsets(updated) == std::vector<int64_t>{16, 20, 24, 28});
  const auto kept = made(kKernel<Steering::kKeeps>, 2);  // where it lies already
  CHECK(kept->size() == 1);
  CHECK(offsets(kept).empty());
  CHECK_FALSE(made(kKernel<Steering::kKeeps>, 5).has_value());   // written
  CHECK_FALSE(made(kKernel<Steering::kCopies>, 5).has_value());  // not one of its words
  CHECK_FALSE(made(kKernel<Steering::kNone>, 2).has_value());
}

TEST_CASE("words that a kernel declares to copy are followed through all of its copies") {
  static constexpr kernels::Declaration kChained = chained();
  for (const size_t number : {4, 5, 6, 7}) {
    const auto found = made(kChained, number);
    REQUIRE(found.has_value());
    const int64_t from = 4 * (1 + static_cast<int64_t>(number - 4) % 2);
    CHECK(std::ranges::any_of(*found, [&](const SteeringWord& word) {
      return word.place.base == 1 && word.place.offset == from;
    }));
    CHECK(found->size() <= 5);  // and the words that the kernel reads
  }
  for (const size_t number : {0, 3}) CHECK_FALSE(made(kChained, number).has_value());
}

TEST_CASE("a word of which only a part moved, and one moved within an argument, are not followed") {
  Memories m;
  m.log.copy(bytes(m.words[1]) + 2, bytes(m.words[0]), 8);
  m.steers(m.words[1], 0);
  CHECK_FALSE(m.found().has_value());
  Memories n;
  n.log.copy(bytes(n.words[0]), bytes(n.words[0]) + 8, 16);
  n.steers(n.words[0], 0);
  CHECK_FALSE(n.found().has_value());
}

TEST_CASE("steering words: each of them has to hold, in arguments and in memories") {
  std::mt19937 random(4);
  std::vector<Words> arguments(2, Words(400));
  Words memory(400);
  std::vector<SteeringWord> words;
  std::vector<uint32_t*> places;
  const auto add = [&](Words& in, uint32_t base) {
    for (size_t i = 0; i < in.size(); ++i) {
      in[i] = static_cast<uint32_t>(random());
      if (random() % 3 == 0) continue;  // runs of a few words
      const auto begin = base == Place::kAbsolute ? reinterpret_cast<intptr_t>(bytes(in)) : 0;
      words.push_back({{static_cast<int64_t>(begin) + 4 * static_cast<int64_t>(i), base}, in[i]});
      places.push_back(&in[i]);
    }
  };
  add(memory, Place::kAbsolute);
  add(arguments[0], 1);
  add(arguments[1], 2);
  const emulator::SteeringRuns runs(words);
  CHECK(runs.in_memory());
  CHECK(!emulator::SteeringRuns(std::span(words).last(100)).in_memory());
  const std::vector<std::byte*> begins{bytes(arguments[0]), bytes(arguments[1])};
  CHECK(runs.hold(begins));
  for (size_t i = 0; i < words.size(); ++i) {
    *places[i] ^= 1u << random() % 32;
    CHECK(!runs.hold(begins));
    *places[i] = words[i].value;
  }
  CHECK(runs.hold(begins));
}
