// C += A @ B as matmul.cc computes it, scheduled so that C's traffic hides behind multiplications.
//
// matmul.cc pipelines its loop over k: between two 2x2 blocks of C nothing is multiplied while one
// is stored and the next is loaded. Here k is unrolled and the loop over blocks is the pipelined
// one: the loads of a block and the stores of the one before it issue in slots that the
// multiplications leave free (docs/timing.md). AIE2P only: UPS and SRS are part of its C loads and
// stores, and a C tile of 8x8 fills one of its five accumulator registers, of which four multiply.
//
// bf16 operands come as BFP16 blocks that convert_bfp16.cc left in the core's memory, or that were
// stored so: converting in the loop, as matmul.cc does, takes the accumulator registers that hiding
// C needs. C may be BFP16, too; its blocks lie along n, so that it is another product's A.
//
// k is 16 to 64, so that a loop body fits program memory. C rows `row` on are computed: with A in
// row parts each part is a call. Layouts, types, rounding: as in matmul.cc.
#include "kernel.h"
#include "mmul_block.h"

#if defined(__clang__) && !defined(AIE_HOST_VARIANT)
#define UNROLL_STEPS _Pragma("unroll")
#else
#define UNROLL_STEPS
#endif

#if __AIE_ARCH__ >= 21

namespace {

using PipelinedI8Tile = NativeTile<int8_t, 8, 8, 8, 8>;

constexpr int32_t kMinSteps = 2, kMaxSteps = 8;  // of k, a tile's s each

// Calls multiply(steps): with a constant on cores, for which the loop over steps is unrolled; hosts
// compile one loop for all.
#ifdef AIE_HOST_VARIANT
template <typename Multiply>
inline void with_steps(int32_t steps, Multiply&& multiply) {
  multiply(steps);
}
#else
template <int32_t kSteps>
struct ConstantSteps {
  constexpr operator int32_t() const { return kSteps; }
};
template <int32_t kSteps = kMinSteps, typename Multiply>
inline void with_steps(int32_t steps, Multiply&& multiply) {
  if (steps == kSteps) {
    multiply(ConstantSteps<kSteps>());
  } else if constexpr (kSteps < kMaxSteps) {
    with_steps<kSteps + 1>(steps, multiply);
  }
}
#endif

// One loop over all 2x2 blocks of C, rows of blocks one after the other.
template <typename Tile, BLayout kLayout, typename Steps, typename TOut>
inline void multiply_blocks(const typename Tile::element* __restrict a,
                            const typename Tile::element* __restrict b, TOut* __restrict c,
                            int32_t m, Steps steps, int32_t n, int32_t shift) {
  constexpr int32_t kA = Tile::r * Tile::s, kB = Tile::s * Tile::t, kC = Tile::r * Tile::t;
  const int32_t columns = n / int32_t(Tile::t), across = columns / 2;
  const int32_t blocks = m / int32_t(2 * Tile::r) * across;
  // Elements from a B tile to the one on its right and to the one below it.
  const int32_t right = kLayout == BLayout::kColumnMajor ? steps * kB : kB;
  const int32_t below = kLayout == BLayout::kColumnMajor ? kB : columns * kB;
  const auto* b0 = b;
  int32_t column = 0;
  AIE_PREPARE_FOR_PIPELINING
  for (int32_t i = 0; i < blocks; ++i) {
    TOut* const c1 = c + columns * kC;
    MmulBlock<Tile, kLayout, TOut> block;
    block.load(c, c1, shift);
    UNROLL_STEPS
    for (int32_t step = 0; step < steps; ++step) {
      const auto* const a0 = a + step * kA;
      const auto* const b_step = b0 + step * below;
      block.mac(a0, a0 + steps * kA, b_step, b_step + right);
    }
    block.store(c, c1, shift);
    const bool last = ++column == across;  // selects, no branches: one loop body
    column = last ? 0 : column;
    a += last ? 2 * steps * kA : 0;
    b0 = last ? b : b0 + 2 * right;
    c += last ? 2 * kC + columns * kC : 2 * kC;
  }
}

template <BLayout kLayout, typename TOut>
inline void pipelined(const int8_t* a, const int8_t* b, TOut* c, int32_t m, int32_t k, int32_t n,
                      int32_t shift, int32_t row) {
  c += row * n;
#ifdef AIE_HOST_MATMUL  // x86 `fast` builds
  AIE_HOST_MATMUL<PipelinedI8Tile, kLayout == BLayout::kColumnMajor>(a, b, c, m, k, n, shift);
#else
  using Tile = PipelinedI8Tile;
  with_steps(k / int32_t(Tile::s),
             [&](auto steps) { multiply_blocks<Tile, kLayout>(a, b, c, m, steps, n, shift); });
#endif
}

// Where BFP16 operands are read from: blocks of 8x8 in the order of their addresses.
using Blocks = aie::block_vector_input_buffer_stream<bfp16ebs8, 64>;

// The 2x2 blocks of C from row `row` on, `columns` tiles of 8x8 wide, one after the other.
template <typename TOut>
class BlocksOfC {
 public:
  using Block = MmulBlock<BlockFloatTile, BLayout::kColumnMajor, TOut>;

