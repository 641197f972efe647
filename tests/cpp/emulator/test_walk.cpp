// The DMA address generator against a word-by-word enumeration of hardware.md 2.6: random BDs of
// every tile kind, cut into odd pieces; last_offset is exact; padding (2.4) word by word.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "arch/geometry.h"
#include "devices/emulator/walk.h"

using namespace npu;
using namespace npu::emulator;
using arch::Bd;

namespace {

using Words = std::vector<uint32_t>;

// The offset of word k: c_0 fastest, c_i wraps at wrap_i, the outermost dimension never wraps.
uint64_t offset_of(const Bd& bd, int dims, uint64_t k) {
  uint64_t offset = uint64_t{bd.iteration_current} * bd.iteration_step;
  for (size_t d = 0; d < static_cast<size_t>(dims); ++d) {
    const uint64_t wrap = d + 1 < static_cast<size_t>(dims) ? bd.wrap[d] : 0;
    offset += (wrap ? k % wrap : k) * bd.step[d];
    k = wrap ? k / wrap : 0;
  }
  return offset;
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(engine_() % n); }
  uint32_t from(uint32_t low, uint32_t high) { return low + below(high - low + 1); }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<uint32_t>(values.size()))];
  }

 private:
  std::mt19937 engine_;
};

// Small wraps and steps, weighted towards what makes runs: contiguous, overlapping, single.
Bd random_bd(Random& random, int dims) {
  Bd bd;
  uint32_t contiguous = 1;
  for (size_t d = 0; d < static_cast<size_t>(dims); ++d) {
    if (d + 1 < static_cast<size_t>(dims)) {
      bd.wrap[d] = random.one_of<uint32_t>({0, 1, 1, 2, 3, 4, 8, 16, 32, random.from(1, 40)});
    }
    bd.step[d] =
        random.one_of<uint32_t>({1, contiguous, contiguous, contiguous + 1, 2, random.from(1, 50)});
    contiguous *= d < 3 && bd.wrap[d] ? bd.wrap[d] : 1;
  }
  bd.length = random.one_of<uint32_t>({1, 2, contiguous, contiguous * 3, random.from(1, 700)});
  bd.length = std::min(bd.length, 2000u);
  bd.iteration_step = random.from(1, 100);
  bd.iteration_wrap = random.from(1, 8);
  bd.iteration_current = random.below(bd.iteration_wrap);
  return bd;
}

std::byte* bytes(Words& words) { return reinterpret_cast<std::byte*>(words.data()); }

}  // namespace

TEST_CASE("walks agree with the enumeration, whatever the chunks") {
  Random random(7);
  for (int round = 0; round < 4000; ++round) {
    const int dims = random.one_of({3, 4});
    const Bd bd = random_bd(random, dims);
    uint64_t last = 0;
    for (uint64_t k = 0; k < bd.length; ++k) last = std::max(last, offset_of(bd, dims, k));
    CAPTURE(round);
    REQUIRE(last_offset(bd, dims, bd.length) == last);

    Words memory(last + 1);
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint32_t>(i);
    Walk reader(bytes(memory), bd, dims);
    Words scattered(last + 1, ~0u), expected(last + 1, ~0u), stream(bd.length), got(bd.length);
    Walk writer(bytes(scattered), bd, dims);
    for (uint32_t k = 0; k < bd.length; ++k) {
      const uint64_t offset = offset_of(bd, dims, k);
      stream[k] = static_cast<uint32_t>(offset);
      expected[offset] = k;  // the last word written to a place stays
    }
    for (uint32_t done = 0; done < bd.length;) {
      const uint32_t n = std::min(bd.length - done,
                                  random.one_of<uint32_t>({1, 3, 7, 16, 64, random.from(1, 900)}));
      if (const std::byte* run = random.below(2) ? reader.take_contiguous(n) : nullptr) {
        std::memcpy(got.data() + done, run, 4 * n);
      } else {
        reader.gather(bytes(got) + 4 * done, n);
      }
      Words piece(n);
      for (uint32_t i = 0; i < n; ++i) piece[i] = done + i;
      if (std::byte* run = random.below(2) ? writer.take_contiguous(n) : nullptr) {
        std::memcpy(run, piece.data(), 4 * n);
      } else {
        writer.scatter(bytes(piece), n);
      }
      done += n;
    }
    REQUIRE(got == stream);
    REQUIRE(scattered == expected);
  }
}

