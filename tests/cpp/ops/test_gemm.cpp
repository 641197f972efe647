// ops::Gemm above the device: padding, packing, the choice between packed and direct operands,
// blocks of C and the stream cache. The device here is a stub that plays the shim BDs of a stream
// and does the cores' arithmetic in double precision, so any word fetched from or stored to a wrong
// place shows. Elements are small integers, hence every sum is exact and compared for equality.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "arch/bd.h"
#include "error.h"
#include "gemm_fixture.h"
#include "ops/gemm/gemm.h"
#include "runtime/device.h"
#include "stream/txn.h"

namespace {

using namespace npu;
using ops::ElementType;
using ops::MatrixView;

constexpr int64_t kM = 4, kK = 8, kN = 4, kRows = 2, kColumns = 2;

float widen(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
uint16_t bf16(float exact) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(exact) >> 16); }

class StubBuffer final : public Buffer {
 public:
  explicit StubBuffer(size_t bytes)
      : memory_(bytes, std::byte{0x7F}), data_(memory_.data()), bytes_(bytes) {}  // not zero: NaNs
  StubBuffer(std::byte* data, size_t bytes, Access access)
      : data_(data), bytes_(bytes), access_(access) {}
  std::byte* host() override { return data_; }
  size_t bytes() const override { return bytes_; }
  Access access() const override { return access_; }

 private:
  std::vector<std::byte> memory_;
  std::byte* data_;
  size_t bytes_;
  Access access_ = Access::kReadWrite;
};

class StubRun final : public Run {
 public:
  explicit StubRun(const RunReport& report) : report_(report) {}
  State state() const override { return State::kDone; }
  bool wait(std::chrono::nanoseconds) override { return true; }
  void cancel() override {}
  const RunReport& report() const override { return report_; }

 private:
  RunReport report_;
};

class StubDevice final : public Device {
 public:
  StubDevice(bool host_memory, int64_t k_mt, bool b_columns)
      : host_memory_(host_memory), k_mt_(k_mt), b_columns_(b_columns) {}
  DeviceInfo info() const override {
    DeviceInfo info;
    info.name = "stub";
    info.generation = arch::Generation::kNpu1;
    info.columns = 4;
    info.max_arguments = ops::kGemmArguments;  // fewer than two products have
    return info;
  }
  std::unique_ptr<Buffer> allocate(size_t bytes) override {
    return std::make_unique<StubBuffer>(bytes);
  }
  std::unique_ptr<Buffer> wrap(std::byte* memory, size_t bytes, Access access) override {
    if (!host_memory_) return nullptr;
    return std::make_unique<StubBuffer>(memory, bytes, access);
  }
  int submissions = 0;

 protected:
  void do_load(const Configuration&) override {}
  std::unique_ptr<Run> do_submit(std::shared_ptr<const PreparedStream> stream,
                                 std::span<const BufferRef> buffers) override {
    ++submissions;
    collect(stream->words());
    const size_t rounds = transfers_[2][0].size();
    check_parameters(rounds, transfers_[1][0][0].size() * 2 / kN / kK);
    for (size_t round = 0; round < rounds; ++round) {
      for (size_t column = 0; column < kColumns; ++column) compute(round, column, buffers);
    }
    RunReport report;
    report.operations = 1;
    report.undecoded_writes = 3;
    return std::make_unique<StubRun>(report);
  }

 private:
  using Places = std::vector<std::pair<uint32_t, uint64_t>>;  // argument, byte offset

