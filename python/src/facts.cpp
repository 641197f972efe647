// npu._npu.facts: numbers that C++ states and Python needs: the geometry of weight blocks, and of
// GEMV the limits of a pass, the setup record and the shim BDs that its configuration writes; of
// attention the record of a job and the sizes of what its cores exchange.
#include <nanobind/nanobind.h>

#include <string_view>

#include "aie_kernels/attention.h"
#include "aie_kernels/gemv_setup.h"
#include "aie_kernels/prefill_job.h"
#include "aie_kernels/vector_job.h"
#include "aie_kernels/weight_block.h"
#include "bindings.h"
#include "formats/weight_blocks.h"
#include "ops/gemv/gemv.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

// Of a record's words, in their order.
template <typename Names>
nb::tuple names(const Names& of) {
  nb::list out;
  for (const char* name : of) out.append(name);
  return nb::tuple(out);
}

}  // namespace

void init_facts(nb::module_& m) {
  nb::module_ sub = m.def_submodule("facts", "Numbers that C++ and Python share.");
  sub.attr("Q4NX_ROWS") = q4nx::kRows;
  sub.attr("Q4NX_COLUMNS") = q4nx::kColumns;
  sub.attr("Q4NX_GROUP") = q4nx::kGroup;
  sub.attr("Q4NX_BLOCK_BYTES") = q4nx::kBlockBytes;
  sub.attr("BLOCK_ROWS") = blocks::kRows;
  sub.attr("BLOCK_BYTES") = blocks::kBytes;
  sub.attr("SMALL_BLOCK_BYTES") = blocks::kSmallBytes;
  sub.attr("Q4_0_CODES_AT") = blocks::q4_0::kCodesAt;
  sub.attr("Q4_0_ZERO") = blocks::q4_0::kZero;
  sub.attr("Q8_GROUP") = blocks::q8::kGroup;
  sub.attr("Q8_CODES_AT") = blocks::q8::kCodesAt;
  sub.attr("Q8_0_GROUP") = blocks::q8_0::kGroup;
  sub.attr("Q8_0_CODES_AT") = blocks::q8_0::kCodesAt;
  nb::dict columns, bytes;  // in the order of blocks::Format
  for (int32_t i = 0; i < blocks::kFormats; ++i) {
    const auto format = static_cast<blocks::Format>(i);
    columns[blocks::kFormatNames[i]] = blocks::columns_of(format);
    bytes[blocks::kFormatNames[i]] = blocks::bytes_of(format);
  }
  sub.attr("BLOCK_COLUMNS") = columns;
  sub.attr("BYTES_OF_BLOCK") = bytes;
  sub.attr("GEMV_BATCH") = gemv::kMaxBatch;
  sub.attr("GEMV_TOP") = ops::kMaxTop;
  sub.attr("GEMV_TOP_OUTPUT") = static_cast<int>(gemv::Output::kTop);
  sub.attr("GEMV_X_BYTES") = gemv::kXBytes;
  sub.attr("GEMV_X_BYTES_OF_ONE") = gemv::kXBytesOfOne;
  sub.attr("GEMV_Y_BYTES") = gemv::kYBytes;
  sub.attr("GEMV_WEIGHT_BD") = ops::kGemvWeightBd;
  sub.attr("GEMV_X_BD") = ops::kGemvXBd;
  sub.attr("GEMV_Y_BD") = ops::kGemvYBd;
  sub.attr("GEMV_SETUP_WORDS") = gemv::kSetupWords;
  sub.attr("GEMV_SETUP") = names(gemv::kSetupNames);
  sub.attr("GEMV_STATE") = names(gemv::kStateNames);
  sub.attr("GEMV_WORK") = gemv::kWork;
  sub.attr("GEMV_WORK_OF_ONE") = gemv::kWorkOfOne;
  sub.attr("GEMV_LOOPS") = names(gemv::kLoopNames);
  sub.attr("GEMV_LONG_SETUP_WORDS") = gemv::kLongSetupWords;
  sub.attr("GEMV_KEPT_ELEMENTS") = gemv::kKeptElements;
  sub.attr("GEMV_PIECE_BYTES") = gemv::kPieceBytes;
  sub.attr("ATTENTION_RECORD") = names(attention::kRecordNames);
  sub.attr("ATTENTION_RECORD_WORDS") = attention::kRecordWords;
  sub.attr("ATTENTION_RECORDS") = attention::kRecords;
  sub.attr("ATTENTION_TABLE_BYTES") = attention::kTableBytes;
  sub.attr("ATTENTION_ROWS") = attention::kRows;
  sub.attr("ATTENTION_MAX_DIM") = attention::kMaxDim;
  sub.attr("ATTENTION_PART_BYTES") = attention::kPartBytes;
  sub.attr("ATTENTION_SCORE_BYTES") = attention::kScoreBytes;
  sub.attr("ATTENTION_OUT_BYTES") = attention::kOutBytes;
  sub.attr("ATTENTION_SCORES_STATE") = attention::kScoresState;
  sub.attr("ATTENTION_VALUES_STATE") = attention::kValuesState;
  sub.attr("VECTOR_JOB") = names(vector::kJobNames);
  sub.attr("VECTOR_JOB_WORDS") = vector::kJobWords;
  sub.attr("VECTOR_LEFT") = vector::kLeft;
  sub.attr("VECTOR_STATE_WORDS") = vector::kStateWords;
  sub.attr("VECTOR_STORE_BYTES") = vector::kStoreBytes;
  sub.attr("VECTOR_IN_BYTES") = vector::kInBytes;
  sub.attr("VECTOR_OUT_BYTES") = vector::kOutBytes;
  sub.attr("PREFILL_JOB") = names(prefill::kJobNames);
  sub.attr("PREFILL_JOB_WORDS") = prefill::kJobWords;
  sub.attr("PREFILL_B_BYTES") = prefill::kBBytes;
  sub.attr("PREFILL_PIECE_BYTES") = prefill::kPieceBytes;
  sub.attr("PREFILL_MAX_BLOCKS") = prefill::kMaxBlocks;
  sub.attr("PREFILL_HELD") = prefill::kHeld;
  sub.attr("PREFILL_STORE") = prefill::kStore;
  nb::dict units, a_bytes, work;
  for (const char* name : {"npu1", "npu2"}) {
    const prefill::Sizes sizes = prefill::sizes_of(std::string_view(name) == "npu1");
    units[name] = sizes.units;
    a_bytes[name] = sizes.a_bytes();
    work[name] = sizes.work;
  }
  sub.attr("PREFILL_UNITS") = units;
  sub.attr("PREFILL_A_BYTES") = a_bytes;
  sub.attr("PREFILL_WORK") = work;
}

}  // namespace npu::python
