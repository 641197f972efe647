// y += W x for one Q4NX block of W (32 rows x 256 columns of 4-bit codes with a bf16 scale d and
// minimum m per row and group of 32 columns) and up to eight vectors x; the end of a row-block
// writes y, or keeps its largest elements.
//
// Block: 256 d, 256 m (index group * 32 + row), then codes: byte half * 2048 + column * 8 + j holds
// rows half * 16 + 2 j (low nibble) and 2 j + 1. Arithmetic, per row and group:
//   X = sum x      s = -128 X + sum (128 + code) x      y += d s + m X
// in fp32: 128 + code is bf16 with the code as low byte, so that widening a code is one interleave,
// and every product is exact in fp32. A sub-block of 16 x 8 codes is one 64-byte load.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "gemv_setup.h"
#include "kernel.h"
#include "q4nx_block.h"

namespace {

namespace q4nx = npu::q4nx;
using npu::gemv::kSetupWords, npu::gemv::kMaxBatch, npu::gemv::Output, npu::gemv::Setup;

constexpr int32_t kBlockRows = q4nx::kRows, kBlockColumns = q4nx::kColumns, kHalfRows = 16;
constexpr int32_t kGroup = q4nx::kGroup, kGroups = q4nx::kGroups, kPlane = q4nx::kPlaneBytes;
constexpr int32_t kHalf = kBlockColumns * kHalfRows / 2;  // bytes of codes per half
constexpr int32_t kSubColumns = 8, kSubBytes = kSubColumns * kHalfRows / 2;

// Words of a core's state.
enum State : int32_t { kBlock, kRowBlock, kKept };  // done: blocks, row-blocks; entries kept

// One column of 32 codes, as 128 + code.
inline aie::vector<bfloat16, 32> widen(const aie::vector<uint8_t, 16>& upper,
                                       const aie::vector<uint8_t, 16>& lower) {
  const auto magic = aie::broadcast<uint8_t, 32>(0x43);  // high byte of bf16 128
  const auto zipped = aie::interleave_zip(aie::concat(upper, lower), magic, 1);
  return aie::concat(zipped.first, zipped.second).cast_to<bfloat16>();
}

template <int32_t kVectors>
inline void multiply(const uint8_t* __restrict block, const bfloat16* __restrict x,
                     float* __restrict y) {
  const bfloat16* d = reinterpret_cast<const bfloat16*>(block);
  const bfloat16* m = reinterpret_cast<const bfloat16*>(block + kPlane);
  const uint8_t* upper = block + 2 * kPlane;
  const uint8_t* lower = upper + kHalf;
  // Few vectors have two sums each, of even and odd columns: a sum takes a product every 4 cycles.
  constexpr int32_t kParts = kVectors <= 2 ? 2 : 1;
  for (int32_t group = 0; group < kGroups; ++group) {
    aie::accum<accfloat, 32> sums[kVectors][kParts];
    float totals[kVectors];
    for (int32_t v = 0; v < kVectors; ++v) {
      const aie::accum<accfloat, 32> part(aie::load_v<32>(x + v * kBlockColumns));
      totals[v] = aie::reduce_add(part.template to_vector<float>());
      sums[v][0].from_vector(aie::broadcast<float, 32>(-128 * totals[v]));
      if constexpr (kParts == 2) sums[v][1].from_vector(aie::zeros<float, 32>());
    }
    for (int32_t sub = 0; sub < kGroup; sub += kSubColumns) {
      const auto above = aie::unpack(aie::load_v<128>(reinterpret_cast<const uint4*>(upper)));
      const auto below = aie::unpack(aie::load_v<128>(reinterpret_cast<const uint4*>(lower)));
      for (int32_t c = 0; c < kSubColumns; ++c) {
        const auto codes = widen(above.extract<kHalfRows>(static_cast<unsigned>(c)),
                                 below.extract<kHalfRows>(static_cast<unsigned>(c)));
        for (int32_t v = 0; v < kVectors; ++v) {
          const auto factor = aie::broadcast<bfloat16, 32>(x[v * kBlockColumns + sub + c]);
          auto& sum = sums[v][c % kParts];
          sum = aie::mac(sum, codes, factor);
        }
      }
      upper += kSubBytes;
      lower += kSubBytes;
    }
    const auto scale = aie::accum<accfloat, 32>(aie::load_v<32>(d)).to_vector<float>();
    const auto minimum = aie::accum<accfloat, 32>(aie::load_v<32>(m)).to_vector<float>();
    for (int32_t v = 0; v < kVectors; ++v) {
      if constexpr (kParts == 2) sums[v][0] = aie::add(sums[v][0], sums[v][1]);
      aie::accum<accfloat, 32> row(aie::load_v<32>(y + v * kBlockRows));
      row = aie::mac(row, scale, sums[v][0].template to_vector<float>());
      row = aie::mac(row, minimum, aie::broadcast<float, 32>(totals[v]));
      aie::store_v(y + v * kBlockRows, row.template to_vector<float>());
    }
    d += kBlockRows;
    m += kBlockRows;
    x += kGroup;
  }
}

template <int32_t kVectors>
inline void accumulate(const uint8_t* block, const bfloat16* x, float* y) {
#ifdef AIE_HOST_GEMV  // x86 `fast` builds
  AIE_HOST_GEMV<kVectors>(block, x, y);
#else
  multiply<kVectors>(block, x, y);
#endif
}

// Whether a comes before b in a list of largest values; NaNs come last, ties keep their order.
inline bool larger(float a, float b) { return a > b || (b != b && a == a); }

// Merges 32 values of consecutive rows into a vector's list: `top` values, then their rows.
inline void keep_largest(const float* values, int32_t first, int32_t count, int32_t top,
                         int32_t* kept, int32_t* list) {
  int32_t filled = *kept;
  float smallest = 0;
  if (filled == top) __builtin_memcpy(&smallest, list + top - 1, 4);
  for (int32_t i = 0; i < count; ++i) {
    if (filled == top && !larger(values[i], smallest)) continue;
    int32_t place = filled < top ? filled++ : top - 1;
    for (; place > 0; --place) {
      float before;
      __builtin_memcpy(&before, list + place - 1, 4);
      if (!larger(values[i], before)) break;
      list[place] = list[place - 1];
      list[top + place] = list[top + place - 1];
    }
    __builtin_memcpy(list + place, &values[i], 4);
    list[top + place] = first + i;
    __builtin_memcpy(&smallest, list + top - 1, 4);
  }
  *kept = filled;
}

// A row-block is complete: its sums go where the setup says and become zero.
inline void finish(float* sums, int32_t* y, const Setup& setup, int32_t* state) {
  const int32_t batch = setup.batch, count = batch * kBlockRows, at = state[kRowBlock];
  if (setup.output == int32_t(Output::kTop)) {
    const int32_t first = setup.first + at * setup.step, top = setup.top;
    const int32_t left = setup.rows - first, rows = left < kBlockRows ? left : kBlockRows;
    int32_t kept = 0;
    for (int32_t v = 0; v < batch; ++v) {
      kept = at == 0 ? 0 : state[kKept];
      if (at == 0) {
        for (int32_t i = 0; i < top; ++i) y[v * 2 * top + top + i] = -1;
      }
      keep_largest(sums + v * kBlockRows, first, rows, top, &kept, y + v * 2 * top);
    }
    state[kKept] = kept;  // the same for every vector
  } else if (setup.output == int32_t(Output::kF32)) {
    float* out = reinterpret_cast<float*>(y) + at * count;
    for (int32_t i = 0; i < count; i += 16) aie::store_v(out + i, aie::load_v<16>(sums + i));
  } else {
    // A core resets to floor, which would bias every result; the mode stays set afterwards.
    aie::set_rounding(aie::rounding_mode::conv_even);
    bfloat16* out = reinterpret_cast<bfloat16*>(y) + at * count;
    for (int32_t i = 0; i < count; i += 16) {
      const aie::accum<accfloat, 16> wide(aie::load_v<16>(sums + i));
      aie::store_v(out + i, wide.to_vector<bfloat16>());
    }
  }
  for (int32_t i = 0; i < count; i += 16) aie::store_v(sums + i, aie::zeros<float, 16>());
  state[kRowBlock] = at + 1 == setup.row_blocks ? 0 : at + 1;
}

#if NPU_DECLARATIONS
constexpr int32_t kXElements = npu::gemv::kXBytes / 2, kYWords = npu::gemv::kYBytes / 4;

// Whether a setup record and a state keep the kernel inside its buffers.
bool setup_fits(const Setup& setup, const int32_t* state, int64_t batch) {
  const int64_t row_blocks = setup.row_blocks, x_objects = setup.x_objects;
  const int64_t x_blocks = setup.x_blocks, x_last = setup.x_last, top = setup.top;
  const int64_t y_bytes = npu::gemv::kYBytes;
  if (batch != setup.batch || (batch != 1 && batch != 2 && batch != 4 && batch != kMaxBatch)) {
    return false;
  }
  if (x_objects < 0 || x_blocks < 1 || x_blocks * batch * kBlockColumns > kXElements) return false;
  if (x_last < 1 || x_last > x_blocks) return false;
  if (state[kBlock] < 0 || state[kBlock] >= x_objects * x_blocks + x_last) return false;
  if (state[kRowBlock] < 0 || state[kRowBlock] >= row_blocks) return false;
  const auto output = Output(setup.output);
  if (output == Output::kTop) {
    return top >= 1 && top <= y_bytes && batch * top * npu::gemv::kTopBytes <= y_bytes &&
           state[kKept] >= 0 && state[kKept] <= top;
  }
  if (output != Output::kBf16 && output != Output::kF32) return false;
  const int64_t bytes = output == Output::kF32 ? 4 : 2;
  return row_blocks <= y_bytes && row_blocks * batch * kBlockRows * bytes <= y_bytes;
}

void check_setup(const char* kernel, const KernelArgument* operands) {
  const auto& setup = *reinterpret_cast<const Setup*>(operands[4].data);
  const auto* state = reinterpret_cast<const int32_t*>(operands[5].data);
  if (setup_fits(setup, state, operands[6].value)) return;
  npu::fail(npu::ErrorKind::kKernel,
            "[%s] the setup (row_blocks %d, x_objects %d, x_blocks %d, batch %d, output %d, top "
            "%d) or the state of the core does not fit its buffers; send the setup object first",
            kernel, setup.row_blocks, setup.x_objects, setup.x_blocks, setup.batch, setup.output,
            setup.top);
}

// Not measured on hardware. Per 8 columns of 32 rows: two loads (npu1: four of 32 bytes) beside
// everything else; in the move slot 4 unpacks of 4-bit codes, 8 interleaves that make bf16 of them,
// and a broadcast per column and vector; in the multiply slot one 32-lane bf16 multiply-add per
// column and vector (npu1: two of 16 lanes). A multiply-add follows 4 cycles after the one it
// depends on: one or two vectors keep two sums each, of every other column. Per group of 32 columns
// and vector: the sum of x (load, widen, 5 halvings), its start value, and two fp32 multiply-adds
// of 32 lanes, each built from bf16 parts.
double gemv_cycles(const Timing&, const int64_t* batch) {
  constexpr double kUnpacks = 4, kInterleaves = 8, kChain = 4;
  constexpr double kGroupSum = 14, kGroupScale = 28;  // cycles per vector
  constexpr double kCall = 24;                        // call, counters, batch dispatch, loop set-up
  constexpr double kSteps = kBlockColumns / kSubColumns, kColumns = kSubColumns;
  constexpr double kLanes = __AIE_ARCH__ == 20 ? 16 : 32;
  const auto vectors = double(batch[0]);
  const double moves = kUnpacks + kInterleaves + kColumns * vectors;
  const double macs = kColumns * vectors * kBlockRows / kLanes;
  const double chain = kColumns * kChain / (batch[0] <= 2 ? 2 : 1);
  const double step = longest(longest(moves, macs), chain);
  return kSteps * step + kGroups * vectors * (kGroupSum + kGroupScale) + kCall;
}
#endif

}  // namespace

