// Register-level runs beside a replay (rehearsal.h).
#include "devices/emulator/replay/rehearsal.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "error.h"

namespace npu::emulator {

namespace {

constexpr size_t kMaxCopy = size_t{64} << 20;  // bytes of the arguments

}  // namespace

Rehearsal::Rehearsal(Array& array, const stream::Stream& stream,
                     std::span<const Argument> arguments, Recordings& recordings) {
  size_t bytes = 0;
  for (const Argument& argument : arguments) bytes += argument.bytes;
  const std::optional<std::vector<ArgumentShape>> shapes = argument_shapes(arguments);
  if (bytes > kMaxCopy || !shapes || !recordings.enabled() || !array.return_to_rest()) return;
  Contents contents;  // of what shares memory, those of the first argument
  const auto run = [&](Recordings* recorded) {
    contents.assign(arguments.size(), {});
    std::vector<Argument> copies;
    for (size_t a = 0; a < arguments.size(); ++a) {
      if (arguments[a].bytes == 0 || (*shapes)[a].first != a) continue;
      contents[a].assign(arguments[a].data, arguments[a].data + shared_bytes(*shapes, a));
    }
    for (const ArgumentShape& shape : *shapes) {
      std::vector<std::byte>& first = contents[shape.first];
      copies.push_back(
          {first.empty() ? nullptr : first.data() + shape.behind, shape.bytes, shape.writable});
    }
    array.begin(stream, copies, recorded);
    array.resume(Array::Deadline::max());
  };
  bool found = recordings.find(array, arguments).has_value();
  for (size_t i = 0; i < Recordings::kMost + 2 && !found; ++i) {
    if (recordings.refused()) return;
    run(&recordings);
    found = recordings.find(array, arguments).has_value();
  }
  if (!found) return;
  const Contents before = memories(array);
  array.return_to_rest();
  run(nullptr);
  wanted_ = std::move(contents);
  for (size_t t = 0; t < before.size(); ++t) {
    array.tiles()[t]->aliases.clear();
    std::ranges::copy(before[t], array.tiles()[t]->memory.begin());
  }
}

void Rehearsal::compare(std::span<const Argument> arguments) const {
  for (size_t a = 0; a < wanted_.size(); ++a) {
    const std::vector<std::byte>& wanted = wanted_[a];
    const auto differs = std::ranges::mismatch(wanted, std::span(arguments[a].data, wanted.size()));
    if (differs.in1 == wanted.end()) continue;
    fail(ErrorKind::kUnsupported,
         "[submit] argument %zu differs at byte %td after a replay from what the run at register "
         "level gave; please report it, and set NPU_REPLAY=0",
         a, differs.in1 - wanted.begin());
  }
}

Rehearsal::Contents Rehearsal::memories(Array& array) {
  Contents all;
  for (const auto& tile : array.tiles()) {
    tile->aliases.flush_all();
    all.emplace_back(tile->memory.begin(), tile->memory.end());
  }
  return all;
}

}  // namespace npu::emulator
