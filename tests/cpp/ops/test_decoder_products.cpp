// The passes of a token's products (ops/decoder): every row-block of a matrix is computed and its
// results land at its place in y; the cores get the blocks of their shares in order, and what else
// the whole runs bring is skipped and inside the region; the setups are ones that the kernels take
// and that add up to what is sent; the columns read equally much; formats
// of the other size of blocks are refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "error.h"
#include "gemm_fixture.h"
#include "kernel_calls.h"
#include "ops/decoder/decoder_products.h"

namespace {

using namespace npu;
using blocks::Format;
using gemv::Output;
using ops::DecoderArray;
using ops::DecoderMatrix;
using ops::DecoderModel;
using ops::DecoderPass;

// Of blocks of 5120 bytes, and of 4608.
constexpr Format kLarge[] = {Format::kQ4nx, Format::kQ8, Format::kBf16};
constexpr Format kSmall[] = {Format::kQ4_0, Format::kQ8_0};
constexpr Format kFormats[] = {kLarge[0], kLarge[1], kLarge[2], kSmall[0], kSmall[1]};

bool small_blocks(Format format) { return format == kSmall[0] || format == kSmall[1]; }
int64_t block_size(Format format) { return small_blocks(format) ? 4608 : 5120; }

// For a format and those of the same size.
DecoderArray array_of(arch::Generation generation, Format format) {
  const int columns = arch::device_geometry(generation).columns;
  return {columns, columns - 1, 3, block_size(format), generation};
}

struct Record {
  gemv::Setup setup;
  gemv::Loops loops;
};

std::vector<Record> records_of(const std::vector<int32_t>& table) {
  std::vector<Record> out(table.size() / gemv::kLongSetupWords);
  for (size_t i = 0; i < out.size(); ++i) {
    const int32_t* from = table.data() + i * gemv::kLongSetupWords;
    std::memcpy(&out[i].setup, from, sizeof(gemv::Setup));
    std::memcpy(&out[i].loops, from + gemv::kSetupWords, sizeof(gemv::Loops));
  }
  return out;
}

// Bytes of the region at which the blocks begin that each core of a column gets, in order.
std::vector<std::vector<int64_t>> blocks_read(const DecoderArray& array, const DecoderPass& pass,
                                              int column) {
  std::vector<std::vector<int64_t>> out(DecoderArray::kRows);
  const int64_t block_words = block_size(pass.segment.format) / 4;
  for (const DecoderPass::Task& task : pass.reads(array, column)) {
    REQUIRE(task.repeats >= 1);
    REQUIRE(task.repeats <= std::max<int64_t>(task.bd.iteration_wrap, 1));
    arch::Bd bd = task.bd;
    bd.burst = arch::device_geometry(array.generation).shim_burst;
    (void)arch::encode_bd(arch::TileKind::kShim, bd);  // its fields fit the registers
    REQUIRE(bd.length == DecoderArray::kRows * array.run_blocks * block_words);
    for (int64_t repeat = 0; repeat < task.repeats; ++repeat) {
      const int64_t base = task.offset + 4 * repeat * bd.iteration_step;
      const std::vector<uint64_t> words = test::visited(bd, static_cast<uint64_t>(base));
      for (size_t w = 0; w < words.size(); w += size_t(block_words)) {
        bool whole = true;
        for (size_t i = 0; i < size_t(block_words); ++i) whole &= words[w + i] == words[w] + 4 * i;
        REQUIRE(whole);
        const size_t core = w / static_cast<size_t>(array.run_blocks * block_words);
        out[core].push_back(static_cast<int64_t>(words[w]));
      }
    }
  }
  return out;
}

int64_t result_bytes(Output output) { return output == Output::kF32 ? 128 : 64; }

// Of one core: its blocks, its results, its loops. Returns the row-blocks that it computes.
std::vector<int64_t> check_core(const DecoderPass& pass, const DecoderModel& model,
                                const Record& record, const std::vector<int64_t>& read) {
  const auto& [setup, loops] = record;
  const int64_t q = pass.segment.column_blocks(), block_bytes = block_size(pass.segment.format);
  const int64_t rounds = loops.rounds + loops.streamed;
  REQUIRE(setup.batch == 1);
  REQUIRE(setup.format == int32_t(pass.segment.format));
  REQUIRE(setup.output == int32_t(pass.output));
  REQUIRE(setup.rows == pass.segment.n);
  REQUIRE(loops.before >= 0);
  REQUIRE(loops.after >= 0);
  REQUIRE(int64_t(read.size()) == loops.before + rounds * q + loops.after);
  for (const int64_t at : read) {
    REQUIRE(at >= 0);
    REQUIRE(at + block_bytes <= model.region_bytes[size_t(pass.segment.region)]);
  }
  std::vector<int64_t> computed;
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t row_block = setup.first / 32 + round * setup.step / 32;
    computed.push_back(row_block);
    for (int64_t i = 0; i < q; ++i) {
      const int64_t expected = pass.segment.offset + (row_block * q + i) * block_bytes;
      REQUIRE(read[size_t(loops.before + round * q + i)] == expected);
    }
  }
  // Objects of x: as many as are sent, each with the elements that the blocks take.
  const int64_t own = loops.kept + loops.streamed * (setup.x_objects + 1) + setup.idle;
  REQUIRE(own == pass.x_sends);
  const int64_t line = blocks::columns_of(pass.segment.format);
  if (pass.kept) {
    REQUIRE(loops.streamed == 0);
    REQUIRE(loops.blocks == q);
    REQUIRE(loops.kept * loops.keep >= q * line);
    REQUIRE(q * line <= gemv::kKeptElements);
  } else {
    REQUIRE(loops.rounds == 0);
    REQUIRE(setup.x_objects * setup.x_blocks + setup.x_last == q);
  }
  REQUIRE(pass.x_piece() * 2 <= gemv::kXBytesOfOne);
  return computed;
}

