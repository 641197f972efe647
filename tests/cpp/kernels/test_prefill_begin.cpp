// What every core of the prefill configuration makes of a header (aie_kernels/prefill.cc): for each
// kind of job, row and column of the array the words that bound its loops, in every host build;
// constants; headers that describe no job of the configuration are refused.
#include <doctest/doctest.h>

#include <algorithm>

#include "aie_kernels/prefill_job.h"
#include "aie_kernels/weight_block.h"
#include "kernel_calls.h"
#include "kernels/prefill_headers.h"
#include "kernels/registry.h"

using namespace kernel_test;

using npu::prefill_header_test::Wrong;

namespace {

namespace pre = npu::prefill;
using pre::Job, pre::Kind;
using Words = std::vector<int32_t>;

constexpr int kRows = 4;
int columns_of(const Build& build) { return build.generation == Generation::kNpu1 ? 4 : 8; }
int units_of(const Build& build) { return build.generation == Generation::kNpu1 ? 2 : 4; }
pre::Sizes sizes_of(const Build& build) {
  return pre::sizes_of(build.generation == Generation::kNpu1);
}

const char* kernel_of(const Job& job) {
  return job.kind == int32_t(Kind::kProduct) ? "prefill_begin_product" : "prefill_begin";
}

// A header as an object of A; what follows it is not zero.
Words header_of(const Build& build, const Job& job) {
  Words object(static_cast<size_t>(sizes_of(build).a_bytes() / 4), -7);
  std::fill_n(object.begin(), pre::kState, 0);
  std::memcpy(object.data(), &job, sizeof job);
  return object;
}

// The words of a core, which held something else before.
Words begun(const Build& build, const Job& job, int row, int column) {
  Words object = header_of(build, job), words(pre::kJobWords, -5);
  const std::vector<npu::KernelArgument> operands = {buffer(object), buffer(words), integer(row),
                                                     integer(column)};
  npu::CoreState core;
  build.find(kernel_of(job))(operands, core);
  return words;
}
Job job_in(const Words& words) {
  Job job;
  std::memcpy(&job, words.data(), sizeof job);
  return job;
}
// By the kernel for it, or by another one.
bool is_refused(const Build& build, const Job& job, const char* kernel, int row = 0,
                int column = 0) {
  Words object = header_of(build, job), words(pre::kJobWords);
  return raised(build, kernel, {buffer(object), buffer(words), integer(row), integer(column)}) ==
         "kernel";
}
bool is_refused(const Build& build, const Job& job, int row = 0, int column = 0) {
  return is_refused(build, job, kernel_of(job), row, column);
}

// Row-blocks of W: none, one, two in columns that follow each other, of bfloat16 none, one.
int32_t blocks_in(npu::blocks::Format format, int column) {
  return (column + 1) % (format == npu::blocks::Format::kBf16 ? 2 : 3);
}
Job product(const Build& build, npu::blocks::Format format, int32_t m, int32_t scaled,
            int columns) {
  Job job{};
  job.kind = int32_t(Kind::kProduct), job.m = m;
  for (int c = 0; c < columns; ++c) (&job.blocks0)[c] = blocks_in(format, c);
  job.format = int32_t(format), job.holds = 9, job.scaled = scaled;
  // Slices are expanded two at a time; the last ones are multiplied when the blocks are back,
  // unless an object has more than those.
  const int32_t each = sizes_of(build).row_slots / m, slices = pre::range_columns(format) / 32;
  const int32_t last = slices % 2 == 0 ? 2 : 1;
  job.behind = each > 2 ? 0 : (last + each - 1) / each;
  job.before = (slices + each - 1) / each - job.behind;
  return job;
}
Job row_job(Kind kind, int32_t used = 4) {
  Job job{};
  job.kind = int32_t(kind), job.used = used, job.rounds = 3, job.first_groups = 5;
  job.constants = kind == Kind::kGeglu ? 0 : 2;
  job.groups = 5, job.a_turns = 1, job.b_turns = 2, job.b_pieces = 12;
  job.width = 1152, job.columns = 1280, job.epsilon = 77, job.heads = 4, job.kv_heads = 1;
  job.head_dim = job.dim = 256;
  return job;
}
Job attention(const Build& build, int32_t head_dim) {
  Job job{};
  job.kind = int32_t(Kind::kAttention), job.units = units_of(build), job.chunks = 7;
  job.head_dim = job.dim = head_dim, job.group = 4, job.query_position = 16, job.keys_end = 40;
  job.a_turns = pre::kChunkHalves;
  return job;
}

// The words that are no core's own are the header's; counters are 0.
void check_common(const Build& build, const Words& words, const Job& header, int row, int column) {
  const Words object = header_of(build, header);
  const auto own = static_cast<ptrdiff_t>(offsetof(Job, row) / 4);
  CHECK(std::equal(words.begin(), words.begin() + own, object.begin()));
  CHECK(std::all_of(words.begin() + pre::kState, words.end(), [](int32_t w) { return w == 0; }));
  CHECK(job_in(words).row == row);
  CHECK(job_in(words).column == column);
}
void check_no_product(const Job& job) {
  for (const int32_t word : {job.blocks, job.clear, job.held, job.own_holds, job.pass, job.factors,
                             job.pieces, job.expands}) {
    CHECK(word == 0);
  }
}
// Calls for each core of the array of a build.
template <typename Check>
void for_each_core(const Build& build, const Job& header, const Check& check) {
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < columns_of(build); ++column) {
      INFO(build.name() << " row " << row << " column " << column);
      const Words words = begun(build, header, row, column);
      check_common(build, words, header, row, column);
      check(job_in(words), row, column);
    }
  }
}

