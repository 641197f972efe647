// Calls of several cores at once (Declaration::joint) of the GEMV kernels of one vector. Asserts
// for every host build that has them, every format and number of cores that sums, results, lists of
// the largest and states have the bits of single calls, also where rows, x and blocks hold what the
// kernels treat apart; that cores which are not equally far are refused, and do nothing then; that
// operands that do not fit are errors as of single calls.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "aie_kernels/gemv_setup.h"
#include "aie_kernels/weight_block.h"
#include "aligned.h"
#include "error.h"
#include "kernel_calls.h"
#include "kernels/kernel.h"

namespace {

using namespace npu;
using arch::Generation;
using blocks::Format;
using gemv::Output, gemv::State;
using kernel_test::bf16_word, kernel_test::cpu_levels, kernel_test::ForcedCpu;

constexpr Format kFormats[] = {Format::kQ4nx, Format::kQ8, Format::kBf16, Format::kQ4_0,
                               Format::kQ8_0};
constexpr Format kFourBits[] = {Format::kQ4nx, Format::kQ4_0};
constexpr uint32_t kBlocks = 12;  // three row-blocks of four

// What a core has of its own.
struct Core {
  AlignedBytes x, sums, y, words, state, work;
  CoreState modes{12, 0};

  Core(Format format, Output output, unsigned seed)
      : x(2 * gemv::kKeptElements),
        sums(128),
        y(gemv::kYBytes),
        words(64),
        state(64),
        work(4 * gemv::kWorkOfOne) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    auto* const values = reinterpret_cast<uint16_t*>(x.data());
    for (int32_t i = 0; i < 4 * blocks::columns_of(format); ++i) {
      float value = normal(random);
      if (seed % 4 == 1 && i % 5 == 0) value *= 0x1p-9f;  // beside much larger ones
      if (seed % 4 == 2 && i < 40) value = 0;
      if (seed % 4 == 3) value *= 0x1p-120f;
      if (seed == 4 && i % 256 == 200) value = 3e38f;
      if (seed == 5 && i % 256 == 200) value = INFINITY;
      values[i] = bf16_word(value);
    }
    gemv::Setup setup{};
    setup.row_blocks = 3;
    setup.x_blocks = setup.x_last = 4;
    setup.batch = 1;
    setup.output = static_cast<int32_t>(output);
    setup.top = 8;
    setup.first = 32;
    setup.step = 64;
    setup.rows = 150;  // of the last row-block fewer than 32
    setup.format = static_cast<int32_t>(format);
    std::memcpy(words.data(), &setup, sizeof setup);
  }
  std::vector<KernelArgument> operands(AlignedBytes& weights, Format format) {
    const auto buffer = [](AlignedBytes& bytes) {
      return KernelArgument{bytes.data(), static_cast<uint32_t>(bytes.size())};
    };
    return {buffer(weights), buffer(x),
            buffer(sums),    buffer(y),
            buffer(words),   buffer(state),
            buffer(work),    KernelArgument{nullptr, 0, static_cast<int64_t>(format)}};
  }
  bool operator==(const Core& other) const {
    return sums == other.sums && y == other.y && state == other.state && words == other.words;
  }
};

uint32_t block_size(Format format) { return static_cast<uint32_t>(blocks::bytes_of(format)); }

AlignedBytes weights_of(Format format) {
  AlignedBytes all(kBlocks * block_size(format));
  std::mt19937 random(5);
  for (std::byte& byte : all) byte = static_cast<std::byte>(random());
  const auto uniform = [&] { return static_cast<float>(random() % 1000) / 1000 - 0.5f; };
  for (uint32_t b = 0; b < kBlocks; ++b) {
    std::byte* const block = all.data() + b * block_size(format);
    const int words = format == Format::kQ4nx ? 512 : format == Format::kQ4_0 ? 256 : 0;  // bf16
    for (int i = 0; i < words; ++i) {
      const bool behind = b % 3 == 2 && i % 256 >= 128;  // the end of a matrix
      const uint16_t word = behind ? uint16_t{0} : bf16_word(uniform());
      std::memcpy(block + 2 * i, &word, 2);
    }
    const int scales = format == Format::kQ8 ? 256 : format == Format::kQ8_0 ? 128 : 0;  // fp32
    for (int i = 0; i < scales; ++i) {
      const float scale = uniform();
      std::memcpy(block + 4 * i, &scale, 4);
    }
    if (format != Format::kBf16) continue;
    for (int i = 0; i < blocks::kBytes / 2; ++i) {
      const uint16_t word = bf16_word(uniform());
      std::memcpy(block + 2 * i, &word, 2);
    }
  }
  return all;
}

void repeat(const HostKernel& kernel, std::vector<Core>& cores, AlignedBytes& weights,
            Format format, uint32_t first, uint32_t times) {
  std::vector<std::vector<KernelArgument>> operands;
  std::vector<KernelArgument*> calls;
  std::vector<CoreState*> modes;
  for (Core& core : cores) {
    operands.push_back(core.operands(weights, format));
    operands.back()[0].data += first * block_size(format);
    operands.back()[0].bytes -= first * block_size(format);
    modes.push_back(&core.modes);
  }
  for (auto& list : operands) calls.push_back(list.data());
  kernel.repeat_joint(calls, modes, operands[0].size(), times, 0, block_size(format));
}

