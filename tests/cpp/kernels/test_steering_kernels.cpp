// Kernels whose declarations say that they leave words that steer a core (kernels/declaration.h,
// Steering): asserts that these depend on the call's integers and on the words that it reads, and
// on nothing else that the call finds in its operands; that copied words are those of the source.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "aie_kernels/attention.h"
#include "aie_kernels/gemv_setup.h"
#include "aie_kernels/vector_job.h"
#include "aie_kernels/weight_block.h"
#include "aligned.h"
#include "kernel_calls.h"
#include "kernels/call.h"
#include "kernels/registry.h"

using namespace npu;
using kernels::Steering;

namespace {

using Integers = std::vector<int64_t>;
using Ints = std::vector<int32_t>;

// What a kernel reads to steer a core by: its integers, and the words of its operands in order.
struct Case {
  const char* kernel;
  Integers integers;
  std::vector<Ints> read;
};

// Cases that the kernels' checks accept.
std::vector<Case> cases() {
  gemv::Setup setup{};
  setup.row_blocks = 2, setup.x_objects = 2, setup.x_blocks = 2, setup.x_last = 1;
  setup.batch = 2, setup.rows = 64, setup.step = 32;
  Ints record(gemv::kSetupWords), long_record(gemv::kLongSetupWords, 5);
  std::memcpy(record.data(), &setup, sizeof setup);
  std::memcpy(long_record.data(), &setup, sizeof setup);
  setup.format = static_cast<int32_t>(blocks::Format::kQ8_0);
  Ints small_record(gemv::kSetupWords);
  std::memcpy(small_record.data(), &setup, sizeof setup);
  attention::Record job{};
  job.rows = 4, job.head_dim = 64, job.chunks = 1, job.group = 1;
  job.objects = attention::header_objects(job.rows, job.head_dim) - 1;
  job.out_objects = attention::out_objects_of(job.rows, job.head_dim, attention::Output::kRows);
  Ints header(attention::kRecordWords);
  std::memcpy(header.data(), &job, sizeof job);
  std::vector<Case> all = {{"gemv_setup", {3}, {record}},
                           {"gemv_long_setup", {2}, {long_record}},
                           {"attention_begin", {5}, {header}},
                           {"values_begin", {5}, {header}}};
  // Block by block, over borders of objects and row-blocks.
  for (const int32_t block : {0, 1}) {
    for (const int32_t object : {0, 1, 2}) {
      if (object == 2 && block == 1) continue;
      Ints state(gemv::kSetupWords);
      state[gemv::State::kBlock] = block;
      state[gemv::State::kObject] = object;
      state[gemv::State::kRowBlock] = object % 2;
      all.push_back({"gemv_block", {2, 0}, {record, state}});
      all.push_back({"gemv_small_block", {2, setup.format}, {small_record, state}});
    }
  }
  return all;
}

struct Run {
  std::vector<AlignedBytes> memory;
  std::vector<KernelArgument> arguments;
};

// Operands of random bytes but for the words that the call reads.
Run run(const kernel_test::Build& build, const kernels::Declaration& kernel, const Case& of,
        std::mt19937& random, bool calls = true) {
  Run run;
  size_t integer = 0, read = 0;
  for (int i = 0; i < kernel.count; ++i) {
    const kernels::Operand& operand = kernel.operands[i];
    if (!operand.buffer) {
      run.memory.emplace_back();
      run.arguments.push_back({nullptr, 0, of.integers[integer++]});
      continue;
    }
    const int64_t bytes = bytes_of(operand.element, operand.size.value(of.integers.data()));
    AlignedBytes& memory = run.memory.emplace_back(static_cast<size_t>(bytes));
    for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
    // Positions and sums of a vector core: it has begun.
    if (std::string(kernel.name).starts_with("vector") && std::string(operand.name) == "state") {
      std::ranges::fill(memory, std::byte{0});
    }
    run.arguments.push_back({memory.data(), static_cast<uint32_t>(bytes), 0});
  }
  const kernels::SteeringFirsts firsts = kernels::steering_firsts(kernel, run.arguments);
  for (size_t i = 0; i < run.arguments.size(); ++i) {
    const Steering steering = kernel.operands[i].steering;
    if (steering != Steering::kReads && steering != Steering::kUpdates) continue;
    REQUIRE(of.read[read].size() == static_cast<size_t>(kernel.operands[i].steering_words));
    std::memcpy(run.memory[i].data() + 4 * firsts[i], of.read[read].data(),
                4 * of.read[read].size());
    ++read;
  }
  REQUIRE(read == of.read.size());
  CoreState core;
  if (calls) build.find(of.kernel)(run.arguments, core);
  return run;
}

}  // namespace

