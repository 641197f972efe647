// GEMV plans: every row-block is computed, cores of a channel read side by side, objects of x and y
// fit, and nothing overlaps in the results; streams: reads stay inside W, cover it, and every token
// that is asked for is waited for. The cores' side runs in
// tests/python/designs/test_designs_gemv.py.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "arch/bd.h"
#include "error.h"
#include "gemm_fixture.h"
#include "ops/gemv/gemv_schedule.h"
#include "runtime/configuration.h"
#include "stream/txn.h"
#include "streams.h"

namespace {

using namespace npu;
using ops::GemvArray;
using ops::GemvOutput;
using ops::GemvProblem;
using ops::GemvSchedule;

constexpr uint64_t kLarge = 5120, kSmall = 4608;  // bytes of a block

constexpr uint32_t kOpening = 6;  // blocks of a weight channel's configured BD

Configuration configuration(int columns, int rows, int channels, uint64_t block_bytes = kLarge) {
  std::string text =
      strf("npu-config 1\nname gemv\ngeneration %s\n", columns == 4 ? "npu1" : "npu2");
  text += "source 0000000000000000000000000000000000000000000000000000000000000000\n";
  text += strf("param columns %d\nparam rows %d\nparam channels %d\n", columns, rows, channels);
  text += strf("param block_bytes %d\n", static_cast<int>(block_bytes));
  text += "param x_bytes 4096\nparam y_bytes 512\nparam setup_words 16\n";
  text += strf("param preconfigured_blocks %d\n", rows == channels ? kOpening : 0);
  for (int c = 0; c < columns; ++c) {
    const int ports = channels == 2 && c + 1 < columns ? 2 : 1;
    for (int i = 0; i < ports; ++i) text += strf("port W%d_%d %d mm2s %d\n", c, i, c, i);
    text += strf("port Y%d %d s2mm 0\n", c, c);
  }
  text += strf("port X %d mm2s 1\n", columns - 1);
  stream::Builder empty(columns == 4 ? arch::Generation::kNpu1 : arch::Generation::kNpu2, columns);
  const std::vector<uint32_t> txn = empty.finish();
  text += strf("txn %zu\n", txn.size() * 4);
  std::vector<std::byte> bytes(text.size() + txn.size() * 4);
  std::copy_n(reinterpret_cast<const std::byte*>(text.data()), text.size(), bytes.begin());
  std::copy_n(reinterpret_cast<const std::byte*>(txn.data()), txn.size() * 4,
              bytes.begin() + static_cast<long>(text.size()));
  return Configuration::parse(bytes);
}

struct Case {
  int columns, rows, channels;
};
constexpr Case kArrays[] = {{4, 4, 2}, {4, 4, 1}, {4, 2, 2}, {8, 2, 2},
                            {8, 4, 2}, {8, 4, 1}, {8, 1, 1}};

struct Size {
  uint64_t block_bytes;
  blocks::Format format;
};
constexpr Size kSizes[] = {{kLarge, blocks::Format::kQ4nx},
                           {kSmall, blocks::Format::kQ4_0},
                           {kSmall, blocks::Format::kQ8_0}};

void check_schedule(const GemvArray& array, const GemvProblem& p, const GemvSchedule& schedule) {
  CHECK(schedule.x_objects * schedule.x_blocks >= p.column_blocks);
  CHECK((schedule.x_objects - 1) * schedule.x_blocks < p.column_blocks);
  CHECK(schedule.x_blocks * p.batch * blocks::columns_of(p.format) * 2 <= array.x_bytes);
  std::vector<bool> computed(static_cast<size_t>(p.row_blocks));
  int64_t end = 0;
  bool inside = true;
  for (int c = 0; c < array.columns; ++c) {
    const ops::GemvShare& share = schedule.shares[static_cast<size_t>(c)];
    CHECK(share.first.size() == static_cast<size_t>(array.cores(c)));
    CHECK(share.rounds <= schedule.rounds);
    CHECK(share.y_objects * share.y_row_blocks == share.rounds);
    if (share.rounds > 0) CHECK(share.y_offset == end);
    end += share.y_objects * array.cores(c) * array.y_bytes;
    const int64_t entry = p.output == GemvOutput::kTop ? 0 : p.output == GemvOutput::kF32 ? 4 : 2;
    CHECK(share.y_row_blocks * p.batch * 32 * entry <= array.y_bytes);
    for (const int64_t first : share.first) {
      for (int64_t t = 0; t < share.rounds; ++t) {
        const int64_t block = first + t * share.step;
        inside &= block >= 0 && block < p.row_blocks;
        if (inside) computed[static_cast<size_t>(block)] = true;
      }
    }
  }
  CHECK(inside);
  CHECK(end == schedule.y_bytes);
  CHECK(std::find(computed.begin(), computed.end(), false) == computed.end());
}

// Replays the shim's side of a stream: queue pushes with their BD's current words.
void check_stream(const Configuration& config, const GemvProblem& p, const GemvSchedule& schedule) {
  const std::vector<uint32_t> words = test::gemv_words(config, p, schedule);
  const stream::Stream parsed = stream::Stream::parse(std::as_bytes(std::span(words)));
  std::map<uint32_t, std::vector<uint32_t>> bds;              // by BD address
  std::map<uint32_t, std::pair<uint32_t, uint64_t>> sources;  // argument, offset
  std::map<uint32_t, int> tokens;                             // by column, direction, channel
  const bool small = p.format == blocks::Format::kQ4_0 || p.format == blocks::Format::kQ8_0;
  const uint64_t block_bytes = small ? kSmall : kLarge, words_of_block = block_bytes / 4;
  const uint64_t w_blocks = static_cast<uint64_t>(p.row_blocks * p.column_blocks);
  std::set<uint64_t> blocks;
  uint64_t x_words = 0, y_words = 0;
  bool aligned = true, inside = true;
  const auto key = [](int col, int direction, int channel) {
    return static_cast<uint32_t>(col << 8 | direction << 4 | channel);
  };
  for (const stream::Operation& op : parsed.operations()) {
    const auto address = static_cast<uint32_t>(op.address);
    const uint32_t offset = arch::address_offset(address);
    if (op.opcode == stream::Opcode::kBlockWrite) {
      for (size_t i = 0; i * 8 < op.data.size(); ++i) {
        bds[address + 0x20 * static_cast<uint32_t>(i)].assign(
            op.data.begin() + static_cast<long>(8 * i),
            op.data.begin() + static_cast<long>(8 * i + 8));
      }
    } else if (op.opcode == stream::Opcode::kAddressPatch) {
      sources[address - 4] = {op.argument, op.argument_offset};
    } else if (op.opcode == stream::Opcode::kSync) {
      for (int c = 0; c < op.columns; ++c) {
        --tokens[key(op.column + c, static_cast<int>(op.direction), op.channel)];
      }
    } else if (op.opcode == stream::Opcode::kWrite && offset >= 0x1D200 && offset < 0x1D220) {
      const int col = arch::address_col(address), channel = static_cast<int>(offset >> 3 & 1);
      const bool mm2s = offset >= 0x1D210;
      if (op.value >> 31 != 0) ++tokens[key(col, mm2s, channel)];
      const uint32_t bd_address = arch::tile_address(col, 0, 0x1D000 + 0x20 * (op.value & 15));
      arch::Bd bd;
      const uint32_t id = op.value & 15;
      if (id >= 12) {  // the configuration's: W on channels 0 and 1, the setup and x, y
        CHECK(bds.find(bd_address) == bds.end());
        bd.length = id == 14 ? 2048 : kOpening * static_cast<uint32_t>(words_of_block);
        const int cores = GemvArray::of(config).cores(col);
        if (id == 15) bd.length = static_cast<uint32_t>(cores) * 128;
      } else {
        bd = arch::decode_bd(arch::TileKind::kShim, bds.at(bd_address));
      }
      const auto [argument, base] = sources.at(bd_address);
      const uint64_t runs = (op.value >> 16 & 0xFF) + 1;
      if (argument == ops::kGemvX) x_words += runs * bd.length;
      if (argument == ops::kGemvY) y_words += runs * bd.length;
      if (argument != ops::kGemvW) continue;
      CHECK(mm2s);
      CHECK(runs <= std::max<uint32_t>(bd.iteration_wrap, 1));
      for (uint64_t run = 0; run < runs; ++run) {
        const std::vector<uint64_t> visited = test::visited(bd, base + 4 * run * bd.iteration_step);
        for (size_t i = 0; i < visited.size(); i += words_of_block) {
          const uint64_t last = visited[i + words_of_block - 1];
          aligned &= visited[i] % block_bytes == 0 && last == visited[i] + block_bytes - 4;
          inside &= visited[i] / block_bytes < w_blocks;
          blocks.insert(visited[i] / block_bytes);
        }
      }
    }
  }
  CHECK(aligned);
  CHECK(inside);
  CHECK(blocks.size() == w_blocks);
  // x stays, or comes again.
  const int64_t line = blocks::columns_of(p.format) * 2 * p.batch;
  const int64_t sends = p.column_blocks * line <= 4096 ? 1 : schedule.rounds;
  CHECK(x_words == static_cast<uint64_t>(1024 + sends * schedule.x_objects * 1024));
  CHECK(y_words * 4 == static_cast<uint64_t>(schedule.y_bytes));
  CHECK(std::all_of(tokens.begin(), tokens.end(), [](const auto& t) { return t.second == 0; }));
}

}  // namespace