// The kernels take the setup.
void check_kernels(const DecoderArray& array, const DecoderPass& pass, const Record& record) {
  using kernel_test::buffer;
  std::vector<int32_t> words(gemv::kSetupWords), state(gemv::kSetupWords), y(gemv::kYBytes / 4);
  std::memcpy(words.data(), &record.setup, sizeof record.setup);
  const bool small = small_blocks(pass.segment.format);
  std::vector<uint8_t> block(size_t(block_size(pass.segment.format)));
  std::vector<float> sums(32), work(gemv::kWorkOfOne);
  std::vector<uint16_t> kept(gemv::kKeptElements), object(gemv::kXBytesOfOne / 2);
  const auto find = [&](const char* name) {
    return find_host_kernel(name, array.generation, Arithmetic::kFast);
  };
  CoreState core;
  const auto call = [&](const char* name, std::vector<uint16_t>& x) {
    const KernelArgument all[] = {
        buffer(block), buffer(x),     buffer(sums), buffer(y),
        buffer(words), buffer(state), buffer(work), kernel_test::integer(record.setup.format)};
    CHECK_NOTHROW(find(name)(all, core));
  };
  if (!pass.kept) return call(small ? "gemv_small_one" : "gemv_one", object);
  const KernelArgument keep[] = {buffer(object), buffer(kept), buffer(state),
                                 kernel_test::integer(record.loops.keep)};
  for (int32_t i = 0; i < record.loops.kept; ++i) CHECK_NOTHROW(find("gemv_keep")(keep, core));
  call(small ? "gemv_small_kept" : "gemv_kept", kept);
}

