// What every core of the prefill configuration does whatever the job (prefill_job.h): it takes the
// header, from which it knows its own share, and keeps the constants that all cores keep.
#include <stddef.h>
#include <stdint.h>

#include <aie_api/aie.hpp>
#include <algorithm>

#include "kernel.h"
#include "prefill_job.h"

namespace {
namespace prefill {

using namespace npu::prefill;

constexpr int32_t kArrayColumns = __AIE_ARCH__ == 20 ? 4 : 8, kArrayRows = 4;
constexpr int32_t kConstantFloats = kAPayload / 4;

inline Job& job_of(int32_t* words) { return *reinterpret_cast<Job*>(words); }

// Of a product.
inline void take_product(Job& job, int32_t column) {
  const int32_t* all = &job.blocks0;
  const int32_t blocks = all[column], any = where(blocks > 0);
  job.blocks = blocks;
  job.clear = any & 1;
  job.held = blocks << (job.format == int32_t(npu::blocks::Format::kBf16) ? 1 : 0);
  job.own_holds = job.holds & any;
  job.expands = job.behind > 0 ? 1 : 0;
  job.factors = job.scaled & any;
  job.pieces = product_pieces(job.m, blocks, job.wide);
  job.pass = (job.holds * (job.before + job.behind) + job.scaled) & ~any;
}

// Of all other jobs.
inline void take_turn(Job& job, int32_t row, int32_t column) {
  const int32_t takes_part = where(column < job.used);
  const int32_t own = job.rounds & takes_part;
  job.norm_rounds = own & where(job.kind == int32_t(Kind::kNorm));
  job.geglu_rounds = own & where(job.kind == int32_t(Kind::kGeglu));
  job.rotation_rounds = own & where(job.kind == int32_t(Kind::kRotation));
  const int32_t rows = job.rounds * (job.first_groups + job.groups * job.a_turns) * job.used;
  job.pass = rows & ~takes_part;
  job.a_before = column, job.a_after = (job.used - 1 - column) & takes_part;
  job.b_before = row, job.b_after = kArrayRows - 1 - row;
  job.q_before = row * job.units, job.q_after = job.b_after * job.units;
  job.attends = job.units > 0 ? 1 : 0;
  job.out_pieces = job.units * unit_pieces(job.dim);
}

inline void take_words(const bfloat16* a, int32_t* job) {
  const auto* words = reinterpret_cast<const int32_t*>(a);
  NPU_SERIAL_FOR(int32_t i = 0, i < kState, i += 16) {
    aie::store_v(job + i, aie::load_v<16>(words + i));
  }
  NPU_SERIAL_FOR(int32_t i = kState, i < kJobWords, i += 16) {
    aie::store_v(job + i, aie::zeros<int32_t, 16>());
  }
}

#if NPU_DECLARATIONS
bool dims_fit(const Job& job) {
  const int32_t d = job.head_dim;
  return (d == 64 || d == 128 || d == 256) && job.dim >= kSlice && job.dim <= d &&
         job.dim % kSlice == 0;
}

bool product_fits(const Job& job) {
  const int32_t* blocks = &job.blocks0;
  for (int32_t c = 0; c < kMaxColumns; ++c) {
    if (blocks[c] < 0 || blocks[c] > kMaxBlocks || (blocks[c] > 0 && c >= kArrayColumns))
      return false;
  }
  if (job.m != 16 && job.m != 32 && job.m != 64 && job.m != kRowSlots) return false;
  if (job.format < 0 || job.format >= npu::blocks::kFormats) return false;
  const auto format = npu::blocks::Format(job.format);
  const int32_t most = *std::max_element(blocks, blocks + kMaxColumns);
  if (format == npu::blocks::Format::kBf16 && most > 1) return false;
  const RangeParts of = range_parts(format, job.m, kRowSlots);
  if (job.before != of.before || job.behind != of.behind) return false;
  return job.holds >= 1 && job.scaled >= 0 && job.scaled <= 1 && job.wide >= 0 && job.wide <= 1 &&
         job.chunks == 0 && job.rounds == 0 && job.units == 0;
}

bool rows_fit(const Job& job) {
  return job.used >= 1 && job.used <= kArrayColumns && job.rounds >= 1 && job.first_groups >= 0 &&
         job.groups >= 1 && job.a_turns >= 0 && job.a_turns <= 1 && job.b_turns >= 1 &&
         job.b_pieces >= 1 && job.units == 0;
}

bool attention_fits(const Job& job) {
  return job.rounds == 0 && job.units == kUnits && dims_fit(job) && job.chunks >= 0 &&
         job.a_turns == kChunkHalves;
}

// Nothing but how many jobs follow.
bool count_fits(Job job) {
  const bool counts = job.rounds >= 0;
  job.kind = job.rounds = 0;
  const auto* words = reinterpret_cast<const int32_t*>(&job);
  return counts && std::all_of(words, words + sizeof job / sizeof *words,
                               [](int32_t word) { return word == 0; });
}

// Whether no product of counts leaves an integer, and constants are those of a job of rows.
bool counts_fit(const Job& job) {
  constexpr int32_t kFew = 1 << 6, kMany = 1 << 16;
  const auto within = [](int32_t count, int32_t most) { return count >= 0 && count <= most; };
  const bool constant = job.kind == int32_t(Kind::kNorm) || job.kind == int32_t(Kind::kRotation);
  return within(job.rounds, kMany) && within(job.holds, kMany) && within(job.groups, kFew) &&
         within(job.first_groups, kFew) && within(job.a_turns, kFew) && within(job.dim, 256) &&
         within(job.constants, constant ? kStore / kConstantFloats : 0);
}

bool header_fits(const Job& job) {
  if (!counts_fit(job)) return false;
  switch (Kind(job.kind)) {
    case Kind::kProduct:
      return product_fits(job);
    case Kind::kNorm:
    case Kind::kGeglu:
      return rows_fit(job);
    case Kind::kRotation:
      return rows_fit(job) && dims_fit(job);
    case Kind::kAttention:
      return attention_fits(job);
    case Kind::kJobs:
      return count_fits(job);
  }
  return false;
}

// begin, begin_product: operands a, words, row, column.
void check_header(const char* kernel, const KernelArgument* operands, bool product) {
  const Job& job = *reinterpret_cast<const Job*>(operands[0].data);
  const bool counts = job.kind == int32_t(Kind::kJobs);
  if (header_fits(job) && (counts || product == (job.kind == int32_t(Kind::kProduct)))) return;
  npu::fail(
      npu::ErrorKind::kKernel,
      "[%s] the header describes no job%s: kind %d, constants %d, m %d, holds %d x (%d + "
      "%d), rounds %d, groups %d, units %d, head_dim %d; send a header of prefill_job.h first",
      kernel, product ? " of products" : " of rows or attention", job.kind, job.constants, job.m,
      job.holds, job.before, job.behind, job.rounds, job.groups, job.units, job.head_dim);
}
void check_begin(const char* kernel, const KernelArgument* operands) {
  check_header(kernel, operands, false);
}
void check_begin_product(const char* kernel, const KernelArgument* operands) {
  check_header(kernel, operands, true);
}

// constant: operands a, store, words.
void check_constant(const char* kernel, const KernelArgument* operands) {
  const auto* words = reinterpret_cast<const int32_t*>(operands[2].data);
  const int32_t taken = words[kState];
  if (taken >= 0 && taken < kStore / kConstantFloats) return;
  npu::fail(npu::ErrorKind::kKernel, "[%s] %d objects of constants are there already", kernel,
            taken);
}

// The core's own words are made of those of the header that come before `chunks`; the others come
// with it as they are.
constexpr int32_t kRead = offsetof(Job, chunks) / 4, kOwn = offsetof(Job, row) / 4;
constexpr Operand kHeader = buffer("a", kAElements).steers(Steering::kReads, kRead);
constexpr Operand kWords = buffer("job", kJobWords).steers(Steering::kSets, kJobWords - kOwn, kOwn);
void copied_words(const KernelArgument*, WordCopies& out) { out.add({1, 0, 0, 0, kOwn}); }

// Not measured on hardware. Scalar loads, stores and a few operations for each word of the core;
// copies of 64 bytes (npu1: 32) by a load and a store.
constexpr int kBegin = 8 * kJobWords, kCopy = kAPayload / (__AIE_ARCH__ == 20 ? 32 : 64) + 24;
#endif

}  // namespace prefill
}  // namespace