TEST_CASE("plans cover W and streams read all of it, for every array") {
  for (const auto& [block_bytes, format] : kSizes) {
    for (const Case& a : kArrays) {
      CAPTURE(block_bytes);
      const Configuration config = configuration(a.columns, a.rows, a.channels, block_bytes);
      const GemvArray array = GemvArray::of(config);
      for (const int64_t row_blocks : {4, 5, 15, 16, 17, 31, 36, 48, 61, 80, 300, 1100}) {
        for (const int64_t column_blocks : {1, 4, 13, 65}) {
          if (row_blocks * column_blocks > 1200) continue;
          CAPTURE(a.columns * 100 + a.rows * 10 + a.channels);
          CAPTURE(row_blocks);
          CAPTURE(column_blocks);
          GemvProblem p{row_blocks, column_blocks, row_blocks * 32 - 3, 4};
          p.output = GemvOutput::kF32;
          p.format = format;
          const GemvSchedule schedule = ops::schedule_gemv(array, p);
          check_schedule(array, p, schedule);
          check_stream(config, p, schedule);
        }
      }
    }
  }
}

TEST_CASE("streams with more rounds than tasks in flight wait for weights and x") {
  for (const auto& [block_bytes, format] : kSizes) {
    CAPTURE(block_bytes);
    for (const Case& a : {Case{8, 1, 1}, Case{4, 2, 1}}) {
      const Configuration config = configuration(a.columns, a.rows, a.channels, block_bytes);
      GemvProblem p{8 * 1300, 1, 8 * 1300 * 32, 1};
      p.format = format;
      const GemvSchedule schedule = ops::schedule_gemv(GemvArray::of(config), p);
      CHECK(schedule.rounds > 4 * 256);
      check_schedule(GemvArray::of(config), p, schedule);
      check_stream(config, p, schedule);
    }
  }
}

