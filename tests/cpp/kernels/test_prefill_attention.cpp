// The attention kernels of prompts (aie_kernels/prefill_attention.cc): jobs of every shape through
// a core's kernels in every host build, against softmax in double precision with a derived bound;
// masks, groups, moving maxima, and headers and orders of calls that must be refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "prefill_attention_core.h"

using namespace npu;
using namespace npu::prefill_attention_test;

TEST_CASE("prefill attention: jobs of every shape agree with softmax") {
  each_build([](const Build& build) {
    unsigned seed = 1;
    for (const int dim : {64, 128, 256}) {
      for (const int chunks : {1, 2, 5}) {
        for (const float size : {0.1f, 3.0f}) {
          CAPTURE(dim);
          CAPTURE(chunks);
          const Task task(build, dim, chunks, seed++, size);
          check(task, run(build, task));
        }
      }
    }
  });
}

TEST_CASE("prefill attention: of smaller heads only the columns that the model has are sent") {
  each_build([](const Build& build) {
    unsigned seed = 60;
    for (const auto& [head_dim, dim] :
         std::vector<std::pair<int, int>>{{64, 32}, {128, 96}, {128, 32}, {256, 160}}) {
      CAPTURE(head_dim);
      CAPTURE(dim);
      Task task(build, head_dim, 3, seed++, 2);
      task.job.dim = dim, task.job.causal = 1;
      task.job.query_position = task.keys() / 2;
      check(task, run(build, task));
      Core core(build, task);
      for (int unit = 0; unit < task.job.units; ++unit) core.query(task.q.data());
      core.place();
      for (int i = 0; i < task.job.units * dim / 32; ++i) core.out();
      CHECK_THROWS_AS(core.out(), Error);
    }
  });
}

TEST_CASE("prefill attention: causal, windowed and bounded keys, groups of heads, all cores") {
  each_build([](const Build& build) {
    unsigned seed = 100;
    for (const int dim : {64, 128, 256}) {
      for (const int group : {1, 2, 3, 4, 8}) {
        for (const int window : {0, 1, 21, 1000}) {
          for (const int causal : {0, 1}) {
            CAPTURE(dim);
            CAPTURE(group);
            CAPTURE(window);
            CAPTURE(causal);
            Task task(build, dim, 4, seed++, 3);
            Job& job = task.job;
            job.group = group, job.window = window, job.causal = causal;
            job.row = int(seed % 4), job.column = int(seed / 4 % 4), job.first_unit = int(seed % 7);
            job.key_position = 1000;
            // The core's first row is in the midst of the keys.
            job.query_position = 1000 + task.keys() / 2 - 3 - task.query(0);
            job.queries_from = job.query_position + 7 * int(seed % 3);
            job.keys_from = 1003, job.keys_end = 1000 + task.keys() - 5;
            check(task, run(build, task));
          }
        }
      }
    }
  });
}

TEST_CASE("prefill attention: what does not exist has no influence, rows without keys are zero") {
  each_build([](const Build& build) {
    for (const int dim : {64, 128, 256}) {
      CAPTURE(dim);
      Task task(build, dim, 6, 7);
      Job& job = task.job;
      const int half = task.half();
      // Of chunk 1 only the second half is there, of chunk 3 part of the first.
      job.causal = 1, job.query_position = 3 * half - 4;
      job.keys_from = 3 * half + 1, job.keys_end = 6 * half + half / 2 + 1;
      const std::vector<float> before = run(build, task);
      check(task, before);
      for (int i = 0; i < 5 * dim; ++i) CHECK(before[at(i)] == 0);  // rows up to 3 * half
      CHECK(before[at(7 * dim)] != 0);
      for (int key = 0; key < task.keys(); ++key) {
        if (task.exists(key)) continue;
        for (int i = 0; i < dim; ++i) {
          task.k[at(key * dim + i)] = i % 2 == 0 ? 0x7F80 : 0x7FC0;
          task.v[at(key * dim + i)] = 0x7F00;  // must be finite
        }
      }
      CHECK(run(build, task) == before);
      job.keys_end = job.keys_from;
      for (const float value : run(build, task)) CHECK(value == 0);
      job.chunks = 0;
      for (const float value : run(build, task)) CHECK(value == 0);
    }
  });
}

TEST_CASE("prefill attention: rows of positions before the first query are zero, all others stay") {
  each_build([](const Build& build) {
    Task task(build, 128, 2, 8);
    task.job.causal = 1, task.job.query_position = 16;
    const std::vector<float> all = run(build, task);
    task.job.queries_from = 16 + 7;
    const std::vector<float> result = run(build, task);
    check(task, result);
    for (int i = 0; i < 7 * 128; ++i) CHECK(result[at(i)] == 0);
    CHECK(std::equal(all.begin() + 7 * 128, all.end(), result.begin() + 7 * 128));
  });
}

