// A device as operations use it: with the lock that makes it usable from several threads, and
// scratch buffers.
#pragma once

#include <memory>
#include <mutex>

#include "runtime/device.h"

namespace npu {

struct SharedDevice {
  explicit SharedDevice(std::unique_ptr<Device> d) : device(std::move(d)) {}
  std::unique_ptr<Device> device;
  std::mutex mutex;  // held by whoever calls the device
};

// A buffer that grows: contents are lost when it does.
class Scratch {
 public:
  // `bytes` of device memory.
  BufferRef get(Device& device, size_t bytes, Access access) {
    if (!buffer_ || buffer_->bytes() < bytes) buffer_ = device.allocate(bytes);
    return {buffer_.get(), 0, bytes, access};
  }

 private:
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace npu
