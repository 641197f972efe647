// Plain reads reach every byte once: the sum is that of the words of all arrays, whatever their
// lengths.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "host/memory_read.h"

TEST_CASE("the sum of all words of some arrays") {
  std::mt19937 random(5);
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::span<const std::byte>> arrays;
  uint64_t expected = 0;
  for (const size_t bytes : {0, 1, 8, 63, 64, 65, 4096, (1 << 20) - 8, (1 << 20) + 13, 3 << 20}) {
    std::vector<std::byte>& array = memory.emplace_back(bytes);
    for (std::byte& b : array) b = static_cast<std::byte>(random());
    for (size_t at = 0; at < bytes; at += 8) {
      uint64_t word = 0;
      for (size_t i = 0; i < std::min<size_t>(8, bytes - at); ++i) {
        word |= std::to_integer<uint64_t>(array[at + i]) << (8 * i);
      }
      expected += word;
    }
  }
  for (const auto& array : memory) arrays.emplace_back(array);
  CHECK(npu::ops::read_all(arrays) == expected);
  CHECK(npu::ops::read_all({}) == 0);
}