  BlocksOfC(TOut* c, int32_t columns, int32_t row)
      : at_(c + row * columns * 8), lower_(columns * 64) {}
  void load(Block& block) const { block.load(at_, at_ + lower_, 0); }
  void store(const Block& block) const { block.store(at_, at_ + lower_, 0); }
  void next(bool last) { at_ += last ? 128 + lower_ : 128; }

 private:
  TOut* __restrict at_;
  const int32_t lower_;  // from a row of tiles to the next
};

// In BFP16. Tiles are loaded before those to their left are stored.
template <>
class BlocksOfC<bfp16ebs8> {
 public:
  using Block = MmulBlock<BlockFloatTile, BLayout::kColumnMajor, float>;

  BlocksOfC(bfp16ebs8* c, int32_t columns, int32_t row)
      : columns_(columns), upper_(c), lower_(c), upper_out_(c), lower_out_(c) {
    const int32_t first = row / 8 * columns;
    upper_.seek(first);
    upper_out_.seek(first);
    lower_.seek(first + columns);
    lower_out_.seek(first + columns);
  }
  void load(Block& block) { block.load_blocks(upper_, lower_); }
  void store(const Block& block) { block.store_blocks(upper_out_, lower_out_); }
  void next(bool last) {
    const int32_t skipped = last ? columns_ : 0;
    upper_.seek(skipped);
    lower_.seek(skipped);
    upper_out_.seek(skipped);
    lower_out_.seek(skipped);
  }

 private:
  const int32_t columns_;
  Blocks upper_, lower_;
  aie::block_vector_output_buffer_stream<bfp16ebs8, 64> upper_out_, lower_out_;
};

// As above for A [m/8][k/8] and B [n/8][k/8] in BFP16.
template <typename Steps, typename TOut>
inline void multiply_bfp16(const bfp16ebs8* __restrict a, const bfp16ebs8* __restrict b, TOut* c,
                           int32_t m, Steps steps, int32_t n, int32_t row) {
  const int32_t columns = n / 8, across = columns / 2, blocks = m / 16 * across;
  BlocksOfC<TOut> c_blocks(c, columns, row);
  Blocks a0(a), a1(a), b0(b), b1(b);
  a1.seek(steps);
  b1.seek(steps);
  int32_t column = 0;
  AIE_PREPARE_FOR_PIPELINING
  for (int32_t i = 0; i < blocks; ++i) {
    typename BlocksOfC<TOut>::Block block;
    c_blocks.load(block);
    UNROLL_STEPS
    for (int32_t step = 0; step < steps; ++step) {
      block.multiply(a0.pop(), a1.pop(), NPU_TRANSPOSED(b0.pop()), NPU_TRANSPOSED(b1.pop()));
    }
    c_blocks.store(block);
    const bool last = ++column == across;
    column = last ? 0 : column;
    a0.seek(last ? steps : -steps);
    a1.seek(last ? steps : -steps);
    b0.seek(last ? steps - columns * steps : steps);
    b1.seek(last ? steps - columns * steps : steps);
    c_blocks.next(last);
  }
}

template <typename TOut>
inline void pipelined_bfp16(const bfp16ebs8* a, const bfp16ebs8* b, TOut* c, int32_t m, int32_t k,
                            int32_t n, int32_t row) {
  aie::set_rounding(aie::rounding_mode::conv_even);
#ifdef AIE_HOST_MATMUL_BFP16  // x86 `fast` builds; refuse what only the code below treats right
  if (AIE_HOST_MATMUL_BFP16(a, b, c, m, k, n, row)) return;
#endif
  with_steps(k / 8, [&](auto steps) { multiply_bfp16(a, b, c, m, steps, n, row); });
}

#if NPU_DECLARATIONS
// The first row of C that a call computes.
constexpr Operand kFirstRow = integer("row", 0, npu::kernels::kMaxSize, 16);

// Bytes of an element of C in memory.
template <typename TOut>
constexpr double kBytesOf = sizeof(TOut);
template <>
constexpr double kBytesOf<bfp16ebs8> = 9.0 / 8;

template <typename Tile, npu::perf::InputKind kOperands, typename TOut>
consteval Declaration pipelined_product() {
  return {.operands = {buffer("a", "m * k"), buffer("b", "k * n"), buffer("c", "row * n + m * n"),
                       multiple("m", 2 * Tile::r),
                       integer("k", kMinSteps * Tile::s, kMaxSteps * Tile::s, Tile::s),
                       multiple("n", 2 * Tile::t)},
          .cycles =
              [](const Timing& timing, const int64_t* sizes) {
                return npu::perf::pipelined_cycles(timing, kOperands, kBytesOf<TOut>,
                                                   double(sizes[0]), double(sizes[1]),
                                                   double(sizes[2]));
              },
          .product = product_of<Tile>,
          .parts = one_product};
}

template <typename TOut>
consteval Declaration pipelined_i8() {
  return pipelined_product<PipelinedI8Tile, npu::perf::InputKind::kInt8, TOut>();
}
template <typename TOut>
consteval Declaration pipelined_bfp16() {
  return pipelined_product<BlockFloatTile, npu::perf::InputKind::kBfp16, TOut>().with(kFirstRow);
}
#endif

}  // namespace

