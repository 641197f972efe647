// See host_cost.h.
#include "ops/gemm/host_cost.h"

#include <algorithm>

#include "rounding.h"

namespace npu::ops {

namespace {

constexpr double kSubmission = 4e-6;  // and what is the same for every core of the array
constexpr double kCore = 1.1e-6;
constexpr double kColumns = 8e-6;           // several, which threads wait for each other to end
constexpr double kMultiplication = 1.9e-6;  // of a tile of A and one of B
constexpr double kTile = 1.05e-6;  // of A or B, until it can be multiplied: for a row or column

}  // namespace

double host_seconds(const perf::GemmPoint& p, int threads) {
  const auto tiles = [](int64_t size, int64_t native, int64_t tile) {
    return static_cast<double>(round_up(size, native) / tile);
  };
  const double calls =
      tiles(p.M, p.rows * p.m, p.m) * tiles(p.N, p.columns * p.n, p.n) * tiles(p.K, p.k_mt, p.k);
  const double call = kMultiplication + kTile * (1.0 / p.rows + 1.0 / p.columns);
  return kSubmission + kCore * p.rows * p.columns + (p.columns > 1 ? kColumns : 0) +
         calls * call / std::min(threads, p.columns);
}

}  // namespace npu::ops
