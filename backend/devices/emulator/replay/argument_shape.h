// What of the arguments of a run its record depends on: their sizes, what the run may do with them,
// and which of those that it only reads lie in each other, as both operands of a a^T do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace npu::emulator {

struct Argument;

struct ArgumentShape {
  size_t bytes;
  bool writable;
  // The argument where the memory begins that this one shares a part of, itself if it shares none,
  // and how many bytes behind.
  uint32_t first;
  size_t behind;
  bool operator==(const ArgumentShape&) const = default;
};

// None if one that the run may write shares memory with another: what is moved first matters then.
std::optional<std::vector<ArgumentShape>> argument_shapes(std::span<const Argument> arguments);

// Bytes of the memory that begins with this argument: to the end of all that share it.
size_t shared_bytes(std::span<const ArgumentShape> shapes, size_t first);

}  // namespace npu::emulator
