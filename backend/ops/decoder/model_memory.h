// Memory of a model as arguments of streams (ops/decoder, ops/prefill): the regions with its
// weights and the pool of its KV cache, where they lie if the device reaches that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "error.h"
#include "ops/decoder/decoder_model.h"
#include "runtime/operation.h"

namespace npu::ops {

// These bytes of an argument; none if they are none.
inline BufferRef part_of(const BufferRef& argument, const DecoderBytes& bytes) {
  if (bytes.count() == 0) return {};
  BufferRef part = argument.after(static_cast<size_t>(bytes.first));
  part.bytes = static_cast<size_t>(bytes.count());
  return part;
}

// A copy in memory of the device.
inline Wrapped copy_of(Device& device, std::span<const std::byte> memory, Access access) {
  Wrapped out;
  out.buffer = device.allocate(memory.size());
  std::memcpy(out.buffer->host(), memory.data(), memory.size());
  out.ref = {out.buffer.get(), 0, memory.size(), access};
  out.ref.sync_to_device();
  return out;
}

// Regions of weights, which must outlive this.
class ModelRegions {
 public:
  // others: arguments of a stream besides the regions. Throws Error(kShape) where the regions are
  // more than a submission takes.
  ModelRegions(const char* operation, Device& device,
               std::span<const std::span<const std::byte>> regions, size_t others) {
    const size_t most = device.info().max_arguments - others;
    if (regions.size() > most) {
      fail(ErrorKind::kShape,
           "[%s] the weights lie in %zu separate pieces of memory, a submission takes %zu; load "
           "them from one file",
           operation, regions.size(), most);
    }
    for (const std::span<const std::byte> region : regions) {
      Wrapped wrapped = wrap_input(device, region.data(), region.size());
      if (!wrapped) {
        wrapped = copy_of(device, region, Access::kRead);
        copied_ += region.size();
      }
      refs_.push_back(wrapped.ref);
      buffers_.push_back(std::move(wrapped.buffer));
    }
  }

  std::span<const BufferRef> refs() const { return refs_; }
  uint64_t copied() const { return copied_; }  // bytes

 private:
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<BufferRef> refs_;
  uint64_t copied_ = 0;
};

// The pool of a cache for one submission. A device that does not reach it gets a copy.
class CachePool {
 public:
  CachePool(Device& device, std::span<std::byte> pool)
      : pool_(pool),
        wrapped_(wrap_memory(device, pool.data(), pool.size(), Access::kReadWrite)),
        is_copy_(!wrapped_) {
    if (is_copy_) wrapped_ = copy_of(device, pool, Access::kReadWrite);
  }

  const BufferRef& ref() const { return wrapped_.ref; }
  bool is_copy() const { return is_copy_; }
  // After the submission. Returns how many bytes were copied, there and back.
  uint64_t finish() {
    if (!is_copy_) return 0;
    std::memcpy(pool_.data(), wrapped_.buffer->host(), pool_.size());
    return 2 * pool_.size();
  }

 private:
  std::span<std::byte> pool_;
  Wrapped wrapped_;
  bool is_copy_;
};

}  // namespace npu::ops
