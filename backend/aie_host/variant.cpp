// One host build of all kernels. Compiled several times (aie_kernels/host_kernels.cmake) with
// AIE_HOST_VARIANT naming the build; every function of the kernel sources gets that name appended.
#include "aie_host/variants.h"

#define NPU_JOIN_(a, b) a##_##b
#define NPU_JOIN(a, b) NPU_JOIN_(a, b)
#define NPU_STRING_(x) #x
#define NPU_STRING(x) NPU_STRING_(x)
#define NPU_VARIANT(name) NPU_JOIN(name, AIE_HOST_VARIANT)
#define matmul_bf16_f32 NPU_VARIANT(matmul_bf16_f32)
#define matmul_bf16_f32_bcol NPU_VARIANT(matmul_bf16_f32_bcol)
#define matmul_bf16_bf16 NPU_VARIANT(matmul_bf16_bf16)
#define matmul_bf16_bf16_bcol NPU_VARIANT(matmul_bf16_bf16_bcol)
#define matmul_i8_i32 NPU_VARIANT(matmul_i8_i32)
#define matmul_i8_i32_bcol NPU_VARIANT(matmul_i8_i32_bcol)
#define matmul_i8_i16 NPU_VARIANT(matmul_i8_i16)
#define matmul_i8_i16_bcol NPU_VARIANT(matmul_i8_i16_bcol)
#define matmul_i8_i8 NPU_VARIANT(matmul_i8_i8)
#define matmul_i8_i8_bcol NPU_VARIANT(matmul_i8_i8_bcol)
#define matmul_i16_i32 NPU_VARIANT(matmul_i16_i32)
#define matmul_i16_i32_bcol NPU_VARIANT(matmul_i16_i32_bcol)
#define matmul_i8_i32_pipelined NPU_VARIANT(matmul_i8_i32_pipelined)
#define matmul_i8_i32_pipelined_bcol NPU_VARIANT(matmul_i8_i32_pipelined_bcol)
#define matmul_i8_i16_pipelined NPU_VARIANT(matmul_i8_i16_pipelined)
#define matmul_i8_i16_pipelined_bcol NPU_VARIANT(matmul_i8_i16_pipelined_bcol)
#define matmul_i8_i8_pipelined NPU_VARIANT(matmul_i8_i8_pipelined)
#define matmul_i8_i8_pipelined_bcol NPU_VARIANT(matmul_i8_i8_pipelined_bcol)
#define matmul_bf16bfp16_f32 NPU_VARIANT(matmul_bf16bfp16_f32)
#define matmul_bf16bfp16_f32_bcol NPU_VARIANT(matmul_bf16bfp16_f32_bcol)
#define matmul_bf16bfp16_bf16 NPU_VARIANT(matmul_bf16bfp16_bf16)
#define matmul_bf16bfp16_bf16_bcol NPU_VARIANT(matmul_bf16bfp16_bf16_bcol)
#define matmul_bfp16_f32_pipelined NPU_VARIANT(matmul_bfp16_f32_pipelined)
#define matmul_bfp16_bf16_pipelined NPU_VARIANT(matmul_bfp16_bf16_pipelined)
#define convert_bf16_bfp16_a NPU_VARIANT(convert_bf16_bfp16_a)
#define convert_bf16_bfp16_b NPU_VARIANT(convert_bf16_bfp16_b)
#define convert_bf16_bfp16_b_bcol NPU_VARIANT(convert_bf16_bfp16_b_bcol)
#define zero_f32 NPU_VARIANT(zero_f32)
#define zero_i32 NPU_VARIANT(zero_i32)
#define zero_i16 NPU_VARIANT(zero_i16)
#define zero_i8 NPU_VARIANT(zero_i8)
#define zero_bf16 NPU_VARIANT(zero_bf16)
#define convert_f32_bf16 NPU_VARIANT(convert_f32_bf16)
#define narrow_i32_i8 NPU_VARIANT(narrow_i32_i8)
#define narrow_i32_i16 NPU_VARIANT(narrow_i32_i16)
#define dequant_q4nx NPU_VARIANT(dequant_q4nx)
#define gemv_setup NPU_VARIANT(gemv_setup)
#define gemv_q4nx NPU_VARIANT(gemv_q4nx)

