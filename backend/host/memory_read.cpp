// Plain reads (memory_read.h).
#include "host/memory_read.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "host/clones.h"
#include "host/thread_pool.h"

namespace npu::ops {

namespace {

constexpr size_t kShare = size_t{1} << 20;  // bytes that a thread takes at a time

struct Part {
  const std::byte* data;
  size_t bytes;
};

// Eight sums, so that none waits for another.
NPU_CLONES uint64_t sum_of(const std::byte* data, size_t bytes) {
  constexpr size_t kWords = 8;
  uint64_t sums[kWords] = {}, words[kWords];
  const size_t whole = bytes / sizeof words * sizeof words;
  for (size_t at = 0; at < whole; at += sizeof words) {
    std::memcpy(words, data + at, sizeof words);
    for (size_t i = 0; i < kWords; ++i) sums[i] += words[i];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  for (size_t at = whole; at < bytes; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, std::min(sizeof word, bytes - at));
    total += word;
  }
  return total;
}

}  // namespace

uint64_t read_all(std::span<const std::span<const std::byte>> arrays) {
  std::vector<Part> parts;
  for (const std::span<const std::byte> array : arrays) {
    for (size_t at = 0; at < array.size(); at += kShare) {
      parts.push_back({array.data() + at, std::min(kShare, array.size() - at)});
    }
  }
  std::vector<uint64_t> sums(parts.size());
  ThreadPool::shared().parallel_for(
      parts.size(), [&](size_t i) { sums[i] = sum_of(parts[i].data, parts[i].bytes); });
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace npu::ops