TEST_CASE("a schedule of every batch and output, and the setup it sends") {
  const Configuration config = configuration(8, 2, 2);
  const GemvArray array = GemvArray::of(config);
  for (const int batch : {1, 2, 4, 8}) {
    for (const GemvOutput output : {GemvOutput::kBf16, GemvOutput::kF32, GemvOutput::kTop}) {
      if (output == GemvOutput::kF32 && batch == 8) continue;
      GemvProblem p{8194, 10, 262208, batch, output, output == GemvOutput::kTop ? 8 : 0};
      const GemvSchedule schedule = ops::schedule_gemv(array, p);
      check_schedule(array, p, schedule);
      const ops::GemvShare& second = schedule.shares[1];
      const int32_t* record = schedule.setup.data() + (1 * 2 + 1) * 16;  // column 1, core 1
      CHECK(record[0] == second.y_objects);
      CHECK(record[1] == second.y_row_blocks);
      CHECK(record[2] == schedule.x_objects - 1);
      CHECK(record[2] * record[3] + record[14] == 10);
      CHECK(record[14] > 0);
      CHECK(record[14] <= record[3]);
      CHECK(record[4] == (schedule.rounds - second.rounds) * schedule.x_objects);
      CHECK(record[11] == 0);
      CHECK(record[5] == batch);
      CHECK(record[6] == static_cast<int32_t>(output));
      CHECK(record[8] == second.first[1] * 32);
      CHECK(record[9] == 32);
      CHECK(record[10] == 262208);
    }
  }
}

TEST_CASE("x that fits one object is taken once, also by cores without work") {
  const GemvArray array = GemvArray::of(configuration(8, 2, 2));
  for (const int64_t row_blocks : {2, 36, 1100}) {
    const GemvProblem p{row_blocks, 4, row_blocks * 32, 2};
    const GemvSchedule schedule = ops::schedule_gemv(array, p);
    CHECK(schedule.resident);
    for (int c = 0; c < 8; ++c) {
      const ops::GemvShare& share = schedule.shares[static_cast<size_t>(c)];
      for (int r = 0; r < array.cores(c); ++r) {
        const int32_t* record = schedule.setup.data() + (c * 2 + r) * 16;
        CHECK(record[0] == 0);
        CHECK(record[4] + record[11] == 1);
        CHECK(record[11] == (share.rounds > 0 ? 1 : 0));
        CHECK(record[12] == share.y_objects);
        CHECK(record[12] * record[13] == share.rounds * 4);
      }
    }
  }
}

