// The vector core of the decoder (aie_kernels/vector.cc), job by job as its worker runs them
// (designs/decoder.py), in every host build: against double, within the bounds of docs/fidelity.md;
// jobs that do not fit are refused, and no job, however it came about, writes outside its buffers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "aie_kernels/attention.h"
#include "aie_kernels/vector_job.h"
#include "kernel_calls.h"

using namespace kernel_test;

namespace {

using npu::vector::Job, npu::vector::Kind;
namespace vec = npu::vector;

constexpr double kBf16Unit = 0x1p-8, kTiny = 0x1p-126;
constexpr int kGuard = 64;  // bytes around every buffer
constexpr std::byte kMark{0xA5};

// A buffer with marks around it.
struct Memory {
  explicit Memory(size_t count) : bytes(count + 2 * kGuard, kMark), size(count) {
    std::fill_n(bytes.begin() + kGuard, count, std::byte{0});
  }
  std::byte* data() { return bytes.data() + kGuard; }
  npu::KernelArgument argument() { return {data(), static_cast<uint32_t>(size), 0}; }
  template <typename T>
  T* as(size_t byte = 0) {
    return reinterpret_cast<T*>(data() + byte);
  }
  bool intact() const {
    const auto marked = [](std::byte b) { return b == kMark; };
    return std::all_of(bytes.begin(), bytes.begin() + kGuard, marked) &&
           std::all_of(bytes.end() - kGuard, bytes.end(), marked);
  }
  alignas(64) std::vector<std::byte> bytes;
  size_t size;
};

using Object = std::vector<float>;  // 256 words of input, whatever they are

Object object_of(const void* from, size_t bytes) {
  Object out(vec::kInBytes / 4, 0.0f);
  std::memcpy(out.data(), from, std::min<size_t>(bytes, vec::kInBytes));
  return out;
}

template <typename T>
std::vector<Object> objects_of(const std::vector<T>& values) {
  std::vector<Object> out;
  const size_t step = vec::kInBytes / sizeof(T);
  for (size_t i = 0; i < values.size(); i += step) {
    out.push_back(object_of(values.data() + i, (values.size() - i) * sizeof(T)));
  }
  return out;
}

class Core {
 public:
  explicit Core(const Build& build) : build_(build) {}

  // The worker's loop over one job; `input`: what its channel brings.
  void run(const Job& job, const std::vector<Object>& input) {
    size_t next = 0;
    x.clear(), out.clear();
    const auto object = [&] { return input.at(next++); };
    Object command = object_of(&job, sizeof job);
    call("begin", {argument(command), job_.argument(), state_.argument()});
    for (int32_t i = 0; i < job.tables; ++i) {
      for (int32_t part = 0; part < job.table_parts; ++part) {
        Object one = object();
        call("table", {argument(one), x_.argument(), state_.argument()});
      }
      send_x();
    }
    for (int32_t i = 0; i < job.inputs; ++i) {
      Object one = object();
      call("input", {argument(one), store.argument(), job_.argument(), state_.argument(),
                     integer(state_.as<int32_t>()[vec::kLeft]), integer(job.kind),
                     integer(job.width), integer(job.rows), integer(job.parts)});
    }
    for (int32_t i = 0; i < job.x_objects; ++i) {
      call("x", {store.argument(), x_.argument(), job_.argument(), state_.argument()});
      send_x();
    }
    for (int32_t i = 0; i < job.out; ++i) {
      call("out", {store.argument(), out_.argument(), job_.argument(), state_.argument()});
      out.insert(out.end(), out_.data(), out_.data() + out_.size);
    }
    CHECK(next == input.size());
    for (const Memory* one : {&store, &job_, &state_, &x_, &out_}) CHECK(one->intact());
  }

  // Objects of x, 2048 elements each; bytes for memory.
  std::vector<std::vector<uint16_t>> x;
  std::vector<std::byte> out;
  Memory store{vec::kStoreBytes};

