// For every kernel that declares itself, on every generation, asserts from the declaration alone:
// a call that it allows runs, writes no byte outside the declared ones and none of a read-only
// operand; every operand that violates it (number, kind, limits, size, alignment, overlap, words)
// raises Error(kKernel) with the names of the kernel and the operand and writes nothing; aliasing
// is told the bytes that the checks demand; every cost is positive. A new kernel needs no line
// here.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "aligned.h"
#include "arch/timing.h"
#include "error.h"
#include "kernel_calls.h"
#include "kernels/call.h"
#include "kernels/registry.h"

using namespace npu;
using kernels::Declaration;
using kernels::Operand;

namespace {

constexpr size_t kLine = 64;
constexpr std::byte kPattern{0x5A};

std::string name_of(arch::Generation generation) { return arch::device_geometry(generation).name; }

// Operands of one call, every buffer as long as declared between guards, each as long as the
// longest buffer: what is moved upon one buffer stays clear of all others.
class Call {
 public:
  Call(const Declaration& kernel, std::mt19937& random) : kernel_(kernel) {
    kernels::Integers integers{};
    std::vector<int> place;  // of each integer operand
    for (int i = 0; i < kernel.count; ++i) {
      const Operand& operand = kernel.operands[i];
      if (operand.buffer) continue;
      const int64_t steps = std::min<int64_t>((operand.max - operand.min) / operand.step, 3);
      integers[place.size()] =
          operand.min + operand.step * static_cast<int64_t>(random() % (steps + 1));
      place.push_back(i);
    }
    for (size_t i = 0; i < place.size(); ++i) {  // multiples of what depends on others
      const kernels::Size& also = kernel.operands[place[i]].size;
      if (also.used != 0)
        integers[i] = also.value(integers.data()) * kernel.operands[place[i]].step;
    }
    size_t next = 0;
    for (int i = 0; i < kernel.count; ++i) {
      const Operand& operand = kernel.operands[i];
      if (!operand.buffer) {
        arguments.push_back({nullptr, 0, integers[next++]});
        continue;
      }
      const int64_t bytes = kernels::bytes_of(operand.element, operand.size.value(integers.data()));
      arguments.push_back({nullptr, static_cast<uint32_t>(bytes), 0});
      guard_ = std::max(guard_, (static_cast<size_t>(bytes) / kLine + 1) * kLine);
    }
    for (int i = 0; i < kernel.count; ++i) {
      KernelArgument& argument = arguments[static_cast<size_t>(i)];
      memory_.emplace_back();
      if (!kernel.operands[i].buffer) continue;
      memory_.back().assign(argument.bytes + 2 * guard_, kPattern);
      argument.data = memory_.back().data() + guard_;
      if (kernel.operands[i].word >= 0) write_word(i, kernel.operands[i].min);
    }
    before_ = memory_;
  }

  // The word of operand i that has limits.
  void write_word(int i, int64_t value) {
    const auto word = static_cast<int32_t>(value);
    std::memcpy(arguments[static_cast<size_t>(i)].data + 4 * kernel_.operands[i].word, &word, 4);
    before_ = memory_;
  }

  // What a call raises: the message, or nothing.
  std::string raised(arch::Generation generation, Arithmetic arithmetic) {
    CoreState core;
    try {
      find_host_kernel(kernel_.name, generation, arithmetic)(arguments, core);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kKernel);
      return error.what();
    }
    return "";
  }
  // Whether nothing was written but, with `results`, operands that are not read-only.
  bool untouched(bool results) const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      const bool written = results && !kernel_.operands[i].read_only;
      for (size_t at = 0; at < memory_[i].size(); ++at) {
        const bool inside = at >= guard_ && at < memory_[i].size() - guard_;
        if (!(written && inside) && memory_[i][at] != before_[i][at]) return false;
      }
    }
    return true;
  }

  std::vector<KernelArgument> arguments;

 private:
  const Declaration& kernel_;
  size_t guard_ = 0;
  std::vector<AlignedBytes> memory_, before_;  // of integers: empty
};

