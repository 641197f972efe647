// The kernels of RMSNorm, rotary embedding and GeGLU in every host build against double, within the
// bounds of docs/fidelity.md; the host's aie::tanh gives the nearest bfloat16.
#include <doctest/doctest.h>

#include <algorithm>

#define __AIE_ARCH__ 21
#define AIE_HOST_VARIANT test_vector_kernels
#define AIE_HOST_SILICON 1
#include "kernel_calls.h"
#include "kernels/host/aie_api/aie.hpp"
#include "kernels/kernel.h"

using namespace kernel_test;

namespace {

constexpr double kBf16Unit = 0x1p-8, kTiny = 0x1p-133;

std::vector<uint16_t> bf16_words(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> out(count);
  for (uint16_t& word : out) word = bf16_word(normal(random));
  return out;
}

std::vector<float> floats(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& value : out) value = normal(random);
  return out;
}

// A core that starts with the modes of a reset.
void call(const Build& build, const char* name, std::vector<npu::KernelArgument> arguments) {
  npu::CoreState core;
  build.find(name)(arguments, core);
}

bool within(uint16_t found, double exact, double before) {
  const double bound = std::fabs(exact) * kBf16Unit + before * (1 + kBf16Unit) + kTiny;
  return std::fabs(bf16_value(found) - exact) <= bound;
}

// x / sqrt(mean(x^2) + epsilon) * weight
std::vector<double> norm(const uint16_t* x, const float* weight, int width, double epsilon) {
  double squares = 0;
  for (int i = 0; i < width; ++i) squares += double{bf16_value(x[i])} * bf16_value(x[i]);
  std::vector<double> out;
  for (int i = 0; i < width; ++i) {
    out.push_back(bf16_value(x[i]) / std::sqrt(squares / width + epsilon) * weight[i]);
  }
  return out;
}

constexpr double norm_unit(int width) { return ((width / 32.0 + 5) / 2 + 4) * kUnit; }

}  // namespace

TEST_CASE("aie::tanh gives the nearest bfloat16") {
  const auto nearest = [](float x) {
    const uint16_t found = aie::detail::tanh_bf16(x).bits;
    const double exact = std::tanh(double{x});
    const double error = std::fabs(bf16_value(found) - exact);
    const auto other = [&](int step) {
      return std::fabs(bf16_value(static_cast<uint16_t>(found + step)) - exact);
    };
    return error <= other(1) && ((found & 0x7FFF) == 0 || error <= other(-1));
  };
  for (uint32_t word = 0; word < 0x10000; ++word) {
    const float x = bf16_value(static_cast<uint16_t>(word));
    if (std::isnan(x)) {
      CHECK(std::isnan(float{aie::detail::tanh_bf16(x)}));
    } else {
      CHECK_MESSAGE(nearest(x), x);
    }
  }
  for (const float x : floats(20000, 5)) CHECK_MESSAGE(nearest(x), x);
}

TEST_CASE("geglu is its formula for every gate, in every build") {
  std::vector<uint16_t> gate(1 << 16), up(1 << 16, bf16_word(-1.375f)), out(1 << 16);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = static_cast<uint16_t>(i);
  for (const Build& build : builds()) {
    INFO(build.name());
    call(build, "geglu", {buffer(gate), buffer(up), buffer(out), integer(1 << 16)});
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = bf16_value(gate[i]);
      if (std::isnan(g) || std::isinf(g)) continue;
      const double u = std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
      const double h = u < 0 ? std::exp(2 * u) / (1 + std::exp(2 * u)) : 1 / (1 + std::exp(-2 * u));
      const bool npu1 = build.generation == npu::arch::Generation::kNpu1;
      const double unit = npu1 ? 2e-4 : kBf16Unit / 3 + (g < 0 ? kBf16Unit : 0) + 3e-5;
      const double exact = g * h * -1.375;
      if (std::fabs(exact) > 3.3e38) continue;
      CHECK_MESSAGE(within(out[i], exact, std::fabs(exact) * unit + std::fabs(g) * 0x1p-124), g);
    }
  }
}

