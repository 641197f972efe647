// Jobs of rows of the prefill configuration (aie_kernels/prefill_norm.cc, prefill_geglu.cc,
// prefill_rotation.cc): headers, operands, counters and orders of calls that do not fit are
// refused, and no call writes outside its buffers.
#include <doctest/doctest.h>

#include <cctype>

#include "kernels/prefill_headers.h"
#include "kernels/prefill_row_core.h"

using namespace kernel_test;
using namespace npu::prefill_row_test;

using npu::prefill_header_test::Wrong;

namespace {

// The first call that a job's program makes.
char first_call(const Job& job) { return job.first_groups > 0 ? 'f' : job.a_turns > 0 ? 't' : 'p'; }

// By the first kernel of a kind.
bool is_refused(const Build& build, const Job& job, int32_t kind) {
  Core core(build);
  core.begin(job);
  core.kind = Kind(kind);
  const bool refused = core.refuses(first_call(job));
  CHECK(core.intact());
  return refused;
}

void check_refused(const Build& build, const Job& job, const std::vector<Wrong>& cases) {
  npu::prefill_header_test::check_refused(
      build, job, cases, [&](const Build& b, const Job& j) { return is_refused(b, j, job.kind); });
}

// Calls in an order; a letter per call of the kernels, in capitals where it is to be refused.
void check_order(const Build& build, const Job& job, const std::string& calls) {
  Core core(build);
  core.begin(job);
  for (size_t i = 0; i < calls.size(); ++i) {
    const char name = static_cast<char>(std::tolower(calls[i]));
    const bool refused = core.refuses(name);
    CHECK_MESSAGE(refused == (calls[i] != name), calls << " at " << i);
  }
}

}  // namespace

TEST_CASE("prefill: headers of row jobs that do not fit are refused") {
  const Build build = builds()[0];
  check_refused(build, norm_job({640, 768, 1, true}),
                {{&Job::kind, {-1, 0, 2, 3, 4, 5}},
                 {&Job::width, {0, -1, 769}},
                 {&Job::columns, {0, -256, 512, 767, 3328, 1 << 30}},
                 {&Job::groups, {0, 2, 4, -1}},
                 {&Job::first_groups, {1, 2, 4}},
                 {&Job::a_turns, {0, 2, -1}},
                 {&Job::b_turns, {0, 1, 3}},
                 {&Job::b_pieces, {0, 11, 13}}});
  check_refused(build, norm_job({640, 768, 1, false}),
                {{&Job::width, {0, 769}}, {&Job::columns, {512, 3328}}, {&Job::groups, {0, 2, 4}}});
  check_refused(build, geglu_job(1),
                {{&Job::kind, {0, 1, 3, 4}},
                 {&Job::first_groups, {1}},
                 {&Job::groups, {0, 2}},
                 {&Job::a_turns, {0, 2}},
                 {&Job::b_turns, {0, 2}},
                 {&Job::b_pieces, {0, 7, 9}}});
  for (const int head_dim : {64, 128, 256}) {
    check_refused(build, rotation_job(head_dim, 1),
                  {{&Job::kind, {0, 1, 2, 4}},
                   {&Job::head_dim, {0, 32, 192, 512, head_dim == 64 ? 128 : 64}},
                   {&Job::dim, {0, 16, 48, head_dim + 32, -32}},
                   {&Job::heads, {0, -1, 4, 1 << 30}},
                   {&Job::kv_heads, {0, -1, 3, 1 << 30}},
                   {&Job::first_groups, {3, 4}},
                   {&Job::groups, {0, 2}},
                   {&Job::a_turns, {-1, 1}},
                   {&Job::b_turns, {0, 6, 8}},
                   {&Job::b_pieces, {0, 1, 9}}});
  }
}

TEST_CASE("prefill: operands that contradict the header are refused") {
  const Build build = builds()[0];
  Core rotation(build);
  rotation.begin(rotation_job(128, 1));
  CHECK_FALSE(rotation.refuses('f'));
  rotation.head_dim = 256;
  CHECK(rotation.refuses('p'));
  rotation.head_dim = 128, rotation.dim = 96;
  CHECK(rotation.refuses('p'));
  rotation.dim = 128;
  CHECK_FALSE(rotation.refuses('p'));
  Core norm(build);
  norm.begin(norm_job({256, 256, 1, true}));
  CHECK_FALSE(norm.refuses('f'));
  norm.groups = 2;
  CHECK(norm.refuses('t'));
  norm.groups = 1;
  CHECK_FALSE(norm.refuses('t'));
}

TEST_CASE("prefill: calls of a round out of order are refused; 'z' is the tail") {
  const Build build = builds()[0];
  const std::string most(23, 'p'), group = most + "p";
  check_order(build, norm_job({300, 512, 1, true}),
              "TPZfTPfFPtTF" + most + "ZpPFtTF" + most + "ZpTPFzTPff");
  check_order(build, norm_job({300, 512, 1, false}), "FTZ" + group + "ZT" + group + "PTFzp");
  check_order(build, geglu_job(1), "FPZtTppppppppPtpppppppp");
  check_order(build, rotation_job(64, 1), "TPZfFTZ" + std::string(14, 'p') + "Pfp");
}

TEST_CASE("prefill: no header and no counters take a row kernel out of its buffers") {
  std::mt19937 random(3);
  const auto below = [&](unsigned n) { return static_cast<int32_t>(random() % n); };
  const Job jobs[] = {norm_job({640, 768, 1, true}), norm_job({640, 768, 1, false}), geglu_job(1),
                      rotation_job(64, 1), rotation_job(256, 1)};
  int ran = 0;
  for (const Build& build : builds()) {
    Core core(build);
    for (int i = 0; i < 3000; ++i) {
      const Job job = jobs[below(5)];
      core.begin(job);
      for (int32_t n = 0; n < 4; ++n) core.word(pre::kRowState + n) = below(i % 2 ? 9 : 80) - 1;
      if (below(2) == 0) core.word(below(pre::kState)) = below(4) == 0 ? -1 : below(5000);
      if (below(4) == 0) core.kind = Kind(1 + below(3));
      if (!core.refuses("ftpz"[below(4)])) ++ran;
      if (!core.intact()) FAIL("a mark beside a buffer was overwritten");
    }
  }
  CHECK(ran > 100);
}