// Takes core `index`'s record out of the setup object and starts afresh.
NPU_KERNEL void gemv_setup(const bfloat16* table, int32_t* words, int32_t* state, float* sums,
                           int32_t index) {
  const int32_t* record = reinterpret_cast<const int32_t*>(table) + index * kSetupWords;
  aie::store_v(words, aie::load_v<kSetupWords>(record));
  aie::store_v(state, aie::zeros<int32_t, kSetupWords>());
  for (int32_t i = 0; i < kMaxBatch * kBlockRows; i += 16)
    aie::store_v(sums + i, aie::zeros<float, 16>());
}

// The next block of the core's row-blocks. x: lines of 256 for the blocks of an object, `batch`
// each. sums: (8, 32). y: the object of results. `batch` is that of the setup.
NPU_KERNEL void gemv_q4nx(const uint8_t* block, const bfloat16* x, float* sums, int32_t* y,
                          const int32_t* words, int32_t* state, int32_t batch) {
  const Setup& setup = *reinterpret_cast<const Setup*>(words);
  const bfloat16* line = x + state[kBlock] % setup.x_blocks * batch * kBlockColumns;
  if (batch == 1) {
    accumulate<1>(block, line, sums);
  } else if (batch == 2) {
    accumulate<2>(block, line, sums);
  } else if (batch == 4) {
    accumulate<4>(block, line, sums);
  } else {
    accumulate<8>(block, line, sums);
  }
  if (++state[kBlock] < setup.x_blocks * setup.x_objects + setup.x_last) return;
  state[kBlock] = 0;
  finish(sums, y, setup, state);
}

NPU_DECLARE(gemv_setup,
            {.operands = {buffer("table", kXElements), buffer("words", kSetupWords),
                          buffer("state", kSetupWords), buffer("sums", kMaxBatch* kBlockRows),
                          integer("index", 0, npu::gemv::kMaxCores - 1)},
             .cycles = fixed<64>});
NPU_DECLARE(gemv_q4nx, {.operands = {buffer("block", q4nx::kBlockBytes), buffer("x", kXElements),
                                     buffer("sums", kMaxBatch* kBlockRows), buffer("y", kYWords),
                                     buffer("words", kSetupWords), buffer("state", kSetupWords),
                                     multiple("batch", 1)},
                        .cycles = gemv_cycles,
                        .check = check_setup});
