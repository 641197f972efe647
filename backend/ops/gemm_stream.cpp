// Builds GEMM runtime streams (gemm_stream.h).
#include "ops/gemm_stream.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <string>

#include "arch/bd.h"
#include "arch/device_model.h"
#include "error.h"
#include "stream/txn.h"

namespace npu::ops {

namespace {

constexpr int kInFlight = 5;  // output rounds in flight per shim tile: 3 x 5 of its 16 BDs
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
    for (int64_t round = 0; round < rounds; ++round) {
      if (round >= kInFlight) wait_for_c();
      push_round(round);
    }
    for (int64_t i = 0; i < std::min<int64_t>(rounds, kInFlight); ++i) wait_for_c();
    return builder_.finish();
  }

 private:
  // Loop bounds of the workers, then the lock that lets them read these.
  void write_parameters(int64_t rounds) {
    for (const Configuration::Rtp& rtp : configuration_.rtps) {
      if (rtp.name != "k_tiles" && rtp.name != "tiles") {
        fail(ErrorKind::kFormat,
             "[build_gemm_stream] configuration \"%s\" has the RTP \"%s\"; a GEMM has k_tiles and "
             "tiles: lower the design again",
             configuration_.name.c_str(), rtp.name.c_str());
      }
      const int64_t value = rtp.name == "k_tiles" ? problem_.k / tile_.k : rounds;
      builder_.write(arch::tile_address(rtp.col, rtp.row, rtp.address),
                     loop_bound(rtp.name, value));
    }
    const uint32_t locks = arch::tile_model(arch::TileKind::kCore).lock_base;
    for (const Configuration::RtpLock& lock : configuration_.rtp_locks) {
      const uint32_t offset = locks + 0x10u * static_cast<uint32_t>(lock.lock);
      builder_.write(arch::tile_address(lock.col, lock.row, offset), 1);
    }
  }

  // Workers read their bounds as int32.
  static uint32_t loop_bound(const std::string& name, int64_t value) {
    if (value > std::numeric_limits<int32_t>::max()) {
      fail(ErrorKind::kOutOfRange,
           "[build_gemm_stream] %s = %lld does not fit an int32; split the problem", name.c_str(),
           static_cast<long long>(value));
    }
    return static_cast<uint32_t>(value);
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
      const int64_t b_offset =
          problem_.b_layout == BLayout::kPanels ? panel * problem_.k * tile_.n : panel * tile_.n;
      transfer("B", c, kInFlight + slot, kArgumentB, b_bd(), b_offset * tile_.a_bytes, false);
    }
    for (int64_t r = 0; r < tile_.rows; ++r) {
      const int64_t row = row_block * tile_.native_m() + r * tile_.m;
      transfer("A", r, slot, kArgumentA, a_bd(), row * problem_.k * tile_.a_bytes, false);
    }
  }

  static uint32_t words(int64_t bytes) {
    assert(bytes % 4 == 0);
    if (bytes / 4 > std::numeric_limits<uint32_t>::max()) {
      fail(ErrorKind::kOutOfRange,
           "[build_gemm_stream] a transfer or stride of %lld bytes; a shim BD counts 32-bit words "
           "in 32 bits: split the problem along K",
           static_cast<long long>(bytes));
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

  // Rows of `row_bytes` bytes, `stride_bytes` apart.
  static void set_rows(arch::Bd& bd, int64_t row_bytes, int64_t rows, int64_t stride_bytes) {
    bd.wrap[0] = words(row_bytes);
    bd.wrap[1] = static_cast<uint32_t>(rows);
    bd.step[1] = words(stride_bytes);
  }

  // m rows of A, as K/k tiles of (m, k).
  arch::Bd a_bd() const {
    arch::Bd bd = shim_bd(tile_.m * problem_.k * tile_.a_bytes);
    if (problem_.a_layout == ALayout::kTiles || problem_.k == tile_.k) return bd;  // contiguous
    set_rows(bd, tile_.k * tile_.a_bytes, tile_.m, problem_.k * tile_.a_bytes);
    bd.step[2] = words(tile_.k * tile_.a_bytes);
    return bd;
  }

  // n columns of B, as K/k tiles of (k, n).
  arch::Bd b_bd() const {
    arch::Bd bd = shim_bd(problem_.k * tile_.n * tile_.a_bytes);
    if (problem_.b_layout == BLayout::kPanels) return bd;
    set_rows(bd, tile_.n * tile_.a_bytes, tile_.k, problem_.n * tile_.a_bytes);
    bd.step[2] = words(tile_.k * problem_.n * tile_.a_bytes);
    return bd;
  }

  // The (rows * m, n) block of C that one column of cores produces.
  arch::Bd c_bd() const {
    arch::Bd bd = shim_bd(tile_.native_m() * tile_.n * tile_.c_bytes);
    set_rows(bd, tile_.n * tile_.c_bytes, tile_.native_m(), problem_.n * tile_.c_bytes);
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
  const auto param = [&](const char* name, int64_t most) {
    const int64_t value = configuration.param(name);
    if (value < 1 || value > most) {
      fail(ErrorKind::kFormat,
           "[GemmTile::of] configuration \"%s\" has %s = %lld, must be 1..%lld; lower the design "
           "again",
           configuration.name.c_str(), name, static_cast<long long>(value),
           static_cast<long long>(most));
    }
    return value;
  };
  constexpr int64_t kMostTile = 1 << 16;  // more elements than a core's memory has bytes
  GemmTile tile;
  tile.m = param("tile_m", kMostTile);
  tile.k = param("tile_k", kMostTile);
  tile.n = param("tile_n", kMostTile);
  tile.rows = param("rows", arch::kCoreRows);
  tile.columns = param("columns", arch::device_model(configuration.generation).columns);
  tile.a_bytes = param("a_bytes", 4);
  tile.c_bytes = param("c_bytes", 4);
  for (const int64_t row_bytes :
       {tile.k * tile.a_bytes, tile.n * tile.a_bytes, tile.n * tile.c_bytes}) {
    if (row_bytes % 4 == 0) continue;
    fail(ErrorKind::kFormat,
         "[GemmTile::of] configuration \"%s\" has tile rows of %lld bytes; DMAs move multiples of "
         "4: use another tile",
         configuration.name.c_str(), static_cast<long long>(row_bytes));
  }
  return tile;
}

bool row_major_b_fits(const GemmTile& tile, int64_t n) {
  const int64_t step = tile.k * n * tile.a_bytes / 4;  // between k tiles, words
  return step <= static_cast<int64_t>(arch::tile_model(arch::TileKind::kShim).max_step);
}

std::vector<uint32_t> build_gemm_stream(const Configuration& configuration,
                                        const GemmProblem& problem) {
  const GemmTile tile = GemmTile::of(configuration);
  const auto fits = [](int64_t size, int64_t unit) { return size > 0 && size % unit == 0; };
  if (!fits(problem.m, tile.native_m()) || !fits(problem.k, tile.k) ||
      !fits(problem.n, tile.native_n())) {
    fail(
        ErrorKind::kShape,
        "[build_gemm_stream] M, K, N = %lld, %lld, %lld must be multiples of the native size %lld, "
        "%lld, %lld of configuration \"%s\"",
        static_cast<long long>(problem.m), static_cast<long long>(problem.k),
        static_cast<long long>(problem.n), static_cast<long long>(tile.native_m()),
        static_cast<long long>(tile.k), static_cast<long long>(tile.native_n()),
        configuration.name.c_str());
  }
  return GemmStream(configuration, problem).build();
}

}  // namespace npu::ops
