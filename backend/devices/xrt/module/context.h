// A hardware context with the xclbin's kernel, one run object that is used again and again, and the
// instruction buffers of its streams. Members are declared in the order in which XRT needs them:
// run, arguments, instruction buffers and kernel are destroyed before the context.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "instruction_pool.h"
#include "module_abi.h"
#include "xrt_api.h"

// A BO of host memory, and the parts of it that were arguments.
struct npu_xrt_buffer {
  struct Part {
    uint64_t offset;
    xrt::bo bo;
  };
  xrt::bo bo;
  std::byte* host = nullptr;
  uint64_t bytes = 0;
  uint64_t skew = 0;  // of `host` in the BO, which has whole pages
  uint64_t serial = 0;
  bool read_only = false;
  std::vector<Part> parts;

  // The BO whose address is `offset` bytes into the buffer.
  const xrt::bo& at(uint64_t offset);
};

namespace npu::xrt_module {

class Context {
 public:
  // Throws Failure(NPU_XRT_CONTEXT, NPU_XRT_XCLBIN).
  Context(const xrt::device& device, const xrt::xclbin& xclbin, const std::string& kernel,
          size_t arguments, std::string path, HeapUse& use, const xrt::bo& unused);

  const std::string& path() const { return path_; }
  InstructionPool& instructions() { return pool_; }
  // Throws Failure(NPU_XRT_ARGUMENTS, NPU_XRT_SUBMIT) and what the pool throws.
  void submit(uint64_t stream, std::span<const npu_xrt_words> parts,
              std::span<const npu_xrt_argument> arguments);
  // Waits for the run that was submitted; 0 asks without waiting.
  npu_xrt_outcome wait(uint32_t milliseconds);

 private:
  struct Bound {
    uint64_t serial = 0, offset = 0;
    bool operator==(const Bound&) const = default;
  };

  void bind(size_t index, const npu_xrt_argument& argument);
  npu_xrt_outcome outcome(ert_cmd_state state) const;

  std::string path_;
  size_t arguments_;
  const xrt::bo& unused_;  // what arguments that a stream leaves alone point to
  xrt::hw_context context_;
  xrt::kernel kernel_;
  InstructionPool pool_;
  xrt::run run_;
  std::vector<Bound> bound_;
  uint64_t completed_ = 0;  // runs
};

}  // namespace npu::xrt_module
