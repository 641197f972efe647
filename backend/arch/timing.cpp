// The table behind timing.h. "2512.13282" is Taka et al., arXiv 2512.13282; "xdna-emu" are
// measurements on a Phoenix NPU published with FIM43-Redeye/xdna-emu; "aie_api" are AMD's public
// headers (Xilinx/aie_api), "am020" is AMD's AIE-ML architecture manual.
#include "arch/timing.h"

#include <cmath>
#include <numeric>

#include "error.h"

namespace npu::arch {

namespace {

constexpr Grade kMeasured = Grade::kMeasured, kDocumented = Grade::kDocumented,
                kFitted = Grade::kFitted, kAssumed = Grade::kAssumed;

constexpr TimingConstant kTable[] = {
    {"mac_int8_npu1", 256, "MAC/cycle", kDocumented, "aie_api: mmul 4x8x8", ""},
    {"mac_int8_npu2", 512, "MAC/cycle", kDocumented, "aie_api: mmul 8x8x8", ""},
    {"mac_int16_npu1", 64, "MAC/cycle", kDocumented, "aie_api: mmul 4x4x4", ""},
    {"mac_int16_npu2", 128, "MAC/cycle", kDocumented, "aie_api: mmul 4x4x8", ""},
    {"mac_bf16_npu1", 128, "MAC/cycle", kDocumented, "aie_api: mmul 4x8x4", ""},
    {"mac_bf16_npu2", 168, "MAC/cycle", kFitted,
     "asymptote of bf16 computed as BFP16, conversions included",
     "t1.npu2.bf16.macs t3.npu2.bf16.a.macs"},
    {"mac_bf16_native_npu2", 32, "MAC/cycle", kDocumented,
     "aie_api: mmul 4x8x8 of 32-lane multiply-adds", ""},
    {"mac_bfp16_npu2", 512, "MAC/cycle", kDocumented, "aie_api: mmul 8x8x8 of bfp16ebs8", ""},
    {"mac_interval", 1, "cycle", kAssumed,
     "per multiplication of a pipelined int8 loop; 1.16 would be that of BFP16", ""},
    {"mac_interval_bfp16", 1.16, "cycle", kAssumed,
     "the same for BFP16; fitted to table 1 of the asymmetric-tile-buffering paper", ""},
    {"kernel_call", 218, "cycle", kAssumed,
     "filling, draining and calling a pipelined kernel; fitted to table 1 of the "
     "asymmetric-tile-buffering paper (BFP16), taken over for int8",
     ""},
    {"schedule_call", 8, "cycle", kMeasured,
     "scalable-analyses/xdna: 296 cycles per call of a kernel of 288 bundles (804 of 800 on npu2)",
     ""},
    {"integer_move_npu1", 0.025, "cycle per C element", kFitted,
     "accumulator moves and shifts of integer results",
     "t1.npu1.i8i8.macs t1.npu1.i8i16.macs t2.npu1.i8i8.a.macs t2.npu1.i8i16.a.macs"},
    {"integer_move_npu2", 0.038, "cycle per C element", kFitted, "as on npu1",
     "t1.npu2.i8i8.macs t1.npu2.i8i16.macs t3.npu2.i8i8.a.macs t3.npu2.i8i8.b.macs "
     "t3.npu2.i8i16.a.macs t3.npu2.i8i16.b.macs"},
    {"l1_port_npu1", 32, "B/cycle", kDocumented, "am020: 256-bit load and store units", ""},
    {"l1_port_npu2", 64, "B/cycle", kDocumented, "aie_api: 512-bit vector load and store", ""},
    {"stream_npu1", 4, "B/cycle", kDocumented, "am020: 32-bit stream ports", ""},
    {"stream_npu2", 4, "B/cycle", kAssumed,
     "public sources say 4 or 8; 4 fits tables 2 and 3 better (docs/timing.md)", ""},
    {"bd_overhead", 13, "cycle", kMeasured,
     "xdna-emu: memtile S2MM done to MM2S start; also the sum of its BD set-up 4, chain 2, memory "
     "latency 5, lock acquire and release 2",
     ""},
    {"lock_operation", 2, "cycle", kMeasured, "xdna-emu: request 1 + arbitration 1, per core lock",
     ""},
    {"shim_task_start", 325, "cycle", kMeasured, "xdna-emu: MM2S start per task", ""},
    {"shim_cold_start", 1330, "cycle", kMeasured, "xdna-emu: first MM2S start of a channel", ""},
    {"dram_read_npu1", 17.1, "GB/s", kFitted, "read ceiling; the paper's micro-benchmark: ~15",
     "t2.npu1.bf16.a.tops t2.npu1.bf16.b.tops kmt.npu1.bf16.56"},
    {"dram_read_npu2", 52.7, "GB/s", kFitted, "read ceiling; the paper's micro-benchmark: ~50",
     "t3.npu2.i8i8.a.tops t3.npu2.i8i16.a.tops t3.npu2.bf16.a.tops"},
    {"dram_total_npu1", 21.6, "GB/s", kAssumed,
     "reads and writes together; to the read ceiling as on npu2, no measurement was found", ""},
    {"dram_total_npu2", 66.6, "GB/s", kMeasured,
     "reads and writes together of a 64 MiB copy by the NPU: mlir-aie pull request 2559", ""},
    {"row_visit", 134, "cycle", kFitted, "time a shim channel needs per separate run of addresses",
     "kmt.npu1.bf16.56 txt.npu1.i8i16.t1"},
    {"row_sharing", 0.33, "1", kFitted,
     "part of row_visit left when a neighbour's runs lie in the same rows (row-major B)",
     "row.npu1.i8i8 row.npu2.i8i8"},
    {"memory_line", 64, "B", kDocumented, "DDR5 burst of 16 x 32 bit", ""},
    {"round", 1.2, "us", kFitted, "handing an output tile over, per output round",
     "t2.npu1.i8i8.a.tops t2.npu1.i8i16.a.tops t3.npu2.i8i8.b.tops"},
    {"dispatch", 70, "us", kFitted, "host call to first stream operation and back",
     "t2.npu1.i8i8.a.tops t2.npu1.i8i16.a.tops t3.npu2.i8i8.a.tops t3.npu2.i8i16.a.tops "
     "t3.npu2.bf16.a.tops"},
    {"load_npu1", 3.4, "ms", kMeasured,
     "2512.13282, section 5.3.1: changing the array's configuration to another GEMM design", ""},
    {"load_npu2", 4.9, "ms", kMeasured, "as on npu1", ""},
    {"token", 12, "us", kFitted, "end of a transfer to the command processor acting on its token",
     "bd.npu2.i8i16"},
    {"cp_write", 0.1, "us", kMeasured, "xdna-emu: WRITE32 100.5 cycles at 1 GHz", ""},
    {"cp_mask_write", 0.21, "us", kMeasured, "xdna-emu: MASKWRITE 210 cycles at 1 GHz", ""},
    {"cp_block", 0.1, "us", kMeasured, "xdna-emu: BLOCKWRITE 100 cycles at 1 GHz", ""},
    {"cp_block_word", 0.013, "us", kMeasured, "xdna-emu: BLOCKWRITE 13 cycles per word", ""},
};
static_assert(std::size(kTable) == static_cast<size_t>(TimingId::kCount));

}  // namespace

const char* grade_name(Grade grade) {
  switch (grade) {
    case Grade::kMeasured:
      return "measured";
    case Grade::kDocumented:
      return "documented";
    case Grade::kFitted:
      return "fitted";
    case Grade::kAssumed:
      break;
  }
  return "assumed";
}

std::span<const TimingConstant> timing_constants() { return kTable; }

TimingTable::TimingTable() {
  for (size_t i = 0; i < values_.size(); ++i) values_[i] = kTable[i].value;
}

void TimingTable::set(std::string_view name, double value) {
  if (name == "kernels") {
    if (value != 1 && value != 2) {
      fail(ErrorKind::kArgument, "[timing] kernels = %g; it must be 1 (published) or 2 (scheduled)",
           value);
    }
    kernels_ = value == 1 ? KernelProfile::kPublished : KernelProfile::kScheduled;
    return;
  }
  if (!(value > 0) || !std::isfinite(value)) {
    fail(ErrorKind::kArgument, "[timing] constant %.*s = %g; it must be positive",
         static_cast<int>(name.size()), name.data(), value);
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    if (name != kTable[i].name) continue;
    values_[i] = value;
    return;
  }
  fail(ErrorKind::kArgument,
       "[timing] there is no constant \"%.*s\"; `npu validate-model --constants` lists them",
       static_cast<int>(name.size()), name.data());
}

Timing::Timing(Generation g, const TimingTable& t)
    : generation(g), clock_hz(device_geometry(g).clock_hz) {
  const bool npu1 = g == Generation::kNpu1;
  const double per_us = clock_hz * 1e-6;
  mac_int8 = t[npu1 ? TimingId::kMacInt8Npu1 : TimingId::kMacInt8Npu2];
  mac_int16 = t[npu1 ? TimingId::kMacInt16Npu1 : TimingId::kMacInt16Npu2];
  mac_bf16 = t[npu1 ? TimingId::kMacBf16Npu1 : TimingId::kMacBf16Npu2];
  mac_bf16_native = t[npu1 ? TimingId::kMacBf16Npu1 : TimingId::kMacBf16NativeNpu2];
  mac_bfp16 = t[TimingId::kMacBfp16Npu2];
  mac_interval = t[TimingId::kMacInterval];
  mac_interval_bfp16 = t[TimingId::kMacIntervalBfp16];
  kernel_call = t[TimingId::kKernelCall];
  kernels = t.kernels();
  schedule_call = t[TimingId::kScheduleCall];
  integer_move = t[npu1 ? TimingId::kIntegerMoveNpu1 : TimingId::kIntegerMoveNpu2];
  l1_port = t[npu1 ? TimingId::kL1PortNpu1 : TimingId::kL1PortNpu2];
  stream = t[npu1 ? TimingId::kStreamNpu1 : TimingId::kStreamNpu2];
  bd_overhead = t[TimingId::kBdOverhead];
  lock_operation = t[TimingId::kLockOperation];
  shim_task_start = t[TimingId::kShimTaskStart];
  shim_cold_start = t[TimingId::kShimColdStart];
  dram_read = t[npu1 ? TimingId::kDramReadNpu1 : TimingId::kDramReadNpu2] * 1e9 / clock_hz;
  dram_total = t[npu1 ? TimingId::kDramTotalNpu1 : TimingId::kDramTotalNpu2] * 1e9 / clock_hz;
  row_visit = t[TimingId::kRowVisit];
  row_sharing = t[TimingId::kRowSharing];
  memory_line = t[TimingId::kMemoryLine];
  round = t[TimingId::kRound] * per_us;
  dispatch = t[TimingId::kDispatch] * 1e-6;
  load = t[npu1 ? TimingId::kLoadNpu1 : TimingId::kLoadNpu2] * 1e3 * per_us;
  token = t[TimingId::kToken] * per_us;
  cp_write = t[TimingId::kCpWrite] * per_us;
  cp_mask_write = t[TimingId::kCpMaskWrite] * per_us;
  cp_block = t[TimingId::kCpBlock] * per_us;
  cp_block_word = t[TimingId::kCpBlockWord] * per_us;
}

double line_overfetch(double run, double line) {
  const auto bytes = static_cast<uint64_t>(run), unit = static_cast<uint64_t>(line);
  if (bytes == 0 || unit == 0) return 1;
  return (run + line - static_cast<double>(std::gcd(bytes, unit))) / run;
}

double dram_bandwidth(double cap, double visits) {
  const double ratio = cap / visits;
  return cap / std::sqrt(std::sqrt(1 + ratio * ratio * ratio * ratio));
}

}  // namespace npu::arch
