// Jobs of rows of the prefill configuration (aie_kernels/prefill_norm.cc, prefill_geglu.cc,
// prefill_rotation.cc), run round by round as the worker runs them, in every host build: against
// double, within bounds of fp32 and bfloat16.
#include <doctest/doctest.h>

#include "block_float.h"
#include "kernels/prefill_row_core.h"

using namespace kernel_test;
using namespace npu::prefill_row_test;

namespace {

constexpr double kBf16Unit = 0x1p-8, kTiny = 0x1p-126;
struct Random {
  std::mt19937 engine;
  std::normal_distribution<float> normal;
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

template <typename T>
T value_at(const std::vector<std::byte>& bytes, size_t number) {
  T value;
  std::memcpy(&value, bytes.data() + number * sizeof(T), sizeof(T));
  return value;
}

// In tiles of 8 rows x 32 columns.
size_t place(int row, int column) {
  return static_cast<size_t>(column / pre::kSlice * pre::kRows * pre::kSlice + row * pre::kSlice +
                             column % pre::kSlice);
}

// An element of an operand whose bytes begin at `block`: npu1 bfloat16 in tiles [2][4][4][8].
double operand_at(const std::byte* block, int row, int column, Generation generation) {
  if (generation != Generation::kNpu1) return npu::block_float::operand(block, row, column);
  const int r = bf16_shape(generation).r, eight = column / 8;
  const int place = ((row / r * 4 + eight) * r + row % r) * 8 + column % 8;
  uint16_t word;
  std::memcpy(&word, block + 2 * place, 2);
  return bf16_value(word);
}

bool within(double found, double exact, double before) {
  const double bound = std::fabs(exact) * kBf16Unit + before * (1 + kBf16Unit) + kTiny;
  return std::fabs(found - exact) <= bound;
}
bool within(uint16_t found, double exact, double before) {
  return within(double{bf16_value(found)}, exact, before);
}

// Eight consecutive elements of an operand, exact and what is allowed before rounding.
struct Eight {
  double exact[8], before[8];
  bool holds(const double* found, Generation generation) const {
    for (size_t i = 0; i < 8; ++i) {
      const bool npu1 = generation == Generation::kNpu1;
      const double block = npu1 ? 0 : npu::block_float::reach(exact, i);
      if (!within(found[i], exact[i], before[i] + block)) return false;
    }
    return true;
  }
};

// 1 / sqrt(mean of the squares + epsilon): in fp32, 32 sums, each of columns / 32 squares of whose
// products and additions each is off by one unit (AIE2 cuts bf16 sums off: two); five more
// additions, the mean, epsilon, the root. The root halves what was before it.
constexpr double factor_unit(int columns) { return ((2 * columns / 32.0 + 6) / 2 + 3) * kUnit; }

// 8 rows in tiles, zeros where columns only fill up.
template <typename T>
void clear_padding(std::vector<T>& rows, const NormShape& shape) {
  for (int column = shape.width; column < shape.columns; ++column) {
    for (int row = 0; row < pre::kRows; ++row) rows[place(row, column)] = T{};
  }
}

struct NormData {
  NormData(const NormShape& of, unsigned seed) : shape(of) {
    Random random{std::mt19937(seed), {}};
    const auto columns = static_cast<size_t>(shape.columns);
    weights = random.floats(2 * columns);
    for (size_t i = static_cast<size_t>(shape.width); i < columns; ++i) {
      weights[i] = weights[columns + i] = 0;
    }
    for (int round = 0; round < shape.rounds; ++round) {
      x.push_back(random.floats(columns * pre::kRows));
      y.push_back(random.bf16(columns * pre::kRows));
      clear_padding(x.back(), shape);
      clear_padding(y.back(), shape);
    }
  }
  std::vector<std::byte> run(Core& core) const {
    std::vector<Bytes> a, b;
    for (size_t round = 0; round < x.size(); ++round) {
      for (int i = 0; i < (shape.has_y ? 2 : 0); ++i) append_a(a, y[round]);
      append_b(b, x[round], pre::kBPayload);
    }
    const Job job = norm_job(shape);
    core.begin(job);
    core.keep(weights);
    return core.run(job, a, b);
  }

  NormShape shape;
  std::vector<float> weights;
  std::vector<std::vector<float>> x;
  std::vector<std::vector<uint16_t>> y;
};

// A round's results against its operands.
class NormRound {
 public:
  NormRound(const NormData& data, const std::vector<std::byte>& out, size_t round,
            Generation generation)
      : data_(data), shape_(data.shape), out_(out), round_(round), generation_(generation) {
    records_ = static_cast<size_t>(shape_.columns / pre::kSlice);
    at_ = round * (records_ * pre::kRecordBytes + pre::kPieceBytes);
  }
  void check() const {
    for (int row = 0; row < pre::kRows; ++row) check_row(row);
    const size_t tail = (at_ + records_ * pre::kRecordBytes) / 4;
    for (size_t i = pre::kRows; i < pre::kPieceWords; ++i) {
      CHECK(value_at<int32_t>(out_, tail + i) == 0);
    }
  }

