// Measures the host builds of the matmul kernels on one thread: 10^9 operations per second per
// kernel, generation, arithmetic and instruction set.
//
//   npu_bench_kernels [m k n] [repeats] [name]
// default 64 64 64, 7 repeats, every product whose name contains `name`; prints median and spread
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>
#include <vector>

#include "error.h"
#include "kernels/call.h"
#include "kernels/cpu_level.h"
#include "kernels/registry.h"

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

void run(const npu::kernels::Declaration& kernel, npu::arch::Generation generation,
         npu::Arithmetic arithmetic, const char* level, const Problem& p, int repeats) {
  const npu::kernels::Integers sizes{p.m, p.k, p.n};  // other integers are 0
  std::vector<std::vector<std::byte>> memory;
  std::vector<npu::KernelArgument> arguments;
  size_t integer = 0;
  for (int i = 0; i < kernel.count; ++i) {
    const npu::kernels::Operand& operand = kernel.operands[i];
    if (!operand.buffer) {
      arguments.push_back({nullptr, 0, sizes[integer++]});
      continue;
    }
    const int64_t bytes = npu::kernels::bytes_of(operand.element, operand.size.value(sizes.data()));
    memory.emplace_back(static_cast<size_t>(bytes), std::byte{0x3C});
    arguments.push_back({memory.back().data(), static_cast<uint32_t>(bytes), 0});
  }
  const npu::HostKernel host = npu::find_host_kernel(kernel.name, generation, arithmetic);
  const double work = 2.0 * static_cast<double>(p.m * p.k * p.n);
  const Sample s = measure(host, arguments, work, repeats);
  std::printf("%-27s npu%d %-8s %-7s %8.2f  [%.2f, %.2f]\n", kernel.name,
              generation == npu::arch::Generation::kNpu1 ? 1 : 2, npu::arithmetic_name(arithmetic),
              level, s.median, s.low, s.high);
}

void run_all(const Problem& problem, int repeats, std::string_view wanted) {
  using npu::kernels::CpuLevel;
  std::printf("m=%lld k=%lld n=%lld, one thread, G operations/s: median [min, max] of %d\n",
              static_cast<long long>(problem.m), static_cast<long long>(problem.k),
              static_cast<long long>(problem.n), repeats);
  for (const auto generation : {npu::arch::Generation::kNpu1, npu::arch::Generation::kNpu2}) {
    for (const npu::kernels::Declaration* kernel : npu::kernels::declarations(generation)) {
      if (kernel->product == npu::kernels::Product::kNone ||
          kernel->operands[3].buffer ||  // not of m, k, n
          std::string_view(kernel->name).find(wanted) == std::string_view::npos) {
        continue;
      }
      for (const CpuLevel level : npu::kernels::kCpuLevels) {
        if (level > npu::kernels::best_cpu_level()) break;
        setenv("NPU_CPU", npu::kernels::cpu_level_name(level), 1);
        run(*kernel, generation, npu::Arithmetic::kFast, npu::kernels::cpu_level_name(level),
            problem, repeats);
      }
      run(*kernel, generation, npu::Arithmetic::kSilicon, "-", problem, repeats);
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