void check_product(const Build& build, const Job& header) {
  // Objects of A that a job has: all columns see them, whether they multiply or not.
  const int32_t objects = header.holds * (header.before + header.behind) + header.scaled;
  for_each_core(build, header, [&](const Job& job, int, int column) {
    const auto format = npu::blocks::Format(header.format);
    const int32_t blocks = blocks_in(format, column);
    // Blocks that lie in a core at once: two of bfloat16 next to each other.
    const int32_t held = format == npu::blocks::Format::kBf16 ? 2 * blocks : blocks;
    CHECK(job.blocks == blocks);
    CHECK(job.clear == (blocks > 0 ? 1 : 0));
    CHECK(job.held == held);
    CHECK(job.own_holds == (held > 0 ? header.holds : 0));
    CHECK(job.factors == (blocks > 0 ? header.scaled : 0));
    const int32_t multiplied = job.own_holds * (job.before + job.behind);
    CHECK(multiplied + job.factors + job.pass == objects);
    CHECK(job.expands == (header.behind > 0 ? 1 : 0));
    // bfloat16, m rows and 32 columns per row-block.
    const int32_t narrow = blocks * header.m * 32 * 2;
    // fp32 of the last of 8 rows; whole pieces.
    const int32_t wide = (blocks * header.m / 8 * 32 * 4 + pre::kPieceBytes - 1) / pre::kPieceBytes;
    CHECK(job.pieces * pre::kPieceBytes == (header.wide ? wide * pre::kPieceBytes : narrow));
    CHECK(job.rounds == 0);
    CHECK(job.units == 0);
    CHECK(job.attends + job.q_before + job.q_after + job.out_pieces == 0);
  });
}

}  // namespace

TEST_CASE("prefill: a core's own words are made of those that its kernel declares to read") {
  each_build([](const Build& build) {
    const Job header = attention(build, 64);
    Job moved = header;  // another position, other keys: all words that come as they are
    for (auto* word = &moved.chunks; word != &moved.row; ++word) *word += 3;
    const auto* kernel = npu::kernels::find_declaration("prefill_begin", build.generation);
    const int32_t read = kernel->operands[0].steering_words;
    CHECK(read == static_cast<int32_t>(offsetof(Job, chunks) / 4));
    npu::kernels::WordCopies copies;
    kernel->copies(nullptr, copies);
    const auto own = static_cast<int32_t>(offsetof(Job, row) / 4);
    REQUIRE(copies.count == 1);
    CHECK(copies.list[0].words == own);
    CHECK(kernel->operands[1].steering_first.value(nullptr) == own);
    CHECK(kernel->operands[1].steering_words == pre::kJobWords - own);
    for (const int column : {0, columns_of(build) - 1}) {
      const Words one = begun(build, header, 1, column), other = begun(build, moved, 1, column);
      CHECK(std::equal(one.begin() + own, one.end(), other.begin() + own));
      CHECK(std::equal(other.begin(), other.begin() + own, header_of(build, moved).begin()));
    }
  });
}