// Tiles of matrices: runs side by side in rows, rows of them below each other. Run by run, in
// order, also where the linear side is part of the same memory.
TEST_CASE("walks over tiles move runs of any size one after the other") {
  for (const uint32_t run : {1u, 2u, 3u, 4u, 8u, 16u, 32u, 64u}) {
    for (const uint32_t rows : {2u, 3u, 8u}) {
      for (const uint32_t across : {2u, 3u, 8u}) {
        for (const uint32_t room : {0u, 5u}) {  // words between rows
          constexpr uint32_t kBands = 3;
          const uint32_t pitch = across * run + room, words = kBands * rows * across * run;
          Bd bd;
          bd.wrap = {run, rows, across};
          bd.step = {1, pitch, run, rows * pitch};
          const uint32_t extent = kBands * rows * pitch;
          for (const uint32_t distance : {extent, run, 2 * run + 1}) {  // of the linear side
            Words before(2 * extent + 2 * words);
            for (size_t i = 0; i < before.size(); ++i) before[i] = static_cast<uint32_t>(i);
            Words gathered = before, scattered = before, expected = before, back = before;
            for (uint32_t k = 0; k < words; k += run) {
              const uint64_t at = offset_of(bd, 4, k);
              std::memmove(&expected[distance + k], &expected[at], 4 * run);
              std::memmove(&back[at], &back[distance + k], 4 * run);
            }
            CAPTURE(run);
            CAPTURE(rows);
            CAPTURE(across);
            CAPTURE(distance);
            Walk(bytes(gathered), bd, 4).gather(bytes(gathered) + 4 * distance, words);
            REQUIRE(gathered == expected);
            Walk(bytes(scattered), bd, 4).scatter(bytes(scattered) + 4 * distance, words);
            REQUIRE(scattered == back);
          }
        }
      }
    }
  }
}

TEST_CASE("take_contiguous hands out exactly the contiguous runs") {
  Random random(8);
  for (int round = 0; round < 2000; ++round) {
    const int dims = random.one_of({3, 4});
    const Bd bd = random_bd(random, dims);
    Words memory(last_offset(bd, dims, bd.length) + 1);
    Walk walk(bytes(memory), bd, dims);
    for (uint32_t k = 0; k < bd.length;) {
      const uint32_t n = std::min(bd.length - k, random.from(1, 40));
      const std::byte* run = walk.take_contiguous(n);
      if (run) {
        for (uint32_t i = 0; i < n; ++i) {
          REQUIRE(run + 4 * i == bytes(memory) + 4 * offset_of(bd, dims, k + i));
        }
        k += n;
      } else {
        REQUIRE(n > 1);  // a single word is always a run
        std::byte word[4];
        walk.gather(word, 1);
        ++k;
      }
    }
  }
}

TEST_CASE("last_offset of the largest BDs does not overflow") {
  Bd bd;
  bd.length = ~0u;
  bd.wrap = {1023, 1023, 0};
  bd.step = {1u << 20, 1u << 20, 1u << 20, 1};
  bd.iteration_current = 63;
  bd.iteration_step = 1u << 20;
  const uint64_t outer = (uint64_t{bd.length} - 1) / (1023 * 1023);
  CHECK(last_offset(bd, 3, bd.length) >= (outer - 1 + 1022 + 1022 + 63) << 20);
  CHECK(last_offset(bd, 3, bd.length) <= (outer + 1022 + 1022 + 63) << 20);
}

namespace {

// The stream of a padded BD word by word: position k in the padded box -> data offset, or pad.
Words padded_words(const Bd& bd, const Words& memory, uint32_t pad) {
  Words out(bd.length);
  for (uint64_t k = 0; k < bd.length; ++k) {
    uint64_t rest = k, offset = uint64_t{bd.iteration_current} * bd.iteration_step;
    bool inside = true;
    for (size_t d = 0; d < 4; ++d) {
      if (d == 3 || bd.wrap[d] == 0) {
        offset += rest * bd.step[d];
        break;
      }
      const uint64_t total = bd.pad_before[d] + bd.wrap[d] + bd.pad_after[d];
      const uint64_t position = rest % total;
      rest /= total;
      inside &= position >= bd.pad_before[d] && position < bd.pad_before[d] + bd.wrap[d];
      offset += (position - bd.pad_before[d]) * bd.step[d];
    }
    out[k] = inside ? memory[offset] : pad;
  }
  return out;
}

}  // namespace

