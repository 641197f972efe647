// The alias table of a tile's memory by itself (devices/emulator/aliasing.h). Asserts which bytes
// an access flushes and which it leaves aliased, what becomes of an alias under a newer one, that a
// call sees its own writes through overlapping operands, that pinned blocks are not used again, and
// that random aliases of a memtile's memory always say what a plain copy would hold.
#include <doctest/doctest.h>

#include <array>
#include <numeric>
#include <random>
#include <vector>

#include "devices/emulator/aliasing.h"
#include "kernels/declaration.h"

using namespace npu;
using namespace npu::emulator;

namespace {

constexpr size_t kBytes = 64 * 1024;
constexpr std::byte kOld{0xEE};

// A core's memory full of kOld, and sources that are not.
struct Memory {
  std::byte at(size_t address) const { return bytes[address]; }
  AliasSource block(std::byte value, size_t count) {
    AliasSource source{nullptr, BlockRef(pool.take(count))};
    std::fill_n(source.data(), count, value);
    return source;
  }
  KernelArgument operand(size_t address) {
    return {.data = bytes.data() + address, .bytes = static_cast<uint32_t>(kBytes - address)};
  }

  BlockPool pool;
  AlignedBytes bytes = AlignedBytes(kBytes, kOld);
  AliasTable table{bytes};
};

consteval kernels::Declaration two_buffers(bool writes_second) {
  kernels::Operand first = kernels::buffer("first", "bytes", 1), second = first;
  first.read_only = true;
  second.name = "second";
  second.read_only = !writes_second;
  return kernels::resolved("f", {.operands = {first, second, kernels::multiple("bytes", 4)}});
}
constexpr kernels::Declaration kReadsBoth = two_buffers(false), kWritesSecond = two_buffers(true);

}  // namespace

TEST_CASE("alias table: an access flushes the aliases that it overlaps, and no others") {
  Memory m;
  m.table.add(1000, 100, m.block(std::byte{1}, 100));
  m.table.add(1100, 100, m.block(std::byte{2}, 100));
  CHECK(m.at(1000) == kOld);
  CHECK_FALSE(m.table.flush(900, 100));
  CHECK_FALSE(m.table.flush(1200, 4));  // the same page
  CHECK(m.table.flush(1099, 1));
  CHECK(m.at(999) == kOld);
  CHECK(m.at(1000) == std::byte{1});
  CHECK(m.at(1099) == std::byte{1});
  CHECK(m.at(1100) == kOld);
  CHECK_FALSE(m.table.flush(1000, 100));  // once
  m.table.flush_all();
  CHECK(m.at(1199) == std::byte{2});
  CHECK(m.at(1200) == kOld);
}

TEST_CASE("alias table: a newer alias hides what it covers and flushes what it only overlaps") {
  Memory m;
  m.table.add(1000, 100, m.block(std::byte{1}, 100));
  m.table.add(950, 200, m.block(std::byte{2}, 200));  // covers it
  m.table.add(1100, 100, m.block(std::byte{3}, 100));
  CHECK(m.at(949) == kOld);
  CHECK(m.at(1000) == std::byte{2});
  CHECK(m.at(1149) == std::byte{2});
  m.table.add(1100, 100, m.block(std::byte{4}, 100));  // replaces it
  m.table.flush_all();
  CHECK(m.at(1099) == std::byte{2});
  CHECK(m.at(1100) == std::byte{4});
}

TEST_CASE("alias table: arguments are flushed when the run ends, blocks stay aliased") {
  Memory m;
  std::array<std::byte, 8> argument;
  argument.fill(std::byte{7});
  m.table.add(0, 8, {argument.data(), {}});
  m.table.add(8, 8, m.block(std::byte{1}, 8));
  m.table.flush_arguments();
  argument.fill(std::byte{9});
  CHECK(m.at(7) == std::byte{7});
  CHECK(m.at(8) == kOld);
  m.table.clear();
  m.table.flush_all();
  CHECK(m.at(8) == kOld);
}

TEST_CASE("alias table: operands that a call only reads are redirected, others flushed") {
  Memory m;
  const AliasSource source = m.block(std::byte{1}, 64);
  m.table.add(1000, 64, source);
  std::array<KernelArgument, 3> arguments{m.operand(1000), m.operand(5000),
                                          KernelArgument{.value = 64}};
  auto call = arguments;
  m.table.redirect(call, &kReadsBoth);
  CHECK(call[0].data == source.data());
  CHECK(call[0].bytes == 64);
  CHECK(call[0].packed == &source.block->packed);
  CHECK(call[1].data == arguments[1].data);
  CHECK(m.at(1000) == kOld);

  SUBCASE("a longer operand than the alias") {
    call = arguments;
    call[2].value = 68;
    m.table.redirect(call, &kReadsBoth);
    CHECK(call[0].data == arguments[0].data);
    CHECK(m.at(1000) == std::byte{1});
  }
  SUBCASE("a written operand that overlaps one only read") {
    arguments[1] = m.operand(1032);
    call = arguments;
    m.table.redirect(call, &kWritesSecond);
    CHECK(call[0].data == arguments[0].data);  // in one memory with what the call writes
    CHECK(call[1].data == arguments[1].data);
    CHECK(m.at(1000) == std::byte{1});
  }
  SUBCASE("a kernel without a declaration") {
    call = arguments;
    m.table.redirect(call, nullptr);
    CHECK(call[0].data == arguments[0].data);
    CHECK(m.at(1063) == std::byte{1});
  }
}

