// Words by their places (devices/emulator/replay/word_map.h). Asserts that random additions,
// removals and searches, of ranges from a byte to all memory, do what they do to a std::map.
#include <doctest/doctest.h>

#include <map>
#include <random>
#include <utility>

#include "devices/emulator/replay/word_map.h"

using npu::emulator::Place;
using npu::emulator::SteeringWord;
using npu::emulator::WordMap;

namespace {

using Plain = std::map<std::pair<uint32_t, int64_t>, uint32_t>;

Plain plain(const std::vector<SteeringWord>& entries) {
  Plain all;
  for (const SteeringWord& entry : entries) {
    CHECK(all.emplace(std::pair(entry.place.base, entry.place.offset), entry.value).second);
  }
  return all;
}

}  // namespace

TEST_CASE("word map: what is held is what has been added and not removed") {
  std::mt19937 random(1);
  const auto below = [&](int64_t most) { return static_cast<int64_t>(random()) % most; };
  for (int round = 0; round < 20; ++round) {
    WordMap words;
    Plain expected;
    for (int step = 0; step < 600; ++step) {
      const auto base = static_cast<uint32_t>(below(3));
      const int64_t word = 4 * (below(2) == 0 ? below(200) : below(int64_t{1} << 34));
      const auto value = static_cast<uint32_t>(below(3));
      const auto known = expected.find({base, word});
      if (below(3) == 0) {
        CHECK(words.erase({word, base}) == (known != expected.end()));
        if (known != expected.end()) expected.erase(known);
      } else {
        CHECK(words.add({word, base}, value) ==
              (known == expected.end() || known->second == value));
        expected.try_emplace({base, word}, value);
      }
      CHECK(!words.add({word + 1 + below(3), base}, value));
      const int64_t first = below(900) - 50;
      const auto bytes = static_cast<uint64_t>(
          below(2) == 0 ? 1 + below(40) : 1 + below(int64_t{1} << (1 + below(35))));
      std::vector<SteeringWord> found;
      words.each({first, base}, bytes, [&](const auto& entry) { found.push_back(entry); });
      Plain within;
      for (const auto& [place, held] : expected) {
        const bool meets =
            place.second + 4 > first && place.second < first + static_cast<int64_t>(bytes);
        if (place.first == base && meets) within.emplace(place, held);
      }
      CHECK(plain(found) == within);
      CHECK(words.any(base) ==
            (expected.lower_bound({base, INT64_MIN}) != expected.upper_bound({base, INT64_MAX})));
    }
    const std::vector<SteeringWord> all = words.all();
    CHECK(plain(all) == expected);
    size_t next = 0;
    for (const auto& [place, value] : expected) {
      CHECK(all[next].place.base == place.first);
      CHECK(all[next++].place.offset == place.second);
    }
  }
}
