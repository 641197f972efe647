// npu-xdna for C++20 programs: matrix products on an AMD NPU, emulated or, untried so far, a real
// one. Header only, over the C interface of npu.h, which says what the options mean.
//
//   npu::Device device("emu:npu2");
//   const npu::Run run = device.matmul(npu::Matrix(a, m, k), npu::Matrix(b, k, n),
//                                      npu::Matrix(c, m, n));
//
// Errors are npu::Error with a status and a sentence.
#pragma once

#include <npu/npu.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace npu {
inline namespace v1 {

class Error : public std::runtime_error {
 public:
  Error(npu_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  npu_status status() const noexcept { return status_; }

 private:
  npu_status status_;
};

inline void check(npu_status status) {
  if (status != NPU_OK) throw Error(status, npu_last_error());
}

inline std::string version() { return npu_version(); }

// Rounded to nearest even; NaNs stay NaNs.
struct bfloat16 {
  uint16_t bits = 0;
  bfloat16() = default;
  explicit bfloat16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    bits = static_cast<uint16_t>(value != value ? word >> 16 | 0x40
                                                : (word + 0x7FFF + (word >> 16 & 1)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

template <typename T>
constexpr npu_dtype dtype_of() {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, float>) return NPU_FLOAT32;
  if constexpr (std::is_same_v<Plain, bfloat16>) return NPU_BFLOAT16;
  if constexpr (std::is_same_v<Plain, int8_t>) return NPU_INT8;
  if constexpr (std::is_same_v<Plain, int16_t>) return NPU_INT16;
  if constexpr (std::is_same_v<Plain, int32_t>) return NPU_INT32;
  static_assert(std::is_same_v<Plain, float> || std::is_same_v<Plain, bfloat16> ||
                    std::is_same_v<Plain, int8_t> || std::is_same_v<Plain, int16_t> ||
                    std::is_same_v<Plain, int32_t>,
                "matrices are of float, npu::bfloat16, int8_t, int16_t or int32_t");
}

// A view of somebody's memory; strides in elements.
template <typename T>
struct Matrix {
  T* data = nullptr;
  int64_t rows = 0, cols = 0;
  int64_t row_stride = 0, col_stride = 1;

  Matrix(T* d, int64_t r, int64_t c, int64_t between_rows, int64_t between_cols = 1)
      : data(d), rows(r), cols(c), row_stride(between_rows), col_stride(between_cols) {}
  // Row-major, without gaps.
  Matrix(T* d, int64_t r, int64_t c) : Matrix(d, r, c, c) {}
  // Of a vector, an array or a span. Throws Error if it is too short.
  template <typename Container>
    requires requires(Container& c) { std::span<T>(c); }
  Matrix(Container& memory, int64_t r, int64_t c) : Matrix(std::span<T>(memory).data(), r, c) {
    const uint64_t there = std::span<T>(memory).size();
    if (r < 0 || c < 0 || (c > 0 && static_cast<uint64_t>(r) > there / static_cast<uint64_t>(c))) {
      throw Error(NPU_ERROR_SHAPE, "[Matrix] " + std::to_string(there) + " elements for " +
                                       std::to_string(r) + " x " + std::to_string(c) +
                                       "; pass memory of the matrix's size");
    }
  }
  Matrix transposed() const { return {data, cols, rows, col_stride, row_stride}; }

  npu_matrix c_struct() const {
    return {const_cast<std::remove_const_t<T>*>(data),
            dtype_of<T>(),
            rows,
            cols,
            row_stride,
            col_stride};
  }
};
template <typename Container>
Matrix(Container&, int64_t, int64_t)
    -> Matrix<std::remove_pointer_t<decltype(std::span(std::declval<Container&>()).data())>>;
template <typename T>
Matrix(T*, int64_t, int64_t) -> Matrix<T>;
template <typename T>
Matrix(T*, int64_t, int64_t, int64_t, int64_t = 1) -> Matrix<T>;

// See npu_device_options; empty: the default.
struct DeviceOptions {
  std::string arithmetic = {}, bf16 = {}, designs = {}, kernel = {}, configurations = {};
  std::string machine = {}, kernels = {};  // of predictions
};

// See npu_matmul_options; empty: the default.
struct MatmulOptions {
  int shift = 0;
  std::string accumulate = {}, bf16 = {};
};

// What a product ran as, see npu_run.
struct Run {
  std::string configuration, reason;
  int tile_m = 0, tile_k = 0, tile_n = 0, k_mt = 0;
  double predicted_seconds = 0, load_seconds = 0;
  uint64_t array_ns = 0, read_bytes = 0, write_bytes = 0, kernel_calls = 0;
};

// See npu_device_info.
struct DeviceInfo {
  std::string name, generation, arithmetic, bf16, designs, configurations;
  int columns = 0;
  bool emulated = true;
  double clock_hz = 0;
  uint64_t configuration_loads = 0, submissions = 0;
};

// A right-hand operand in a device's memory (npu_pack), which it keeps.
class Packed {
 public:
  explicit Packed(npu_packed* packed) : packed_(packed) {}
  const npu_packed* get() const noexcept { return packed_.get(); }

 private:
  struct Free {
    void operator()(npu_packed* packed) const { npu_packed_free(packed); }
  };
  std::unique_ptr<npu_packed, Free> packed_;
};

class Device {
 public:
  // name: see npu_device_open; empty: the default.
  explicit Device(const std::string& name = {}, const DeviceOptions& options = {}) {
    npu_device_options c = NPU_DEVICE_OPTIONS_INIT;
    c.arithmetic = word(options.arithmetic);
    c.bf16 = word(options.bf16);
    c.designs = word(options.designs);
    c.kernel = word(options.kernel);
    c.configurations = word(options.configurations);
    c.machine = word(options.machine);
    c.kernels = word(options.kernels);
    npu_device* device = nullptr;
    check(npu_device_open(word(name), &c, &device));
    device_.reset(device);
  }

  DeviceInfo info() const {
    npu_device_info c = {};
    c.size = sizeof c;
    check(npu_device_get_info(device_.get(), &c));
    return {c.name,     c.generation,          c.arithmetic, c.bf16,
            c.designs,  c.configurations,      c.columns,    c.emulated != 0,
            c.clock_hz, c.configuration_loads, c.submissions};
  }

  // c = a b, see npu_matmul.
  template <typename A, typename B, typename C>
  Run matmul(const Matrix<A>& a, const Matrix<B>& b, const Matrix<C>& c,
             const MatmulOptions& options = {}) const {
    const npu_matrix right = b.c_struct();
    return multiply(a, c, options, [&](auto* left, auto* result, auto* chosen, auto* run) {
      return npu_matmul(device_.get(), left, &right, result, chosen, run);
    });
  }

  // b in the layout that the device reads, for many products; bf16: see npu_pack.
  template <typename B>
  Packed pack(const Matrix<B>& b, const std::string& bf16 = {}) const {
    const npu_matrix matrix = b.c_struct();
    npu_packed* packed = nullptr;
    check(npu_pack(device_.get(), &matrix, word(bf16), &packed));
    return Packed(packed);
  }

  // c = a b, see npu_matmul_packed.
  template <typename A, typename C>
  Run matmul(const Matrix<A>& a, const Packed& b, const Matrix<C>& c,
             const MatmulOptions& options = {}) const {
    return multiply(a, c, options, [&](auto* left, auto* result, auto* chosen, auto* run) {
      return npu_matmul_packed(device_.get(), left, b.get(), result, chosen, run);
    });
  }

  npu_device* get() const noexcept { return device_.get(); }

 private:
  template <typename A, typename C, typename Call>
  static Run multiply(const Matrix<A>& a, const Matrix<C>& c, const MatmulOptions& options,
                      const Call& call) {
    static_assert(!std::is_const_v<C>, "the result is written");
    npu_matmul_options chosen = NPU_MATMUL_OPTIONS_INIT;
    chosen.shift = options.shift;
    chosen.accumulate = word(options.accumulate);
    chosen.bf16 = word(options.bf16);
    npu_run r = NPU_RUN_INIT;
    const npu_matrix left = a.c_struct(), result = c.c_struct();
    check(call(&left, &result, &chosen, &r));
    return {r.configuration,
            r.reason,
            r.tile_m,
            r.tile_k,
            r.tile_n,
            r.k_mt,
            r.predicted_seconds,
            r.load_seconds,
            r.array_ns,
            r.read_bytes,
            r.write_bytes,
            r.kernel_calls};
  }
  static const char* word(const std::string& text) { return text.empty() ? nullptr : text.c_str(); }
  struct Close {
    void operator()(npu_device* device) const { npu_device_close(device); }
  };
  std::unique_ptr<npu_device, Close> device_;
};

}  // namespace v1
}  // namespace npu
