// Contexts and buffers of an open NPU (session.h).
#include "session.h"

#include <emmintrin.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "failure.h"

namespace npu::xrt_module {

namespace {

constexpr uint64_t kPage = 4096;
// Pinning pages costs two system calls: unaligned inputs smaller than this are copied.
constexpr uint64_t kSmallestUnalignedWrap = 64 << 10;
// mlir-aie's name for the kernel of an xclbin (its default of --xclbin-kernel-name).
constexpr const char* kKernelName = "MLIR_AIE";
constexpr size_t kControlArguments = 3;  // opcode, instructions, their count
// Group of host-only BOs: the driver has one bank of host memory.
constexpr xrt::memory_group kHostGroup = 0;

uint64_t round_up(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

uint64_t next_serial() {
  static std::atomic<uint64_t> serial{1};
  return serial++;
}

int64_t changed_at(const std::string& path) {
  std::error_code error;
  const auto time = std::filesystem::last_write_time(path, error);
  return error ? 0 : static_cast<int64_t>(time.time_since_epoch().count());
}

// How many contexts it is worth closing for one that was refused: one where their number is the
// limit, any where memory or columns are, none else. The same as in Python's failures.py.
size_t contexts_to_close(const Failure& refused) {
  if (refused.what != NPU_XRT_CONTEXT || mentions(refused, "GET_INFO")) return 0;
  const int code = refused.code;
  if (heap_is_full(refused) || code == ENOMEM || code == EAGAIN || code == ENODEV) return kContexts;
  return code == EINVAL || mentions(refused, NPU_XRT_NO_CONTEXT_LEFT) ? 1 : 0;
}

template <size_t N>
void copy_text(char (&to)[N], const std::string& from) {
  std::snprintf(to, N, "%s", from.c_str());
}

}  // namespace

Session::Session(uint32_t index)
    : device_(calling(NPU_XRT_NO_DEVICE, index, [&] { return xrt::device(index); })) {}

Session::~Session() = default;

npu_xrt_info Session::info() const {
  npu_xrt_info out{};
  calling(NPU_XRT_NO_DEVICE, 0, [&] {
    copy_text(out.name, device_.get_info<xrt::info::device::name>());
    copy_text(out.bdf, device_.get_info<xrt::info::device::bdf>());
  });
  return out;
}

const Session::Program& Session::program(const std::string& path) {
  const int64_t changed = changed_at(path);
  const auto found = programs_.find(path);
  if (found != programs_.end() && found->second.changed == changed) return found->second;
  contexts_.remove_if([&](const auto& context) { return context->path() == path; });  // built again
  return calling(NPU_XRT_XCLBIN, 0, [&]() -> const Program& {
    Program program;
    program.xclbin = xrt::xclbin(path);
    const std::vector<xrt::xclbin::kernel> kernels = program.xclbin.get_kernels();
    for (const xrt::xclbin::kernel& kernel : kernels) {
      if (kernel.get_name().rfind(kKernelName, 0) != 0) continue;
      program.kernel = kernel.get_name();
      const size_t arguments = kernel.get_num_args();
      program.arguments = arguments > kControlArguments ? arguments - kControlArguments : 0;
      break;
    }
    if (program.kernel.empty()) {
      throw std::runtime_error(std::to_string(kernels.size()) + " kernels, none is called " +
                               kKernelName);
    }
    program.changed = changed;
    device_.register_xclbin(program.xclbin);
    return programs_.insert_or_assign(path, std::move(program)).first->second;
  });
}

std::unique_ptr<Context> Session::open_context(const std::string& path, const Program& program) {
  if (!unused_) {
    // Not before: other devices that XRT lists, which are opened to be asked, need not have any.
    unused_ = calling(NPU_XRT_MEMORY, kPage, [&] {
      return xrt::bo(device_, kPage, xrt::bo::flags::host_only, kHostGroup);
    });
  }
  for (size_t closed = 0;; ++closed) {
    try {
      return std::make_unique<Context>(device_, program.xclbin, program.kernel, program.arguments,
                                       path, use_, *unused_);
    } catch (const Failure& refused) {
      if (closed >= contexts_to_close(refused) || contexts_.empty()) throw;
      contexts_.pop_back();
    }
  }
}

uint32_t Session::load(const std::string& path) {
  const std::lock_guard guard(mutex_);
  loaded_ = running_ = false;
  const Program& wanted = program(path);
  for (auto it = contexts_.begin(); it != contexts_.end(); ++it) {
    if ((*it)->path() != path) continue;
    contexts_.splice(contexts_.begin(), contexts_, it);
    loaded_ = true;
    return static_cast<uint32_t>(wanted.arguments);
  }
  while (contexts_.size() >= kContexts) contexts_.pop_back();
  contexts_.push_front(open_context(path, wanted));
  loaded_ = true;
  return static_cast<uint32_t>(wanted.arguments);
}

void Session::drop() {
  const std::lock_guard guard(mutex_);
  if (loaded_) contexts_.pop_front();
  loaded_ = running_ = false;
}

void Session::drop_all() {
  const std::lock_guard guard(mutex_);
  contexts_.clear();
  loaded_ = running_ = false;
}

Context& Session::current() {
  if (!loaded_) throw Failure{NPU_XRT_INTERNAL, 0, "no context is loaded"};
  return *contexts_.front();
}

std::unique_ptr<npu_xrt_buffer> Session::allocate(uint64_t bytes) {
  const uint64_t whole = round_up(bytes == 0 ? 1 : bytes);
  if (whole < bytes) {
    throw Failure{NPU_XRT_MEMORY, 0, "more than can be addressed", bytes,
                  UINT64_MAX / kPage * kPage};
  }
  auto out = std::make_unique<npu_xrt_buffer>();
  calling(NPU_XRT_MEMORY, bytes, [&] {
    out->bo = xrt::bo(device_, whole, xrt::bo::flags::host_only, kHostGroup);
    out->host = out->bo.map<std::byte*>();
    // Lines that the host still holds must not be written back over a result.
    out->bo.sync(XCL_BO_SYNC_BO_TO_DEVICE, whole, 0);
  });
  out->bytes = bytes;
  out->serial = next_serial();
  return out;
}

std::unique_ptr<npu_xrt_buffer> Session::wrap(void* memory, uint64_t bytes, bool read_only) {
  const uint64_t skew = reinterpret_cast<uintptr_t>(memory) % kPage;
  const bool pages = skew == 0 && bytes % kPage == 0;
  // The pages around an input are there; a result must not share cache lines with anything else.
  if (bytes == 0 || (!pages && (!read_only || bytes < kSmallestUnalignedWrap))) return nullptr;
  if (skew % 4 != 0) return nullptr;  // DMAs address 32-bit words
  auto out = std::make_unique<npu_xrt_buffer>();
  out->host = static_cast<std::byte*>(memory);
  try {
    out->bo = calling(NPU_XRT_MEMORY, bytes, [&] {
      return xrt::bo(device_, out->host - skew, round_up(bytes + skew), xrt::bo::flags::host_only,
                     kHostGroup);
    });
  } catch (const Failure& failure) {
    // Drivers that do not take user memory, or not of this kind: it is copied.
    const int code = failure.code;
    if (code == EINVAL || code == EFAULT || code == EOPNOTSUPP || code == ENOTTY) return nullptr;
    throw;
  }
  out->bytes = bytes;
  out->skew = skew;
  out->read_only = read_only;
  out->serial = next_serial();
  return out;
}

void Session::patch(uint64_t stream, std::span<const npu_xrt_patch> patches) {
  const std::lock_guard guard(mutex_);
  for (const auto& context : contexts_) context->instructions().patch(stream, patches);
}

void Session::forget(uint64_t stream) {
  const std::lock_guard guard(mutex_);
  for (const auto& context : contexts_) context->instructions().forget(stream);
}

void Session::submit(uint64_t stream, std::span<const npu_xrt_words> parts,
                     std::span<const npu_xrt_argument> arguments) {
  const std::lock_guard guard(mutex_);
  if (running_) throw Failure{NPU_XRT_INTERNAL, EBUSY, "a run has not ended"};
  for (;;) {
    try {
      current().submit(stream, parts, arguments);
      running_ = true;
      return;
    } catch (Failure& failure) {
      // The other contexts' streams, and their PDIs, share the heap.
      const bool full = failure.what == NPU_XRT_HEAP;
      const bool locked = failure.what == NPU_XRT_MEMORY && is_lock_limit(failure);
      if ((!full && !locked) || failure.asked > kHeapBudget) throw;
      if (evict_elsewhere()) continue;
      if (!full || contexts_.size() < 2) throw;
      contexts_.pop_back();
    }
  }
}

bool Session::evict_elsewhere() {
  for (auto context = contexts_.rbegin(); context != contexts_.rend(); ++context) {
    if (context->get() != &current() && (*context)->instructions().evict_one()) return true;
  }
  return false;
}

npu_xrt_outcome Session::wait(uint32_t milliseconds) {
  {
    const std::lock_guard guard(mutex_);
    if (!running_) throw Failure{NPU_XRT_INTERNAL, 0, "no run is under way"};
  }
  const npu_xrt_outcome out =
      calling(NPU_XRT_INTERNAL, 0, [&] { return current().wait(milliseconds); });
  if (out.state != NPU_XRT_RUNNING) {
    const std::lock_guard guard(mutex_);
    running_ = false;
    current().instructions().unpin();
  }
  return out;
}

void sync(npu_xrt_buffer& buffer, bool to_device, uint64_t offset, uint64_t bytes) {
  if (bytes == 0 || (!to_device && buffer.read_only)) return;
  calling(NPU_XRT_SYNC, bytes, [&] {
    buffer.bo.sync(to_device ? XCL_BO_SYNC_BO_TO_DEVICE : XCL_BO_SYNC_BO_FROM_DEVICE, bytes,
                   offset + buffer.skew);
  });
  // XRT flushes cache lines without a fence: later loads could run ahead of the flushes.
  if (!to_device) _mm_mfence();
}

}  // namespace npu::xrt_module