// Returns where the results go behind row 0: bytes, -1 where nobody writes.
void check_pass(const DecoderArray& array, const DecoderModel& model, const DecoderPass& pass,
                std::vector<bool>& computed) {
  const std::vector<Record> records = records_of(pass.setup(array));
  REQUIRE(records.size() == size_t(array.cores()));
  REQUIRE(records.size() * gemv::kLongSetupWords * 4 <= gemv::kXBytesOfOne);
  for (int c = 0; c < array.columns; ++c) {
    const auto read = blocks_read(array, pass, c);
    REQUIRE(pass.reads(array, c).size() <= 4);
    REQUIRE((c < pass.active()) == (pass.columns[size_t(c)].rounds > 0));
    const int64_t half = int64_t{pass.result_words(c)} * 2;  // bytes of a core's results
    for (int i = 0; i < DecoderArray::kRows; ++i) {
      const Record& record = records[size_t(DecoderArray::kRows * c + i)];
      const std::vector<int64_t> own = check_core(pass, model, record, read[size_t(i)]);
      const auto rounds = int64_t(own.size());
      if (rounds > 0) REQUIRE(half == 64 * (rounds * record.loops.pieces + record.loops.last));
      for (int64_t round = 0; round < rounds; ++round) {
        const int64_t row_block = own[size_t(round)];
        REQUIRE(row_block >= 0);
        REQUIRE(row_block < pass.segment.row_blocks());
        computed[size_t(row_block)] = true;
        if (pass.output == Output::kTop) continue;
        const int64_t at = pass.y_offset(c) + i * half + round * record.loops.pieces * 64;
        REQUIRE(at == pass.y + row_block * result_bytes(pass.output));
      }
      if (pass.output == Output::kTop && rounds > 0) {
        REQUIRE(record.setup.row_blocks == rounds);
        REQUIRE(record.loops.last * 64 >= pass.top * gemv::kTopBytes);
      }
    }
  }
  for (const int core : {0, 1, 2 * pass.active() - 1}) {
    check_kernels(array, pass, records[size_t(core)]);
  }
}

// All passes of a matrix; the segments' results follow one another.
void check_matrix(const DecoderArray& array, const DecoderModel& model, const DecoderMatrix& matrix,
                  Output output, int top, std::vector<int64_t>& load) {
  constexpr int64_t kY = 4096;
  const auto before = load;
  const auto passes = ops::decoder_passes(array, model, matrix, output, top, kY, load);
  size_t next = 0;
  int64_t rows = 0, lists = kY;
  std::vector<int64_t> read(load.size(), 0);
  for (const ops::DecoderSegment& segment : matrix) {
    std::vector<bool> computed(static_cast<size_t>(segment.row_blocks()));
    for (; next < passes.size() && passes[next].segment.offset == segment.offset &&
           passes[next].segment.region == segment.region;
         ++next) {
      const DecoderPass& pass = passes[next];
      check_pass(array, model, pass, computed);
      if (output == Output::kTop) {
        REQUIRE(pass.y == lists);
        lists += pass.active() * pass.y_bytes();
      } else {
        REQUIRE(pass.y == kY + rows * (output == Output::kF32 ? 4 : 2));
      }
      for (size_t c = 0; c < load.size(); ++c) {
        read[c] += 2 * pass.columns[c].rounds * segment.column_blocks();
      }
    }
    REQUIRE(std::find(computed.begin(), computed.end(), false) == computed.end());
    rows += segment.n;
  }
  REQUIRE(next == passes.size());
  for (size_t c = 0; c < load.size(); ++c) REQUIRE(load[c] == before[c] + read[c]);
}

// A matrix alone in its region, or with other blocks around it.
DecoderMatrix placed(DecoderModel& model, int64_t n, int64_t k, Format format, bool alone,
                     int64_t pad) {
  ops::DecoderSegment segment{int(model.region_bytes.size()), alone ? 0 : pad * 4, n, k, format};
  const int64_t bytes = segment.row_blocks() * segment.column_blocks() * block_size(format);
  model.region_bytes.push_back(segment.offset + bytes + (alone ? 0 : pad * 4));
  return {segment};
}

}  // namespace

TEST_CASE("decoder products: random matrices are computed whole and in place") {
  std::mt19937 random(1);
  const auto below = [&](int64_t most) { return int64_t(random() % uint64_t(most)); };
  for (int round = 0; round < 100; ++round) {
    const auto generation = below(2) ? arch::Generation::kNpu1 : arch::Generation::kNpu2;
    const std::span<const Format> formats =
        below(2) ? std::span<const Format>(kSmall) : std::span<const Format>(kLarge);
    const DecoderArray array = array_of(generation, formats[0]);
    DecoderModel model;
    DecoderMatrix matrix;
    const int64_t parts = 1 + below(3), k = 32 * (1 + below(120));
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t n = part + 1 < parts ? 32 * (2 + below(60)) : 33 + below(2500);
      const Format format = formats[size_t(below(std::ssize(formats)))];
      const auto one = placed(model, n, k, format, n > 2000 && below(2) == 0, 2560 + below(9000));
      matrix.push_back(one[0]);
    }
    const Output output = Output(below(3));
    CAPTURE(round);
    std::vector<int64_t> load(size_t(array.columns), 0);
    for (int64_t& column : load) column = below(500);
    check_matrix(array, model, matrix, output, output == Output::kTop ? 8 * int(1 + below(8)) : 0,
                 load);
  }
}

