// Builds GEMM runtime streams (gemm_stream.h).
#include "ops/gemm_stream.h"

#include <algorithm>
#include <cassert>

#include "arch/bd.h"
#include "error.h"
#include "stream/txn.h"

namespace npu::ops {

namespace {

constexpr int kInFlight = 5;  // output rounds in flight per shim tile: 3 x 5 of its 16 BDs
constexpr int64_t kMaxSize = int64_t{1} << 30;  // M, K, N: byte counts stay below 2^63
constexpr int kArgumentA = 0, kArgumentB = 1, kArgumentC = 2;
constexpr uint32_t kAxCache = 2;  // NoC upsizing, as mlir-aie's runtime sequences set it
// Packet id of a shim tile's task-complete tokens, as mlir-aie numbers row 0.
constexpr uint32_t kShimControllerId = 15;

class GemmStream {
 public:
  GemmStream(const Configuration& configuration, const GemmProblem& problem)
      : configuration_(configuration),
        model_(arch::device_model(configuration.generation)),
        tile_(GemmTile::of(configuration)),
        problem_(problem),
        builder_(configuration.generation, model_.columns) {}

  std::vector<uint32_t> build() {
    const int64_t rounds = problem_.m / tile_.native_m() * (problem_.n / tile_.native_n());
    write_parameters(rounds);
    route_tokens();
    const int64_t in_flight = problem_.overlap ? kInFlight : 1;
    for (int64_t round = 0; round < rounds; ++round) {
      if (round >= in_flight) wait_for_c();
      push_round(round);
    }
    for (int64_t i = 0; i < std::min(rounds, in_flight); ++i) wait_for_c();
    return builder_.finish();
  }

 private:
  int64_t parameter(const std::string& name, int64_t rounds) const {
    if (name == "k_tiles") return problem_.k / tile_.k;
    if (name == "shift") return problem_.shift;
    assert(name == "tiles");
    return rounds;
  }

  // Loop bounds and shift of the workers, then the lock that lets them read these.
  void write_parameters(int64_t rounds) {
    for (const Configuration::Rtp& rtp : configuration_.rtps) {
      const int64_t value = parameter(rtp.name, rounds);
      builder_.write(arch::tile_address(rtp.col, rtp.row, rtp.address),
                     static_cast<uint32_t>(value));
    }
    const uint32_t locks = arch::tile_model(arch::TileKind::kCore).lock_base;
    for (const Configuration::RtpLock& lock : configuration_.rtp_locks) {
      const uint32_t offset = locks + 0x10u * static_cast<uint32_t>(lock.lock);
      builder_.write(arch::tile_address(lock.col, lock.row, offset), 1);
    }
  }

  // Tokens travel as packets under the shim tile's controller id.
  void route_tokens() {
    for (int64_t c = 0; c < tile_.columns; ++c) {
      const auto& port = configuration_.port(strf("C%d", static_cast<int>(c)));
      builder_.mask_write(arch::tile_address(port.col, 0,
                                             arch::channel_control(arch::TileKind::kShim,
                                                                   port.direction, port.channel)),
                          kShimControllerId << 8, 0x1F00);
    }
  }

  void wait_for_c() {
    const auto& port = configuration_.port("C0");
    builder_.sync(port.col, 0, port.direction, port.channel, static_cast<int>(tile_.columns));
  }

  void push_round(int64_t round) {
    const int64_t across = problem_.n / tile_.native_n();
    const int64_t row_block = round / across, col_block = round % across;
    const int slot = static_cast<int>(round % kInFlight);
    for (int64_t c = 0; c < tile_.columns; ++c) {
      const int64_t panel = col_block * tile_.columns + c;
      transfer("C", c, 2 * kInFlight + slot, kArgumentC, c_bd(),
               (row_block * tile_.native_m() * problem_.n + panel * tile_.n) * tile_.c_bytes, true);
      // Panels, and the columns of a column-major B, are K x n elements apart.
      const bool apart = problem_.b_layout == BLayout::kPanels || tile_.b_columns;
      const int64_t b_offset = panel * tile_.n * (apart ? problem_.k : 1);
      transfer("B", c, kInFlight + slot, kArgumentB, b_bd(), b_offset * tile_.a_bytes, false);
    }
    for (int64_t r = 0; r < tile_.rows; ++r) {
      const int64_t row = row_block * tile_.native_m() + r * tile_.m;
      transfer("A", r, slot, kArgumentA, a_bd(), row * problem_.k * tile_.a_bytes, false);
    }
  }

  static uint32_t words(int64_t bytes) {
    assert(bytes % 4 == 0);
    if (bytes / 4 > static_cast<int64_t>(UINT32_MAX)) {
      fail(ErrorKind::kOutOfRange,
           "[build_gemm_stream] one transfer has %lld bytes; a shim BD moves at most %lld: use a "
           "smaller K",
           static_cast<long long>(bytes), 4ll * UINT32_MAX);
    }
    return static_cast<uint32_t>(bytes / 4);
  }

  arch::Bd shim_bd(int64_t bytes) const {
    arch::Bd bd;
    bd.length = words(bytes);
    bd.burst = model_.shim_burst;
    bd.axcache = kAxCache;
    return bd;
  }

