// A plain read of memory, the roof that work bound by memory is compared with (`npu bench --roof`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace npu::ops {

// Reads every byte once, in order, on the threads of the shared pool, each a contiguous share of
// every array. The sum of all 64-bit words and of the bytes behind the last one of an array, modulo
// 2^64.
uint64_t read_all(std::span<const std::span<const std::byte>> arrays);

}  // namespace npu::ops
