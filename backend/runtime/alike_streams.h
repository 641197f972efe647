// Prepared streams that are used again for others that differ only in where their address patches
// point to: those of the layers of a prompt, of prompts of one size whose keys and values go to
// other pages, of steps of sequences at other positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/device.h"

namespace npu {

class AlikeStreams {
 public:
  explicit AlikeStreams(size_t budget_bytes) : budget_(budget_bytes) {}

  // A stream with these words, if patches of one that is kept make it so.
  std::shared_ptr<const PreparedStream> find(Device& device, std::span<const uint32_t> words);
  // Keeps a stream; those used least recently leave beyond the budget.
  void add(std::shared_ptr<const PreparedStream> stream);

 private:
  struct Kept {
    std::shared_ptr<const PreparedStream> stream;
    std::vector<size_t> offsets;  // words of its address patches' offsets, in order
    size_t bytes() const { return stream->bytes() + offsets.size() * sizeof offsets[0]; }
  };
  static std::optional<std::vector<StreamPatch>> patches(const Kept& kept,
                                                         std::span<const uint32_t> words);

  size_t budget_, bytes_ = 0;
  std::list<Kept> all_;  // most recently used first
};

}  // namespace npu