template <typename Body>
void for_every_kernel(Body&& body) {
  for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
    for (const Declaration* kernel : kernels::declarations(generation)) {
      INFO(std::string(kernel->name) << " on " << name_of(generation));
      body(*kernel, generation);
    }
  }
}

}  // namespace

TEST_CASE("every kernel: allowed calls run and write what they declare") {
  std::mt19937 random(1);
  for_every_kernel([&](const Declaration& kernel, arch::Generation generation) {
    for (const Arithmetic arithmetic : {Arithmetic::kFast, Arithmetic::kSilicon}) {
      for (int round = 0; round < 4; ++round) {
        Call call(kernel, random);
        const std::string error = call.raised(generation, arithmetic);
        // Words with limits are within them; a check of contents refuses the pattern.
        CHECK(error.empty() == (kernel.check == nullptr));
        CHECK(call.untouched(error.empty()));
        if (!kernel.in_place) continue;
        call.arguments[1].data = call.arguments[0].data;
        CHECK(call.raised(generation, arithmetic).empty());
      }
    }
  });
}

TEST_CASE("every kernel: every violation of its declaration is an error and writes nothing") {
  std::mt19937 random(2);
  for_every_kernel([&](const Declaration& kernel, arch::Generation generation) {
    const auto refused = [&](std::initializer_list<const char*> names, auto&& spoil) {
      Call call(kernel, random);
      spoil(call.arguments);
      const std::string error = call.raised(generation, Arithmetic::kFast);
      CHECK(error.starts_with(strf("[%s] ", kernel.name)));
      for (const char* name : names) CHECK(error.find(name) != std::string::npos);
      CHECK(call.untouched(false));
    };
    using All = std::vector<KernelArgument>;
    refused({"operands"}, [](All& all) { all.pop_back(); });
    refused({"operands"}, [](All& all) { all.push_back(all.back()); });
    refused({"operands"}, [](All& all) { all.clear(); });
    for (int j = 0; j < kernel.count; ++j) {
      const auto i = static_cast<size_t>(j);
      const Operand& operand = kernel.operands[j];
      INFO(std::string(operand.name));
      if (!operand.buffer) {
        refused({operand.name, "is an integer"}, [&](All& all) { all[i] = all[0]; });
        std::vector<int64_t> values = {int64_t{operand.min} - operand.step,
                                       int64_t{operand.max} + operand.step, -(int64_t{1} << 40),
                                       int64_t{1} << 40};
        if (operand.step > 1) values.push_back(int64_t{operand.min} + 1);
        for (const int64_t value : values) {
          refused({operand.name, "must be"}, [&](All& all) { all[i].value = value; });
        }
        continue;
      }
      refused({operand.name, "is a buffer"}, [&](All& all) { all[i] = {nullptr, 0, 64}; });
      refused({operand.name, "memory ends"}, [&](All& all) { --all[i].bytes; });
      if (operand.alignment > 1) {
        refused({operand.name, "aligned"}, [&](All& all) { ++all[i].data; });
      }
      if (operand.word >= 0) {
        for (const int64_t value : {int64_t{operand.min} - operand.step, int64_t{operand.min} + 1,
                                    int64_t{operand.max} + operand.step, int64_t{INT32_MAX}}) {
          if (operand.allows(value)) continue;
          Call call(kernel, random);
          call.write_word(j, value);
          const std::string error = call.raised(generation, Arithmetic::kFast);
          CHECK(error.starts_with(
              strf("[%s] word %d of %s is", kernel.name, operand.word, operand.name)));
          CHECK(call.untouched(false));
        }
      }
      for (int other = 0; other < kernel.count; ++other) {
        const Operand& neighbour = kernel.operands[other];
        if (other == j || !neighbour.buffer || operand.read_only) continue;
        INFO(std::string(neighbour.name));
        refused({operand.name, neighbour.name, "overlap"}, [&](All& all) {
          // The first operand's last line, and the memory around it, are the second's first.
          KernelArgument& moved = all[static_cast<size_t>(other)];
          moved.data = all[i].data + (all[i].bytes - 1) / kLine * kLine;
          // A result in place would be allowed.
          if (kernel.in_place && moved.data == all[i].data) moved.data += neighbour.alignment;
        });
      }
    }
  });
}