  // Rows of `row_bytes` bytes, `stride_bytes` apart, as many as the transfer's length asks for.
  static void set_rows(arch::Bd& bd, int64_t row_bytes, int64_t stride_bytes) {
    bd.wrap[0] = words(row_bytes);
    bd.step[1] = words(stride_bytes);
  }

  // `rows` rows of K elements as K/k_mt tiles of (rows, k_mt).
  arch::Bd along_k(int64_t rows, bool tiled) const {
    arch::Bd bd = shim_bd(rows * problem_.k * tile_.a_bytes);
    if (tiled || problem_.k == tile_.k_mt) return bd;  // contiguous
    set_rows(bd, tile_.k_mt * tile_.a_bytes, problem_.k * tile_.a_bytes);
    bd.wrap[1] = static_cast<uint32_t>(rows);
    bd.step[2] = words(tile_.k_mt * tile_.a_bytes);
    return bd;
  }

  arch::Bd a_bd() const { return along_k(tile_.m, problem_.a_layout == ALayout::kTiles); }

  // n columns of B: K/k_mt tiles of (n, k_mt), or K rows of n, which are K/k tiles of (k, n).
  arch::Bd b_bd() const {
    const bool packed = problem_.b_layout == BLayout::kPanels;
    if (tile_.b_columns) return along_k(tile_.n, packed);
    arch::Bd bd = shim_bd(problem_.k * tile_.n * tile_.a_bytes);
    if (!packed) set_rows(bd, tile_.n * tile_.a_bytes, problem_.n * tile_.a_bytes);
    return bd;
  }

  // The (rows * m, n) block of C that one column of cores produces.
  arch::Bd c_bd() const {
    arch::Bd bd = shim_bd(tile_.native_m() * tile_.n * tile_.c_bytes);
    set_rows(bd, tile_.n * tile_.c_bytes, problem_.n * tile_.c_bytes);
    return bd;
  }

  void transfer(const char* kind, int64_t index, int bd_id, int argument, const arch::Bd& bd,
                int64_t offset, bool token) {
    const auto& port = configuration_.port(strf("%s%d", kind, static_cast<int>(index)));
    const std::vector<uint32_t> encoded = arch::encode_bd(arch::TileKind::kShim, bd);
    const uint32_t base =
        arch::tile_model(arch::TileKind::kShim).bd_base + 0x20u * static_cast<uint32_t>(bd_id);
    const uint32_t address = arch::tile_address(port.col, 0, base);
    builder_.block_write(address, encoded);
    builder_.address_patch(address + 4, static_cast<uint32_t>(argument),
                           static_cast<uint64_t>(offset));
    builder_.write(
        arch::tile_address(
            port.col, 0, arch::channel_queue(arch::TileKind::kShim, port.direction, port.channel)),
        static_cast<uint32_t>(bd_id) | (token ? 1u << 31 : 0u));
  }

  const Configuration& configuration_;
  const arch::DeviceModel& model_;
  GemmTile tile_;
  GemmProblem problem_;
  stream::Builder builder_;
};

}  // namespace

GemmTile GemmTile::of(const Configuration& configuration) {
  GemmTile tile;
  tile.m = configuration.param("tile_m");
  tile.k = configuration.param("tile_k");
  tile.n = configuration.param("tile_n");
  tile.k_mt = configuration.param("k_mt");
  tile.b_columns = configuration.param("b_layout") == 1;
  tile.rows = configuration.param("rows");
  tile.columns = configuration.param("columns");
  tile.a_bytes = configuration.param("a_bytes");
  tile.c_bytes = configuration.param("c_bytes");
  tile.a_column_step = configuration.param("a_columns_stride");
  return tile;
}

bool row_step_fits(int64_t row_bytes) {
  return row_bytes / 4 <= static_cast<int64_t>(arch::tile_model(arch::TileKind::kShim).max_step);
}

std::vector<uint32_t> build_gemm_stream(const Configuration& configuration,
                                        const GemmProblem& problem) {
  const GemmTile tile = GemmTile::of(configuration);
  const auto fits = [](int64_t size, int64_t unit) { return size > 0 && size % unit == 0; };
  if (std::max({problem.m, problem.k, problem.n}) > kMaxSize) {
    fail(ErrorKind::kOutOfRange,
         "[build_gemm_stream] M, K, N = %lld, %lld, %lld; each is at most %lld",
         static_cast<long long>(problem.m), static_cast<long long>(problem.k),
         static_cast<long long>(problem.n), static_cast<long long>(kMaxSize));
  }
  if (!fits(problem.m, tile.native_m()) || !fits(problem.k, tile.native_k()) ||
      !fits(problem.n, tile.native_n())) {
    fail(
        ErrorKind::kShape,
        "[build_gemm_stream] M, K, N = %lld, %lld, %lld must be multiples of the native size %lld, "
        "%lld, %lld of configuration \"%s\"",
        static_cast<long long>(problem.m), static_cast<long long>(problem.k),
        static_cast<long long>(problem.n), static_cast<long long>(tile.native_m()),
        static_cast<long long>(tile.native_k()), static_cast<long long>(tile.native_n()),
        configuration.name.c_str());
  }
  if (problem.shift < 0 || problem.shift > kMaxShift) {
    fail(ErrorKind::kOutOfRange, "[build_gemm_stream] shift is %d; use 0 to %d", problem.shift,
         kMaxShift);
  }
  return GemmStream(configuration, problem).build();
}

}  // namespace npu::ops
