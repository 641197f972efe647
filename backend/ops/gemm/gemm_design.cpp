// Reading GEMM designs from the index, and what products cost with them (gemm_design.h).
#include "ops/gemm/gemm_design.h"

#include <array>
#include <string_view>

#include "arch/geometry.h"
#include "error.h"
#include "rounding.h"
#include "text.h"

namespace npu::ops {

namespace {

constexpr int64_t kMaxTile = 1 << 16;

// The fields of one line of the index.
class Fields {
 public:
  explicit Fields(const ConfigurationUse& use) : use_(use) {}

  const std::string& text(const char* key) const {
    const auto found = use_.about.find(key);
    if (found == use_.about.end()) {
      fail(ErrorKind::kFormat, "[configurations] %s: \"%s\" is missing; write the folder again",
           use_.file.c_str(), key);
    }
    return found->second;
  }

  // The number of the word that `key` has.
  template <size_t N>
  size_t word(const char* key, const std::array<std::string_view, N>& words) const {
    const std::string& value = text(key);
    for (size_t i = 0; i < N; ++i) {
      if (value == words[i]) return i;
    }
    bad(key, value);
  }

  int64_t number(const char* key, int64_t min, int64_t max) const {
    return in_range(key, text(key), min, max);
  }

  // As 64x128x64.
  template <size_t N>
  std::array<int64_t, N> sizes(const char* key) const {
    const std::string& value = text(key);
    std::array<int64_t, N> out{};
    std::string_view rest = value;
    for (size_t i = 0; i < N; ++i) {
      const size_t end = rest.find('x');
      if ((end == std::string_view::npos) != (i == N - 1)) bad(key, value);
      out[i] = in_range(key, rest.substr(0, end), 1, kMaxTile);
      rest.remove_prefix(i == N - 1 ? rest.size() : end + 1);
    }
    return out;
  }

  // Rows and columns of cores that compute, where those are not all of the array.
  void take_cores(perf::GemmPoint& point) const {
    if (!use_.about.contains("cores")) return;
    const auto [rows, columns] = sizes<2>("cores");
    if (rows > point.rows || columns > point.columns) bad("cores", text("cores"));
    point.rows = static_cast<int>(rows);
    point.columns = static_cast<int>(columns);
  }

  ElementType element(const char* key) const {
    const std::optional<ElementType> type = element_named(text(key));
    if (!type) bad(key, text(key));
    return *type;
  }

 private:
  int64_t in_range(const char* key, std::string_view word, int64_t min, int64_t max) const {
    const std::optional<int64_t> value = parse_integer(word);
    if (!value || *value < min || *value > max) bad(key, word);
    return *value;
  }

  [[noreturn]] void bad(const char* key, std::string_view value) const {
    fail(ErrorKind::kFormat, "[configurations] %s: %s is not a valid %s; write the folder again",
         use_.file.c_str(), quoted(value).c_str(), key);
  }

  const ConfigurationUse& use_;
};

perf::InputKind input_kind(ElementType a, bool bfp16) {
  if (a == ElementType::kI8) return perf::InputKind::kInt8;
  if (a == ElementType::kI16) return perf::InputKind::kInt16;
  if (a == ElementType::kBfp16) return perf::InputKind::kBfp16;
  return bfp16 ? perf::InputKind::kBf16 : perf::InputKind::kBf16Native;
}

}  // namespace

GemmDesign GemmDesign::of(const ConfigurationUse& use) {
  using Words2 = std::array<std::string_view, 2>;
  const Fields in(use);
  GemmDesign out;
  out.key = use.key();
  out.generation = use.generation;
  out.kind.a = in.element("a");
  out.kind.c = in.element("c");
  out.kind.layout = static_cast<GemmLayout>(
      in.word("layout", std::array<std::string_view, 4>{"row", "col", "packed", "blocks"}));
  out.kind.sums = static_cast<GemmSums>(
      in.word("accumulate", std::array<std::string_view, 3>{"wide", "narrow", "bfloat16"}));
  out.kind.bfp16 = in.word("bf16", Words2{"native", "bfp16"}) == 1;
  out.for_array = in.word("prefers", Words2{"host", "array"}) == 1;
  out.point = point_of(use.generation, out.kind);
  perf::GemmPoint& p = out.point;
  p.b_column_major = in.word("b_layout", Words2{"row", "col"}) == 1;
  p.b_pairs = in.number("b_pairs", 0, 1) == 1;
  p.pipelined = in.word("kernel", Words2{"published", "pipelined"}) == 1;
  p.a_parts = in.number("a_parts", 1, kMaxTile);
  p.c_buffers = static_cast<int>(in.number("c_buffers", 0, 2));
  const auto tile = in.sizes<3>("tile");
  p.m = tile[0];
  p.k = tile[1];
  p.n = tile[2];
  p.k_mt = in.number("k_mt", 1, kMaxTile);
  in.take_cores(p);
  return out;
}

perf::GemmPoint point_of(arch::Generation generation, const GemmKind& kind) {
  const auto bytes = [](ElementType type) {  // of a value
    const auto side = static_cast<double>(element_side(type));
    return static_cast<double>(element_bytes(type)) / (side * side);
  };
  perf::GemmPoint p;
  p.input = input_kind(kind.a, kind.bfp16);
  p.a_bytes = bytes(kind.a);
  p.b_bytes = bytes(kind.b());
  p.c_bytes = bytes(kind.c);
  p.sum_bytes = kind.sums == GemmSums::kNarrow ? 0 : kind.sums == GemmSums::kBf16 ? 2 : 4;
  p.integer_output = kind.a == ElementType::kI8 || kind.a == ElementType::kI16;
  p.rows = arch::kCoreRows;
  p.columns = arch::device_geometry(generation).columns;
  return p;
}

GemmTile tile_of(const perf::GemmPoint& p) {
  const auto cell = [](double bytes) {  // of a value: 9 of 8 in blocks
    if (bytes == 9.0 / 8) return GemmCell::of(ElementType::kBfp16);
    return GemmCell{1, static_cast<int64_t>(bytes)};
  };
  return {p.m,
          p.k,
          p.n,
          p.k_mt,
          p.b_column_major,
          p.rows,
          p.columns,
          cell(p.a_bytes),
          cell(p.b_bytes),
          cell(p.c_bytes),
          p.b_pairs};
}

std::vector<GemmBlockCount> count_blocks(const perf::GemmPoint& point) {
  const GemmTile tile = tile_of(point);
  const int64_t m = round_up(point.M, tile.native_m()), k = round_up(point.K, tile.native_k()),
                n = round_up(point.N, tile.native_n());
  const auto [height, width] = block_size(tile, GemmLimits{}, n);
  std::vector<GemmBlockCount> blocks;
  for (const auto& [rows, row_count] :
       {std::pair(height, m / height), std::pair(m % height, int64_t{1})}) {
    for (const auto& [cols, col_count] :
         {std::pair(width, n / width), std::pair(n % width, int64_t{1})}) {
      if (rows * row_count * cols * col_count > 0) {
        blocks.push_back({rows, k, cols, row_count * col_count});
      }
    }
  }
  return blocks;
}

double gemm_seconds(const arch::Timing& timing, perf::GemmPoint point, bool packed) {
  const std::vector<GemmBlockCount> blocks = count_blocks(point);
  if (packed) point.b_column_major = true;
  double seconds = 0;
  for (const GemmBlockCount& block : blocks) {
    point.M = block.m;
    point.K = block.k;
    point.N = block.n;
    seconds += static_cast<double>(block.count) * perf::estimate_gemm(timing, point).seconds;
  }
  return seconds;
}

}  // namespace npu::ops