namespace {

constexpr int kRopeElements = 256;

// Vector v, pair i.
double angle_of(int v, int i) { return 0.3 * i + v; }

std::vector<float> rope_tables(int width) {
  std::vector<float> out;
  for (int i = 0; i < kRopeElements; ++i) {
    const double angle = angle_of(i / width, i % (width / 2));
    out.push_back(static_cast<float>(i % width < width / 2 ? std::cos(angle) : std::sin(angle)));
  }
  return out;
}

// Whether a vector is rotated by its angles; before: the vector exactly, unit: its errors' size.
bool rotated(const uint16_t* found, const std::vector<double>& before, int v, double unit) {
  const size_t half = before.size() / 2;
  bool all = true;
  for (size_t i = 0; i < half; ++i) {
    const double low = before[i], high = before[half + i];
    const double c = std::cos(angle_of(v, static_cast<int>(i)));
    const double s = std::sin(angle_of(v, static_cast<int>(i)));
    const double error = (std::fabs(low) + std::fabs(high)) * unit;
    all = all && within(found[i], low * c - high * s, error) &&
          within(found[half + i], high * c + low * s, error);
  }
  return all;
}

void check_rope(const Build& build, int doublings, bool normed) {
  INFO(build.name() << " " << doublings << " " << normed);
  const int width = 64 << doublings;
  std::vector<uint16_t> x = bf16_words(kRopeElements, 1), out(kRopeElements);
  std::vector<float> tables = rope_tables(width), weight = floats(kRopeElements, 2);
  call(build, "rope_rotate",
       {buffer(x), buffer(tables), buffer(weight), buffer(out), integer(doublings), integer(normed),
        integer(std::bit_cast<int32_t>(0.001f))});
  for (int v = 0; v < kRopeElements / width; ++v) {
    const size_t at = area(v, width);
    std::vector<double> before;
    for (size_t i = at; i < at + area(1, width); ++i) before.push_back(bf16_value(x[i]));
    if (normed) before = norm(&x[at], weight.data(), width, 0.001f);
    CHECK(rotated(&out[at], before, v, 4 * kUnit + (normed ? norm_unit(width) : 0)));
  }
}

}  // namespace

TEST_CASE("rope_rotate rotates pairs (i, i + d / 2), in every build") {
  for (const Build& build : builds()) {
    for (int doublings = 0; doublings < 3; ++doublings) {
      check_rope(build, doublings, false);
      check_rope(build, doublings, true);
    }
  }
}

TEST_CASE("rms_scale_add adds the residual before it rounds, in every build") {
  constexpr int kWidth = 256, kChunk = 128;
  std::vector<uint16_t> x = bf16_words(kWidth, 3), residual = bf16_words(kWidth, 4);
  const std::vector<float> weights = floats(kWidth, 5);
  const std::vector<double> exact = norm(x.data(), weights.data(), kWidth, 0);
  for (const Build& build : builds()) {
    INFO(build.name());
    std::vector<uint16_t> row(16384), y(kChunk);
    std::vector<int32_t> state(64, -1);
    const auto chunk = [](auto& values, int at) {
      std::vector<std::remove_cvref_t<decltype(values[0])>> part(values.begin() + at,
                                                                 values.begin() + at + kChunk);
      return part;
    };
    call(build, "rms_begin", {buffer(state)});
    for (int at = 0; at < kWidth; at += kChunk) {
      auto part = chunk(x, at);
      call(build, "rms_square", {buffer(part), buffer(row), buffer(state)});
    }
    for (int at = 0; at < kWidth; at += kChunk) {
      auto weight = chunk(weights, at);
      auto addend = chunk(residual, at);
      call(build, "rms_scale_add",
           {buffer(row), buffer(weight), buffer(addend), buffer(y), buffer(state), integer(kWidth),
            integer(0)});
      for (int i = 0; i < kChunk; ++i) {
        const double norm = exact[static_cast<size_t>(at + i)];
        const double sum = norm + bf16_value(addend[static_cast<size_t>(i)]);
        const double before = std::fabs(norm) * norm_unit(kWidth) + std::fabs(sum) * kUnit;
        CHECK(within(y[static_cast<size_t>(i)], sum, before));
      }
    }
  }
}
