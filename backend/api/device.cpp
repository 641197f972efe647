// The C interface but for operations: versions, errors, devices.
#include <mutex>

#include "api/guard.h"
#include "arch/machines.h"
#include "runtime/configuration_store.h"

namespace npu::api {

namespace {

thread_local std::string last_error;

// Whether an option that has two words is the second one.
bool second_word(const std::string& word, const char* option, const char* first,
                 const char* second) {
  if (word == second) return true;
  if (word == first) return false;
  fail(ErrorKind::kArgument, "[device_open] %s is \"%.40s\"; use \"%s\" or \"%s\"", option,
       word.c_str(), first, second);
}

bool bfp16_of(std::string word, arch::Generation generation) {
  const bool there = generation == arch::Generation::kNpu2;
  if (word.empty()) word = there ? "bfp16" : "native";
  const bool bfp16 = second_word(word, "bf16", "native", "bfp16");
  if (bfp16 && !there) {
    fail(ErrorKind::kDevice, "[device_open] bf16 is \"bfp16\" on npu1, which has \"native\" only");
  }
  return bfp16;
}

ops::DesignPreference preference_of(const npu_device_options& options, const DeviceInfo& info) {
  ops::DesignPreference out;
  out.emulated = info.emulated;
  const std::string designs = word_of(options.designs, "NPU_DESIGNS");
  out.for_array =
      designs.empty() ? !info.emulated : second_word(designs, "designs", "host", "array");
  const std::string kernel = word_of(options.kernel, "NPU_KERNEL");
  if (kernel.empty()) return out;
  out.pipelined = second_word(kernel, "kernel", "published", "pipelined");
  if (*out.pipelined && info.generation != arch::Generation::kNpu2) {
    fail(ErrorKind::kDevice,
         "[device_open] kernel is \"pipelined\" on npu1, which has none; use "
         "\"published\"");
  }
  return out;
}

std::unique_ptr<npu_device> open(const char* name, const npu_device_options& options) {
  auto out = std::make_unique<npu_device>();
  std::string device = word_of(name, "NPU_DEVICE"),
              mode = word_of(options.arithmetic, "NPU_ARITHMETIC");
  if (device.empty()) device = "emu:npu2";
  if (mode.empty()) mode = "fast";
  out->device = std::make_shared<SharedDevice>(open_device(device, mode));
  out->info = out->device->device->info();
  out->bfp16 = bfp16_of(word_of(options.bf16, "NPU_BF16"), out->info.generation);
  out->preference = preference_of(options, out->info);
  const arch::TimingTable table = arch::timing_table("device_open", out->info.generation,
                                                     word_of(options.machine, "NPU_MACHINE"),
                                                     word_of(options.kernels, "NPU_KERNELS"));
  auto store = ConfigurationStore::open(options.configurations ? options.configurations : "");
  out->matmul =
      std::make_unique<ops::Matmul>(out->device, std::move(store), out->preference, table);
  return out;
}

}  // namespace

npu_status status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kArgument:
      return NPU_ERROR_ARGUMENT;
    case ErrorKind::kShape:
      return NPU_ERROR_SHAPE;
    case ErrorKind::kDtype:
      return NPU_ERROR_DTYPE;
    case ErrorKind::kFormat:
      return NPU_ERROR_FORMAT;
    case ErrorKind::kDevice:
    case ErrorKind::kGeneration:
      return NPU_ERROR_DEVICE;
    case ErrorKind::kUnavailable:
    case ErrorKind::kContext:
    case ErrorKind::kHeap:
    case ErrorKind::kMemoryLock:
    case ErrorKind::kVersions:
    case ErrorKind::kMissingBuild:
    case ErrorKind::kMissingXrt:
      return NPU_ERROR_UNAVAILABLE;
    default:
      return NPU_ERROR_EXECUTION;
  }
}

npu_status failed(npu_status status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

std::string word_of(const char* given, const char* variable) {
  if (given != nullptr && *given != '\0') return given;
  const char* found = std::getenv(variable);
  return found != nullptr ? found : "";
}

}  // namespace npu::api

using npu::api::guarded;

const char* npu_version(void) { return NPU_VERSION; }

int32_t npu_abi_version(void) { return NPU_ABI_VERSION; }

const char* npu_last_error(void) { return npu::api::last_error.c_str(); }

const char* npu_status_name(npu_status status) {
  constexpr const char* kNames[] = {"ok",     "argument",    "shape",     "dtype",  "format",
                                    "device", "unavailable", "execution", "memory", "internal"};
  return status >= NPU_OK && status <= NPU_ERROR_INTERNAL ? kNames[status] : "unknown";
}

npu_status npu_device_open(const char* name, const npu_device_options* options,
                           npu_device** device) {
  if (device != nullptr) *device = nullptr;
  return guarded([&] {
    if (device == nullptr) {
      npu::fail(npu::ErrorKind::kArgument, "[device_open] device is null; pass where to put it");
    }
    npu::api::check_size(options, "device_open", "NPU_DEVICE_OPTIONS_INIT");
    const npu_device_options defaults = NPU_DEVICE_OPTIONS_INIT;
    *device = npu::api::open(name, npu::api::read_struct(options, defaults)).release();
  });
}

void npu_device_close(npu_device* device) { delete device; }

npu_status npu_device_get_info(npu_device* device, npu_device_info* info) {
  return guarded([&] {
    if (device == nullptr || info == nullptr) {
      npu::fail(npu::ErrorKind::kArgument, "[device_get_info] %s is null",
                device == nullptr ? "device" : "info");
    }
    npu::api::check_size(info, "device_get_info", "sizeof(npu_device_info)");
    using npu::api::put;
    npu_device_info out = {};
    put(out.name, device->info.name);
    put(out.generation, npu::arch::device_geometry(device->info.generation).name);
    put(out.arithmetic, device->info.arithmetic);
    put(out.bf16, device->bfp16 ? "bfp16" : "native");
    put(out.designs, device->preference.for_array ? "array" : "host");
    put(out.configurations, device->matmul->store().folder().string());
    out.columns = device->info.columns;
    out.emulated = device->info.emulated ? 1 : 0;
    out.clock_hz = device->info.clock_hz;
    const std::lock_guard guard(device->device->mutex);
    const npu::DeviceCounters counters = device->device->device->counters();
    out.configuration_loads = counters.configuration_loads;
    out.submissions = counters.submissions;
    npu::api::write_struct(info, out);
  });
}