// The command processor starts columns one after the other.
TEST_CASE("columns that start early read more") {
  const GemvArray array = GemvArray::of(configuration(8, 2, 2));
  for (const int64_t row_blocks : {36, 48, 80, 432, 8192}) {
    const GemvSchedule schedule = ops::schedule_gemv(array, {row_blocks, 5, row_blocks * 32, 1});
    CHECK(schedule.shares[0].rounds > 0);
    for (const ops::GemvShare& share : schedule.shares)
      CHECK(share.rounds <= schedule.shares[0].rounds);
    CHECK(schedule.shares[6].rounds < schedule.shares[0].rounds);
  }
  // Starting seven columns takes longer than reading a row-block of one block.
  const GemvSchedule schedule = ops::schedule_gemv(array, {300, 1, 9600, 1});
  CHECK(schedule.shares[6].rounds + 2 <= schedule.shares[0].rounds);
}

TEST_CASE("a configuration multiplies formats of its size of blocks only") {
  for (const auto& [block_bytes, own] : kSizes) {
    const GemvArray array = GemvArray::of(configuration(8, 4, 2, block_bytes));
    for (int i = 0; i < blocks::kFormats; ++i) {
      CAPTURE(i);
      GemvProblem p{64, 4, 64 * 32, 1};
      p.format = blocks::Format(i);
      const bool fits = (i >= 3) == (block_bytes == kSmall);
      if (fits) {
        CHECK_NOTHROW(ops::schedule_gemv(array, p));
        continue;
      }
      try {
        ops::schedule_gemv(array, p);
        FAIL("no error");
      } catch (const Error& e) {
        CHECK(e.kind() == ErrorKind::kArgument);
        CHECK(std::string(e.what()).starts_with("[gemv] "));
        CHECK(std::string(e.what()).find("4608") != std::string::npos);
      }
    }
  }
  for (const uint64_t bytes : {4604, 5124}) {
    CHECK_THROWS_AS(GemvArray::of(configuration(8, 4, 2, bytes)), Error);
  }
}

TEST_CASE("problems and configurations that do not fit are refused") {
  GemvArray array = GemvArray::of(configuration(8, 4, 2));
  const auto refused = [&](GemvProblem p, ErrorKind kind) {
    try {
      ops::schedule_gemv(array, p);
      FAIL("no error");
    } catch (const Error& e) {
      CHECK(e.kind() == kind);
    }
  };
  refused({1, 1, 32, 1}, ErrorKind::kShape);  // two cores read side by side
  refused({4, 0, 128, 1}, ErrorKind::kShape);
  refused({int64_t{1} << 40, 1, 1, 1}, ErrorKind::kOutOfRange);
  refused({4, 820, 128, 1}, ErrorKind::kOutOfRange);  // beyond a BD's step
  {
    const GemvArray small = GemvArray::of(configuration(8, 4, 2, kSmall));
    GemvProblem p{4, 910, 128, 1};  // 2^20 words are 910.2 blocks
    p.format = blocks::Format::kQ4_0;
    CHECK_NOTHROW(ops::schedule_gemv(small, p));
    p.column_blocks = 911;
    CHECK_THROWS_AS(ops::schedule_gemv(small, p), Error);
  }
  refused({4, 1, 128, 3}, ErrorKind::kArgument);
  refused({4, 1, 128, 8, GemvOutput::kF32}, ErrorKind::kArgument);
  refused({4, 1, 128, 1, GemvOutput::kTop, 0}, ErrorKind::kArgument);
  refused({4, 1, 128, 2, GemvOutput::kTop, 33}, ErrorKind::kArgument);
  array = GemvArray::of(configuration(1, 4, 2));
  refused({3, 1, 96, 1}, ErrorKind::kShape);  // one channel, whose two cores take turns
  CHECK(ops::schedule_gemv(array, {4, 1, 128, 1}).rounds == 2);
  CHECK_THROWS_AS(GemvArray::of(configuration(8, 1, 2)), Error);  // one core on two channels
}