TEST_CASE("prefill attention: rows of positions behind the last key are zero, if causal") {
  each_build([](const Build& build) {
    Task task(build, 128, 4, 8);
    task.job.causal = 1, task.job.query_position = 9;
    for (const int window : {0, 5}) {
      task.job.window = window;
      task.job.keys_end = 9 + 6;  // of the first 8 rows the last two are behind it
      const std::vector<float> result = run(build, task);
      check(task, result);
      for (int row = 0; row < 8; ++row) CHECK((result[at(row * 128)] == 0) == (row >= 6));
      task.job.keys_end = 9;  // of every row
      for (const float value : run(build, task)) CHECK(value == 0);
    }
  });
}

TEST_CASE("prefill attention: a unit without keys beside one that has some") {
  each_build([](const Build& build) {
    Task task(build, 128, 2, 9);
    task.job.causal = 1, task.job.query_position = -8;  // the second unit's rows are 0 to 7
    const std::vector<float> result = run(build, task);
    check(task, result);
    for (int i = 0; i < 8 * 128; ++i) CHECK(result[at(i)] == 0);
    // A row of one key has its values, of which BFP16 rounds some to zero.
    CHECK(std::count(result.begin() + 8 * 128, result.begin() + 9 * 128, 0.0f) < 16);
  });
}

TEST_CASE("prefill attention: large, equal, tiny and single scores") {
  each_build([](const Build& build) {
    for (const float size : {1e2f, 1e4f, 1e9f, 1e-20f, 1e-38f, 0.0f}) {
      CAPTURE(size);
      const Task task(build, 64, 3, 11, size);
      check(task, run(build, task));
    }
    Task equal(build, 256, 4, 12);
    for (size_t i = 256; i < equal.k.size(); ++i) equal.k[i] = equal.k[i % 256];
    check(equal, run(build, equal));
    // The weight of a single key cancels: its value comes back as it was multiplied.
    Task one(build, 128, 1, 13, 100);
    one.job.keys_end = 1;
    const Operands operands(one);
    const std::vector<float> result = run(build, one);
    Doubles row(operands.v.begin(), operands.v.begin() + 128);
    for (size_t i = 0; !one.npu1 && i < row.size(); i += 8) block_float::round(&row[i]);
    for (size_t i = 0; i < result.size(); ++i) CHECK(double{result[i]} == row[i % 128]);
  });
}

TEST_CASE("prefill attention: scores that rise move the maximum within and between chunks") {
  each_build([](const Build& build) {
    for (const int dim : {64, 128, 256}) {
      Task rising(build, dim, 10, 14, 0);
      for (size_t i = 0; i < rising.q.size(); i += at(dim)) rising.q[i] = bf16_word(1);
      for (int key = 0; key < rising.keys(); ++key) {
        rising.k[at(key * dim)] = bf16_word(static_cast<float>(key - rising.keys() + 40) * 20);
      }
      // Only the first element of a block matters to its exponent.
      for (size_t i = 0; i < rising.k.size(); ++i) {
        if (i % at(dim) != 0) rising.k[i] = 0;
      }
      for (const float scale : {1.0f, 0.1f, 0.01f, 0.001f, -0.005f}) {
        CAPTURE(dim);
        CAPTURE(scale);
        Task task = rising;
        task.set_scale(std::abs(scale));
        if (scale < 0) {
          for (uint16_t& word : task.q) word ^= 0x8000;
        }
        check(task, run(build, task));
      }
    }
  });
}

TEST_CASE("prefill attention: huge finite operands, NaN and infinities") {
  each_build([](const Build& build) {
    Task huge(build, 64, 1, 21, 1e-36f);
    for (uint16_t& word : huge.k) word = bf16_word(bf16_value(word) * 1e36f);
    for (uint16_t& word : huge.v) word = bf16_word(bf16_value(word) * 1e34f);
    check(huge, run(build, huge));
    for (const uint16_t word : Words{0x7FC0, 0x7F80}) {
      Task task(build, 64, 2, 22);
      for (uint16_t& x : task.q) x &= 0x7FFF;
      for (size_t i = 0; i < 64; ++i) task.k[37 * 64 + i] = word;
      for (const float value : run(build, task)) CHECK(std::isnan(value));
    }
  });
}