 private:
  // Of x (fp32) and a (bfloat16) in a record.
  size_t record(int column) const {
    return at_ + static_cast<size_t>(column / pre::kSlice) * pre::kRecordBytes;
  }
  float x_of(int row, int column) const {
    return value_at<float>(out_, record(column) / 4 + place(row, column % pre::kSlice));
  }
  double a_of(int row, int column) const {
    const std::byte* a = out_.data() + record(column) + 4 * pre::kRows * pre::kSlice;
    return operand_at(a, row, column % pre::kSlice, generation_);
  }
  double factor(int row) const {
    double squares = 0;
    for (int column = 0; column < shape_.width; ++column) {
      const double value = bf16_value(data_.y[round_][place(row, column)]);
      squares += value * value;
    }
    return 1 / std::sqrt(squares / shape_.width + kEpsilon);
  }
  void check_row(int row) const {
    const double by = shape_.has_y ? factor(row) : 0;
    double squares = 0;
    bool x_right = true, a_right = true;
    Eight eight;
    double a[8];
    for (int column = 0; column < shape_.columns; ++column) {
      const auto c = static_cast<size_t>(column);
      const double part = by * bf16_value(data_.y[round_][place(row, column)]) * data_.weights[c];
      const double sum = data_.x[round_][place(row, column)] + part;
      // Two products before the sum.
      const double before = std::fabs(part) * (factor_unit(shape_.columns) + 2 * kUnit) * 1.001;
      const double error = before + std::fabs(sum) * kUnit;
      const double found = x_of(row, column);
      const double w2 = data_.weights[c + static_cast<size_t>(shape_.columns)];
      squares += found * found;
      x_right = x_right && std::fabs(found - sum) <= error * 1.001;
      eight.exact[c % 8] = sum * w2;
      eight.before[c % 8] = std::fabs(w2) * (error + std::fabs(sum) * kUnit);
      a[c % 8] = a_of(row, column);
      if (c % 8 == 7) a_right = a_right && eight.holds(a, generation_);
    }
    CHECK(x_right);
    CHECK(a_right);
    const double exact = 1 / std::sqrt(squares / shape_.width + kEpsilon);
    const size_t tail = (at_ + records_ * pre::kRecordBytes) / 4 + static_cast<size_t>(row);
    const double found = value_at<float>(out_, tail);
    CHECK(std::fabs(found - exact) <= exact * factor_unit(shape_.columns) * 1.001);
  }

  const NormData& data_;
  const NormShape& shape_;
  const std::vector<std::byte>& out_;
  size_t round_, records_ = 0, at_ = 0;  // its number; blocks of 32 columns; bytes before it
  Generation generation_;
};

constexpr NormShape kNormShapes[] = {
    {640, 768, 3, true}, {250, 256, 2, true}, {1152, 1280, 2, false}, {2999, 3072, 1, true}};

}  // namespace

TEST_CASE("prefill: rows of a norm with its residual, in every build") {
  for (const Build& build : builds()) {
    Core core(build);
    for (const NormShape& shape : kNormShapes) {
      INFO(build.name() << " " << shape.width);
      const NormData data(shape, static_cast<unsigned>(shape.width));
      const std::vector<std::byte> out = data.run(core);
      for (size_t round = 0; round < data.x.size(); ++round)
        NormRound(data, out, round, build.generation).check();
    }
  }
}

TEST_CASE("prefill: rows of GeGLU, in every build") {
  constexpr int kRounds = 3;
  Random random{std::mt19937(11), {}};
  const std::vector<uint16_t> gate = random.bf16(2048 * kRounds);
  // Blocks of all sizes that operands may have, with elements far below the others'.
  std::vector<uint16_t> up(2048 * kRounds);
  for (size_t i = 0; i < up.size(); ++i) {
    constexpr int kPowers[] = {0, -60, -105, -122, 70, 112};
    const float value = std::ldexp(random.normal(random.engine), kPowers[i / 8 % 6]);
    up[i] = bf16_word(i % 61 == 0 ? std::ldexp(value, -24) : value);
  }
  std::vector<Bytes> a, b;
  append_a(a, gate);
  append_b(b, up, pre::kBPayload);
  for (const Build& build : builds()) {
    INFO(build.name());
    Core core(build);
    core.begin(geglu_job(kRounds));
    const std::vector<std::byte> out = core.run(geglu_job(kRounds), a, b);
    REQUIRE(out.size() == 2 * gate.size());
    const bool npu1 = build.generation == Generation::kNpu1;
    Eight eight;
    double all[8];
    for (size_t i = 0; i < gate.size(); ++i) {
      const int row = static_cast<int>(i) / pre::kSlice % pre::kRows;
      const std::byte* block = out.data() + i / 256 * pre::kPieceBytes;
      const double g = bf16_value(gate[i]);
      const double h = 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
      // gelu.h: relative errors of h
      const double unit = npu1 ? 2e-4 : kBf16Unit / 3 + (g < 0 ? kBf16Unit : 0) + 3e-5;
      eight.exact[i % 8] = g * h * bf16_value(up[i]);
      eight.before[i % 8] = std::fabs(eight.exact[i % 8]) * unit;
      all[i % 8] = operand_at(block, row, static_cast<int>(i) % 32, build.generation);
      if (i % 8 == 7) CHECK(eight.holds(all, build.generation));
    }
  }
}

namespace {

struct RotationData {
  RotationData(int head_dim, int of_dim, int rounds, unsigned seed)
      : job(rotation_job(head_dim, rounds, of_dim)),
        d(static_cast<size_t>(head_dim)),
        dim(static_cast<size_t>(of_dim)) {
    Random random{std::mt19937(seed), {}};
    weights = random.floats(1024);
    for (int round = 0; round < rounds; ++round) {
      units.push_back(random.bf16(7 * pre::kRows * dim));
      std::vector<float> angles = random.floats(pre::kRows * d / 2), table(pre::kRows * d);
      for (size_t i = 0; i < angles.size(); ++i) {
        const size_t at = i / (d / 2) * d + i % (d / 2);
        table[at] = std::cos(3 * angles[i]);
        table[at + d / 2] = std::sin(3 * angles[i]);
      }
      tables.push_back(table);
    }
  }
  std::vector<std::byte> run(Core& core) const {
    std::vector<Bytes> a, b;
    for (size_t round = 0; round < units.size(); ++round) {
      append_a(a, tables[round]);
      append_b(b, units[round], 2 * pre::kRows * dim);
    }
    core.begin(job);
    core.keep(weights);
    return core.run(job, a, b);
  }
  // Of a head of head_dim: q and k have halves where its halves begin, v is as it was.
  double element(size_t round, size_t unit, int row, size_t i) const {
    const size_t part = unit >= 5 ? dim : dim / 2, step = unit >= 5 ? d : d / 2;
    if (i % step >= part) return 0;
    const auto from = static_cast<int>(i / step * part + i % step);
    return bf16_value(units[round][unit * pre::kRows * dim + place(row, from)]);
  }

