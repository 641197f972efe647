// A GEMM configuration as those who choose one see it: what it multiplies, its tile, and the time
// it is expected to take. Made from a line of the index of configurations, or from a design point
// of Python.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arch/timing.h"
#include "formats/pack.h"
#include "ops/gemm/gemm_schedule.h"
#include "perf/gemm_cost.h"
#include "runtime/configuration_store.h"

namespace npu::ops {

// Of B: rows or columns are dense in memory, or a copy in the layout that a configuration packs, or
// blocks of BFP16.
enum class GemmLayout : uint8_t { kRow, kColumn, kPacked, kBlocks };

// What partial sums are kept in: 32 bits, C's type, or bfloat16 for a C in BFP16.
enum class GemmSums : uint8_t { kWide, kNarrow, kBf16 };

// What a product asks of a configuration.
struct GemmKind {
  ElementType a = ElementType::kF32;  // what the array multiplies: kBf16, kI8, kI16 or kBfp16
  ElementType c = ElementType::kF32;
  GemmLayout layout = GemmLayout::kRow;
  GemmSums sums = GemmSums::kWide;  // always of results of 32 bits
  bool bfp16 = false;               // bfloat16 is multiplied through block floating point
  auto operator<=>(const GemmKind&) const = default;
  ElementType b() const { return layout == GemmLayout::kBlocks ? ElementType::kBfp16 : a; }
};

struct GemmDesign {
  std::string key;  // of its file, without the suffix
  arch::Generation generation = arch::Generation::kNpu2;
  GemmKind kind;
  bool for_array = false;  // chosen for time on the NPU; false: for time on an emulating host
  perf::GemmPoint point;   // without a size

  // Throws Error(kFormat) for a use that does not say what is needed.
  static GemmDesign of(const ConfigurationUse& use);
};

// What follows from the generation and the types; tile and buffers are the caller's to fill in.
perf::GemmPoint point_of(arch::Generation generation, const GemmKind& kind);
GemmTile tile_of(const perf::GemmPoint& point);

// Padded sizes of what single submissions compute of the product whose size `point` has, and how
// often each occurs.
struct GemmBlockCount {
  int64_t m, k, n, count;
};
std::vector<GemmBlockCount> count_blocks(const perf::GemmPoint& point);

// Predicted seconds of all submissions of a product, dispatch included, no load. packed: B is a
// packed copy, whose runs are as long as those of a column-major B.
double gemm_seconds(const arch::Timing& timing, perf::GemmPoint point, bool packed);

}  // namespace npu::ops
