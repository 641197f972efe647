// The one machine behind the stand-in for XRT: what is on it, and the implementation classes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "control.h"
#include "runtime/configuration.h"
#include "runtime/device.h"
#include "xrt/xrt_bo.h"
#include "xrt/xrt_kernel.h"

namespace xrt_double {

inline constexpr size_t kPage = 4096, kGranule = size_t{32} << 10;

struct Injected {
  Fault fault;
  uint32_t number, version;
};

struct Refusal {
  int count = 0, code = 0;
};

struct Machine {
  Settings settings;
  Counters counters;
  std::vector<std::string> violations;
  std::deque<Injected> injected;
  Refusal contexts, buffers;
  std::string last_failure;
  std::map<xrt::uuid, std::shared_ptr<xrt::xclbin_impl>> xclbins;  // registered
  std::unique_ptr<npu::Device> device;                             // opened with the first context

  void violation(const std::string& text) { violations.push_back(text); }
  npu::Device& emulator();
};

Machine& machine();
// What XRT throws: an errno and a sentence.
[[noreturn]] void refuse(int code, const std::string& text);
inline void refuse_if(Refusal& refusal, const std::string& text) {
  if (refusal.count == 0) return;
  --refusal.count;
  refuse(refusal.code, text);
}

// Memory of a BO, with the host's and the device's copy.
struct Storage {
  Storage(size_t bytes, xrt::bo::flags flags, std::byte* user);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  const size_t bytes;
  const bool instructions;  // in the device heap
  std::byte* host;
  std::vector<std::byte> device;
  bool read_only = false, user;

 private:
  size_t locked() const;
  std::unique_ptr<std::byte, void (*)(void*)> own_;
};

}  // namespace xrt_double

namespace xrt {

class xclbin_impl {
 public:
  std::shared_ptr<const npu::Configuration> configuration;
  std::string kernel;
  size_t buffers = 0;
  uint64_t uuid = 0;
};

class bo_impl {
 public:
  std::shared_ptr<xrt_double::Storage> storage;
  size_t offset = 0, bytes = 0;
};

class hw_context_impl {
 public:
  explicit hw_context_impl(std::shared_ptr<xclbin_impl> x);
  ~hw_context_impl();
  std::shared_ptr<xclbin_impl> xclbin;
  bool dead = false;   // after a run that failed
  int handles = 0;     // hw_context objects
  int dependents = 0;  // kernels and runs
};

// Counts a kernel or run of a context.
class Dependent {
 public:
  explicit Dependent(std::shared_ptr<hw_context_impl> c) : context(std::move(c)) {
    ++context->dependents;
  }
  ~Dependent() { --context->dependents; }
  Dependent(const Dependent&) = delete;
  Dependent& operator=(const Dependent&) = delete;
  const std::shared_ptr<hw_context_impl> context;
};

class kernel_impl : public Dependent {
 public:
  using Dependent::Dependent;
};

}  // namespace xrt