NPU_KERNEL void matmul_bfp16_f32_pipelined(const bfp16ebs8* a, const bfp16ebs8* b, float* c,
                                           int32_t m, int32_t k, int32_t n, int32_t row) {
  pipelined_bfp16(a, b, c, m, k, n, row);
}
NPU_KERNEL void matmul_bfp16_bf16_pipelined(const bfp16ebs8* a, const bfp16ebs8* b, bfloat16* c,
                                            int32_t m, int32_t k, int32_t n, int32_t row) {
  pipelined_bfp16(a, b, c, m, k, n, row);
}
NPU_KERNEL void matmul_bfp16_bfp16_pipelined(const bfp16ebs8* a, const bfp16ebs8* b, bfp16ebs8* c,
                                             int32_t m, int32_t k, int32_t n, int32_t row) {
  pipelined_bfp16(a, b, c, m, k, n, row);
}

NPU_KERNEL void matmul_i8_i32_pipelined(const int8_t* a, const int8_t* b, int32_t* c, int32_t m,
                                        int32_t k, int32_t n, int32_t row) {
  aie::set_saturation(aie::saturation_mode::none);
  pipelined<BLayout::kRowMajor>(a, b, c, m, k, n, 0, row);
}
NPU_KERNEL void matmul_i8_i32_pipelined_bcol(const int8_t* a, const int8_t* b, int32_t* c,
                                             int32_t m, int32_t k, int32_t n, int32_t row) {
  aie::set_saturation(aie::saturation_mode::none);
  pipelined<BLayout::kColumnMajor>(a, b, c, m, k, n, 0, row);
}
NPU_KERNEL void matmul_i8_i16_pipelined(const int8_t* a, const int8_t* b, int16_t* c, int32_t m,
                                        int32_t k, int32_t n, int32_t shift, int32_t row) {
  narrow_to_nearest();
  pipelined<BLayout::kRowMajor>(a, b, c, m, k, n, shift, row);
}
NPU_KERNEL void matmul_i8_i16_pipelined_bcol(const int8_t* a, const int8_t* b, int16_t* c,
                                             int32_t m, int32_t k, int32_t n, int32_t shift,
                                             int32_t row) {
  narrow_to_nearest();
  pipelined<BLayout::kColumnMajor>(a, b, c, m, k, n, shift, row);
}
NPU_KERNEL void matmul_i8_i8_pipelined(const int8_t* a, const int8_t* b, int8_t* c, int32_t m,
                                       int32_t k, int32_t n, int32_t shift, int32_t row) {
  narrow_to_nearest();
  pipelined<BLayout::kRowMajor>(a, b, c, m, k, n, shift, row);
}
NPU_KERNEL void matmul_i8_i8_pipelined_bcol(const int8_t* a, const int8_t* b, int8_t* c, int32_t m,
                                            int32_t k, int32_t n, int32_t shift, int32_t row) {
  narrow_to_nearest();
  pipelined<BLayout::kColumnMajor>(a, b, c, m, k, n, shift, row);
}

NPU_DECLARE(matmul_bfp16_f32_pipelined, pipelined_bfp16<float>());
NPU_DECLARE(matmul_bfp16_bf16_pipelined, pipelined_bfp16<bfloat16>());
NPU_DECLARE(matmul_bfp16_bfp16_pipelined, pipelined_bfp16<bfp16ebs8>());
NPU_DECLARE(matmul_i8_i32_pipelined, pipelined_i8<int32_t>().with(kFirstRow));
NPU_DECLARE(matmul_i8_i32_pipelined_bcol, pipelined_i8<int32_t>().with(kFirstRow));
NPU_DECLARE(matmul_i8_i16_pipelined, pipelined_i8<int16_t>().with(kShift).with(kFirstRow));
NPU_DECLARE(matmul_i8_i16_pipelined_bcol, pipelined_i8<int16_t>().with(kShift).with(kFirstRow));
NPU_DECLARE(matmul_i8_i8_pipelined, pipelined_i8<int8_t>().with(kShift).with(kFirstRow));
NPU_DECLARE(matmul_i8_i8_pipelined_bcol, pipelined_i8<int8_t>().with(kShift).with(kFirstRow));

#endif  // AIE2P