#include "convert.cc"
#include "convert_bfp16.cc"
#include "dequant_q4nx.cc"
#include "gemv_q4nx.cc"
#include "matmul.cc"
#include "matmul_pipelined.cc"
#include "zero.cc"

namespace {

using npu::aie_host::HostFunction;

// Whether a pointer to T is one to BFP16 blocks, 9 bytes per 8 elements.
#if __AIE_ARCH__ >= 21
template <typename T>
constexpr bool kBlocks = std::is_same_v<T, bfp16ebs8>;
#else
template <typename T>
constexpr bool kBlocks = false;
#endif

// The second parameter names the operand types; its value is the kernel again.
// kRow: the last of its integers is a row.
template <typename Tile, bool kRow, auto kKernel, typename TIn, typename TOut, typename... Extra>
constexpr HostFunction matmul_entry(const char* name,
                                    void (*)(const TIn*, const TIn*, TOut*, int32_t, int32_t,
                                             int32_t, Extra...)) {
  HostFunction f{};
  f.name = name;
  f.in_bytes = sizeof(TIn);
  f.out_bytes = sizeof(TOut);
  f.in_blocks = kBlocks<TIn>;
  constexpr bool kShift = sizeof...(Extra) > (kRow ? 1 : 0);
  f.shift = kShift;
  f.row = kRow;
  f.tile = {Tile::r, Tile::s, Tile::t};
  f.matmul = [](const void* a, const void* b, void* c, int32_t m, int32_t k, int32_t n,
                [[maybe_unused]] int32_t shift, [[maybe_unused]] int32_t row) {
    const auto call = [&](auto... extra) {
      kKernel(static_cast<const TIn*>(a), static_cast<const TIn*>(b), static_cast<TOut*>(c), m, k,
              n, extra...);
    };
    if constexpr (kRow && kShift) {
      call(shift, row);
    } else if constexpr (kRow) {
      call(row);
    } else if constexpr (kShift) {
      call(shift);
    } else {
      call();
    }
  };
  return f;
}

template <auto kKernel, typename T>
constexpr HostFunction zero_entry(const char* name, void (*)(T*, int32_t)) {
  HostFunction f{};
  f.name = name;
  f.out_bytes = sizeof(T);
  f.zero = [](void* c, int32_t count) { kKernel(static_cast<T*>(c), count); };
  return f;
}

template <auto kKernel, typename TIn, typename TOut, typename... Extra>
constexpr HostFunction convert_entry(const char* name,
                                     void (*)(const TIn*, TOut*, int32_t, Extra...)) {
  HostFunction f{};
  f.name = name;
  f.in_bytes = sizeof(TIn);
  f.out_bytes = sizeof(TOut);
  f.out_blocks = kBlocks<TOut>;  // then the integer after the count is a depth
  f.shift = sizeof...(Extra) != 0 && !f.out_blocks;
  f.depth = sizeof...(Extra) != 0 && f.out_blocks;
  f.convert = [](const void* src, void* dst, int32_t count, [[maybe_unused]] int32_t extra) {
    kKernel(static_cast<const TIn*>(src), static_cast<TOut*>(dst), count,
            static_cast<Extra>(extra)...);
  };
  return f;
}

constexpr HostFunction dequant_entry(const char* name) {
  HostFunction f{};
  f.name = name;
  f.dequant = [](const uint8_t* block, void* out) {
    dequant_q4nx(block, static_cast<bfloat16*>(out));
  };
  return f;
}

constexpr HostFunction gemv_setup_entry(const char* name) {
  HostFunction f{};
  f.name = name;
  f.setup = [](const void* table, int32_t* words, int32_t* state, float* sums, int32_t index) {
    gemv_setup(static_cast<const bfloat16*>(table), words, state, sums, index);
  };
  return f;
}

constexpr HostFunction gemv_entry(const char* name) {
  HostFunction f{};
  f.name = name;
  f.gemv = [](const uint8_t* block, const void* x, float* sums, int32_t* y, const int32_t* words,
              int32_t* state, int32_t batch) {
    gemv_q4nx(block, static_cast<const bfloat16*>(x), sums, y, words, state, batch);
  };
  return f;
}

}  // namespace

