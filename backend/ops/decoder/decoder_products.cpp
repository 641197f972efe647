// Passes of the GEMV cores (decoder_products.h).
#include "ops/decoder/decoder_products.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "error.h"
#include "ops/block_weights.h"
#include "rounding.h"

namespace npu::ops {

namespace {

constexpr int64_t kMaxTasks = 4;  // of a pass on one channel: what its queue takes

int64_t max_iteration() { return arch::tile_geometry(arch::TileKind::kShim).max_iteration; }

// Row-blocks per core at most: the upper core's blocks are a BD step away, and a pass's reads fit
// the queue of a channel.
int64_t max_rounds(const DecoderArray& array, int64_t column_blocks) {
  const int64_t step = arch::tile_geometry(arch::TileKind::kShim).max_step;
  const int64_t by_step = step / (array.block_bytes / 4);
  const int64_t by_queue = kMaxTasks * max_iteration() * array.run_blocks;
  return std::max<int64_t>(1, std::min(by_step, by_queue) / column_blocks);
}

// Columns in an order whose first ones lie far apart: 0, 4, 2, 6, 1, ... Threads of an emulated
// device have neighbours, so that each gets as many of what is left over.
std::vector<size_t> apart(size_t columns) {
  const auto bits = static_cast<unsigned>(std::bit_width(columns - 1));
  std::vector<size_t> order;
  for (size_t i = 0; i < size_t{1} << bits; ++i) {
    size_t column = 0;
    for (unsigned bit = 0; bit < bits; ++bit) column |= (i >> bit & 1) << (bits - 1 - bit);
    if (column < columns) order.push_back(column);
  }
  return order;
}

void spread(const DecoderArray& array, int64_t first, int64_t row_blocks,
            std::vector<int64_t>& load, DecoderPass& pass) {
  int64_t rounds = divide_up(row_blocks, DecoderArray::kRows);
  const auto columns = static_cast<size_t>(std::min<int64_t>(array.columns, rounds));
  const int64_t blocks = DecoderArray::kRows * pass.segment.column_blocks();  // of a round
  const int64_t end = first + row_blocks;
  pass.columns.assign(static_cast<size_t>(array.columns), {});
  for (size_t c = 0; c < columns; ++c, --rounds) {
    ++pass.columns[c].rounds;
    load[c] += blocks;
  }
  const std::vector<size_t> order = apart(columns);
  for (; rounds > 0; --rounds) {
    const size_t least = *std::ranges::min_element(order, {}, [&](size_t c) { return load[c]; });
    ++pass.columns[least].rounds;
    load[least] += blocks;
  }
  int64_t next = first;
  for (size_t c = 0; c < columns; ++c) {
    DecoderPass::Column& column = pass.columns[c];
    // Where the rows end inside a round, the last column computes a row-block again.
    column.first = std::min(next, end - DecoderArray::kRows * column.rounds);
    next = column.first + DecoderArray::kRows * column.rounds;
  }
}

}  // namespace

int DecoderPass::active() const {
  return static_cast<int>(
      std::count_if(columns.begin(), columns.end(), [](const Column& c) { return c.rounds > 0; }));
}

int64_t DecoderPass::pieces() const {
  assert(output == gemv::Output::kTop);
  return divide_up(top, gemv::kPieceBytes / gemv::kTopBytes);
}

namespace {

int64_t pieces_per_row_block(gemv::Output output) { return output == gemv::Output::kF32 ? 2 : 1; }

// Pieces of results that a core of a column sends.
int64_t pieces_of(const DecoderPass& pass, const DecoderPass::Column& column) {
  return pass.output == gemv::Output::kTop ? pass.pieces()
                                           : column.rounds * pieces_per_row_block(pass.output);
}

}  // namespace

int64_t DecoderPass::y_offset(int column) const {
  if (output == gemv::Output::kTop) return y + column * y_bytes();
  const int64_t row_block = pieces_per_row_block(output) * gemv::kPieceBytes;
  return y + columns[static_cast<size_t>(column)].first * row_block;
}

uint32_t DecoderPass::result_words(int column) const {
  const int64_t pieces = pieces_of(*this, columns[static_cast<size_t>(column)]);
  return static_cast<uint32_t>(2 * pieces * gemv::kPieceBytes / 4);
}

std::vector<DecoderPass::Task> DecoderPass::reads(const DecoderArray& array, int column) const {
  const Column& share = columns[static_cast<size_t>(column)];
  std::vector<Task> tasks;
  if (share.rounds == 0) return tasks;
  const int64_t words = array.block_bytes / 4;
  const int64_t run = array.run_blocks, count = share.rounds * segment.column_blocks();
  const int64_t begin = share.first * segment.column_blocks() - share.before;
  const int64_t runs = divide_up(count, run);
  for (int64_t done = 0; done < runs; done += max_iteration()) {
    const int64_t repeats = std::min(max_iteration(), runs - done);
    arch::Bd bd;
    bd.length = static_cast<uint32_t>(DecoderArray::kRows * run * words);
    bd.wrap[0] = bd.step[1] = static_cast<uint32_t>(words / 2);  // a block is longer than a wrap
    bd.wrap[1] = static_cast<uint32_t>(2 * run);
    bd.step[2] = static_cast<uint32_t>(count * words);
    bd.iteration_step = static_cast<uint32_t>(run * words);
    bd.iteration_wrap = static_cast<uint32_t>(repeats);
    tasks.push_back({segment.offset + (begin + done * run) * array.block_bytes, bd, repeats});
  }
  return tasks;
}

// The upper core's runs begin where the lower one's blocks end.
DecoderBytes DecoderPass::read_bytes(const DecoderArray& array, int column) const {
  const Column& share = columns[static_cast<size_t>(column)];
  if (share.rounds == 0) return {};
  const int64_t count = share.rounds * segment.column_blocks();
  const int64_t begin = share.first * segment.column_blocks() - share.before;
  const int64_t end = begin + count + round_up(count, array.run_blocks);
  return {segment.offset + begin * array.block_bytes, segment.offset + end * array.block_bytes};
}

std::vector<int32_t> DecoderPass::setup(const DecoderArray& array) const {
  std::vector<int32_t> table(static_cast<size_t>(array.cores() * gemv::kLongSetupWords), 0);
  int64_t most = 0;
  for (const Column& column : columns) most = std::max(most, column.rounds);
  for (int core = 0; core < array.cores(); ++core) {
    const Column& share = columns[static_cast<size_t>(core / DecoderArray::kRows)];
    const auto word = [](int64_t value) { return static_cast<int32_t>(value); };
    const int64_t q = segment.column_blocks();
    gemv::Setup setup{};
    gemv::Loops loops{};
    setup.batch = 1;
    setup.output = static_cast<int32_t>(output);
    setup.format = static_cast<int32_t>(segment.format);
    setup.row_blocks = output == gemv::Output::kTop ? word(std::max<int64_t>(share.rounds, 1)) : 1;
    const int64_t first = share.first + core % DecoderArray::kRows * share.rounds;
    setup.first = word(first * blocks::kRows);
    setup.step = word(blocks::kRows);
    setup.rows = word(segment.n);
    setup.top = top;
    if (kept) {
      setup.x_blocks = setup.x_last = loops.blocks = word(q);
      loops.kept = word(x_objects);
      loops.keep = word(x_piece());
      loops.rounds = word(share.rounds);
    } else {
      setup.x_blocks = word(x_blocks);
      setup.x_objects = word(x_objects - 1);
      setup.x_last = word(q - (x_objects - 1) * x_blocks);
      loops.streamed = word(share.rounds);
      setup.idle = word((most - share.rounds) * x_objects);
    }
    loops.pieces = output == gemv::Output::kTop ? 0 : word(pieces_per_row_block(output));
    loops.last = output == gemv::Output::kTop && share.rounds > 0 ? word(pieces()) : 0;
    const int64_t blocks = share.rounds * q;
    loops.before = word(share.before);
    loops.after =
        word(divide_up(blocks, array.run_blocks) * array.run_blocks - blocks - share.before);
    int32_t* record = table.data() + core * gemv::kLongSetupWords;
    std::memcpy(record, &setup, sizeof setup);
    std::memcpy(record + gemv::kSetupWords, &loops, sizeof loops);
  }
  return table;
}

std::vector<DecoderPass> decoder_passes(const DecoderArray& array, const DecoderModel& model,
                                        const DecoderMatrix& matrix, gemv::Output output, int top,
                                        int64_t y, std::vector<int64_t>& load) {
  std::vector<DecoderPass> out;
  int64_t rows = 0;
  for (const DecoderSegment& segment : matrix) {
    check_block_bytes("decoder", segment.format, array.block_bytes);
    const int64_t q = segment.column_blocks(), total = segment.row_blocks();
    // Rounds are not equally many: leave room for a column to have a quarter more.
    const int64_t most_rounds = max_rounds(array, q);
    const int64_t step = std::max<int64_t>(1, most_rounds * 4 / 5) * array.cores();
    if (total < DecoderArray::kRows) {
      fail(ErrorKind::kShape, "[decoder] a matrix has %lld rows; the array needs more than %lld",
           static_cast<long long>(segment.n), static_cast<long long>(blocks::kRows));
    }
    for (int64_t first = 0; first < total; first += step) {
      DecoderPass pass;
      pass.segment = segment;
      pass.first_row = rows;
      pass.output = output;
      pass.top = top;
      spread(array, first, std::min(step, total - first), load, pass);
      const int64_t line = blocks::columns_of(segment.format);
      pass.x_objects = divide_up(q, gemv::kXBytesOfOne / 2 / line);
      pass.x_blocks = divide_up(q, pass.x_objects);
      pass.x_objects = divide_up(q, pass.x_blocks);
      pass.kept = q * line <= gemv::kKeptElements;
      int64_t most = 0;
      for (DecoderPass::Column& column : pass.columns) {
        most = std::max(most, column.rounds);
        const int64_t count = column.rounds * q;
        const int64_t pad = divide_up(count, array.run_blocks) * array.run_blocks - count;
        const int64_t end = column.first * q + DecoderArray::kRows * count + pad;
        const int64_t limit = model.region_bytes[static_cast<size_t>(segment.region)];
        if (segment.offset + end * array.block_bytes > limit) column.before = pad;
        if (segment.offset + (column.first * q - column.before) * array.block_bytes < 0) {
          fail(ErrorKind::kShape,
               "[decoder] a matrix of %lld x %lld has too few blocks for a run of %lld; use the "
               "host path",
               static_cast<long long>(segment.n), static_cast<long long>(segment.k),
               static_cast<long long>(array.run_blocks));
        }
      }
      pass.x_sends = pass.kept ? pass.x_objects : pass.x_objects * most;
      if (output == gemv::Output::kTop) {
        pass.y = y;
        y += pass.active() * pass.y_bytes();
      } else {
        pass.y = y + rows * (output == gemv::Output::kF32 ? 4 : 2);
      }
      out.push_back(std::move(pass));
    }
    rows += segment.n;
  }
  return out;
}

}  // namespace npu::ops
