// What tests set and see of the stand-in for XRT. It executes streams on the emulator and is
// stricter than the real thing: host and device copies of every BO are apart and poisoned when new,
// user memory too; BOs of other flags than the NPU driver takes are refused; contexts, the heap of
// instructions (in granules of 32 KiB) and locked memory are limited; the configuration is reloaded
// at random (the emulator's residency modes); a context whose run failed is dead; and misuse that
// the real XRT answers with a crash, a hang or silence is recorded as a violation: a forked process
// that gives back what its parent has, or a stream synchronised while a run reads it. Programs that
// do not set anything choose the emulated device by the environment variable NPU_XRT_DOUBLE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "xrt/detail/api.h"

namespace xrt_double {

struct Settings {
  std::string device = "emu:npu2+reload-random-7";  // what runs streams
  std::string name = "NPU Strix";                   // as XRT reports it
  std::vector<std::string> before{};                // names of devices that XRT lists before it
  size_t contexts = 16;                             // of the system
  size_t heap_bytes = size_t{64} << 20;             // CACHEABLE BOs
  size_t locked_bytes = size_t{4} << 30;            // all BOs
  bool present = true;                              // false: XRT finds no device
  bool ends_at_once = false;                        // runs compute nothing
  bool user_memory = true;                          // false: a driver without user-memory BOs
};

// What the next start() meets.
enum class Fault {
  kWatchdog,      // the driver ends the run: TIMEOUT with health data
  kAbort,         // ABORT: the context was torn down
  kFirmware,      // ERROR: the firmware refuses the command
  kHang,          // nothing ever happens
  kState,         // the run ends in the state `number`
  kRefusedStart,  // start() throws: `number` is the errno
};

struct Counters {
  uint64_t contexts = 0, contexts_made = 0, most_contexts = 0;
  uint64_t heap_bytes = 0, most_heap_bytes = 0, locked_bytes = 0, buffers = 0, runs = 0, starts = 0;
  uint64_t stream_bytes = 0;  // of instructions, synchronised
};

// A fresh machine; everything of the one before must have been destroyed.
XRT_API_EXPORT void reset(const Settings& settings = {});
// `number`: of kWatchdog the stream operation reached (0xFFFFFFFF: unknown) in health data of
// version `version`, of kRefusedStart the errno.
XRT_API_EXPORT void inject(Fault fault, uint32_t number = 0, uint32_t version = 1);
// The next devices that are opened fail with this errno, in this call of the driver.
XRT_API_EXPORT void refuse_devices(int count, int code,
                                   const std::string& call = "DRM_IOCTL_AMDXDNA_GET_INFO IOCTL");
// Signals interrupt the next waits for a run.
XRT_API_EXPORT void interrupt_waits(int count);
// The next contexts fail with this errno, in this call of the driver.
XRT_API_EXPORT void refuse_contexts(
    int count, int code, const std::string& call = "DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL");
// Instead of an errno below: the host has no memory, std::bad_alloc.
inline constexpr int kNoHostMemory = -1;
// The next BOs, or those of instructions, fail with this errno.
XRT_API_EXPORT void refuse_buffers(int count, int code);
XRT_API_EXPORT void refuse_instructions(int count, int code);
// The next synchronisations of BOs fail with this errno.
XRT_API_EXPORT void refuse_syncs(int count, int code);
XRT_API_EXPORT Counters counters();
// What was done that the real XRT would not have survived, or not have noticed; and forgets it.
XRT_API_EXPORT std::vector<std::string> take_violations();
// Why the last run ended with ERROR or TIMEOUT, in the emulator's words.
XRT_API_EXPORT std::string last_failure();
// Writes a file that xrt::xclbin takes: a configuration, run by a kernel that declares `buffers`,
// and beside it NAME.overlay.bin, the "machine code" of each of its overlays, which is no stand-in.
XRT_API_EXPORT void write_xclbin(const std::string& path, std::span<const std::byte> configuration,
                                 size_t buffers = 16, const std::string& kernel = "MLIR_AIE");

// For programs that are not written in C++. The first gives 0, or 1 if the file cannot be written;
// the second what take_violations() gives, in lines, and what the last failure of a run was.
extern "C" XRT_API_EXPORT int xrt_double_write_xclbin(const char* path, const void* configuration,
                                                      size_t bytes, size_t buffers);
extern "C" XRT_API_EXPORT const char* xrt_double_complaints(void);

}  // namespace xrt_double