  // What every transfer visits, by matrix and column; chained BDs are one transfer.
  void collect(std::span<const uint32_t> words) {
    transfers_ = {};
    core_writes_.clear();
    std::map<uint32_t, std::pair<arch::Bd, uint64_t>> bds;
    const stream::Stream parsed = stream::Stream::parse(std::as_bytes(words));
    std::map<uint32_t, uint32_t> arguments;
    for (const stream::Operation& op : parsed.operations()) {
      const uint32_t address = static_cast<uint32_t>(op.address);
      if (op.opcode == stream::Opcode::kBlockWrite) {
        bds[address].first = arch::decode_bd(arch::TileKind::kShim, op.data);
      } else if (op.opcode == stream::Opcode::kAddressPatch) {
        bds[address - 4].second = test::unfolded(op.argument, op.argument_offset);
        arguments[address - 4] = op.argument;
      } else if (op.opcode == stream::Opcode::kWrite && arch::address_row(address) == 0) {
        const int col = arch::address_col(address);
        const auto at = [&](uint32_t id) {
          return arch::tile_address(col, 0, 0x1D000 + 0x20 * id);
        };
        Places places;
        uint32_t bd = at(op.value & 0xF);
        const int matrix = test::matrix_of(arguments.at(bd));
        for (bool more = true; more; bd = at(bds.at(bd).first.next_bd)) {
          for (const uint64_t offset : test::visited(bds.at(bd).first, bds.at(bd).second)) {
            places.push_back({arguments.at(bd), offset});
          }
          more = bds.at(bd).first.use_next;
        }
        transfers_[static_cast<size_t>(matrix)][static_cast<size_t>(col)].push_back(places);
      } else if (op.opcode == stream::Opcode::kWrite) {
        core_writes_[{address >> arch::kRowShift, arch::address_offset(address)}] = op.value;
      }
    }
  }

  // Every core is told the bounds of its loops, then let go by lock 8.
  void check_parameters(size_t rounds, size_t k_tiles) const {
    CHECK(core_writes_.size() == 4 * kRows * kColumns);
    for (uint32_t col = 0; col < kColumns; ++col) {
      for (uint32_t row = 2; row < 2 + kRows; ++row) {
        const uint32_t tile =
            arch::tile_address(static_cast<int>(col), static_cast<int>(row), 0) >> arch::kRowShift;
        CHECK(core_writes_.at({tile, 1024}) == k_tiles);
        CHECK(core_writes_.at({tile, 1028}) == rounds);
        CHECK(core_writes_.at({tile, 1032}) == 0);
        CHECK(core_writes_.at({tile, 0x1F080}) == 1);
      }
    }
  }

  static std::byte* word(std::span<const BufferRef> buffers,
                         const std::pair<uint32_t, uint64_t>& place) {
    const BufferRef& buffer = buffers[place.first];
    REQUIRE(place.second % 4 == 0);
    REQUIRE(place.second + 4 <= buffer.bytes);
    return buffer.host() + place.second;
  }

  static std::vector<float> gather(std::span<const BufferRef> buffers, const Places& places) {
    std::vector<float> out;
    for (const auto& place : places) {
      uint16_t pair[2];
      std::memcpy(pair, word(buffers, place), 4);
      out.insert(out.end(), {widen(pair[0]), widen(pair[1])});
    }
    return out;
  }

  // Where element (row, k) of tiles of (4, k_mt) lies in a transfer.
  size_t along_k(int64_t row, int64_t k) const {
    return static_cast<size_t>(k / k_mt_ * kM * k_mt_ + row * k_mt_ + k % k_mt_);
  }

  void compute(size_t round, size_t column, std::span<const BufferRef> buffers) {
    const std::vector<float> b = gather(buffers, transfers_[1][column][round]);
    const Places& c = transfers_[2][column][round];
    for (int64_t row = 0; row < kRows; ++row) {
      const std::vector<float> a = gather(buffers, transfers_[0][static_cast<size_t>(row)][round]);
      REQUIRE(a.size() / kM == b.size() / kN);
      for (int64_t i = 0; i < kM; ++i) {
        for (int64_t j = 0; j < kN; ++j) {
          double sum = 0;
          for (int64_t k = 0; k < static_cast<int64_t>(b.size()) / kN; ++k) {
            const size_t b_at = b_columns_ ? along_k(j, k) : static_cast<size_t>(k * kN + j);
            sum += double{a[along_k(i, k)]} * b[b_at];
          }
          const float narrow = static_cast<float>(sum);
          const size_t index = static_cast<size_t>((row * kM + i) * kN + j);
          REQUIRE(writes(buffers[c[index].first].access));
          std::memcpy(word(buffers, c[index]), &narrow, 4);
        }
      }
    }
  }

  bool host_memory_;
  int64_t k_mt_;
  bool b_columns_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> core_writes_;  // (tile, offset) -> value
  std::array<std::array<std::vector<Places>, kColumns>, 3> transfers_;
};

// A matrix of small integers laid out with given strides in a buffer of its own.
struct Matrix {
  std::vector<std::byte> memory;
  MatrixView view;
  int64_t value(int64_t r, int64_t c) const { return (r * 7 + c * 5 + seed) % 9 - 4; }
  int64_t seed = 0;
};