// `#kernel` is the name as written here, `kernel` the function of this variant.
#define NPU_MATMUL(kernel, Tile) matmul_entry<Tile, false, &kernel>(#kernel, &kernel)
#define NPU_PIPELINED(kernel, Tile) matmul_entry<Tile, true, &kernel>(#kernel, &kernel)
#define NPU_ZERO(kernel) zero_entry<&kernel>(#kernel, &kernel)
#define NPU_CONVERT(kernel) convert_entry<&kernel>(#kernel, &kernel)

namespace npu::aie_host {

extern constinit const KernelTable AIE_HOST_VARIANT = {
    .name = NPU_STRING(AIE_HOST_VARIANT),
    .functions =
        {
            NPU_MATMUL(matmul_bf16_f32, Bf16Tile),
            NPU_MATMUL(matmul_bf16_f32_bcol, Bf16Tile),
            NPU_MATMUL(matmul_bf16_bf16, Bf16Tile),
            NPU_MATMUL(matmul_bf16_bf16_bcol, Bf16Tile),
            NPU_MATMUL(matmul_i8_i32, I8Tile),
            NPU_MATMUL(matmul_i8_i32_bcol, I8Tile),
            NPU_MATMUL(matmul_i8_i16, I8Tile),
            NPU_MATMUL(matmul_i8_i16_bcol, I8Tile),
            NPU_MATMUL(matmul_i8_i8, I8Tile),
            NPU_MATMUL(matmul_i8_i8_bcol, I8Tile),
            NPU_MATMUL(matmul_i16_i32, I16Tile),
            NPU_MATMUL(matmul_i16_i32_bcol, I16Tile),
            NPU_ZERO(zero_f32),
            NPU_ZERO(zero_i32),
            NPU_ZERO(zero_i16),
            NPU_ZERO(zero_i8),
            NPU_ZERO(zero_bf16),
            NPU_CONVERT(convert_f32_bf16),
            NPU_CONVERT(narrow_i32_i8),
            NPU_CONVERT(narrow_i32_i16),
            dequant_entry("dequant_q4nx"),
            gemv_setup_entry("gemv_setup"),
            gemv_entry("gemv_q4nx"),
#if __AIE_ARCH__ >= 21
            NPU_MATMUL(matmul_bf16bfp16_f32, BlockFloatTile),
            NPU_MATMUL(matmul_bf16bfp16_f32_bcol, BlockFloatTile),
            NPU_MATMUL(matmul_bf16bfp16_bf16, BlockFloatTile),
            NPU_MATMUL(matmul_bf16bfp16_bf16_bcol, BlockFloatTile),
            NPU_PIPELINED(matmul_bfp16_f32_pipelined, BlockFloatTile),
            NPU_PIPELINED(matmul_bfp16_bf16_pipelined, BlockFloatTile),
            NPU_CONVERT(convert_bf16_bfp16_a),
            NPU_CONVERT(convert_bf16_bfp16_b),
            NPU_CONVERT(convert_bf16_bfp16_b_bcol),
            NPU_PIPELINED(matmul_i8_i32_pipelined, PipelinedI8Tile),
            NPU_PIPELINED(matmul_i8_i32_pipelined_bcol, PipelinedI8Tile),
            NPU_PIPELINED(matmul_i8_i16_pipelined, PipelinedI8Tile),
            NPU_PIPELINED(matmul_i8_i16_pipelined_bcol, PipelinedI8Tile),
            NPU_PIPELINED(matmul_i8_i8_pipelined, PipelinedI8Tile),
            NPU_PIPELINED(matmul_i8_i8_pipelined_bcol, PipelinedI8Tile),
#endif
        },
};

}  // namespace npu::aie_host