TEST_CASE("prefill_begin: a core's share of a product") {
  using npu::blocks::Format;
  for (const Build& build : builds()) {
    for (const Format format : {Format::kQ4nx, Format::kQ8, Format::kQ4_0, Format::kQ8_0}) {
      for (int32_t m = 16; m <= sizes_of(build).row_slots; m *= 2) {
        check_product(build, product(build, format, m, 0, columns_of(build)));
        check_product(build, product(build, format, m, 1, columns_of(build)));
        Job wide = product(build, format, m, 0, columns_of(build));
        wide.wide = 1;
        check_product(build, wide);
      }
    }
    // 160 columns per range, five slices.
    const Job job = product(build, Format::kBf16, 64, 1, columns_of(build));
    CHECK(job.before == (build.generation == Generation::kNpu1 ? 4 : 2));
    CHECK(job.behind == 1);
    check_product(build, job);
  }
}

TEST_CASE("prefill_begin: a core's turn in jobs of rows") {
  for (const Build& build : builds()) {
    for (const Kind kind : {Kind::kNorm, Kind::kGeglu, Kind::kRotation}) {
      for_each_core(build, row_job(kind, columns_of(build)),
                    [&](const Job& job, int row, int column) {
                      CHECK(job.norm_rounds == (kind == Kind::kNorm ? job.rounds : 0));
                      CHECK(job.geglu_rounds == (kind == Kind::kGeglu ? job.rounds : 0));
                      CHECK(job.rotation_rounds == (kind == Kind::kRotation ? job.rounds : 0));
                      CHECK(job.a_before == column);
                      CHECK(job.a_before + 1 + job.a_after == columns_of(build));
                      CHECK(job.b_before == row);
                      CHECK(job.b_before + 1 + job.b_after == kRows);
                      CHECK(job.attends + job.q_before + job.q_after + job.out_pieces == 0);
                      check_no_product(job);
                    });
    }
  }
}

TEST_CASE("prefill_begin: columns that have no part in a job of rows let it pass") {
  for (const Build& build : builds()) {
    for (const int used : {1, 3}) {
      const Job header = row_job(Kind::kNorm, used);
      // Objects of A of the columns that do.
      const int32_t objects = header.rounds * (header.first_groups + header.groups) * used;
      for_each_core(build, header, [&](const Job& job, int row, int column) {
        CHECK(job.norm_rounds == (column < used ? header.rounds : 0));
        CHECK(job.pass == (column < used ? 0 : objects));
        if (column < used) CHECK(job.a_before + 1 + job.a_after == used);
        CHECK(job.b_before == row);
        CHECK(job.b_before + 1 + job.b_after == kRows);
      });
    }
  }
}

TEST_CASE("prefill_begin: a core's queries and results of attention") {
  for (const Build& build : builds()) {
    const auto check = [&](int32_t head_dim, int32_t dim) {
      Job header = attention(build, head_dim);
      header.dim = dim;
      for_each_core(build, header, [&](const Job& job, int row, int) {
        CHECK(job.attends == 1);
        CHECK(job.q_before == row * units_of(build));
        CHECK(job.q_before + job.units + job.q_after == kRows * units_of(build));
        // bfloat16, 8 rows per unit.
        CHECK(job.out_pieces * pre::kPieceBytes == units_of(build) * 8 * dim * 2);
        CHECK(job.rounds == 0);
        check_no_product(job);
      });
    };
    for (const int32_t head_dim : {64, 128, 256}) check(head_dim, head_dim);
    check(64, 32);
    check(128, 96);
  }
}

namespace {

void check_refused(const Build& build, const Job& job, const std::vector<Wrong>& cases) {
  npu::prefill_header_test::check_refused(
      build, job, cases, [](const Build& b, const Job& j) { return is_refused(b, j); });
}

}  // namespace

