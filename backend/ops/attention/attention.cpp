// The schedule of attention (attention.h): jobs are dealt to the pairs, longest first, and each
// pair has two in flight. Jobs of the same keys are neighbours in time, so that their reads share
// pages of the memory.
#include "ops/attention/attention.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "host/kv_pages.h"
#include "ops/shim_commands.h"
#include "rounding.h"

namespace npu::ops {

namespace {

using attention::kPartBytes, attention::Record;

constexpr int64_t kMaxKeys = 131072, kMaxTokens = 1 << 20, kMaxGroup = 8, kMaxParts = 64;
constexpr int kRing = 2;  // jobs of a pair in flight, three BDs each
enum Argument : uint32_t { kJobs, kKv, kY };

}  // namespace

AttentionJobs::AttentionJobs(const Request& request)
    : tokens(request.get("tokens", 1, kMaxTokens)),
      keys(request.get("keys", 1, kMaxKeys)),
      heads(request.get("heads", 1, 1024)),
      kv_heads(request.get("kv_heads", 1, heads)),
      head_dim(request.get("head_dim", 64, attention::kMaxDim, 64)),
      query_position(request.get("query_position", -kMaxTokens, kMaxTokens)),
      window(request.get("window", 0, kMaxTokens)),
      scale(request.get("scale", INT32_MIN, INT32_MAX)),
      causal(request.get("causal", 0, 1) != 0),
      parts(request.get("parts", 1, kMaxParts)) {
  group = heads / kv_heads;
  if (group * kv_heads != heads || group > kMaxGroup) {
    fail(ErrorKind::kShape, "[attention] %lld heads for %lld of keys; 1 to %lld share one",
         static_cast<long long>(heads), static_cast<long long>(kv_heads),
         static_cast<long long>(kMaxGroup));
  }
  if (head_dim == 192) {
    fail(ErrorKind::kShape, "[attention] head_dim is 192; pad it with zeros to 64, 128 or 256");
  }
  block_tokens = std::min<int64_t>(tokens, attention::kRows / group);
  blocks = divide_up(tokens, block_tokens);
  const auto rows = static_cast<int32_t>(block_tokens * group),
             dim = static_cast<int32_t>(head_dim);
  positions = attention::positions_of(dim);
  chunks = divide_up(keys, positions);
  header_parts = attention::header_objects(rows, dim);
  y_bytes = int64_t{attention::out_objects_of(rows, dim, output())} * attention::kOutBytes;
}

Record AttentionJobs::record(int64_t job) const {
  const int64_t first = job / parts % blocks * block_tokens;  // token
  const int64_t count = std::min(block_tokens, tokens - first);
  const int64_t query = query_position + first;
  // Keys that the first row or the last one sees; rows between see no others.
  const int64_t from = first_seen(query, window);
  const int64_t end = causal ? std::min(keys, query + count) : keys;
  const int64_t first_chunk = from / positions;
  const int64_t end_chunk = from < end ? divide_up(end, positions) : first_chunk;
  const auto [share, share_end] = equal_share(end_chunk - first_chunk, job % parts, parts);
  Record r = {};
  r.rows = static_cast<int32_t>(count * group);
  r.group = static_cast<int32_t>(group);
  r.head_dim = static_cast<int32_t>(head_dim);
  r.objects = attention::header_objects(r.rows, r.head_dim) - 1;
  r.chunks = static_cast<int32_t>(share_end - share);
  r.query_position = static_cast<int32_t>(query);
  r.key_position = static_cast<int32_t>((first_chunk + share) * positions);
  r.keys_end = static_cast<int32_t>(keys);
  r.window = static_cast<int32_t>(window);
  r.causal = causal ? 1 : 0;
  r.scale = static_cast<int32_t>(scale);
  r.output = static_cast<int32_t>(output());
  r.out_objects = attention::out_objects_of(r.rows, r.head_dim, output());
  return r;
}

int64_t AttentionJobs::kv_offset(int64_t job, const Record& record) const {
  return (job / parts / blocks * chunks + record.key_position / positions) * 2 * kPartBytes;
}

std::vector<int32_t> AttentionJobs::records() const {
  std::vector<int32_t> words(static_cast<size_t>(count() * attention::kRecordWords));
  for (int64_t job = 0; job < count(); ++job) {
    const Record one = record(job);
    std::memcpy(words.data() + job * attention::kRecordWords, &one, sizeof one);
  }
  return words;
}

namespace {

class AttentionCommands : private ShimCommands {
 public:
  AttentionCommands(stream::Builder& builder, const Configuration& configuration,
                    const Request& request)
      : ShimCommands(builder, configuration), jobs_(request) {
    configuration.param("part_bytes", kPartBytes, kPartBytes);  // the same kernels
    configuration.param("rows", attention::kRows, attention::kRows);
  }

