// C += A @ B for square tiles whose operands arrive as they are stored, by rows or by columns: what
// the three products of a linear layer need of one configuration.
//
// Every operand is a stored tile of rows x columns as [rows/4][columns/8][4][8], whichever side
// runs along k. `across`: kAcrossA if A is stored as its transpose (k, m), kAcrossB if B is stored
// as it is, (k, n); otherwise A is (m, k) and B its transpose (n, k), the layouts of
// matmul_bf16_f32_bcol. m, k, n are multiples of 8. Sums are those of that kernel.
#include "kernel.h"
#include "mmul_block.h"

#if __AIE_ARCH__ == 20

namespace {
namespace square {

constexpr int32_t kAcrossA = 1, kAcrossB = 2;
constexpr int32_t kBlock = 32;  // elements of 4 x 8

using Mmul = aie::mmul<4, 8, 4, bfloat16, bfloat16>;
using Half = aie::vector<bfloat16, 32>;

struct Pair {
  Half first, second;
};

// 8 x 8 elements: stored rows 8 row on, columns 8 column on.
inline aie::vector<bfloat16, 64> eight(const bfloat16* x, int32_t columns, int32_t row,
                                       int32_t column) {
  const bfloat16* upper = x + (2 * row * (columns / 8) + column) * kBlock;
  return aie::concat(aie::load_v<kBlock>(upper), aie::load_v<kBlock>(upper + columns / 8 * kBlock));
}

// The two 4 x 8 blocks of A in rows 8 row on, at step i of k.
template <bool kAcross>
inline Pair load_a(const bfloat16* a, int32_t m, int32_t k, int32_t row, int32_t i) {
  const auto v = kAcross ? aie::transpose(eight(a, m, i, row), 8, 8) : eight(a, k, row, i);
  return {v.template extract<kBlock>(0), v.template extract<kBlock>(1)};
}

// The two 8 x 4 blocks of B in columns 8 column on, at step i of k.
template <bool kAcross>
inline Pair load_b(const bfloat16* b, int32_t k, int32_t n, int32_t column, int32_t i) {
  if constexpr (kAcross) {
    const auto v = eight(b, n, i, column);
    return {aie::filter_even(v, 4), aie::filter_odd(v, 4)};
  } else {
    const auto v = eight(b, k, column, i);
    return {aie::transpose(v.template extract<kBlock>(0), 4, 8),
            aie::transpose(v.template extract<kBlock>(1), 4, 8)};
  }
}

template <bool kA, bool kB>
inline void multiply(const bfloat16* __restrict a, const bfloat16* __restrict b,
                     float* __restrict c, int32_t m, int32_t k, int32_t n) {
  for (int32_t row = 0; row < m / 8; ++row) {
    for (int32_t column = 0; column < n / 8; ++column) {
      float* c0 = c + (2 * row * (n / 4) + 2 * column) * 16;
      float* c1 = c0 + n / 4 * 16;
      Mmul c00(aie::load_v<16>(c0)), c01(aie::load_v<16>(c0 + 16));
      Mmul c10(aie::load_v<16>(c1)), c11(aie::load_v<16>(c1 + 16));
      AIE_PREPARE_FOR_PIPELINING
      for (int32_t i = 0; i < k / 8; ++i) {
        const Pair x = load_a<kA>(a, m, k, row, i), y = load_b<kB>(b, k, n, column, i);
        c00.mac(x.first, y.first);
        c01.mac(x.first, y.second);
        c10.mac(x.second, y.first);
        c11.mac(x.second, y.second);
      }
      aie::store_v(c0, c00.template to_vector<float>());
      aie::store_v(c0 + 16, c01.template to_vector<float>());
      aie::store_v(c1, c10.template to_vector<float>());
      aie::store_v(c1 + 16, c11.template to_vector<float>());
    }
  }
}

#ifdef AIE_HOST_MATMUL  // x86 `fast` builds: operands in the layout of matmul_bf16_f32_bcol
using Tile = NativeTile<bfloat16, 4, 8, 4, 4>;
constexpr int32_t kLargest = 1 << 14;  // elements of an operand: half a core's memory

// A stored tile of rows x columns as its transpose is stored: 8 x 8 elements at a time, rows and
// columns of which change places in three steps that interleave rows four apart.
inline const bfloat16* turned(const bfloat16* x, int32_t rows, int32_t columns, bfloat16* out) {
  using Eight = uint16_t __attribute__((vector_size(16)));
  static_assert(sizeof(bfloat16) == sizeof(uint16_t));
  for (int32_t row = 0; row < rows / 8; ++row) {
    for (int32_t column = 0; column < columns / 8; ++column) {
      const bfloat16* from = x + (2 * row * (columns / 8) + column) * kBlock;
      bfloat16* to = out + (2 * column * (rows / 8) + row) * kBlock;
      Eight v[8], w[8];
      __builtin_memcpy(v, from, sizeof v / 2);
      __builtin_memcpy(v + 4, from + columns / 8 * kBlock, sizeof v / 2);
      const auto interleave = [](const Eight* in, Eight* to_rows) {
        for (int32_t i = 0; i < 4; ++i) {
          to_rows[2 * i] = __builtin_shufflevector(in[i], in[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
          to_rows[2 * i + 1] =
              __builtin_shufflevector(in[i], in[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
        }
      };
      interleave(v, w);
      interleave(w, v);
      interleave(v, w);
      __builtin_memcpy(to, w, sizeof w / 2);
      __builtin_memcpy(to + rows / 8 * kBlock, w + 4, sizeof w / 2);
    }
  }
  return out;
}

inline bool multiply_fast(const bfloat16* a, const bfloat16* b, float* c, int32_t m, int32_t k,
                          int32_t n, int32_t across) {
  if (m * k > kLargest || k * n > kLargest) return false;
  alignas(64) bfloat16 a_turned[kLargest], b_turned[kLargest];
  if ((across & kAcrossA) != 0) a = turned(a, k, m, a_turned);
  if ((across & kAcrossB) != 0) b = turned(b, k, n, b_turned);
  return AIE_HOST_MATMUL<Tile, true>(a, b, c, m, k, n, 0);
}
#endif

#if NPU_DECLARATIONS
// Lines of the table of schedules, by `across` (npu.vliw.matmul_bf16_square); none for an A across
// beside a B that is not, which no layer has.
constexpr const char* kSchedules[] = {"square_col", nullptr, "square_row", "square_turned_row"};

consteval Declaration product() {
  return {
      .operands = {buffer("a", "m * k"), buffer("b", "k * n"), buffer("c", "m * n"),
                   multiple("m", 8), multiple("k", 8), multiple("n", 8), integer("across", 0, 3)},
      .cycles =
          [](const Timing& timing, const int64_t* sizes) {
            return npu::perf::matmul_cycles(timing, npu::perf::InputKind::kBf16Native, 4, false,
                                            double(sizes[0]), double(sizes[1]), double(sizes[2]));
          },
      .product = Product::kFloats,
      .parts = [](const Timing&, const int64_t* sizes) -> Parts {
        return {{{kSchedules[sizes[3]], {sizes[0], sizes[1], sizes[2]}}}};
      }};
}
#endif

}  // namespace square
}  // namespace

// At most six shuffles per eight multiplications, in a slot of their own: generated code has a
// multiplication in every cycle of its loop, and the kernel of "Unlocking the AMD Neural Processing
// Unit for ML Training on the Client", section VI, has its shuffles at no cost, too.
NPU_KERNEL void matmul_bf16_f32_square(const bfloat16* a, const bfloat16* b, float* c, int32_t m,
                                       int32_t k, int32_t n, int32_t across) {
#ifdef AIE_HOST_MATMUL
  if (square::multiply_fast(a, b, c, m, k, n, across)) return;
#endif
  const bool of_a = (across & square::kAcrossA) != 0, of_b = (across & square::kAcrossB) != 0;
  if (of_a && of_b) {
    square::multiply<true, true>(a, b, c, m, k, n);
  } else if (of_a) {
    square::multiply<true, false>(a, b, c, m, k, n);
  } else if (of_b) {
    square::multiply<false, true>(a, b, c, m, k, n);
  } else {
    square::multiply<false, false>(a, b, c, m, k, n);
  }
}

NPU_DECLARE(matmul_bf16_f32_square, square::product());

#endif
