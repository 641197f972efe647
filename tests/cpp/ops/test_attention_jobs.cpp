// How requests of attention become jobs (ops/attention): every query is in one job per part, the
// parts' chunks are those that some query of the block sees by definition, no more, in order and
// without gaps; records are ones that the kernels take; requests that cannot be run are refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>

#include "error.h"
#include "ops/attention/attention.h"

namespace {

using namespace npu;
using attention::Record;

Request request(Request::Values values) { return Request(ops::kAttentionType, values); }

Request::Values random_request(std::mt19937& random) {
  const auto below = [&](int64_t most) { return static_cast<int64_t>(random() % uint64_t(most)); };
  const int64_t kv_heads = 1 + below(3), keys = 1 + below(900);
  return {{"tokens", 1 + below(120)},
          {"keys", keys},
          {"heads", kv_heads * (1 + below(8))},
          {"kv_heads", kv_heads},
          {"head_dim", 64 << below(3)},
          {"query_position", below(keys + 200) - 100},
          {"window", below(2) * (1 + below(300))},
          {"causal", below(2)},
          {"parts", 1 + below(2) * below(17)}};
}

bool sees(const ops::AttentionJobs& jobs, int64_t token, int64_t key) {
  const int64_t query = jobs.query_position + token;
  return (!jobs.causal || key <= query) && (jobs.window == 0 || key > query - jobs.window);
}

}  // namespace

TEST_CASE("attention jobs: blocks cover the queries, parts the chunks that they see") {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const ops::AttentionJobs jobs{request(random_request(random))};
    REQUIRE(jobs.count() == jobs.kv_heads * jobs.blocks * jobs.parts);
    int64_t job = 0;
    for (int64_t kv_head = 0; kv_head < jobs.kv_heads; ++kv_head) {
      int64_t token = 0;
      for (int64_t block = 0; block < jobs.blocks; ++block) {
        const int64_t tokens = jobs.record(job).rows / jobs.group;
        int64_t first = jobs.chunks, last = -1;  // chunks with a key that some token sees
        for (int64_t key = 0; key < jobs.keys; ++key) {
          for (int64_t t = token; t < token + tokens; ++t) {
            if (!sees(jobs, t, key)) continue;
            first = std::min(first, key / jobs.positions);
            last = std::max(last, key / jobs.positions);
          }
        }
        int64_t next = first;
        for (int64_t part = 0; part < jobs.parts; ++part, ++job) {
          const Record r = jobs.record(job);
          REQUIRE(r.rows == tokens * jobs.group);
          REQUIRE(r.rows <= attention::kRows);
          REQUIRE(r.query_position == jobs.query_position + token);
          REQUIRE(r.objects == attention::header_objects(r.rows, r.head_dim) - 1);
          REQUIRE(r.objects < jobs.header_parts);
          REQUIRE(r.out_objects * attention::kOutBytes <= jobs.y_bytes);
          REQUIRE(r.output == int32_t(jobs.parts > 1));
          if (r.chunks == 0) continue;
          REQUIRE(r.key_position == next * jobs.positions);
          const int64_t offset = (kv_head * jobs.chunks + next) * 2 * attention::kPartBytes;
          REQUIRE(jobs.kv_offset(job, r) == offset);
          next += r.chunks;
        }
        REQUIRE(next == std::max(last + 1, first));
        token += tokens;
      }
      REQUIRE(token == jobs.tokens);
    }
    REQUIRE(job == jobs.count());
  }
}

TEST_CASE("attention jobs: requests that cannot be run are refused") {
  const Request::Values good = {{"tokens", 3},   {"keys", 9},       {"heads", 8},
                                {"kv_heads", 2}, {"head_dim", 128}, {"query_position", 6}};
  CHECK(ops::AttentionJobs(request(good)).count() == 2);
  const auto refused = [&](const char* field, int64_t value) {
    INFO(std::string(field) << " = " << value);
    Request::Values bad = good;
    bad[field] = value;
    CHECK_THROWS_AS(ops::AttentionJobs{request(bad)}, Error);
  };
  refused("tokens", 0);
  refused("keys", 0);
  refused("keys", 131073);
  refused("heads", 9);
  refused("heads", 18);
  refused("kv_heads", 3);
  refused("kv_heads", 16);
  refused("head_dim", 32);
  refused("head_dim", 192);
  refused("head_dim", 512);
  refused("query_position", int64_t{1} << 40);
  refused("window", -1);
  refused("causal", 2);
  refused("scale", int64_t{1} << 32);
  refused("parts", 0);
  refused("parts", 65);
}