TEST_CASE("words that a vector core hands on are those that its declaration says") {
  std::mt19937 random(10);
  vector::Job rotates{};
  rotates.kind = int32_t(vector::Kind::kRotate);
  rotates.heads = 2, rotates.kv_heads = 2, rotates.head_dim = rotates.dim = rotates.width = 64;
  rotates.rows = rotates.kv_heads * (rotates.heads + 1);
  rotates.inputs = rotates.take = 5;
  rotates.y_at = 3072 + 2 * attention::kTableBytes;
  rotates.out_at = rotates.y_at + 2 * (rotates.heads + 2) * rotates.kv_heads * rotates.dim;
  rotates.out = 4;
  Ints job(vector::kJobWords);
  std::memcpy(job.data(), &rotates, sizeof rotates);
  const auto left = [](int32_t objects) { return vector::kLast + objects; };
  const std::vector<Case> cases = {
      {"vector_table", {}, {{2, 0, 0}}},
      {"vector_input", {left(3), rotates.kind, 64, rotates.rows, 0}, {job, {0, left(3), 0}}},
      {"vector_input", {left(0), rotates.kind, 64, rotates.rows, 0}, {job, {0, left(0), 0}}},
      {"vector_out", {}, {job, {0, left(-1), 3}}}};
  kernel_test::each_build([&](const kernel_test::Build& build) {
    for (const Case& of : cases) {
      CAPTURE(of.kernel);
      const kernels::Declaration* kernel = kernels::find_declaration(of.kernel, build.generation);
      REQUIRE(kernel != nullptr);
      const std::mt19937 before = random;
      const Run ended = run(build, *kernel, of, random);
      random = before;
      const Run begun = run(build, *kernel, of, random, false);
      kernels::WordCopies copies;
      kernel->copies(begun.arguments.data(), copies);
      CHECK(copies.count > 0);
      std::vector<AlignedBytes> wanted = begun.memory;
      std::vector<std::vector<bool>> copied(wanted.size());
      for (size_t i = 0; i < wanted.size(); ++i) copied[i].resize(wanted[i].size());
      for (int i = 0; i < copies.count; ++i) {
        const kernels::WordCopy& copy = copies.list[i];
        const auto to = static_cast<size_t>(copy.to), from = static_cast<size_t>(copy.from);
        const auto bytes = static_cast<size_t>(4 * copy.words);
        REQUIRE(static_cast<size_t>(4 * copy.to_first) + bytes <= wanted[to].size());
        REQUIRE(static_cast<size_t>(4 * copy.from_first) + bytes <= wanted[from].size());
        std::memmove(wanted[to].data() + 4 * copy.to_first,
                     wanted[from].data() + 4 * copy.from_first, bytes);
        std::fill_n(copied[to].begin() + 4 * copy.to_first, bytes, true);
      }
      for (size_t i = 0; i < wanted.size(); ++i) {
        size_t wrong = 0;
        for (size_t byte = 0; byte < wanted[i].size(); ++byte) {
          // What the rotation reads it may overwrite; its tables come out as they were.
          const bool checked =
              copied[i][byte] &&
              (of.integers.empty() || of.integers[0] > left(0) || byte >= size_t(rotates.out_at));
          wrong += checked && wanted[i][byte] != ended.memory[i][byte];
        }
        CHECK(wrong == 0);
      }
    }
  });
}

TEST_CASE("words that steer a core depend on what the declaration says") {
  std::mt19937 random(9);
  kernel_test::each_build([&](const kernel_test::Build& build) {
    for (const Case& of : cases()) {
      CAPTURE(of.kernel);
      const kernels::Declaration* kernel = kernels::find_declaration(of.kernel, build.generation);
      REQUIRE(kernel != nullptr);
      const Run first = run(build, *kernel, of, random), second = run(build, *kernel, of, random);
      for (size_t i = 0; i < first.arguments.size(); ++i) {
        const kernels::Operand& operand = kernel->operands[i];
        if (operand.steering == Steering::kNone || operand.steering == Steering::kReads) continue;
        const size_t bytes = 4 * static_cast<size_t>(operand.steering_words);
        CHECK(std::equal(first.memory[i].begin(),
                         first.memory[i].begin() + static_cast<std::ptrdiff_t>(bytes),
                         second.memory[i].begin()));
        if (operand.steering != Steering::kCopies) continue;
        CHECK(std::memcmp(first.memory[i].data(), of.read[0].data(), bytes) == 0);
      }
    }
  });
}