 private:
  static npu::KernelArgument argument(Object& one) { return buffer(one); }
  void send_x() { x.emplace_back(x_.as<uint16_t>(), x_.as<uint16_t>() + 2048); }
  void call(const char* name, const std::vector<npu::KernelArgument>& arguments) {
    build_.find((std::string("vector_") + name).c_str())(arguments, core_);
  }

  const Build& build_;
  npu::CoreState core_;
  Memory job_{4 * vec::kJobWords}, state_{4 * vec::kStateWords}, x_{4096}, out_{vec::kOutBytes};
};

struct Random {
  std::mt19937 engine;
  std::normal_distribution<float> normal;
  int below(int most) { return static_cast<int>(engine() % static_cast<unsigned>(most)); }
  std::vector<float> floats(size_t count) {
    std::vector<float> out(count);
    for (float& value : out) value = normal(engine);
    return out;
  }
  std::vector<uint16_t> bf16(size_t count) {
    std::vector<uint16_t> out(count);
    for (uint16_t& value : out) value = bf16_word(normal(engine));
    return out;
  }
};

int32_t round_up(int32_t value, int32_t step) { return (value + step - 1) / step * step; }
int32_t bits(float value) { return std::bit_cast<int32_t>(value); }
double norm_unit(int width) { return ((width / 32.0 + 5) / 2 + 6) * kUnit; }

bool within(uint16_t found, double exact, double before) {
  const double bound = std::fabs(exact) * kBf16Unit + before * (1 + kBf16Unit) + kTiny;
  return std::fabs(double{bf16_value(found)} - exact) <= bound;
}

double factor_of(const auto& values, size_t first, size_t count, double epsilon) {
  double squares = 0;
  for (size_t i = first; i < first + count; ++i) squares += double(values[i]) * double(values[i]);
  return 1 / std::sqrt(squares / double(count) + epsilon);
}

std::vector<float> values_of(const std::vector<uint16_t>& words) {
  std::vector<float> out;
  for (const uint16_t word : words) out.push_back(bf16_value(word));
  return out;
}

// h += norm(y) w (or h *= scale), x = norm(h) w'.
void check_norm(const Build& build, int width, bool sublayer, Random& random) {
  INFO(build.name() << " " << width << " " << sublayer);
  const int padded = round_up(width, 256), y_padded = round_up(2 * width, vec::kInBytes) / 2;
  const double epsilon = 1e-3, scale = 33.75;
  std::vector<float> row = random.floats(size_t(width));
  std::vector<float> post = random.floats(size_t(width)), pre = random.floats(size_t(width));
  std::vector<uint16_t> y = random.bf16(size_t(width));
  row.resize(size_t(padded)), post.resize(size_t(padded)), pre.resize(size_t(padded));
  std::vector<uint16_t> filled = y;
  filled.resize(size_t(y_padded));
  Job job{};
  job.kind = int32_t(Kind::kNorm);
  // Weights that the store has no room for follow the rest.
  const int norms = sublayer ? 2 : 1, y_bytes = sublayer ? 2 * y_padded : 0;
  const bool kept = width <= 2560;
  const int row_at = kept ? norms * 4 * padded : 0;
  job.kind = int32_t(kept ? Kind::kNorm : Kind::kLongNorm);
  job.width = width;
  job.epsilon = bits(float(epsilon));
  job.scale = bits(float(scale));
  job.out_at = job.row_at = row_at;
  job.x_at = row_at + 4 * padded;
  job.work_at = kept ? job.x_at + 2 * padded : vec::kDataBytes;
  job.piece = kept ? padded : 256;
  job.pieces = sublayer ? padded / job.piece : 0;
  job.kept = kept ? norms : 0;
  job.take = (row_at + 4 * padded + y_bytes) / vec::kInBytes;
  job.x_elements = width;
  job.x_piece = 512;
  job.x_objects = job.x_cycle = (width + 511) / 512 + 1;
  job.out = 4 * padded / vec::kOutBytes;
  std::vector<Object> input, weights;
  if (sublayer) weights = objects_of(post);
  for (const Object& one : objects_of(pre)) weights.push_back(one);
  if (kept) input = weights;
  for (const Object& one : objects_of(row)) input.push_back(one);
  if (sublayer) {
    for (const Object& one : objects_of(filled)) input.push_back(one);
  }
  if (!kept) input.insert(input.end(), weights.begin(), weights.end());
  job.inputs = int32_t(input.size());
  Core core(build);
  core.run(job, input);

  std::vector<float> found(static_cast<size_t>(padded));
  REQUIRE(core.out.size() == found.size() * 4);
  std::memcpy(found.data(), core.out.data(), core.out.size());
  const double factor = sublayer ? factor_of(values_of(y), 0, y.size(), epsilon) : 0;
  for (size_t i = 0; i < size_t(width); ++i) {
    const double added = sublayer ? double{bf16_value(y[i])} * factor * post[i] : 0;
    const double exact = sublayer ? row[i] + added : row[i] * scale;
    const double bound = std::fabs(added) * norm_unit(width) + std::fabs(exact) * 4 * kUnit;
    CHECK(std::fabs(found[i] - exact) <= bound);
  }
  // Of the row that it keeps.
  const double second = factor_of(found, 0, size_t(width), epsilon);
  for (size_t i = 0; i < core.x.size() * 512; ++i) {
    const uint16_t value = core.x[i / 512][i % 512];
    if (i >= size_t(width)) {
      CHECK(value == 0);
      continue;
    }
    const double exact = found[i] * second * pre[i];
    CHECK(within(value, exact, std::fabs(exact) * norm_unit(width)));
  }
}

void check_geglu(const Build& build, int ffn, Random& random) {
  INFO(build.name() << " " << ffn);
  const int pairs = (ffn + 511) / 512;
  const std::vector<uint16_t> gate = random.bf16(size_t(pairs * 512));
  const std::vector<uint16_t> up = random.bf16(size_t(pairs * 512));
  Job job{};
  job.kind = int32_t(Kind::kGeglu);
  job.inputs = 2 * pairs;
  job.y_at = pairs * vec::kInBytes;
  job.x_elements = ffn;
  job.x_piece = 256;
  job.x_objects = job.x_cycle = (ffn + 255) / 256;
  std::vector<Object> input;
  for (int pair = 0; pair < pairs; ++pair) {
    input.push_back(object_of(gate.data() + pair * 512, vec::kInBytes));
    input.push_back(object_of(up.data() + pair * 512, vec::kInBytes));
  }
  Core core(build);
  core.run(job, input);
  for (size_t i = 0; i < core.x.size() * 256; ++i) {
    const uint16_t found = core.x[i / 256][i % 256];
    if (i >= size_t(ffn)) {
      CHECK(found == 0);
      continue;
    }
    const double g = bf16_value(gate[i]);
    const double u = std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
    const double exact = g / (1 + std::exp(-2 * u)) * bf16_value(up[i]);
    const bool npu1 = build.generation == Generation::kNpu1;
    const double unit = npu1 ? 2e-4 : kBf16Unit / 3 + (g < 0 ? kBf16Unit : 0) + 3e-5;
    CHECK(within(found, exact, std::fabs(exact) * unit));
  }
}

struct Heads {
  int heads, kv_heads, head_dim, dim;
};

// Where element i of a head of `dim` is in one of head_dim.
size_t place(const Heads& s, int i) {
  return size_t(i < s.dim / 2 ? i : s.head_dim / 2 + i - s.dim / 2);
}

void check_rotate(const Build& build, const Heads& s, Random& random) {
  INFO(build.name() << " " << s.heads << " " << s.kv_heads << " " << s.head_dim << " " << s.dim);
  const int d = s.head_dim, half = s.dim / 2, rows = (s.heads + 2) * s.kv_heads * s.dim;
  const double share = double(s.dim) / d, epsilon = 1e-3;
  // Weights scaled as the mean is over head_dim elements; angles at the halves' starts.
  std::vector<float> weights[2], turned[2] = {std::vector<float>(256), std::vector<float>(256)};
  std::vector<float> angles(256);
  for (int k = 0; k < 2; ++k) {
    weights[k] = random.floats(size_t(s.dim));
    for (int i = 0; i < s.dim; ++i) {
      turned[k][place(s, i)] = float(weights[k][size_t(i)] * std::sqrt(share));
    }
  }
  for (int i = 0; i < half; ++i) {
    angles[size_t(i)] = std::cos(0.3f * float(i) + 1);
    angles[size_t(128 + i)] = std::sin(0.3f * float(i) + 1);
  }
  std::vector<uint8_t> tables(size_t(s.kv_heads * npu::attention::kTableBytes));
  for (uint8_t& byte : tables) byte = uint8_t(random.below(256));
  const std::vector<uint16_t> row = random.bf16(size_t(rows));
  std::vector<Object> input;
  for (const auto& one : {turned[0], turned[1], angles}) {
    for (const Object& o : objects_of(one)) input.push_back(o);
  }
  for (const Object& o : objects_of(tables)) input.push_back(o);
  const int y_at = int(input.size()) * vec::kInBytes;
  for (const Object& o : objects_of(row)) input.push_back(o);
  Job job{};
  job.kind = int32_t(Kind::kRotate);
  job.take = job.inputs = int32_t(input.size());
  job.width = d, job.rows = (s.heads + 1) * s.kv_heads;
  job.y_at = y_at;
  job.out_at = job.take * vec::kInBytes;
  job.heads = s.heads, job.kv_heads = s.kv_heads, job.head_dim = d, job.dim = s.dim;
  job.epsilon = bits(float(epsilon * share));
  const int bytes = s.kv_heads * (npu::attention::kTableBytes + 2 * s.heads * d + 4 * d);
  REQUIRE(bytes % vec::kOutBytes == 0);
  job.out = bytes / vec::kOutBytes;
  Core core(build);
  core.run(job, input);

  const auto* found = reinterpret_cast<const uint16_t*>(core.out.data());
  const std::vector<float> y = values_of(row);
  const auto check_head = [&](const uint16_t* to, size_t from, const std::vector<float>& weight) {
    const double factor = factor_of(y, from, size_t(s.dim), epsilon);
    std::vector<bool> used(size_t(d), false);
    for (int i = 0; i < half; ++i) {
      const double low = y[from + size_t(i)] * factor * weight[size_t(i)];
      const double high = y[from + size_t(half + i)] * factor * weight[size_t(half + i)];
      const double c = angles[size_t(i)], sn = angles[size_t(128 + i)];
      const double error = (std::fabs(low) + std::fabs(high)) * (6 * kUnit + norm_unit(d));
      CHECK(within(to[place(s, i)], low * c - high * sn, error));
      CHECK(within(to[place(s, half + i)], high * c + low * sn, error));
      used[place(s, i)] = used[place(s, half + i)] = true;
    }
    for (size_t i = 0; i < size_t(d); ++i) {
      if (!used[i]) CHECK((to[i] & 0x7FFF) == 0);
    }
  };
  const int queries = s.heads * s.kv_heads;
  for (int g = 0; g < s.kv_heads; ++g) {
    CHECK(std::memcmp(found, tables.data() + g * npu::attention::kTableBytes,
                      npu::attention::kTableBytes) == 0);
    found += npu::attention::kTableBytes / 2;
    for (int h = 0; h < s.heads; ++h, found += d) {
      check_head(found, size_t((g * s.heads + h) * s.dim), weights[0]);
    }
  }
  for (int g = 0; g < s.kv_heads; ++g, found += 2 * d) {
    check_head(found, size_t((queries + g) * s.dim), weights[1]);
    for (int i = 0; i < d; ++i) {
      const size_t from = size_t((queries + s.kv_heads + g) * s.dim + i);
      CHECK(found[d + i] == (i < s.dim ? row[from] : 0));
    }
  }
}

// `masked`: of a head's parts how many nobody wrote (their values are NaN) or saw no key.
void check_combine(const Build& build, const Heads& s, int parts, int masked, Random& random) {
  INFO(build.name() << " " << s.heads << "x" << s.kv_heads << " " << s.head_dim << " " << s.dim
                    << " " << parts << " " << masked);
  const int d = s.head_dim, size = s.heads * d, objects = (size + 255) / 256;
  std::vector<Object> input, pieces;
  std::vector<std::vector<float>> sums(size_t(s.kv_heads * parts));
  std::vector<float> most(size_t(s.kv_heads * parts * 32)), counts(most.size());
  for (int g = 0; g < s.kv_heads; ++g) {
    std::vector<float> records;
    for (int p = 0; p < parts; ++p) {
      const size_t at = size_t(g * parts + p);
      const bool none = p < masked;
      sums[at] = random.floats(size_t(objects * 256));
      if (none)
        std::fill(sums[at].begin(), sums[at].end(), std::numeric_limits<float>::quiet_NaN());
      std::vector<float> statistics(64);
      for (size_t r = 0; r < 32; ++r) {
        const bool unseen = none || r >= size_t(s.heads);
        statistics[r] = unseen ? (p % 2 ? npu::attention::kNothing : 0.0f)
                               : float(random.below(40) - 20 - (p == parts - 1 ? 150 : 0));
        statistics[32 + r] = unseen ? 0.0f : 0.5f + float(random.below(100));
        most[at * 32 + r] = statistics[r], counts[at * 32 + r] = statistics[32 + r];
      }
      records.insert(records.end(), statistics.begin(), statistics.end());
    }
    for (const Object& one : objects_of(records)) input.push_back(one);
    for (int piece = 0; piece < objects; ++piece) {
      for (int p = 0; p < parts; ++p) {
        pieces.push_back(object_of(&sums[size_t(g * parts + p)][size_t(piece * 256)], 1024));
      }
    }
  }
  Job job{};
  job.kind = int32_t(Kind::kCombine);
  job.take = int32_t(input.size());
  job.inputs = int32_t(input.size() + pieces.size());
  job.width = d, job.rows = s.heads;
  job.y_at = round_up(job.take * vec::kInBytes, 1024);
  job.x_at = job.y_at + 2048;
  job.heads = s.heads, job.kv_heads = s.kv_heads, job.head_dim = d, job.dim = s.dim;
  job.parts = parts;
  job.x_elements = s.heads * s.kv_heads * s.dim;
  job.x_piece = 256;
  job.x_objects = job.x_cycle = (job.x_elements + 255) / 256;
  input.insert(input.end(), pieces.begin(), pieces.end());
  Core core(build);
  core.run(job, input);
  for (int head = 0; head < s.heads * s.kv_heads; ++head) {
    const int g = head / s.heads, h = head % s.heads;
    double top = -1e300, total = 0;
    const auto of = [&](int p) { return size_t((g * parts + p) * 32 + h); };
    for (int p = 0; p < parts; ++p) {
      if (counts[of(p)] != 0) top = std::max(top, double{most[of(p)]});
    }
    for (int p = 0; p < parts; ++p) {
      if (counts[of(p)] != 0) total += counts[of(p)] * std::exp2(most[of(p)] - top);
    }
    for (int i = 0; i < s.dim; ++i) {
      double exact = 0, magnitude = 0;
      for (int p = 0; p < parts; ++p) {
        if (counts[of(p)] == 0) continue;
        const double f = std::exp2(most[of(p)] - top) / total;
        exact += f * sums[size_t(g * parts + p)][size_t(h * d + i)];
        magnitude += f * std::fabs(sums[size_t(g * parts + p)][size_t(h * d + i)]);
      }
      const size_t at = size_t(head * s.dim + i);
      CHECK(within(core.x[at / 256][at % 256], exact, magnitude * (2 * parts + 8) * kUnit));
    }
  }
}

Job random_job(Random& random) {
  Job job{};
  auto* words = reinterpret_cast<int32_t*>(&job);
  constexpr int32_t kCandidates[] = {0,   1,   2,    3,    4,    8,     16,    32,    64,  128,
                                     256, 512, 1024, 2048, 3072, 10240, 20480, 45056, -64, 1 << 30};
  for (size_t i = 0; i < sizeof job / 4; ++i) {
    const int64_t factor = random.below(3) ? 1 : 1 + random.below(3);
    words[i] = int32_t(uint32_t(kCandidates[size_t(random.below(20))] * factor));
    if (random.below(20) == 0) words[i] = int32_t(random.engine());
  }
  job.kind = random.below(int(vec::kKinds));
  if (random.below(2)) job.head_dim = 64 << random.below(3);
  if (random.below(2)) job.dim = job.head_dim;
  return job;
}

}  // namespace