TEST_CASE("padding, word by word") {
  Random random(9);
  for (int round = 0; round < 1500; ++round) {
    Bd bd;
    uint32_t block = 1, data = 1;
    const uint32_t padded_dims = random.from(1, 3);  // the next one never wraps
    for (size_t d = 0; d < 4; ++d) {
      bd.step[d] = random.from(1, 12);
      if (d >= padded_dims) continue;
      bd.wrap[d] = random.from(1, 6);
      bd.pad_before[d] = random.below(4);
      bd.pad_after[d] = random.below(4);
      block *= bd.pad_before[d] + bd.wrap[d] + bd.pad_after[d];
      data *= bd.wrap[d];
    }
    bd.iteration_step = random.from(1, 30);
    bd.iteration_wrap = 4;
    bd.iteration_current = random.below(4);
    const uint32_t outer = random.from(1, 3);
    bd.length = block * outer;
    REQUIRE(padding_problem(bd) == nullptr);
    REQUIRE(data_words(bd) == (has_padding(bd) ? uint64_t{data} * outer : bd.length));
    if (!has_padding(bd)) continue;

    const uint32_t pad = random.below(2) ? 0 : 0xDEADBEEF;
    Words memory(last_offset(bd, 4, data_words(bd)) + 1);
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint32_t>(i + 1);
    const std::vector<std::byte> stream = padded_stream(bd, bytes(memory), pad);
    Words got(bd.length);
    REQUIRE(stream.size() == 4 * got.size());
    std::memcpy(got.data(), stream.data(), stream.size());
    CAPTURE(round);
    REQUIRE(got == padded_words(bd, memory, pad));
  }
}

TEST_CASE("13 words with 2 pad words before and 1 after are programmed as length 16") {
  Bd bd;  // mlir-aie's hardware test add_378_i32_using_dma_op_with_padding
  bd.length = 16;
  bd.wrap[0] = 13;
  bd.pad_before[0] = 2;
  bd.pad_after[0] = 1;
  CHECK(data_words(bd) == 13);
  Words memory(13);
  for (uint32_t i = 0; i < 13; ++i) memory[i] = i + 1;
  const std::vector<std::byte> stream = padded_stream(bd, bytes(memory), 0);
  Words got(16);
  std::memcpy(got.data(), stream.data(), 64);
  CHECK(got == Words{0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 0});
}

TEST_CASE("padding that hardware cannot do is named") {
  Bd bd;
  bd.length = 16;
  bd.pad_before[0] = 2;  // no wrap
  CHECK(padding_problem(bd) != nullptr);
  bd.wrap[0] = 13;
  CHECK(padding_problem(bd) != nullptr);  // 15 does not divide 16
  bd.pad_after[0] = 1;
  CHECK(padding_problem(bd) == nullptr);
  bd.pad_after[1] = 1;  // above the first dimension without a wrap
  CHECK(padding_problem(bd) != nullptr);
}

TEST_CASE("fills: exactly the walks that visit a gapless stretch once") {
  Random random(11);
  int filled = 0;
  for (int i = 0; i < 20000; ++i) {
    const int dims = 3;
    Bd bd = random_bd(random, dims);
    if (random.below(2)) {  // a permutation of a small box, where the outermost dimension may end
      const uint32_t x = random.from(1, 4), y = random.from(1, 4);
      bd.wrap = {x, y, 0};
      const uint32_t z = random.from(1, 4);
      const std::array<std::array<uint32_t, 3>, 4> steps{
          {{1, x, x * y}, {z * y, z, 1}, {y, 1, x * y}, {1, x * z, x}}};
      const auto& step = steps[random.below(4)];
      std::copy(step.begin(), step.end(), bd.step.begin());
      bd.length = x * y * z;
    }
    std::vector<uint64_t> offsets;
    for (uint64_t k = 0; k < bd.length; ++k) offsets.push_back(offset_of(bd, dims, k));
    const uint64_t start = offsets[0];
    std::sort(offsets.begin(), offsets.end());
    bool gapless = true;
    for (uint64_t k = 0; k < bd.length; ++k) gapless &= offsets[k] == start + k;
    const Walk walk(nullptr, bd, dims);
    CAPTURE(bd.length);
    // A walk that does not end with a whole number of its inner dimensions may be refused.
    if (walk.fills(bd.length)) {
      REQUIRE(gapless);
      REQUIRE(walk.start() == start);
      ++filled;
    }
  }
  CHECK(filled > 2000);
}
