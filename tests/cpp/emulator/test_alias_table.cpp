// The alias table of a core's memory by itself (devices/emulator/aliasing.h). Asserts which bytes
// an access flushes and which it leaves aliased, what becomes of an alias under a newer one, that a
// call sees its own writes through overlapping operands, and that pinned blocks are not used again.
#include <doctest/doctest.h>

#include <array>
#include <numeric>

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
