// Finding a stream that patches make another one (alike_streams.h).
#include "runtime/alike_streams.h"

#include <algorithm>
#include <utility>

namespace npu {

// None where anything else differs.
std::optional<std::vector<StreamPatch>> AlikeStreams::patches(const Kept& kept,
                                                              std::span<const uint32_t> words) {
  const std::span<const uint32_t> old = kept.stream->words();
  if (old.size() != words.size()) return std::nullopt;
  std::vector<StreamPatch> all;
  size_t done = 0;
  const auto same_up_to = [&](size_t end) {
    const bool same = std::equal(old.begin() + static_cast<std::ptrdiff_t>(done),
                                 old.begin() + static_cast<std::ptrdiff_t>(end),
                                 words.begin() + static_cast<std::ptrdiff_t>(done));
    done = end;
    return same;
  };
  for (const size_t word : kept.offsets) {
    if (!same_up_to(word)) return std::nullopt;
    if (old[word] != words[word]) all.push_back({word, words[word]});
    done = word + 1;
  }
  if (!same_up_to(words.size())) return std::nullopt;
  return all;
}

std::shared_ptr<const PreparedStream> AlikeStreams::find(Device& device,
                                                         std::span<const uint32_t> words) {
  for (auto kept = all_.begin(); kept != all_.end(); ++kept) {
    const std::optional<std::vector<StreamPatch>> changes = patches(*kept, words);
    if (!changes || (!changes->empty() && !device.patch(kept->stream, *changes))) continue;
    all_.splice(all_.begin(), all_, kept);
    return kept->stream;
  }
  return nullptr;
}

void AlikeStreams::add(std::shared_ptr<const PreparedStream> stream) {
  Kept kept{std::move(stream), {}};
  const stream::Stream parsed = stream::Stream::parse(std::as_bytes(kept.stream->words()));
  for (const stream::Operation& operation : parsed.operations()) {
    if (operation.opcode != stream::Opcode::kAddressPatch) continue;
    const stream::Stream::Range range = parsed.patchable(operation);
    for (size_t i = 0; i < range.count; ++i) kept.offsets.push_back(range.first + i);
  }
  bytes_ += kept.bytes();
  all_.push_front(std::move(kept));
  while (bytes_ > budget_ && all_.size() > 1) {
    bytes_ -= all_.back().bytes();
    all_.pop_back();
  }
}

}  // namespace npu
