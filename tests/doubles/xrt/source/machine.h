// The one machine behind the stand-in for XRT: what is on it, and the implementation classes.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
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
  Refusal devices, contexts, buffers, instructions, syncs, waits;
  std::string devices_call, contexts_call;
  std::string last_failure;
  std::map<xrt::uuid, std::shared_ptr<xrt::xclbin_impl>> xclbins;  // registered
  std::unique_ptr<npu::Device> device;                             // opened with the first context

  void violation(const std::string& text) { violations.push_back(text); }
  npu::Device& emulator();
};

Machine& machine();
// What a compiler would have made of an overlay, of as many bytes.
std::vector<uint32_t> machine_code(const npu::Configuration& configuration, size_t overlay);
// A static stream without what mlir-aie keeps out of an xclbin: BDs and channels of shim tiles.
std::vector<std::byte> without_shim_dmas(std::span<const std::byte> txn);
// What XRT throws: an errno and a sentence.
[[noreturn]] void refuse(int code, const std::string& text);
inline void refuse_if(Refusal& refusal, const std::string& text) {
  if (refusal.count == 0) return;
  --refusal.count;
  refuse(refusal.code, text);
}

// Notes the process in which it is made, and complains about another one that destroys it.
class Owned {
 public:
  explicit Owned(const char* what) : what_(what), process_(getpid()) {}
  ~Owned() {
    if (getpid() != process_) {
      machine().violation(std::string(what_) + " was given back by another process");
    }
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

 private:
  const char* const what_;
  const pid_t process_;
};

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
  int readers = 0;  // runs under way whose instructions these are

 private:
  size_t locked() const;
  std::unique_ptr<std::byte, void (*)(void*)> own_;
  Owned owned_{"a BO"};
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

 private:
  xrt_double::Owned owned_{"a hardware context"};
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
