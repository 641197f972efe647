// Multiplies two matrices on a device (default: the emulated npu2) and compares with double
// precision: matmul [M K N [DEVICE]].
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <npu/npu.hpp>
#include <random>
#include <string>
#include <vector>

int main(int argc, char** argv) try {
  const int64_t m = argc > 3 ? std::atoll(argv[1]) : 300;
  const int64_t k = argc > 3 ? std::atoll(argv[2]) : 500;
  const int64_t n = argc > 3 ? std::atoll(argv[3]) : 700;
  npu::Device device(argc > 4 ? argv[4] : "emu:npu2");

  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> a(m * k), b(k * n), c(m * n);
  for (float& x : a) x = normal(random);
  for (float& x : b) x = normal(random);

  const npu::Run run =
      device.matmul(npu::Matrix(a, m, k), npu::Matrix(b, k, n), npu::Matrix(c, m, n));

  double error = 0, size = 0;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t x = 0; x < k; ++x) sum += double{a[i * k + x]} * double{b[x * n + j]};
      error += (c[i * n + j] - sum) * (c[i * n + j] - sum);
      size += sum * sum;
    }
  }
  const double relative = std::sqrt(error / size);
  const npu::DeviceInfo info = device.info();
  std::printf("libnpu %s on %s (%s, arithmetic %s, bf16 %s)\n", npu::version().c_str(),
              info.name.c_str(), info.emulated ? "emulated" : "hardware", info.arithmetic.c_str(),
              info.bf16.c_str());
  std::printf("ran %s (%s) in %.1f ms of host time\n", run.configuration.c_str(),
              run.reason.c_str(), static_cast<double>(run.array_ns) * 1e-6);
  std::printf("%lld x %lld x %lld: relative error %.2g\n", static_cast<long long>(m),
              static_cast<long long>(k), static_cast<long long>(n), relative);
  return relative < 0.03 ? 0 : 1;  // both operands are rounded to 8 bits, see docs/fidelity.md
} catch (const npu::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
