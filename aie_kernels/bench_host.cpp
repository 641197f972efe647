// Measures the host builds of the matmul kernels on one thread: 10^9 operations per second per
// kernel, generation, arithmetic and instruction set.
//
//   npu_bench_kernels [m k n] [repeats] [name]
// default 64 64 64, 7 repeats, every kernel whose name contains `name`; prints median and spread
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>
#include <vector>

#include "aie_host/variants.h"
#include "error.h"
#include "kernel.h"

namespace {

constexpr double kSampleSeconds = 0.03;

// CPU time of this thread, so that other work on the machine disturbs less.
double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Sample {
  double median, low, high;
};

Sample measure(npu::HostKernel kernel, std::vector<npu::KernelArgument>& arguments, double work,
               int repeats) {
  npu::CoreState core;
  kernel(arguments, core);  // warm-up
  std::vector<double> rates;
  for (int i = 0; i < repeats; ++i) {
    int64_t calls = 0;
    const double start = now();
    double seconds = 0;
    while (seconds < kSampleSeconds) {
      for (int j = 0; j < 8; ++j) kernel(arguments, core);
      calls += 8;
      seconds = now() - start;
    }
    rates.push_back(work * static_cast<double>(calls) / seconds / 1e9);
  }
  std::sort(rates.begin(), rates.end());
  return {rates[rates.size() / 2], rates.front(), rates.back()};
}

struct Problem {
  int64_t m, k, n;
};

void run(const npu::aie_host::HostFunction& f, npu::arch::Generation generation,
         npu::Arithmetic arithmetic, const char* level, const Problem& p, int repeats) {
  std::vector<std::byte> a(static_cast<size_t>(p.m * p.k * f.in_bytes), std::byte{0x3C});
  std::vector<std::byte> b(static_cast<size_t>(p.k * p.n * f.in_bytes), std::byte{0x3B});
  std::vector<std::byte> c(static_cast<size_t>(p.m * p.n * f.out_bytes));
  const auto buffer = [](std::vector<std::byte>& v) {
    return npu::KernelArgument{v.data(), static_cast<uint32_t>(v.size()), 0};
  };
  std::vector<npu::KernelArgument> arguments = {buffer(a), buffer(b), buffer(c)};
  for (const int64_t size : {p.m, p.k, p.n}) arguments.push_back({nullptr, 0, size});
  if (f.shift) arguments.push_back({nullptr, 0, 8});
  const npu::HostKernel kernel = npu::find_host_kernel(f.name, generation, arithmetic);
  const double work = 2.0 * static_cast<double>(p.m * p.k * p.n);
  const Sample s = measure(kernel, arguments, work, repeats);
  std::printf("%-27s npu%d %-8s %-7s %8.2f  [%.2f, %.2f]\n", f.name,
              generation == npu::arch::Generation::kNpu1 ? 1 : 2, npu::arithmetic_name(arithmetic),
              level, s.median, s.low, s.high);
}

void run_all(const Problem& problem, int repeats, std::string_view wanted) {
  using npu::aie_host::CpuLevel;
  std::printf("m=%lld k=%lld n=%lld, one thread, G operations/s: median [min, max] of %d\n",
              static_cast<long long>(problem.m), static_cast<long long>(problem.k),
              static_cast<long long>(problem.n), repeats);
  for (const auto generation : {npu::arch::Generation::kNpu1, npu::arch::Generation::kNpu2}) {
    const bool npu1 = generation == npu::arch::Generation::kNpu1;
    const auto& table = npu1 ? npu::aie_host::npu1_silicon : npu::aie_host::npu2_silicon;
    for (const auto& f : table.functions) {
      if (f.matmul == nullptr || std::string_view(f.name).find(wanted) == std::string_view::npos) {
        continue;
      }
      for (const CpuLevel level :
           {CpuLevel::kV2, CpuLevel::kV3, CpuLevel::kV4, CpuLevel::kV4Bf16}) {
        if (level > npu::aie_host::best_cpu_level()) break;
        setenv("NPU_CPU", npu::aie_host::cpu_level_name(level), 1);
        run(f, generation, npu::Arithmetic::kFast, npu::aie_host::cpu_level_name(level), problem,
            repeats);
      }
      run(f, generation, npu::Arithmetic::kSilicon, "-", problem, repeats);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Problem problem{64, 64, 64};
    if (argc > 3) problem = {std::atoll(argv[1]), std::atoll(argv[2]), std::atoll(argv[3])};
    const int repeats = argc == 2 ? std::atoi(argv[1]) : argc > 4 ? std::atoi(argv[4]) : 7;
    run_all(problem, std::max(repeats, 1), argc > 5 ? argv[5] : "");
  } catch (const npu::Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