TEST_CASE("prefill attention: what would leave the buffers, or comes out of turn, is refused") {
  each_build([](const Build& build) {
    const Task task(build, 128, 2, 51);
    const auto refused = [&](const char* what, const std::function<void(Core&)>& prepare,
                             const std::function<void(Core&)>& call) {
      CAPTURE(what);
      Core core(build, task);
      for (int unit = 0; unit < task.job.units; ++unit) core.query(task.q.data());
      core.place();
      prepare(core);
      CHECK_THROWS_WITH_AS(call(core), doctest::Contains("[prefill_"), Error);
    };
    const auto query = [&](Core& core) { core.query(task.q.data()); };
    const auto place = [](Core& core) { core.place(); };
    const auto scores = [&](Core& core) { core.scores(task.k.data()); };
    const auto weigh = [](Core& core) { core.weigh(); };
    const auto values = [&](Core& core) { core.values(task.v.data()); };
    const auto add = [](Core& core) { core.add(); };
    const auto out = [](Core& core) { core.out(); };
    const auto headers = std::vector<std::pair<const char*, std::function<void(Job&)>>>{
        {"kind", [](Job& job) { job.kind = 0; }},
        {"units", [](Job& job) { --job.units; }},
        {"head_dim", [](Job& job) { job.head_dim = 192; }},
        {"dim", [](Job& job) { job.dim = 48; }},
        {"dim beyond head_dim", [](Job& job) { job.dim = 160; }},
        {"head_dim of the call", [](Job& job) { job.head_dim = 64; }},
        {"group", [](Job& job) { job.group = 0; }},
        {"large group", [](Job& job) { job.group = 33; }},
        {"chunks", [](Job& job) { job.chunks = -1; }},
        {"many chunks", [](Job& job) { job.chunks = INT32_MAX; }},
        {"query_position", [](Job& job) { job.query_position = INT32_MAX; }},
        {"queries_from", [](Job& job) { job.queries_from = INT32_MIN; }},
        {"key_position", [](Job& job) { job.key_position = INT32_MIN; }},
        {"keys_from", [](Job& job) { job.keys_from = INT32_MIN; }},
        {"keys_end", [](Job& job) { job.keys_end = INT32_MAX; }},
        {"first_unit", [](Job& job) { job.first_unit = -1; }},
        {"row", [](Job& job) { job.row = 1 << 20; }},
        {"column", [](Job& job) { job.column = -1; }},
        {"window", [](Job& job) { job.window = -1; }},
        {"causal", [](Job& job) { job.causal = 2; }}};
    for (const auto& [what, spoil] : headers) {
      const auto prepare = [&](Core& core) { spoil(core.header()); };
      for (const auto& call :
           std::vector<std::function<void(Core&)>>{query, place, scores, weigh, values, add, out}) {
        refused(what, prepare, call);
      }
    }
    refused("one query more", [](Core&) {}, query);
    refused("placed twice", [](Core&) {}, place);
    const auto unplaced = [](Core& core) { core.word(prefill::kAttentionState + 6) = 0; };
    refused("scores of queries in no place", unplaced, scores);
    refused("pieces before queries are placed", unplaced, out);
    const auto weighed = [&](Core& core) { scores(core), scores(core), weigh(core); };
    const auto chunk = [&](Core& core) { core.chunk(task.k.data(), task.v.data()); };
    refused(
        "values of queries in no place", [&](Core& core) { weighed(core), unplaced(core); },
        values);
    refused(
        "placed too early",
        [&](Core& core) { unplaced(core), core.word(prefill::kAttentionState) = 1; }, place);
    refused("negative query", [](Core& core) { core.word(prefill::kAttentionState) = -1; }, query);
    refused("no queries", [](Core& core) { core.word(prefill::kAttentionState) = 1; }, scores);
    const auto twice = [](const auto& call) {
      return [call](Core& core) { call(core), call(core); };
    };
    refused("values first", [](Core&) {}, values);
    refused("weights first", [](Core&) {}, weigh);
    refused("sums first", [](Core&) {}, add);
    refused("weights after one half", scores, weigh);
    refused("values without weights", twice(scores), values);
    refused("a third half of keys", twice(scores), scores);
    refused("weights again", weighed, weigh);
    refused("scores without values", weighed, scores);
    refused("sums of one half", [&](Core& core) { weighed(core), values(core); }, add);
    refused(
        "a third half of values", [&](Core& core) { weighed(core), twice(values)(core); }, values);
    refused("scores without sums", [&](Core& core) { weighed(core), twice(values)(core); }, scores);
    refused("sums again", chunk, add);
    refused("a third chunk", twice(chunk), scores);
    refused(
        "negative counter", [](Core& core) { core.word(prefill::kAttentionState + 1) = INT32_MIN; },
        scores);
    const int pieces = task.job.units * prefill::unit_pieces(128);
    refused(
        "one piece more",
        [&](Core& core) {
          for (int i = 0; i < pieces; ++i) core.out();
        },
        out);
    refused(
        "negative piece", [](Core& core) { core.word(prefill::kAttentionState + 3) = -1; }, out);
    refused("another piece", [](Core& core) { core.word(prefill::kAttentionState + 3) = 1; }, out);
  });
}

TEST_CASE("prefill attention: a chunk takes no less than its products, nor much more") {
  for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
    const bool npu1 = generation == arch::Generation::kNpu1;
    const arch::Timing timing(generation, arch::TimingTable());
    const int64_t units = prefill::sizes_of(npu1).units;
    const double macs = 2 * 2048.0 * 8 * double(units);
    const double least = macs / (npu1 ? timing.mac_bf16_native : timing.mac_bfp16);
    for (const auto& [taken, then] : {std::pair("prefill_scores", "prefill_weigh"),
                                      std::pair("prefill_values", "prefill_add")}) {
      for (const int64_t dim : {64, 128, 256}) {
        const auto cycles_of = [&](const char* name) {
          const kernels::Declaration* kernel = kernels::find_declaration(name, generation);
          REQUIRE(kernel != nullptr);
          return kernels::call_cycles(*kernel, timing, {dim});
        };
        const double cycles = 2 * cycles_of(taken) + cycles_of(then);
        CAPTURE(dim);
        CHECK(cycles > least);
        CHECK(cycles < 40 * least);
      }
    }
  }
}
