// A 2x2 block of C tiles held in accumulators: the register blocking of the matmul kernels. Each A
// and B tile that is loaded feeds two multiplications, which hides the loads.
//
// Matrices are tiled in memory: A[m/r][k/s][r][s], B[k/s][n/t][s][t], C[m/r][n/t][r][t].
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#ifndef AIE_PREPARE_FOR_PIPELINING  // a hint of some compilers; Peano pipelines without it
#define AIE_PREPARE_FOR_PIPELINING
#endif

// Tiles of R x S, S x T and R x T elements. M is the row count of the multiplication the core has
// for them; where M < R a tile is R / M of those, one below the other and contiguous.
template <unsigned R, unsigned S, unsigned T, unsigned M, typename TIn, typename TOut>
class MmulBlock {
  using Mmul = aie::mmul<M, S, T, TIn, TIn>;
  static constexpr unsigned kParts = R / M;

 public:
  // c0, c1: the left C tile of the upper and lower row; the right tile follows each directly.
  void load(const TOut* c0, const TOut* c1) {
    for (unsigned p = 0; p < kParts; ++p) {
      c00_[p] = Mmul(aie::load_v<Mmul::size_C>(c0 + p * M * T));
      c01_[p] = Mmul(aie::load_v<Mmul::size_C>(c0 + p * M * T + R * T));
      c10_[p] = Mmul(aie::load_v<Mmul::size_C>(c1 + p * M * T));
      c11_[p] = Mmul(aie::load_v<Mmul::size_C>(c1 + p * M * T + R * T));
    }
  }

  // a0, a1: the A tiles of the two rows; b: the left B tile, the right one follows directly.
  void mac(const TIn* a0, const TIn* a1, const TIn* b) {
    const auto b0 = aie::load_v<Mmul::size_B>(b);
    const auto b1 = aie::load_v<Mmul::size_B>(b + S * T);
    for (unsigned p = 0; p < kParts; ++p) {
      const auto upper = aie::load_v<Mmul::size_A>(a0 + p * M * S);
      const auto lower = aie::load_v<Mmul::size_A>(a1 + p * M * S);
      c00_[p].mac(upper, b0);
      c01_[p].mac(upper, b1);
      c10_[p].mac(lower, b0);
      c11_[p].mac(lower, b1);
    }
  }

  void store(TOut* c0, TOut* c1) const {
    for (unsigned p = 0; p < kParts; ++p) {
      aie::store_v(c0 + p * M * T, c00_[p].template to_vector<TOut>());
      aie::store_v(c0 + p * M * T + R * T, c01_[p].template to_vector<TOut>());
      aie::store_v(c1 + p * M * T, c10_[p].template to_vector<TOut>());
      aie::store_v(c1 + p * M * T + R * T, c11_[p].template to_vector<TOut>());
    }
  }

 private:
  Mmul c00_[kParts], c01_[kParts], c10_[kParts], c11_[kParts];
};
