// The products of a token: passes of the GEMV cores over row-blocks of a matrix, and the setup of
// the cores for each.
//
// A core takes a contiguous range of row-blocks and reads its blocks in memory order, in runs of
// DecoderArray::run_blocks; the two cores of a column lie side by side in what their channel reads.
// Rounds go to the columns that have read least so far: a channel that has less to do in one pass
// runs ahead into the next.
#pragma once

#include <cstdint>
#include <vector>

#include "aie_kernels/gemv_setup.h"
#include "arch/bd.h"
#include "ops/decoder/decoder_model.h"

namespace npu::ops {

struct DecoderPass {
  struct Column {
    int64_t first = 0;   // row-block of the lower core; the upper one begins `rounds` later
    int64_t rounds = 0;  // row-blocks of each core
    int64_t before = 0;  // blocks to let pass: runs are whole
  };
  struct Task {
    int64_t offset;  // bytes into the region
    arch::Bd bd;
    int64_t repeats;
  };

  DecoderSegment segment;
  int64_t first_row = 0;  // of the segment, in the matrix
  gemv::Output output = gemv::Output::kBf16;
  int top = 0;
  int64_t y = 0;  // byte of the workspace where row 0 of the segment, or the first list, goes
  std::vector<Column> columns;          // those that work come first
  int64_t x_blocks = 0, x_objects = 0;  // per object; objects for one run through x
  int64_t x_sends = 0;                  // objects in all
  bool kept = true;                     // cores keep x; else it is sent for every row-block

  int64_t x_piece() const { return x_blocks * blocks::columns_of(segment.format); }
  int active() const;
  int64_t pieces() const;  // of a core's results, in all
  int64_t y_bytes() const { return 2 * pieces() * gemv::kPieceBytes; }  // of a column
  int64_t y_offset(int column) const;
  // Of a column: reads of its weights.
  std::vector<Task> reads(const DecoderArray& array, int column) const;
  // What those read, from the first to the last byte of the region.
  DecoderBytes read_bytes(const DecoderArray& array, int column) const;
  uint32_t result_words(int column) const;
  // The table for all cores.
  std::vector<int32_t> setup(const DecoderArray& array) const;
};

// Passes over the rows of a matrix that follow one another in y, at byte `y` of the workspace.
// load: blocks that each column has read, to which these are added. Throws Error(kShape).
std::vector<DecoderPass> decoder_passes(const DecoderArray& array, const DecoderModel& model,
                                        const DecoderMatrix& matrix, gemv::Output output, int top,
                                        int64_t y, std::vector<int64_t>& load);

}  // namespace npu::ops