  Job job;
  size_t d, dim;  // head_dim; of a head that comes
  std::vector<float> weights;
  std::vector<std::vector<uint16_t>> units;
  std::vector<std::vector<float>> tables;
};

// head_dim and dim.
constexpr std::pair<int, int> kHeads[] = {{64, 64}, {128, 128}, {256, 256}, {64, 32}, {128, 96}};

// Whether a row of a unit is its normalised and rotated operand; the mean is that of head_dim.
bool row_is_right(const RotationData& data, const std::vector<std::byte>& out, size_t round,
                  size_t unit, int row) {
  const size_t d = data.d, half = d / 2;
  const bool is_query = unit < 3, is_value = unit >= 5;
  const auto found = [&](size_t i) {
    const size_t inside =
        is_query ? place(row, static_cast<int>(i)) : static_cast<size_t>(row) * d + i;
    return value_at<uint16_t>(out, (round * 7 + unit) * pre::kRows * d + inside);
  };
  const auto before = [&](size_t i) { return data.element(round, unit, row, i); };
  double squares = 0;
  for (size_t i = 0; i < d; ++i) squares += before(i) * before(i);
  const double factor = 1 / std::sqrt(squares / static_cast<double>(d) + kEpsilon);
  const float* weight = data.weights.data() + (is_query ? 0 : d);
  const float* table = data.tables[round].data() + static_cast<size_t>(row) * d;
  bool right = true;
  for (size_t i = 0; i < half && !is_value; ++i) {
    const double low = before(i) * factor * weight[i];
    const double high = before(half + i) * factor * weight[half + i];
    const double c = table[i], s = table[half + i];
    // Two products before the rotation, whose products and sum are rounded.
    const double error =
        (std::fabs(low) + std::fabs(high)) * (factor_unit(static_cast<int>(d)) + 4 * kUnit) * 1.001;
    right = right && within(found(i), low * c - high * s, error) &&
            within(found(half + i), high * c + low * s, error);
  }
  for (size_t i = 0; i < d && is_value; ++i) right = right && bf16_value(found(i)) == before(i);
  return right;
}

}  // namespace

TEST_CASE("prefill: rows of q and k are normalised and rotated, in every build") {
  for (const Build& build : builds()) {
    Core core(build);
    for (const auto& [head_dim, dim] : kHeads) {
      INFO(build.name() << " " << dim << " of " << head_dim);
      const RotationData data(head_dim, dim, 3, static_cast<unsigned>(head_dim));
      const std::vector<std::byte> out = data.run(core);
      REQUIRE(out.size() == 3 * 7 * 2 * pre::kRows * data.d);
      for (size_t round = 0; round < 3; ++round) {
        for (size_t unit = 0; unit < 7; ++unit) {
          for (int row = 0; row < pre::kRows; ++row) {
            CHECK_MESSAGE(row_is_right(data, out, round, unit, row), round << unit << row);
          }
        }
      }
    }
  }
}
