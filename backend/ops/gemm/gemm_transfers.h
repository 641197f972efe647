// The transfers of a GEMM between host memory and the array: BDs of shim tiles for tile rows of A,
// panels of B and blocks of C, in place, packed, or the tails of both (gemm_schedule.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "arch/bd.h"
#include "arch/geometry.h"
#include "ops/gemm/gemm_schedule.h"

namespace npu::ops {

// One transfer of a shim channel: where from or to, and how.
struct GemmTransfer {
  uint32_t argument;
  int64_t offset;  // bytes
  arch::Bd bd;
  int64_t repeats = 1;
};

class GemmTransfers {
 public:
  GemmTransfers(const GemmTile& tile, const GemmProblem& problem, const arch::Geometry& geometry)
      : tile_(tile), problem_(problem), geometry_(geometry) {}

  // The most BDs that a round takes of an operand.
  int kinds() const;
  // Whether both operands are read object by object: where B cannot be read otherwise, a longer A
  // would have the memory's bandwidth until it fills its memtiles.
  bool by_objects() const { return problem_.b.order == GemmOrder::kTurned; }

  std::vector<GemmTransfer> a(int64_t row) const;
  std::vector<GemmTransfer> b(int64_t col) const;
  // Half the rows of every memtile object of a pair's panel; of values, not of blocks.
  std::vector<GemmTransfer> b_of_pair(int64_t first, int64_t half) const;
  // The first or second half of the rows of each object of the panel of B from `column` on, an
  // object per execution of the BD: `count` of them, or all, from `object` on.
  GemmTransfer b_half(int64_t column, int64_t half, int64_t object = 0, int64_t count = 0) const;
  // The same of A's tile row `r`, whole objects.
  GemmTransfer a_objects(size_t r, int64_t object, int64_t count) const;
  // The (rows * m, n) block of C that one column of cores produces; `block`: first column of all.
  GemmTransfer c(int64_t row, int64_t block, int64_t col) const;

 private:
  bool has_tail(const GemmFeed& feed, const GemmCell& cell) const;
  int tasks_of(const GemmFeed& feed, const GemmCell& cell) const;
  std::vector<GemmTransfer> pieces(const GemmFeed& feed, const GemmCell& cell,
                                   const std::array<uint32_t, 3>& arguments, int64_t values,
                                   int64_t first_value, bool contiguous) const;
  std::vector<GemmTransfer> across_pieces(const GemmFeed& feed, const GemmCell& cell,
                                          const std::array<uint32_t, 3>& arguments, int64_t count,
                                          int64_t first) const;
  std::vector<GemmTransfer> along_objects(int64_t rows, const GemmFeed& feed, const GemmCell& cell,
                                          uint32_t argument, int64_t offset) const;
  arch::Bd along_k(int64_t rows, const GemmFeed& feed, const GemmCell& cell) const;
  arch::Bd across_k(int64_t cols, const GemmFeed& feed, int64_t size) const;
  void turn(arch::Bd& bd, int64_t count, int64_t stride_bytes) const;
  arch::Bd linear(int64_t bytes) const;

  GemmTile tile_;
  GemmProblem problem_;
  const arch::Geometry& geometry_;
};

}  // namespace npu::ops
