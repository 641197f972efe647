// Every constant of the cost estimates (the timed emulator and backend/perf), with unit, source and
// grade. Nothing here depends on a problem size or on a tile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "arch/geometry.h"

namespace npu::arch {

enum class Grade : uint8_t {
  kMeasured,    // on hardware, by the source named
  kDocumented,  // stated by AMD or read off its public headers
  kFitted,      // chosen to match the published figures listed in `fitted_on`
  kAssumed,
};
const char* grade_name(Grade grade);

// Where the cycles of matrix products come from (docs/timing.md, profiles).
enum class KernelProfile : uint8_t {
  kOwn,        // this project's own kernels: schedules; those that stand for published ones: fitted
  kPublished,  // constants, as fitted on published kernels or assumed
  kScheduled,  // generated schedules (perf/kernel_schedules.h) wherever there are any
};

// Order of the table in timing.cpp.
enum class TimingId : uint8_t {
  kMacInt8Npu1,
  kMacInt8Npu2,
  kMacInt16Npu1,
  kMacInt16Npu2,
  kMacBf16Npu1,
  kMacBf16Npu2,
  kMacBf16NativeNpu2,
  kMacBfp16Npu2,
  kMacInterval,
  kMacIntervalBfp16,
  kKernelCall,
  kScheduleCall,
  kIntegerMoveNpu1,
  kIntegerMoveNpu2,
  kL1PortNpu1,
  kL1PortNpu2,
  kStreamNpu1,
  kStreamNpu2,
  kBdOverhead,
  kLockOperation,
  kShimTaskStart,
  kShimColdStart,
  kDramReadNpu1,
  kDramReadNpu2,
  kDramTotalNpu1,
  kDramTotalNpu2,
  kRowVisit,
  kRowSharing,
  kMemoryLine,
  kRound,
  kDispatch,
  kLoadNpu1,
  kLoadNpu2,
  kToken,
  kCpWrite,
  kCpMaskWrite,
  kCpBlock,
  kCpBlockWord,
  kCount,
};

struct TimingConstant {
  const char* name;
  double value;
  const char* unit;
  Grade grade;
  const char* source;
  const char* fitted_on;  // ids of npu/perf/published.csv, separated by blanks; empty unless fitted
};

std::span<const TimingConstant> timing_constants();

// The constants of one generation in the units of the estimates; a copy may be changed (tests,
// sensitivity studies).
class TimingTable {
 public:
  TimingTable();
  double operator[](TimingId id) const { return values_[static_cast<size_t>(id)]; }
  KernelProfile kernels() const { return kernels_; }
  // "kernels" is the profile: 1 published, 2 scheduled. Throws Error(kArgument) for a name that is
  // not in the table or a value that is not positive.
  void set(std::string_view name, double value);

 private:
  KernelProfile kernels_ = KernelProfile::kOwn;
  std::array<double, static_cast<size_t>(TimingId::kCount)> values_{};
};

// What the estimates use on one generation. Cycles are cycles of the array clock.
struct Timing {
  Timing(Generation generation, const TimingTable& table);

  Generation generation;
  double clock_hz;
  double mac_int8, mac_int16, mac_bf16, mac_bf16_native;  // MAC per cycle and core
  double mac_bfp16;                                       // on operands that are BFP16 already
  double mac_interval, mac_interval_bfp16;  // cycles per multiplication, pipelined kernels
  double kernel_call;                       // cycles per call of a pipelined kernel
  KernelProfile kernels;
  double schedule_call;                     // cycles per call beside those of a schedule
  double integer_move;                      // cycles per C element
  double l1_port;                           // bytes per cycle
  double stream;                            // bytes per cycle and stream port
  double bd_overhead, lock_operation;       // cycles
  double shim_task_start, shim_cold_start;  // cycles
  double dram_read;                         // bytes per cycle, all channels together
  double dram_total;                        // the same, of reads and writes together
  double row_visit;                         // cycles per row visit and channel
  double row_sharing;                       // share of a row visit, see timing.cpp
  double memory_line;                       // bytes, see line_overfetch
  double round;                             // cycles per output round
  double dispatch;                          // seconds
  double load;                              // cycles, of a whole configuration
  double token, cp_write, cp_mask_write, cp_block, cp_block_word;  // cycles

  // What the command processor takes for an operation, cycles.
  double block_write(double words) const { return cp_block + cp_block_word * words; }
  double address_patch() const { return block_write(2); }
  // A BD, its address and its push.
  double bd_push() const { return block_write(8) + address_patch() + cp_write; }
};

// Sustained DRAM reads in bytes per cycle when `visits` = the sum over the channels in use of their
// run length / row_visit, and the array can take `cap`: a smooth minimum of the two.
double dram_bandwidth(double cap, double visits);

// Bytes fetched per byte used when runs of `run` bytes follow each other and memory is read in
// lines: runs begin at multiples of gcd(run, line), any of them equally often.
double line_overfetch(double run, double line);

}  // namespace npu::arch
