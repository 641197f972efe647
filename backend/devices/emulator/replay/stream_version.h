// What the runs of a prepared stream depend on besides its operations: patches give words of its
// BDs other values and move where its address patches point to. A recorded run holds for one
// version of the former and for all places of the latter (recording.h).
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "stream/txn.h"

namespace npu::emulator {

// Where an ADDRESS_PATCH points to: so many bytes into an argument. The compiler folds the DDR
// aperture into the offset of arguments that the firmware does not handle.
uint64_t patched_offset(const stream::Operation& patch);

class StreamVersion {
 public:
  explicit StreamVersion(const stream::Stream& stream);  // which is to outlive this

  // Gives a word another value; whether data are others now. Throws what Stream::patch throws.
  bool patch(stream::Stream& stream, size_t word, uint32_t value);
  // Words of BLOCKWRITEs that are not as they were prepared.
  using Data = std::vector<std::pair<size_t, uint32_t>>;
  const Data& data();
  // The ADDRESS_PATCHes, in the stream's order; of each, how many bytes into its argument it points
  // to, and whether that has been changed.
  const std::vector<const stream::Operation*>& address_patches() const { return address_patches_; }
  const std::vector<uint64_t>& offsets() const { return offsets_; }
  const std::vector<bool>& moved() const { return moved_; }

 private:
  struct Word {
    uint32_t prepared, now;
  };
  std::vector<const stream::Operation*> address_patches_;
  std::vector<std::pair<size_t, size_t>> patch_words_;  // of each: first and end
  std::vector<uint64_t> offsets_;
  std::map<size_t, Word> words_;  // that patches have changed
  std::vector<bool> moved_;
  Data data_;
  bool stale_ = false;
};

}  // namespace npu::emulator
