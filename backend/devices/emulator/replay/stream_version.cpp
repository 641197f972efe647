// Versions of a patched stream (stream_version.h).
#include "devices/emulator/replay/stream_version.h"

#include <algorithm>

#include "arch/geometry.h"

namespace npu::emulator {

using stream::Opcode;
using stream::Operation;

uint64_t patched_offset(const Operation& patch) {
  const bool folded = patch.argument >= static_cast<uint32_t>(arch::kFirstFoldedArgument) &&
                      patch.argument_offset >= arch::kDdrAperture;
  return patch.argument_offset - (folded ? arch::kDdrAperture : 0);
}

StreamVersion::StreamVersion(const stream::Stream& stream) {
  for (const Operation& operation : stream.operations()) {
    if (operation.opcode != Opcode::kAddressPatch) continue;
    address_patches_.push_back(&operation);
    const size_t first = operation.byte_offset / 4;
    patch_words_.emplace_back(first, first + operation.bytes / 4);
    offsets_.push_back(patched_offset(operation));
  }
  moved_.resize(address_patches_.size());
}

bool StreamVersion::patch(stream::Stream& stream, size_t word, uint32_t value) {
  const uint32_t before = word < stream.words().size() ? stream.words()[word] : 0;
  stream.patch(word, value);
  const auto behind =
      std::ranges::upper_bound(patch_words_, word, {}, &std::pair<size_t, size_t>::first);
  const bool offset = behind != patch_words_.begin() && word < std::prev(behind)->second;
  if (before == value) return false;
  if (offset) {
    const auto number = static_cast<size_t>(behind - patch_words_.begin()) - 1;
    moved_[number] = true;
    offsets_[number] = patched_offset(*address_patches_[number]);
    return false;
  }
  words_.try_emplace(word, Word{before, value}).first->second.now = value;
  return stale_ = true;
}

const StreamVersion::Data& StreamVersion::data() {
  if (!stale_) return data_;
  data_.clear();
  for (const auto& [word, values] : words_) {
    if (values.now != values.prepared) data_.emplace_back(word, values.now);
  }
  stale_ = false;
  return data_;
}

}  // namespace npu::emulator
