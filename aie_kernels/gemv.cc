// y += W x for one block of weights, of any format (weight_block.h), and up to eight vectors x; the
// end of a row-block writes y, or keeps its largest elements. The formats' arithmetic is in
// gemv_q4nx.h, gemv_q8.h and gemv_bf16.h.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "gemv_bf16.h"
#include "gemv_q4nx.h"
#include "gemv_q8.h"
#include "gemv_setup.h"
#include "kernel.h"
#include "weight_block.h"

namespace {

using npu::blocks::Format, npu::blocks::columns_of;
using npu::gemv::kLongSetupWords;
using npu::gemv::kSetupWords, npu::gemv::kMaxBatch, npu::gemv::Output, npu::gemv::Setup;

constexpr int32_t kBlockRows = npu::blocks::kRows;

// Words of a core's state.
// Done: blocks, row-blocks; entries kept; in the decoder: elements of x kept, pieces of y sent.
enum State : int32_t { kBlock, kRowBlock, kKept, kStored, kSent };

template <Format kFormat, int32_t kVectors>
inline void multiply(const uint8_t* block, const bfloat16* x, float* y) {
#ifdef AIE_HOST_GEMV  // x86 `fast` builds
  AIE_HOST_GEMV<kFormat, kVectors>(block, x, y);
#else
  if constexpr (kFormat == Format::kQ4nx) {
    gemv_q4nx::multiply<kVectors>(block, x, y);
  } else if constexpr (kFormat == Format::kQ8) {
    gemv_q8::multiply<kVectors>(block, x, y);
  } else {
    gemv_bf16::multiply<kVectors>(block, x, y);
  }
#endif
}

template <Format kFormat>
inline void accumulate(const uint8_t* block, const bfloat16* x, float* sums, const Setup& setup,
                       int32_t done, int32_t batch) {
  constexpr auto kColumns = int32_t(columns_of(kFormat));
  const bfloat16* line = x + done % setup.x_blocks * batch * kColumns;
  if (batch == 1) {
    multiply<kFormat, 1>(block, line, sums);
  } else if (batch == 2) {
    multiply<kFormat, 2>(block, line, sums);
  } else if (batch == 4) {
    multiply<kFormat, 4>(block, line, sums);
  } else {
    multiply<kFormat, 8>(block, line, sums);
  }
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

inline void next_block(const uint8_t* block, const bfloat16* x, float* sums, int32_t* y,
                       const int32_t* words, int32_t* state, int32_t batch, int32_t format) {
  const Setup& setup = *reinterpret_cast<const Setup*>(words);
  if (format == int32_t(Format::kQ4nx)) {
    accumulate<Format::kQ4nx>(block, x, sums, setup, state[kBlock], batch);
  } else if (format == int32_t(Format::kQ8)) {
    accumulate<Format::kQ8>(block, x, sums, setup, state[kBlock], batch);
  } else {
    accumulate<Format::kBf16>(block, x, sums, setup, state[kBlock], batch);
  }
  if (++state[kBlock] < setup.x_blocks * setup.x_objects + setup.x_last) return;
  state[kBlock] = 0;
  finish(sums, y, setup, state);
}

inline void begin(const int32_t* record, int32_t words, int32_t* to, int32_t* state, float* sums) {
  for (int32_t i = 0; i < words; i += kSetupWords) {
    aie::store_v(to + i, aie::load_v<kSetupWords>(record + i));
  }
  aie::store_v(state, aie::zeros<int32_t, kSetupWords>());
  for (int32_t i = 0; i < kMaxBatch * kBlockRows; i += 16) {
    aie::store_v(sums + i, aie::zeros<float, 16>());
  }
}

#if NPU_DECLARATIONS
constexpr int32_t kXElements = npu::gemv::kXBytes / 2, kYWords = npu::gemv::kYBytes / 4;

// Whether a setup record and a state keep the kernel inside its buffers.
bool setup_fits(const Setup& setup, const int32_t* state, int64_t batch, int64_t format,
                int64_t elements) {
  const int64_t row_blocks = setup.row_blocks, x_objects = setup.x_objects;
  const int64_t x_blocks = setup.x_blocks, x_last = setup.x_last, top = setup.top;
  const int64_t y_bytes = npu::gemv::kYBytes;
  if (batch != setup.batch || (batch != 1 && batch != 2 && batch != 4 && batch != kMaxBatch)) {
    return false;
  }
  if (format != setup.format || format < 0 || format >= npu::blocks::kFormats) return false;
  const int64_t line = batch * columns_of(Format(format));
  if (x_objects < 0 || x_blocks < 1 || x_blocks > elements || x_blocks * line > elements) {
    return false;
  }
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

template <int64_t kElements>  // of x
void check_setup(const char* kernel, const KernelArgument* operands) {
  const auto& setup = *reinterpret_cast<const Setup*>(operands[4].data);
  const auto* state = reinterpret_cast<const int32_t*>(operands[5].data);
  if (setup_fits(setup, state, operands[6].value, operands[7].value, kElements)) return;
  npu::fail(npu::ErrorKind::kKernel,
            "[%s] the setup (row_blocks %d, x_objects %d, x_blocks %d, batch %d, output %d, top "
            "%d, format %d) or the state of the core does not fit its buffers; send the setup "
            "object first",
            kernel, setup.row_blocks, setup.x_objects, setup.x_blocks, setup.batch, setup.output,
            setup.top, setup.format);
}

double gemv_cycles(const Timing&, const int64_t* integers) {
  constexpr double kCall = 24;  // call, counters, dispatch by format and batch, loop set-up
  const int64_t batch = integers[0];
  switch (Format(integers[1])) {
    case Format::kQ4nx:
      return kCall + gemv_q4nx::cycles(batch);
    case Format::kQ8:
      return kCall + gemv_q8::cycles(batch);
    case Format::kBf16:
      break;
  }
  return kCall + gemv_bf16::cycles(batch);
}
#endif

}  // namespace

// Takes core `index`'s record out of the setup object and starts afresh.
NPU_KERNEL void gemv_setup(const bfloat16* table, int32_t* words, int32_t* state, float* sums,
                           int32_t index) {
  const int32_t* records = reinterpret_cast<const int32_t*>(table);
  begin(records + index * kSetupWords, kSetupWords, words, state, sums);
}

// The same for the long records of the decoder.
NPU_KERNEL void gemv_long_setup(const bfloat16* table, int32_t* words, int32_t* state, float* sums,
                                int32_t index) {
  const int32_t* records = reinterpret_cast<const int32_t*>(table);
  begin(records + index * kLongSetupWords, kLongSetupWords, words, state, sums);
}

// The next block of the core's row-blocks. x: lines of a block's columns for the blocks of an
// object, `batch` each. sums: (8, 32). y: the object of results. `batch` and `format` are those of
// the setup.
NPU_KERNEL void gemv_block(const uint8_t* block, const bfloat16* x, float* sums, int32_t* y,
                           const int32_t* words, int32_t* state, int32_t batch, int32_t format) {
  next_block(block, x, sums, y, words, state, batch, format);
}

// The same with x kept: it holds the lines of all blocks.
NPU_KERNEL void gemv_kept(const uint8_t* block, const bfloat16* x, float* sums, int32_t* y,
                          const int32_t* words, int32_t* state, int32_t batch, int32_t format) {
  next_block(block, x, sums, y, words, state, batch, format);
  state[kSent] = 0;
}

// Appends the first elements of an object of x to the kept x, as far as there is room: what ends
// there is padding.
NPU_KERNEL void gemv_keep(const bfloat16* object, bfloat16* x, int32_t* state, int32_t count) {
  bfloat16* to = x + state[kStored];
  const int32_t room = npu::gemv::kKeptElements - state[kStored];
  if (count > room) count = room;
  for (int32_t i = 0; i < count; i += 16) aie::store_v(to + i, aie::load_v<16>(object + i));
  state[kStored] += count;
}

// The next piece of the results.
NPU_KERNEL void gemv_piece(const int32_t* y, int32_t* piece, int32_t* state) {
  aie::store_v(piece, aie::load_v<16>(y + state[kSent] * 16));
  ++state[kSent];
}

NPU_DECLARE(gemv_setup,
            {.operands = {buffer("table", kXElements), buffer("words", kSetupWords),
                          buffer("state", kSetupWords), buffer("sums", kMaxBatch* kBlockRows),
                          integer("index", 0, npu::gemv::kMaxCores - 1)},
             .cycles = fixed<64>});
NPU_DECLARE(gemv_long_setup,
            {.operands = {buffer("table", kXElements), buffer("words", kLongSetupWords),
                          buffer("state", kSetupWords), buffer("sums", kMaxBatch* kBlockRows),
                          integer("index", 0, npu::gemv::kMaxCores / 2 - 1)},
             .cycles = fixed<68>});
NPU_DECLARE(gemv_block,
            {.operands = {buffer("block", npu::blocks::kBytes), buffer("x", kXElements),
                          buffer("sums", kMaxBatch* kBlockRows), buffer("y", kYWords),
                          buffer("words", kSetupWords), buffer("state", kSetupWords),
                          multiple("batch", 1), integer("format", 0, npu::blocks::kFormats - 1)},
             .cycles = gemv_cycles,
             .check = check_setup<kXElements>});
NPU_DECLARE(gemv_kept,
            {.operands = {buffer("block", npu::blocks::kBytes),
                          buffer("x", npu::gemv::kKeptElements),
                          buffer("sums", kMaxBatch* kBlockRows), buffer("y", kYWords),
                          buffer("words", kSetupWords), buffer("state", kSetupWords),
                          multiple("batch", 1), integer("format", 0, npu::blocks::kFormats - 1)},
             .cycles = gemv_cycles,
             .check = check_setup<npu::gemv::kKeptElements>});
NPU_DECLARE(
    gemv_keep,
    {.operands = {buffer("object", "count"), buffer("x", npu::gemv::kKeptElements),
                  buffer("state", kSetupWords).with_word(kStored, 0, npu::gemv::kKeptElements, 16),
                  integer("count", 16, kXElements, 16)},
     .cycles = [](const Timing& timing, const int64_t* count) {
       return npu::perf::elementwise_cycles(timing, double(count[0]), 2, 2);
     }});
NPU_DECLARE(gemv_piece,
            {.operands = {buffer("y", kYWords), buffer("piece", npu::gemv::kPieceBytes / 4),
                          buffer("state", kSetupWords).with_word(kSent, 0, kYWords / 16 - 1)},
             .cycles = fixed<24>});