TEST_CASE("prefill_begin refuses headers that describe no job") {
  for (const Build& build : builds()) {
    const Job multiply = product(build, npu::blocks::Format::kQ8, 64, 0, 3);
    check_refused(build, multiply,
                  {{&Job::kind, {-1, 5, 1, 4}},
                   {&Job::constants, {-1, 1, 7}},
                   {&Job::m, {0, 8, 32, 48, 128, -64}},
                   {&Job::behind, {0, multiply.behind + 1, -1}},
                   {&Job::blocks0, {-1, 3}},
                   {&Job::blocks2, {-1, 4}},
                   {&Job::format, {-1, 0, 2, 3, 5, 99}},
                   {&Job::holds, {0, -1, 1 << 20}},
                   {&Job::before, {-1, multiply.before + 1, multiply.before - 1}},
                   {&Job::scaled, {-1, 2}},
                   {&Job::wide, {-1, 2}},
                   {&Job::rounds, {1, -1}},
                   {&Job::units, {1, -1}}});
    check_refused(build, product(build, npu::blocks::Format::kBf16, 64, 0, 3),
                  {{&Job::blocks0, {-1, 2}},
                   {&Job::blocks1, {2}},
                   {&Job::m, {32}},
                   {&Job::before, {0, 1, 3, 5}},
                   {&Job::format, {0, 1}}});
    // A column that the array does not have.
    Job wide = multiply;
    wide.blocks4 = 1;
    CHECK(is_refused(build, wide) == (build.generation == Generation::kNpu1));
    for (const Kind kind : {Kind::kNorm, Kind::kGeglu, Kind::kRotation}) {
      check_refused(build, row_job(kind),
                    {{&Job::constants, {-1, 7}},
                     {&Job::used, {0, -1, columns_of(build) + 1}},
                     {&Job::rounds, {0, -1, 1 << 30}},
                     {&Job::first_groups, {-1, 1 << 30}},
                     {&Job::groups, {0, -1, 1 << 30}},
                     {&Job::a_turns, {-1, 2}},
                     {&Job::b_turns, {0, -1}},
                     {&Job::b_pieces, {0, -1}},
                     {&Job::units, {1, 3, -1}}});
    }
    check_refused(build, row_job(Kind::kRotation),
                  {{&Job::head_dim, {0, 32, 192, 512, -64}}, {&Job::dim, {0, 16, 48, 288, -32}}});
    check_refused(build, attention(build, 128),
                  {{&Job::head_dim, {0, 32, 192, 512}},
                   {&Job::dim, {0, 16, 48, 160, -32}},
                   {&Job::units, {0, 1, 3, 5, -1}},
                   {&Job::chunks, {-1}},
                   {&Job::a_turns, {0, 1, 3, -1}},
                   {&Job::rounds, {1}}});
    Job count{};  // of jobs that follow
    count.kind = int32_t(Kind::kJobs), count.rounds = 3;
    check_refused(build, count,
                  {{&Job::kind, {0, 1, 4, 6}},
                   {&Job::rounds, {-1}},
                   {&Job::constants, {1}},
                   {&Job::m, {64}},
                   {&Job::used, {1}},
                   {&Job::units, {1}},
                   {&Job::scale, {1}}});
  }
}

TEST_CASE("prefill_begin: programs of products and of other jobs take their own headers only") {
  for (const Build& build : builds()) {
    const Job multiply = product(build, npu::blocks::Format::kQ8, 64, 0, 3);
    const Job norm = row_job(Kind::kNorm);
    Job count{};
    count.kind = int32_t(Kind::kJobs), count.rounds = 3;
    CHECK(is_refused(build, multiply, "prefill_begin"));
    CHECK_FALSE(is_refused(build, multiply, "prefill_begin_product"));
    CHECK(is_refused(build, norm, "prefill_begin_product"));
    CHECK(is_refused(build, attention(build, 128), "prefill_begin_product"));
    CHECK_FALSE(is_refused(build, norm, "prefill_begin"));
    for (const char* kernel : {"prefill_begin", "prefill_begin_product"}) {
      CHECK_FALSE(is_refused(build, count, kernel));
    }
  }
}

TEST_CASE("prefill_begin refuses cores outside the array") {
  for (const Build& build : builds()) {
    const Job job = row_job(Kind::kNorm);
    CHECK_FALSE(is_refused(build, job, kRows - 1, columns_of(build) - 1));
    CHECK(is_refused(build, job, kRows, 0));
    CHECK(is_refused(build, job, -1, 0));
    CHECK(is_refused(build, job, 0, columns_of(build)));
    CHECK(is_refused(build, job, 0, -1));
  }
}

TEST_CASE("prefill_constant keeps objects one after the other, and no more than fit") {
  for (const Build& build : builds()) {
    INFO(build.name());
    Words words = begun(build, row_job(Kind::kNorm), 1, 2);
    std::vector<float> store(pre::kStore);
    for (int32_t i = 0; i < 7; ++i) {
      std::vector<float> object(static_cast<size_t>(sizes_of(build).a_bytes() / 4));
      for (size_t j = 0; j < object.size(); ++j)
        object[j] = static_cast<float>(i) * 5000.0f + static_cast<float>(j);
      const std::vector<npu::KernelArgument> operands = {buffer(object), buffer(store),
                                                         buffer(words)};
      CHECK(raised(build, "prefill_constant", operands) == (i < 6 ? "none" : "kernel"));
    }
    bool right = true;
    for (size_t i = 0; i < store.size(); ++i) {
      right = right &&
              store[i] == static_cast<float>(i / 1024) * 5000.0f + static_cast<float>(i % 1024);
    }
    CHECK(right);
  }
}