TEST_CASE("vector core: norms with and without a sublayer, in every build") {
  for (const Build& build : builds()) {
    Random random{std::mt19937(1), {}};
    for (const int width : {32, 96, 256, 640, 1152, 2560, 7168}) {
      check_norm(build, width, true, random);
      check_norm(build, width, false, random);
    }
  }
}

TEST_CASE("vector core: geglu, in every build") {
  for (const Build& build : builds()) {
    Random random{std::mt19937(2), {}};
    for (const int ffn : {32, 512, 2048, 6912, 21504}) check_geglu(build, ffn, random);
  }
}

TEST_CASE("vector core: rotation of heads, whole and spread, in every build") {
  for (const Build& build : builds()) {
    Random random{std::mt19937(3), {}};
    for (const Heads& s : {Heads{1, 2, 64, 64}, Heads{4, 1, 256, 256}, Heads{8, 2, 128, 128},
                           Heads{2, 4, 256, 256}, Heads{2, 2, 64, 32}, Heads{2, 3, 128, 80},
                           Heads{8, 1, 256, 160}, Heads{1, 8, 64, 32}, Heads{2, 1, 64, 34}}) {
      check_rotate(build, s, random);
    }
  }
}

TEST_CASE("vector core: combination of parts, in every build") {
  for (const Build& build : builds()) {
    Random random{std::mt19937(4), {}};
    for (const Heads& s : {Heads{1, 2, 64, 64}, Heads{4, 1, 256, 256}, Heads{8, 2, 128, 128},
                           Heads{2, 4, 256, 256}, Heads{2, 2, 64, 32}, Heads{3, 2, 128, 80}}) {
      for (const int parts : {1, 2, 7, 8}) {
        for (const int masked : {0, 1, parts - 1, parts})
          check_combine(build, s, parts, masked, random);
      }
    }
  }
}

