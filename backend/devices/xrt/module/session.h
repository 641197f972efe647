// An open NPU: its xclbins, the hardware contexts of those used last, data buffers, and the run
// that is under way. The driver allows 6 contexts on npu1 and 16 on npu2, of all processes together
// (mlir-aie issue 3526), so few are kept.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "context.h"
#include "module_abi.h"
#include "xrt_api.h"

namespace npu::xrt_module {

inline constexpr size_t kContexts = 4;

class Session {
 public:
  explicit Session(uint32_t index);  // throws Failure(NPU_XRT_NO_DEVICE)
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  npu_xrt_info info() const;
  // Returns the number of buffers that the kernel takes. Throws Failure(NPU_XRT_XCLBIN,
  // NPU_XRT_CONTEXT).
  uint32_t load(const std::string& path);
  void drop();      // the current context
  void drop_all();  // with the streams on the device

  // Throw Failure(NPU_XRT_MEMORY) and std::bad_alloc.
  std::unique_ptr<npu_xrt_buffer> allocate(uint64_t bytes);
  std::unique_ptr<npu_xrt_buffer> wrap(void* memory, uint64_t bytes, bool read_only);

  void patch(uint64_t stream, std::span<const npu_xrt_patch> patches);
  void forget(uint64_t stream);
  // Throws what Context::submit throws.
  void submit(uint64_t stream, std::span<const npu_xrt_words> parts,
              std::span<const npu_xrt_argument> arguments);
  npu_xrt_outcome wait(uint32_t milliseconds);

 private:
  // An xclbin that was registered with the device, which keeps it.
  struct Program {
    xrt::xclbin xclbin;
    std::string kernel;
    size_t arguments = 0;
    int64_t changed = 0;  // when the file was
  };
  using Contexts = std::list<std::unique_ptr<Context>>;  // the current one first

  const Program& program(const std::string& path);
  std::unique_ptr<Context> open_context(const std::string& path, const Program& program);
  Context& current();
  // Frees a stream of another context than the current one.
  bool evict_elsewhere();

  std::mutex mutex_;  // streams are forgotten by any thread
  HeapUse use_;
  xrt::device device_;
  std::optional<xrt::bo> unused_;  // made with the first context
  std::map<std::string, Program> programs_;
  Contexts contexts_;
  bool loaded_ = false, running_ = false;
};

// Synchronises bytes of a buffer; what the device wrote is visible when this returns.
void sync(npu_xrt_buffer& buffer, bool to_device, uint64_t offset, uint64_t bytes);

}  // namespace npu::xrt_module