TEST_CASE("alias table: a pinned block is not used again before the call has run") {
  Memory m;
  m.table.add(1000, 64, m.block(std::byte{1}, 64));
  std::array<KernelArgument, 3> call{m.operand(1000), m.operand(5000), KernelArgument{.value = 64}};
  m.table.redirect(call, &kReadsBoth);
  m.table.pin();
  m.table.add(1000, 64, m.block(std::byte{2}, 64));
  const std::byte* const operand = call[0].data;
  CHECK(m.block(std::byte{3}, 64).data() != operand);
  CHECK(operand[0] == std::byte{1});
  m.table.unpin();
  CHECK(m.block(std::byte{3}, 64).data() == operand);
}

TEST_CASE(
    "alias table: a range of an argument is found across aliases that are neighbours in both") {
  Memory m;
  std::vector<std::byte> argument(8192);
  for (size_t i = 0; i < argument.size(); ++i) argument[i] = static_cast<std::byte>(i / 16);
  std::byte* const from = argument.data();
  m.table.add(4096, 2048, {from, {}});
  m.table.add(6144, 2048, {from + 2048, {}});
  m.table.add(8192, 1024, {from + 5000, {}});  // a neighbour in the memory only
  m.table.add(9216, 1024, m.block(std::byte{1}, 1024));
  CHECK(m.table.in_argument(4096, 4096) == from);
  CHECK(m.table.in_argument(5000, 2000) == from + 904);
  CHECK(m.table.in_argument(8191, 1) == from + 4095);
  CHECK(m.table.in_argument(8192, 1024) == from + 5000);
  CHECK(m.table.in_argument(8191, 2) == nullptr);
  CHECK(m.table.in_argument(4095, 2) == nullptr);
  CHECK(m.table.in_argument(9216, 4) == nullptr);
  CHECK(m.table.in_argument(4096, UINT64_MAX) == nullptr);

  std::array<KernelArgument, 3> call{m.operand(5120), m.operand(9216),
                                     KernelArgument{.value = 1024}};
  m.table.redirect(call, &kReadsBoth);
  CHECK(call[0].data == from + 1024);
  CHECK(call[0].bytes == 1024);
  CHECK(call[0].packed == nullptr);
  CHECK(call[1].packed != nullptr);
  CHECK(m.at(5120) == kOld);
}

TEST_CASE("alias table: an argument's alias keeps what a newer one leaves of it, without a copy") {
  Memory m;
  std::vector<std::byte> argument(16384, std::byte{1}), newer(2048, std::byte{2});
  m.table.add(0, 16384, {argument.data(), {}});
  m.table.add(4096, 2048, {newer.data(), {}});
  CHECK(m.table.in_argument(0, 4096) == argument.data());
  CHECK(m.table.in_argument(4096, 2048) == newer.data());
  CHECK(m.table.in_argument(6144, 10240) == argument.data() + 6144);
  CHECK(m.at(0) == kOld);
  m.table.add(6144, 10000, {argument.data(), {}});  // leaves less than is worth an alias
  CHECK(m.table.in_argument(16144, 1) == nullptr);
  CHECK(m.at(16383) == std::byte{1});
  CHECK(m.at(4096) == kOld);
  m.table.flush_all();
  CHECK(m.at(4095) == std::byte{1});
  CHECK(m.at(4096) == std::byte{2});
  CHECK(m.at(6143) == std::byte{2});
}

TEST_CASE("alias table: random aliases of a memtile's memory hold what copies would") {
  constexpr uint64_t kSize = 512 * 1024;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t end) { return random() % end; };
    AlignedBytes memory(kSize), model(kSize);
    std::vector<std::byte> argument(kSize);
    for (std::byte& b : argument) b = static_cast<std::byte>(random());
    AliasTable table(memory);
    size_t found = 0;
    for (int i = 0; i < 2000; ++i) {
      const uint64_t bytes = 4 * (1 + below(below(3) ? 4000 : 60)),
                     at = 4 * below((kSize - bytes) / 4);
      if (below(3) == 0) {
        const uint64_t from = 4 * below((kSize - bytes) / 4);
        table.add(at, bytes, {argument.data() + from, {}});
        std::copy_n(argument.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                    model.begin() + static_cast<std::ptrdiff_t>(at));
        REQUIRE(table.in_argument(at, bytes) == argument.data() + from);
        continue;
      }
      const std::byte* data = table.in_argument(at, bytes);
      found += data != nullptr;
      if (data == nullptr) {
        table.flush(at, bytes);
        data = memory.data() + at;
      }
      REQUIRE(std::equal(data, data + bytes, model.begin() + static_cast<std::ptrdiff_t>(at)));
    }
    CHECK(found > 20);
    table.flush_arguments();
    std::fill(argument.begin(), argument.end(), std::byte{0});
    REQUIRE_FALSE(table.flush(0, UINT64_MAX));
    REQUIRE(memory == model);
  }
}