enum class Layout { kDense, kTransposed, kStrided, kReversed, kOddAddress, kGaps };

Matrix matrix(int64_t rows, int64_t cols, ElementType type, Layout layout, int64_t seed) {
  Matrix out;
  out.seed = seed;
  const int64_t element = static_cast<int64_t>(ops::element_bytes(type));
  MatrixView& v = out.view;
  v = {nullptr, type, rows, cols, cols, 1};
  int64_t first = 0;  // elements
  if (layout == Layout::kTransposed) v.row_stride = 1, v.col_stride = rows;
  if (layout == Layout::kGaps) v.row_stride = cols + 2 + cols % 2;  // whole words apart
  if (layout == Layout::kStrided) v.row_stride = 6 * cols, v.col_stride = 3;
  if (layout == Layout::kReversed) {
    v.row_stride = -cols, v.col_stride = -1;
    first = rows * cols - 1;
  }
  out.memory.resize(static_cast<size_t>((18 * rows * cols + 8) * element));
  // 2 bytes off makes bf16 aligned to its elements only, 1 byte off nothing.
  const int64_t shift = layout == Layout::kOddAddress ? (seed % 2 ? 1 : 2) : 0;
  v.data = out.memory.data() + first * element + shift;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const float value = static_cast<float>(out.value(r, c));
      const uint16_t half = bf16(value);
      auto* at = const_cast<std::byte*>(v.data) + (r * v.row_stride + c * v.col_stride) * element;
      std::memcpy(at, element == 4 ? static_cast<const void*>(&value) : &half,
                  static_cast<size_t>(element));
    }
  }
  return out;
}

void check_product(const Matrix& a, const Matrix& b, std::span<const float> c) {
  for (int64_t i = 0; i < a.view.rows; ++i) {
    for (int64_t j = 0; j < b.view.cols; ++j) {
      int64_t sum = 0;
      for (int64_t k = 0; k < a.view.cols; ++k) sum += a.value(i, k) * b.value(k, j);
      REQUIRE(c[static_cast<size_t>(i * b.view.cols + j)] == static_cast<float>(sum));
    }
  }
}

std::shared_ptr<SharedDevice> stub(bool host_memory, int64_t k_mt = kK, bool b_columns = false) {
  return std::make_shared<SharedDevice>(std::make_unique<StubDevice>(host_memory, k_mt, b_columns));
}

}  // namespace

TEST_CASE("gemm: any sizes, layouts and block limits give the product") {
  std::mt19937 random(1);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 400; ++i) {
    // Half of the sizes are multiples of the native ones, which operands wholly in place need.
    const bool native = i % 2 == 0;
    const int64_t m = native ? 8 * pick(1, 5) : pick(1, 40);
    const int64_t k = native ? 8 * pick(1, 4) : pick(1, 33);
    const int64_t n = native ? 8 * pick(1, 6) : pick(1, 45);
    const auto layout = [&] { return static_cast<Layout>(native && i % 4 ? 0 : pick(0, 5)); };
    const auto type = [&] { return pick(0, 2) ? ElementType::kBf16 : ElementType::kF32; };
    const Matrix a = matrix(m, k, type(), layout(), i), b = matrix(k, n, type(), layout(), i + 1);
    const ops::GemmLimits limits{pick(1, 6), pick(0, 3) * 11};
    const int k_mt = static_cast<int>(kK * pick(1, 2));
    const bool b_columns = pick(0, 1) != 0;
    CAPTURE(k_mt);
    CAPTURE(b_columns);
    CAPTURE(m);
    CAPTURE(k);
    CAPTURE(n);
    CAPTURE(limits.rounds);
    CAPTURE(limits.columns);
    ops::Gemm gemm(stub(pick(0, 3) != 0, k_mt, b_columns),
                   test::small_configuration(k_mt, b_columns), limits);
    std::vector<float> c(static_cast<size_t>(m * n + 1), 12345.0F);
    gemm.run(a.view, b.view, reinterpret_cast<std::byte*>(c.data()));
    check_product(a, b, c);
    CHECK(c.back() == 12345.0F);
    std::fill(c.begin(), c.end(), 12345.0F);
    const auto packed = gemm.pack(b.view);
    gemm.run(a.view, *packed, reinterpret_cast<std::byte*>(c.data()));
    check_product(a, b, c);
    CHECK(c.back() == 12345.0F);
  }
}

