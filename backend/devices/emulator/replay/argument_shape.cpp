// Which arguments of a run share memory (argument_shape.h).
#include "devices/emulator/replay/argument_shape.h"

#include <algorithm>
#include <functional>

#include "devices/emulator/array.h"

namespace npu::emulator {

std::optional<std::vector<ArgumentShape>> argument_shapes(std::span<const Argument> arguments) {
  std::vector<ArgumentShape> shapes;
  std::vector<uint32_t> by_address;
  for (uint32_t i = 0; i < arguments.size(); ++i) {
    shapes.push_back({arguments[i].bytes, arguments[i].writable, i, 0});
    if (arguments[i].bytes > 0) by_address.push_back(i);
  }
  const std::less<const std::byte*> before;
  std::ranges::stable_sort(by_address, before, [&](uint32_t i) { return arguments[i].data; });
  const std::byte* end = nullptr;  // of the memory that `first` begins
  uint32_t first = 0;
  bool writable = false;
  for (const uint32_t i : by_address) {
    const Argument& argument = arguments[i];
    if (end != nullptr && before(argument.data, end)) {
      if (writable || argument.writable) return std::nullopt;
      shapes[i].first = first;
      shapes[i].behind = static_cast<size_t>(argument.data - arguments[first].data);
      end = std::max<const std::byte*>(end, argument.data + argument.bytes, before);
    } else {
      first = i;
      writable = argument.writable;
      end = argument.data + argument.bytes;
    }
  }
  return shapes;
}

size_t shared_bytes(std::span<const ArgumentShape> shapes, size_t first) {
  size_t bytes = 0;
  for (const ArgumentShape& shape : shapes) {
    if (shape.first == first) bytes = std::max(bytes, shape.behind + shape.bytes);
  }
  return bytes;
}

}  // namespace npu::emulator