TEST_CASE("decoder products: matrices of real models, and equal loads") {
  struct Model {
    int64_t width, heads, kv_heads, dim, ffn, layers;
  };
  for (const Model& m : {Model{1152, 4, 1, 256, 6912, 26}, Model{2560, 8, 4, 256, 10240, 34},
                         Model{640, 4, 1, 256, 2048, 18}, Model{96, 4, 2, 32, 160, 7}}) {
    for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
      for (const Format format : kFormats) {
        const DecoderArray array = array_of(generation, format);
        CAPTURE(m.width);
        const bool real = m.width >= 640;  // enough blocks for runs, alone in memory
        CAPTURE(int(format));
        DecoderModel model;
        std::vector<DecoderMatrix> matrices = {
            placed(model, (m.heads + 2 * m.kv_heads) * m.dim, m.width, format, real, 4000),
            placed(model, m.width, m.heads * m.dim, format, real, 4000),
            placed(model, m.width, m.ffn, format, false, 4000),
            placed(model, 2 * m.ffn, m.width, format, real, 4000)};
        std::vector<int64_t> load(size_t(array.columns), 0);
        for (const DecoderMatrix& one : matrices) {
          check_matrix(array, model, one, Output::kBf16, 0, load);
        }
        for (int64_t layer = 1; layer < m.layers; ++layer) {
          for (const DecoderMatrix& one : matrices) {
            (void)ops::decoder_passes(array, model, one, Output::kBf16, 0, 0, load);
          }
        }
        // A column has at most the last matrix's round more than another, where that is enough
        // rounds to even out what the ones before left.
        const auto [least, most] = std::minmax_element(load.begin(), load.end());
        if (real) CHECK(*most - *least <= 2 * matrices[3][0].column_blocks());
      }
    }
  }
}

TEST_CASE("decoder products: heads of 262144 rows") {
  for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
    for (const Format format : {Format::kQ4nx, Format::kQ4_0}) {
      const DecoderArray array = array_of(generation, format);
      DecoderModel model;
      const DecoderMatrix head = placed(model, 262144, 640, format, true, 0);
      std::vector<int64_t> load(size_t(array.columns), 0);
      check_matrix(array, model, head, Output::kTop, 64, load);
      check_matrix(array, model, head, Output::kF32, 0, load);
    }
  }
}

TEST_CASE("decoder products: what the array cannot compute is refused") {
  const DecoderArray array = array_of(arch::Generation::kNpu2, Format::kQ4nx);
  DecoderModel model;
  std::vector<int64_t> load(size_t(array.columns), 0);
  // One row-block for the two cores of a column.
  const DecoderMatrix one = placed(model, 32, 256, Format::kQ4nx, true, 0);
  CHECK_THROWS_AS(ops::decoder_passes(array, model, one, Output::kBf16, 0, 0, load), Error);
  // Two row-blocks of one block each, and nothing around them that would fill a run of three.
  const DecoderMatrix few = placed(model, 64, 256, Format::kQ4nx, true, 0);
  CHECK_THROWS_AS(ops::decoder_passes(array, model, few, Output::kBf16, 0, 0, load), Error);
}

TEST_CASE("decoder products: formats of the other size of blocks are refused") {
  for (const Format of : {Format::kQ4nx, Format::kQ4_0}) {
    const DecoderArray array = array_of(arch::Generation::kNpu2, of);
    for (const Format format : kFormats) {
      CAPTURE(int(format));
      DecoderModel model;
      // The second of two parts.
      DecoderMatrix matrix = placed(model, 640, 256, of, false, 4000);
      matrix.push_back(placed(model, 640, 256, format, false, 4000)[0]);
      std::vector<int64_t> load(size_t(array.columns), 0);
      const auto make = [&] {
        (void)ops::decoder_passes(array, model, matrix, Output::kBf16, 0, 0, load);
      };
      if (small_blocks(format) == small_blocks(of)) {
        CHECK_NOTHROW(make());
        continue;
      }
      try {
        make();
        FAIL("no error");
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::kArgument);
        CHECK(std::string(error.what()).starts_with("[decoder] "));
      }
    }
  }
}