// body(kernel) for those of one vector of every build that multiply a format.
template <typename Body>
void for_kernels(Format format, const Body& body) {
  CAPTURE(int(format));
  const bool small = format == Format::kQ4_0 || format == Format::kQ8_0;
  for (const Generation generation : {Generation::kNpu1, Generation::kNpu2}) {
    for (const char* name :
         {small ? "gemv_small_one" : "gemv_one", small ? "gemv_small_kept" : "gemv_kept"}) {
      CAPTURE(name);
      for (const std::string& level : cpu_levels()) {
        CAPTURE(level);
        const ForcedCpu forced(level.c_str());
        const HostKernel kernel = find_host_kernel(name, generation, Arithmetic::kFast);
        REQUIRE((kernel.run_joint != nullptr));
        body(kernel);
      }
      CHECK((find_host_kernel(name, generation, Arithmetic::kSilicon).run_joint == nullptr));
    }
  }
}

}  // namespace

TEST_CASE("joint calls have the bits of single ones") {
  for (const Format format : kFormats) {
    AlignedBytes weights = weights_of(format);
    for_kernels(format, [&](const HostKernel& kernel) {
      for (const Output output : {Output::kF32, Output::kBf16, Output::kTop}) {
        for (unsigned count = 1; count <= 8; ++count) {
          CAPTURE(count);
          std::vector<Core> joint, single;
          for (unsigned i = 0; i < count; ++i) {
            joint.emplace_back(format, output, i);
            single.emplace_back(format, output, i);
          }
          for (const auto& [first, times] : {std::pair{0u, 1u}, {1u, 6u}, {7u, 5u}}) {
            repeat(kernel, joint, weights, format, first, times);
          }
          std::vector<Core> repeated = single;
          for (unsigned i = 0; i < count; ++i) {
            std::vector<KernelArgument> operands = single[i].operands(weights, format);
            for (uint32_t block = 0; block < kBlocks; ++block) {
              kernel(operands, single[i].modes);
              operands[0].data += block_size(format);
            }
            std::vector<KernelArgument> first = repeated[i].operands(weights, format);
            kernel.repeat(first, repeated[i].modes, kBlocks, 0, block_size(format));
          }
          CHECK(joint == single);
          CHECK(repeated == single);
          CHECK(joint[0].y != Core(format, output, 0).y);
        }
      }
    });
  }
}

TEST_CASE("joint calls of cores that are not equally far are made one by one") {
  for (const Format format : kFourBits) {
    AlignedBytes weights = weights_of(format);
    for_kernels(format, [&](const HostKernel& kernel) {
      std::vector<Core> joint;
      for (unsigned i = 0; i < 2; ++i) joint.emplace_back(format, Output::kF32, i);
      std::vector<KernelArgument> ahead = joint[1].operands(weights, format);
      kernel(ahead, joint[1].modes);
      std::vector<Core> single = joint, before = joint;
      std::vector<std::vector<KernelArgument>> operands;
      std::vector<const KernelArgument*> calls;
      for (Core& core : joint) operands.push_back(core.operands(weights, format));
      for (auto& list : operands) calls.push_back(list.data());
      CHECK(!kernel.run_joint(calls.data(), 2, 1, block_size(format)));
      CHECK(joint == before);
      repeat(kernel, joint, weights, format, 1, 3);
      for (Core& core : single) {
        std::vector<KernelArgument> list = core.operands(weights, format);
        for (int t = 1; t <= 3; ++t) {
          list[0].data = weights.data() + t * block_size(format);
          kernel(list, core.modes);
        }
      }
      CHECK(joint == single);
    });
  }
}

TEST_CASE("joint calls with other blocks are made one by one") {
  for (const Format format : kFourBits) {
    AlignedBytes weights = weights_of(format);
    for_kernels(format, [&](const HostKernel& kernel) {
      std::vector<Core> joint;
      for (unsigned i = 0; i < 2; ++i) joint.emplace_back(format, Output::kF32, 0);
      std::vector<Core> single = joint;
      const auto operands = [&](std::vector<Core>& cores, size_t i) {
        std::vector<KernelArgument> list = cores[i].operands(weights, format);
        list[0].data += i * block_size(format);
        return list;
      };
      std::vector<KernelArgument> first = operands(joint, 0), second = operands(joint, 1);
      KernelArgument* const calls[] = {first.data(), second.data()};
      CoreState* const modes[] = {&joint[0].modes, &joint[1].modes};
      kernel.repeat_joint(calls, modes, first.size(), 2, 0, block_size(format));
      for (size_t i = 0; i < 2; ++i) {
        std::vector<KernelArgument> list = operands(single, i);
        kernel.repeat(list, single[i].modes, 2, 0, block_size(format));
      }
      CHECK(joint == single);
      CHECK(joint[0].sums != joint[1].sums);
    });
  }
}

TEST_CASE("joint calls with operands that do not fit are errors as of single calls") {
  for (const Format format : kFourBits) {
    AlignedBytes weights = weights_of(format);
    for_kernels(format, [&](const HostKernel& kernel) {
      const auto error_of = [&](bool several, const auto& spoil) -> std::string {
        std::vector<Core> cores;
        for (unsigned i = 0; i < 3; ++i) cores.emplace_back(format, Output::kF32, i);
        spoil(cores[1]);
        try {
          if (several) {
            repeat(kernel, cores, weights, format, 0, 2);
          } else {
            std::vector<KernelArgument> operands = cores[1].operands(weights, format);
            kernel.repeat(operands, cores[1].modes, 2, 0, block_size(format));
          }
        } catch (const Error& error) {
          CHECK(error.kind() == ErrorKind::kKernel);
          return error.what();
        }
        return "";
      };
      const auto far = [](Core& core) {
        reinterpret_cast<int32_t*>(core.state.data())[State::kBlock] = 9;
      };
      const auto short_sums = [](Core& core) { core.sums.resize(64); };
      for (const bool several : {false, true}) {
        CHECK(error_of(several, [](Core&) {}).empty());
        CHECK(error_of(several, short_sums).find("sums") != std::string::npos);
        CHECK(error_of(several, far).find("setup") != std::string::npos);
      }
    });
  }
}