  void append() {
    const auto columns = configuration_.param("columns", 1, geometry_.columns);
    const auto pairs = configuration_.param("pairs", 1, arch::kCoreRows / 2);
    for (int pair = 0; pair < pairs; ++pair) {
      for (int col = 0; col < columns; ++col) {
        lanes_.push_back({port(strf("Y%d_%d", col, pair)), {}, TaskRing(kRing)});
        inputs_.push_back(port(strf("KV%d_%d", col, pair)));
      }
    }
    deal();
    run(lanes_, [&](const Lane<int64_t>& lane, size_t i, int slot) {
      push(static_cast<size_t>(&lane - lanes_.data()), lane.tasks[i], slot);
    });
  }

  std::vector<ArgumentLayout> arguments() const {
    std::vector<std::byte> headers(static_cast<size_t>(jobs_.count() * jobs_.header_bytes()));
    for (int64_t job = 0; job < jobs_.count(); ++job) {
      const Record record = jobs_.record(job);
      for (int64_t core = 0; core < 2; ++core) {
        std::memcpy(headers.data() + job * jobs_.header_bytes() + core * kPartBytes, &record,
                    sizeof record);
      }
    }
    return {ArgumentLayout::input("jobs", static_cast<int64_t>(headers.size()), headers),
            ArgumentLayout::input("kv", jobs_.kv_bytes()),
            ArgumentLayout::output("y", jobs_.count() * jobs_.y_bytes)};
  }

 private:
  // Chunks of a job, and what its header and results take as long as.
  static int64_t cost(const Record& r) { return r.chunks + r.objects + 2; }

  void deal() {
    std::vector<int64_t> order(static_cast<size_t>(jobs_.count())), load(lanes_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return cost(jobs_.record(a)) > cost(jobs_.record(b));
    });
    for (const int64_t job : order) {
      const auto least = std::min_element(load.begin(), load.end()) - load.begin();
      const auto lane = static_cast<size_t>(least);
      lanes_[lane].tasks.push_back(job);
      load[lane] += cost(jobs_.record(job));
    }
  }

  void push(size_t lane, int64_t job, int slot) {
    const auto words = [](int64_t bytes) { return static_cast<uint32_t>(bytes / 4); };
    const Record record = jobs_.record(job);
    const Port& results = *lanes_[lane].results;
    const Port& input = *inputs_[lane];
    const int first = (results.channel * kRing + slot) * 3;  // BD
    push_bd(results, first, linear_bd(words(int64_t{record.out_objects} * attention::kOutBytes)),
            kY, job * jobs_.y_bytes, 1, true);
    push_bd(input, first + 1, linear_bd(words((record.objects + 1) * int64_t{2} * kPartBytes)),
            kJobs, job * jobs_.header_bytes(), 1, false);
    if (record.chunks == 0) return;
    push_bd(input, first + 2, linear_bd(words(record.chunks * int64_t{2} * kPartBytes)), kKv,
            jobs_.kv_offset(job, record), 1, false);
  }

  AttentionJobs jobs_;
  std::vector<Lane<int64_t>> lanes_;  // of every pair
  std::vector<const Port*> inputs_;
};

// 1 / sqrt(256) * log2(e)
constexpr int64_t kScale256 = 0x3DB8AA3B;

}  // namespace

extern const OperationType kAttentionType;
const OperationType kAttentionType = {
    "attention",
    "y = softmax(scale q k^T) v, head by head",
    {{"tokens", "queries"},
     {"keys", "of each kv head; key 0 has position 0"},
     {"heads", "of q"},
     {"kv_heads", "of k and v"},
     {"head_dim", "64, 128 or 256"},
     {"query_position", "of the first query"},
     {"window", "keys that a query sees up to its own position; 0: all", 0},
     {"causal", "1: no keys behind the query's position", 1},
     {"scale", "bits of a float32: the softmax's scale times log2 e", kScale256},
     {"parts", "shares of the keys, whose partial results are left to be merged", 1}},
    {{"1B, a token at 1k",
      {{"tokens", 1},
       {"keys", 1024},
       {"heads", 4},
       {"kv_heads", 1},
       {"head_dim", 256},
       {"query_position", 1023},
       {"parts", 16}}},
     {"1B, a token at 32k",
      {{"tokens", 1},
       {"keys", 32768},
       {"heads", 4},
       {"kv_heads", 1},
       {"head_dim", 256},
       {"query_position", 32767},
       {"parts", 16}}},
     {"4B, a token at 1k",
      {{"tokens", 1},
       {"keys", 1024},
       {"heads", 8},
       {"kv_heads", 4},
       {"head_dim", 256},
       {"query_position", 1023},
       {"parts", 4}}},
     {"1B, a prompt of 512",
      {{"tokens", 512},
       {"keys", 512},
       {"heads", 4},
       {"kv_heads", 1},
       {"head_dim", 256},
       {"query_position", 0}}},
     {"1B, 2048 tokens, window of 512",
      {{"tokens", 2048},
       {"keys", 2048},
       {"heads", 4},
       {"kv_heads", 1},
       {"head_dim", 256},
       {"query_position", 0},
       {"window", 512}}}},
    &one_submission<AttentionCommands>};

}  // namespace npu::ops