TEST_CASE("vector core: x begins again after a cycle, and is followed by zeros") {
  for (const Build& build : builds()) {
    Core core(build);
    for (int i = 0; i < 4096; ++i) core.store.as<uint16_t>(1024)[i] = uint16_t(i + 1);
    Job job{};
    job.kind = int32_t(Kind::kSend);
    job.x_at = 1024, job.x_elements = 1200, job.x_piece = 512, job.x_objects = 8, job.x_cycle = 4;
    core.run(job, {});
    REQUIRE(core.x.size() == 8);
    for (size_t i = 0; i < 8; ++i) {
      for (size_t j = 0; j < 512; ++j) {
        const size_t element = i % 4 * 512 + j;
        CHECK(core.x[i][j] == (element < 1200 ? element + 1 : 0));
      }
    }
  }
}

TEST_CASE("vector core: jobs that do not fit are refused") {
  const Build build = builds().front();
  const auto refused = [&](auto change) {
    Job job{};
    job.kind = int32_t(Kind::kNorm);
    job.take = job.inputs = 4, job.width = 512, job.x_at = 4096;
    job.out_at = job.row_at = 2048, job.piece = 512, job.kept = 1, job.work_at = 6144,
    job.x_elements = 512, job.x_piece = 256, job.x_objects = 2;
    job.x_cycle = 2, job.heads = job.kv_heads = job.parts = 1, job.head_dim = job.dim = 64;
    change(job);
    Memory store(vec::kStoreBytes), words(4 * vec::kJobWords), state(4 * vec::kStateWords);
    std::memcpy(words.data(), &job, sizeof job);
    state.as<int32_t>()[vec::kLeft] = vec::kLast + job.take - 1;
    Object object(vec::kInBytes / 4);
    return raised(build, "vector_input",
                  {buffer(object), store.argument(), words.argument(), state.argument(),
                   integer(vec::kLast + job.take - 1), integer(job.kind), integer(job.width),
                   integer(job.rows), integer(job.parts)});
  };
  CHECK(refused([](Job&) {}) == "none");
  CHECK(refused([](Job& job) { job.take = job.inputs = 50; }) == "kernel");
  CHECK(refused([](Job& job) { job.x_at = 4090; }) == "kernel");
  CHECK(refused([](Job& job) { job.x_at = vec::kStoreBytes - 1023; }) == "kernel");
  CHECK(refused([](Job& job) { job.width = 24; }) == "kernel");
  CHECK(refused([](Job& job) { job.inputs = 3; }) == "kernel");
  CHECK(refused([](Job& job) { job.piece = 480; }) == "kernel");
  CHECK(refused([](Job& job) { job.kept = 2; }) == "kernel");
  CHECK(refused([](Job& job) { job.work_at = vec::kStoreBytes - 2048; }) == "kernel");
  CHECK(refused([](Job& job) { job.kind = int32_t(Kind::kLongNorm); }) == "kernel");
  CHECK(refused([](Job& job) { job.x_piece = 2064; }) == "kernel");
  CHECK(refused([](Job& job) { job.x_cycle = 0; }) == "kernel");
  CHECK(refused([](Job& job) { job.kind = vec::kKinds; }) == "kernel");
  CHECK(refused([](Job& job) { job.out = 1, job.out_at = vec::kStoreBytes; }) == "kernel");
  CHECK(refused([](Job& job) { job.x_elements = 500; }) == "kernel");
  CHECK(refused([](Job& job) { job.kind = int32_t(Kind::kCombine), job.parts = 65; }) == "kernel");
}

