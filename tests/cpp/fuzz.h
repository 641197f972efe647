// Random damage for reader tests: flips, overwrites, cuts and insertions, from a fixed seed. A
// reader passes if every damaged input parses or throws npu::Error.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>

#include "error.h"

namespace npu::test {

inline std::string damaged(std::string bytes, std::mt19937& random) {
  const auto below = [&](size_t n) { return random() % n; };
  for (size_t hits = 1 + below(3); hits > 0 && !bytes.empty(); --hits) {
    const size_t at = below(bytes.size());
    switch (below(6)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(random());
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.erase(at, 1 + below(8));
        break;
      case 4:
        bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(16)));
        break;
      default: {  // an extreme 32-bit value at a word boundary
        constexpr uint32_t kExtreme[] = {0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF};
        const uint32_t value = kExtreme[below(6)];
        for (size_t i = 0; i < 4 && at / 4 * 4 + i < bytes.size(); ++i) {
          bytes[at / 4 * 4 + i] = static_cast<char>(value >> 8 * i);
        }
      }
    }
  }
  return bytes;
}

// Runs `read` on `rounds` damaged copies of `valid`. Returns how many of them were accepted.
template <typename Read>
int fuzz(const std::string& valid, int rounds, Read&& read) {
  std::mt19937 random(20240607);
  int accepted = 0;
  for (int i = 0; i < rounds; ++i) {
    try {
      read(damaged(valid, random));
      ++accepted;
    } catch (const Error& error) {
      // A message is a sentence with its function, in plain ASCII.
      const std::string message = error.what();
      REQUIRE(message[0] == '[');
      REQUIRE(std::all_of(message.begin(), message.end(), [](char c) { return c >= 0x20; }));
    }
  }
  return accepted;
}

}  // namespace npu::test
