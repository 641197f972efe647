// BOs of the stand-in: two copies, poison, limits (../control.h).
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "machine.h"
#include "xrt/xrt_bo.h"

namespace xrt_double {

namespace {

constexpr std::byte kHostPoison{0xA7}, kDevicePoison{0x5B};

std::byte* pages(size_t bytes) {
  return static_cast<std::byte*>(std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage));
}

// Whether all of the range may be read (and written), by this process's map.
enum class Mapped { kNo, kReadOnly, kWritable };
Mapped mapped(const std::byte* from, size_t bytes) {
  std::ifstream maps("/proc/self/maps");
  uintptr_t at = reinterpret_cast<uintptr_t>(from);
  const uintptr_t end = at + bytes;
  bool writable = true;
  for (std::string line; at < end && std::getline(maps, line);) {
    uintptr_t low = 0, high = 0;
    char dash = 0;
    std::string access;
    std::istringstream in(line);
    in >> std::hex >> low >> dash >> high >> access;
    if (high <= at) continue;
    if (low > at || access.empty() || access[0] != 'r') return Mapped::kNo;
    writable = writable && access[1] == 'w';
    at = high;
  }
  if (at < end) return Mapped::kNo;
  return writable ? Mapped::kWritable : Mapped::kReadOnly;
}

}  // namespace

size_t Storage::locked() const {
  const size_t unit = instructions ? kGranule : kPage;
  return (bytes + unit - 1) / unit * unit;
}

Storage::Storage(size_t size, xrt::bo::flags flags, std::byte* user_memory)
    : bytes(size),
      instructions(flags == xrt::bo::flags::cacheable),
      host(user_memory),
      user(user_memory != nullptr),
      own_(nullptr, std::free) {
  Machine& m = machine();
  refuse_if(m.buffers, "failed to allocate BO");
  if (instructions) refuse_if(m.instructions, "DRM_IOCTL_AMDXDNA_CREATE_BO IOCTL failed");
  if (bytes == 0 || (flags != xrt::bo::flags::host_only && flags != xrt::bo::flags::cacheable)) {
    refuse(EINVAL, "Bad BO type");
  }
  if (user) {
    if (reinterpret_cast<uintptr_t>(host) % kPage != 0 || bytes % kPage != 0 || instructions) {
      refuse(EINVAL, "userptr is not aligned");
    }
    if (!m.settings.user_memory) refuse(EOPNOTSUPP, "userptr is not supported");
    const Mapped access = mapped(host, bytes);
    if (access == Mapped::kNo) refuse(EFAULT, "userptr is not mapped");
    read_only = access == Mapped::kReadOnly;
  }
  if (instructions && m.counters.heap_bytes + locked() > m.settings.heap_bytes) {
    refuse(ENOSPC, "the device heap is full");
  }
  if (m.counters.locked_bytes + locked() > m.settings.locked_bytes) {
    refuse(EAGAIN, "failed to mmap BO");
  }
  device.assign(bytes, kDevicePoison);
  if (!user) {
    own_.reset(pages(bytes));
    host = own_.get();
    std::memset(host, static_cast<int>(kHostPoison), bytes);
  }
  m.counters.locked_bytes += locked();
  if (instructions) m.counters.heap_bytes += locked();
  m.counters.most_heap_bytes = std::max(m.counters.most_heap_bytes, m.counters.heap_bytes);
  ++m.counters.buffers;
}

Storage::~Storage() {
  Counters& counters = machine().counters;
  counters.locked_bytes -= locked();
  if (instructions) counters.heap_bytes -= locked();
  --counters.buffers;
}

}  // namespace xrt_double

namespace xrt {

using xrt_double::refuse;
using xrt_double::Storage;

bo::bo(const device& /*device*/, size_t bytes, flags kind, memory_group /*group*/)
    : handle_(std::make_shared<bo_impl>()) {
  handle_->storage = std::make_shared<Storage>(bytes, kind, nullptr);
  handle_->bytes = bytes;
}

bo::bo(const device& /*device*/, void* user, size_t bytes, flags kind, memory_group /*group*/)
    : handle_(std::make_shared<bo_impl>()) {
  handle_->storage = std::make_shared<Storage>(bytes, kind, static_cast<std::byte*>(user));
  handle_->bytes = bytes;
}

bo::bo(const bo& parent, size_t bytes, size_t offset) : handle_(std::make_shared<bo_impl>()) {
  const bo_impl& from = *parent.handle_;
  if (offset > from.bytes || bytes > from.bytes - offset) {
    refuse(EINVAL, "sub buffer size and offset");
  }
  *handle_ = {from.storage, from.offset + offset, bytes};
}

size_t bo::size() const { return handle_->bytes; }

void* bo::map() { return handle_->storage->host + handle_->offset; }

void bo::sync(xclBOSyncDirection direction, size_t bytes, size_t offset) {
  if (offset > handle_->bytes || bytes > handle_->bytes - offset) {
    refuse(EINVAL, "Invalid offset and size when syncing");
  }
  xrt_double::refuse_if(xrt_double::machine().syncs, "DRM_IOCTL_AMDXDNA_SYNC_BO IOCTL failed");
  Storage& storage = *handle_->storage;
  if (storage.readers > 0) {
    xrt_double::machine().violation("a stream was synchronised while a run reads it");
  }
  if (storage.instructions) xrt_double::machine().counters.stream_bytes += bytes;
  std::byte* host = storage.host + handle_->offset + offset;
  std::byte* device = storage.device.data() + handle_->offset + offset;
  if (direction == XCL_BO_SYNC_BO_TO_DEVICE) {
    std::memcpy(device, host, bytes);
  } else if (storage.read_only) {
    xrt_double::machine().violation("a read-only mapping was synchronised from the device");
  } else {
    std::memcpy(host, device, bytes);
  }
}

}  // namespace xrt