// Takes a header of any job but products: its words, and the core's own; counters become 0.
NPU_KERNEL void prefill_begin(const bfloat16* a, int32_t* job, int32_t row, int32_t column) {
  using namespace prefill;
  take_words(a, job);
  job_of(job).row = row, job_of(job).column = column;
  take_turn(job_of(job), row, column);
}

// The same of a product.
NPU_KERNEL void prefill_begin_product(const bfloat16* a, int32_t* job, int32_t row,
                                      int32_t column) {
  using namespace prefill;
  take_words(a, job);
  job_of(job).row = row, job_of(job).column = column;
  take_product(job_of(job), column);
}

// The next object of constants.
NPU_KERNEL void prefill_constant(const bfloat16* a, float* store, int32_t* job) {
  using namespace prefill;
  const auto* from = reinterpret_cast<const float*>(a);
  float* to = store + job[kState]++ * kConstantFloats;
  for (int32_t i = 0; i < kConstantFloats; i += 16) aie::store_v(to + i, aie::load_v<16>(from + i));
}

NPU_DECLARE(prefill_begin, {.operands = {prefill::kHeader, prefill::kWords,
                                         integer("row", 0, prefill::kArrayRows - 1),
                                         integer("column", 0, prefill::kArrayColumns - 1)},
                            .cycles = fixed<prefill::kBegin>,
                            .check = prefill::check_begin,
                            .copies = prefill::copied_words});
NPU_DECLARE(prefill_begin_product, {.operands = {prefill::kHeader, prefill::kWords,
                                                 integer("row", 0, prefill::kArrayRows - 1),
                                                 integer("column", 0, prefill::kArrayColumns - 1)},
                                    .cycles = fixed<prefill::kBegin>,
                                    .check = prefill::check_begin_product,
                                    .copies = prefill::copied_words});
NPU_DECLARE(prefill_constant,
            {.operands = {buffer("a", npu::prefill::kAElements),
                          buffer("store", npu::prefill::kStore), npu::prefill::job_operand()},
             .cycles = fixed<prefill::kCopy>,
             .check = prefill::check_constant});