TEST_CASE("gemm: blocks of C share streams, and reports add up") {
  auto device = stub(true);
  ops::Gemm gemm(device, test::small_configuration(), {2, 16});
  const Matrix a = matrix(24, 8, ElementType::kBf16, Layout::kDense, 0);
  const Matrix b = matrix(8, 40, ElementType::kF32, Layout::kDense, 1);
  std::vector<float> c(24 * 40);
  const RunReport report = gemm.run(a.view, b.view, reinterpret_cast<std::byte*>(c.data()));
  check_product(a, b, c);
  // Blocks of 8 rows and 16, 16, 8 columns: nine submissions, two shapes.
  CHECK(static_cast<StubDevice&>(*device->device).submissions == 9);
  CHECK(report.operations == 9);
  CHECK(report.undecoded_writes == 3);  // a total of the device since it was configured
  CHECK(gemm.counters().streams_built == 2);
  CHECK(gemm.counters().stream_hits == 7);
}

TEST_CASE("gemm: two products on a device that takes the arguments of one") {
  auto device = stub(true);
  ops::Gemm gemm(device, test::small_configuration(), {2, 16});
  const Matrix a = matrix(8, 8, ElementType::kBf16, Layout::kDense, 0);
  const Matrix b = matrix(8, 40, ElementType::kF32, Layout::kDense, 1);
  const Matrix other = matrix(40, 8, ElementType::kBf16, Layout::kTransposed, 2);
  const auto packed = gemm.pack(matrix(8, 9, ElementType::kBf16, Layout::kDense, 3).view);
  std::vector<float> c(8 * 40), d(40 * 9);
  gemm.run_both({a.view, b.view, nullptr, reinterpret_cast<std::byte*>(c.data())},
                {other.view, {}, packed.get(), reinterpret_cast<std::byte*>(d.data())});
  check_product(a, b, c);
  check_product(other, matrix(8, 9, ElementType::kBf16, Layout::kDense, 3), d);
  CHECK(static_cast<StubDevice&>(*device->device).submissions == 3 + 5);
}

TEST_CASE("gemm: wrong sizes, types and devices are refused") {
  ops::Gemm gemm(stub(true), test::small_configuration());
  std::vector<float> c(64);
  auto* out = reinterpret_cast<std::byte*>(c.data());
  const Matrix a = matrix(4, 4, ElementType::kF32, Layout::kDense, 0);
  const auto sized = [&](int64_t rows, int64_t cols, ElementType type = ElementType::kF32) {
    MatrixView view = a.view;
    view.rows = rows;
    view.cols = cols;
    view.type = type;
    return view;
  };
  const auto kind = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kUnfinished;  // not thrown
  };
  for (const auto& [m, k, n] : {std::array{0, 4, 4}, std::array{4, 0, 4}, std::array{4, 4, 0}}) {
    CHECK(kind([&] { gemm.run(sized(m, k), sized(k, n), out); }) == ErrorKind::kShape);
  }
  CHECK(kind([&] { gemm.run(sized(2, 3), sized(4, 4), out); }) == ErrorKind::kShape);
  CHECK(kind([&] { gemm.pack(sized(0, 4)); }) == ErrorKind::kShape);
  const MatrixView i8 = sized(4, 4, ElementType::kI8);
  CHECK(kind([&] { gemm.run(i8, i8, out); }) == ErrorKind::kDtype);
  CHECK(kind([&] { gemm.pack(i8); }) == ErrorKind::kDtype);
  ops::Gemm elsewhere(stub(true), test::small_configuration());
  const auto packed = elsewhere.pack(a.view);
  CHECK(kind([&] { gemm.run(a.view, *packed, out); }) == ErrorKind::kArgument);
}

TEST_CASE("gemm: packed B keeps its device alive") {
  auto device = stub(false);
  const std::weak_ptr<SharedDevice> watch = device;
  const Matrix b = matrix(5, 5, ElementType::kF32, Layout::kDense, 0);
  std::shared_ptr<const ops::PackedB> packed =
      ops::Gemm(std::move(device), test::small_configuration()).pack(b.view);
  CHECK_FALSE(watch.expired());
  packed.reset();
  CHECK(watch.expired());
}