TEST_CASE("vector core: no job and no state makes it write outside its buffers") {
  Random random{std::mt19937(5), {}};
  const std::vector<Build> all = {{Generation::kNpu2, Arithmetic::kFast, "v2"},
                                  {Generation::kNpu1, Arithmetic::kSilicon, "v2"}};
  int ran = 0;
  for (int round = 0; round < 30000; ++round) {
    const Build& build = all[size_t(round % 2)];
    Memory store(vec::kStoreBytes), words(4 * vec::kJobWords), state(4 * vec::kStateWords);
    Memory x(4096), out(vec::kOutBytes), object(vec::kInBytes);
    const Job job = random_job(random);
    std::memcpy(words.data(), &job, sizeof job);
    for (int i = 0; i < 6; ++i) {
      const int64_t take = job.take, last = vec::kLast + take;
      const int64_t counts[] = {
          0, 0, 1, take, last - 1, last - job.inputs, int64_t(random.engine())};
      state.as<int32_t>()[i] = int32_t(counts[random.below(7)]);
    }
    for (int i = 6; i < 13; ++i) {  // of x, of parts and rows
      const int64_t counts[] = {
          0, 0, 0, 1, int64_t{job.parts} - 1, int64_t{job.heads} - 1, int64_t(random.engine())};
      state.as<int32_t>()[i] = int32_t(counts[random.below(7)]);
    }
    const auto o = object.argument(), s = store.argument(), w = words.argument(),
               t = state.argument();
    const std::vector<std::pair<const char*, std::vector<npu::KernelArgument>>> calls = {
        {"vector_table", {o, x.argument(), t}},
        {"vector_input",
         {o, s, w, t, integer(state.as<int32_t>()[vec::kLeft]), integer(job.kind),
          integer(job.width), integer(job.rows), integer(job.parts)}},
        {"vector_x", {s, x.argument(), w, t}},
        {"vector_out", {s, out.argument(), w, t}}};
    const auto& [name, arguments] = calls[size_t(random.below(7) * 4 / 7)];
    ran += raised(build, name, arguments) == "none";
    bool intact = true;
    for (const Memory* one : {&store, &words, &state, &x, &out, &object}) intact &= one->intact();
    INFO(name << " kind " << job.kind);
    REQUIRE(intact);
  }
  CHECK(ran > 1000);
}