TEST_CASE("convert_bf16_bfp16_b: count holds whole rows of tiles") {
  std::mt19937 random(3);
  const Declaration* kernel =
      kernels::find_declaration("convert_bf16_bfp16_b", arch::Generation::kNpu2);
  REQUIRE(kernel != nullptr);
  Call call(*kernel, random);
  call.arguments[2].value = 64 * 3;
  call.arguments[3].value = 16;
  CHECK(call.raised(arch::Generation::kNpu2, Arithmetic::kFast) ==
        "[convert_bf16_bfp16_b] count = 192, must be a multiple of 8 * k = 128");
}

TEST_CASE(
    "every kernel: aliasing is told the bytes that the checks demand, or that they are unknown") {
  std::mt19937 random(4);
  for_every_kernel([&](const Declaration& kernel, arch::Generation) {
    Call call(kernel, random);
    for (size_t i = 0; i < call.arguments.size(); ++i) {
      const Operand& operand = kernel.operands[i];
      if (!operand.buffer) continue;
      const kernels::OperandUse use = kernels::operand_uses(kernel, call.arguments)[i];
      CHECK(use.bytes == call.arguments[i].bytes);
      CHECK(use.read_only == operand.read_only);
      std::vector<KernelArgument> wrong = call.arguments;
      if (kernel.integers == 0) continue;
      wrong.back().value = -64;
      CHECK(kernels::operand_uses(kernel, wrong)[i].bytes == UINT64_MAX);
      wrong.back() = wrong.front();
      CHECK_FALSE(kernels::operand_uses(kernel, wrong)[i].read_only);
    }
  });
}

TEST_CASE(
    "every kernel: has one name, a positive cost, and the same operands where both generations "
    "have it") {
  std::mt19937 random(5);
  std::set<std::string> names;
  int shared = 0;
  for_every_kernel([&](const Declaration& kernel, arch::Generation generation) {
    CHECK(names.insert(kernel.name + name_of(generation)).second);
    const arch::Timing timing(generation, arch::TimingTable());
    CHECK(kernels::call_cost(kernel, timing, Call(kernel, random).arguments).cycles > 0);
    const bool npu1 = generation == arch::Generation::kNpu1;
    const Declaration* other = kernels::find_declaration(
        kernel.name, npu1 ? arch::Generation::kNpu2 : arch::Generation::kNpu1);
    if (other == nullptr) return;
    ++shared;
    REQUIRE(other->count == kernel.count);
    for (int i = 0; i < kernel.count; ++i) {
      CHECK(std::string(other->operands[i].name) == kernel.operands[i].name);
      CHECK(other->operands[i].element == kernel.operands[i].element);
      CHECK(other->operands[i].read_only == kernel.operands[i].read_only);
    }
  });
  CHECK(shared > 2 * 40);  // seen from either
}

TEST_CASE("formulas of sizes") {
  constexpr Declaration f = kernels::resolved(
      "f", {.operands = {kernels::buffer("a", "2 * m * n + 3*m_2"), kernels::integer("m", 0, 9),
                         kernels::buffer("b", 7), kernels::integer("n", 0, 9),
                         kernels::integer("m_2", 0, 9), kernels::buffer("c", "m + n")}});
  CHECK(f.count == 6);
  CHECK(f.integers == 3);
  const int64_t integers[] = {4, 5, 6};
  CHECK(f.operands[0].size.value(integers) == 2 * 4 * 5 + 3 * 6);
  CHECK(f.operands[2].size.value(integers) == 7);
  CHECK(f.operands[5].size.value(integers) == 9);
}
