// Host memory as the stream sees it: address patches (arguments, offsets beyond 4 GiB, the folded
// aperture, 48-bit addresses), several submissions over one configuration, aliased and odd buffers.
#include <sys/mman.h>

#include <algorithm>

#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;

namespace {

const At kShim{0, 0};

// Address space without memory behind it; pages appear when they are touched.
class HugeBuffer {
 public:
  explicit HugeBuffer(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    REQUIRE(data_ != MAP_FAILED);
  }
  ~HugeBuffer() { munmap(data_, bytes_); }
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;
  uint32_t& word(uint64_t byte) {
    return *reinterpret_cast<uint32_t*>(static_cast<std::byte*>(data_) + byte);
  }
  emulator::Argument view() { return {static_cast<std::byte*>(data_), bytes_, true}; }

 private:
  size_t bytes_;
  void* data_;
};

// Copies `length` words between arguments through the shim's own loop.
Script copy(const Bd& from, uint32_t source, uint64_t source_byte, const Bd& to, uint32_t target,
            uint64_t target_byte) {
  Script s;
  s.host_bd(0, 0, from, source, source_byte).host_bd(0, 1, to, target, target_byte);
  s.push(kShim, kMM2S, 0, 0).push(kShim, kS2MM, 0, 1, 1, true).sync(kShim, kS2MM, 0);
  return s;
}

}  // namespace

TEST_CASE("patches reach beyond 4 GiB") {
  constexpr uint64_t kFar = (uint64_t{5} << 30) + 12;
  HugeBuffer huge(kFar + 64);
  for (uint32_t i = 0; i < 4; ++i) huge.word(kFar + 4 * i) = 70 + i;
  Machine m;
  m.loopback(kShim).configure();
  Words out(4);
  m.run(copy(linear(4), 0, kFar, linear(4), 1, 0), {huge.view(), view(out)});
  CHECK(out == counting(4, 70));
  // A stride that crosses the 4 GiB line inside a BD: 2^20 words x 1024.
  Bd far_steps = linear(2);
  far_steps.wrap = {1, 1, 0};
  far_steps.step = {1, 1, 1u << 20, 1};
  huge.word((uint64_t{1} << 32) - 8) = 5;
  huge.word((uint64_t{1} << 32) - 8 + (4u << 20)) = 6;
  m.run(copy(far_steps, 0, (uint64_t{1} << 32) - 8, linear(2), 1, 0), {huge.view(), view(out)});
  CHECK(out == Words{5, 6, 72, 73});
  check_error(ErrorKind::kOutOfRange, {"patches byte offset", "argument 0"}, [&] {
    m.run(copy(linear(1), 0, kFar + 64, linear(1), 1, 0), {huge.view(), view(out)});
  });
}

TEST_CASE("arguments from 5 on carry the folded DDR aperture, earlier ones do not") {
  constexpr uint64_t kAperture = 0x80000000;
  std::vector<Words> arguments(8, Words(4));
  std::vector<emulator::Argument> views;
  for (size_t i = 0; i < arguments.size(); ++i) {
    arguments[i] = counting(4, static_cast<uint32_t>(10 * i));
    views.push_back(view(arguments[i]));
  }
  Machine m;
  m.loopback(kShim).configure();
  for (const bool fold : {true, false}) {  // the builder's form of both writers
    Script s;
    s.bd(kShim, 0, linear(2));
    s.raw.address_patch(kShim.address(0x1D004), 6, 8, fold);
    s.host_bd(0, 1, linear(2), 7);
    s.push(kShim, kMM2S, 0, 0).push(kShim, kS2MM, 0, 1, 1, true).sync(kShim, kS2MM, 0);
    std::fill(arguments[7].begin(), arguments[7].end(), 0);
    m.run(s, views);
    CHECK(arguments[7] == Words{62, 63, 0, 0});
  }
  Script low;
  low.bd(kShim, 0, linear(2));
  low.raw.address_patch(kShim.address(0x1D004), 4, kAperture, false);
  check_error(ErrorKind::kOutOfRange, {"2147483648", "argument 4", "16 bytes"},
              [&] { m.run(low, views); });
}

TEST_CASE("addresses use all 48 bits and a patch keeps the rest of its words") {
  constexpr uint32_t kLast = 511;
  Words out(4), in = counting(4, 5);
  std::vector<emulator::Argument> views(kLast + 1, view(out));
  views[kLast] = view(in);
  Machine m;
  m.loopback(kShim).configure();
  Bd source = linear(4);
  source.out_of_order_id = 0x2A;  // shares the high word
  m.run(copy(source, kLast, 0, linear(4), 0, 0), views);
  CHECK(out == in);
  const uint32_t high = m.array.read_register(kShim.address(0x1D008));
  const uint64_t base = uint64_t{kLast + 1} << emulator::kArgumentWindowBits;
  CHECK((base >> 47) == 1);
  CHECK((high & 0xFFFF) == (base >> 32));
  CHECK((high >> 24) == 0x2A);
}

TEST_CASE("one configuration serves any number of submissions and buffers") {
  Machine m;
  m.loopback(kShim).configure();
  for (uint32_t i = 0; i < 5; ++i) {
    Words in = counting(16 + i, 100 * i), out(16 + i);
    const RunReport report =
        m.run(copy(linear(16 + i), 0, 0, linear(16 + i), 1, 0), {view(in), view(out)});
    CHECK(out == in);
    CHECK(report.shim_read_bytes == 4 * (16 + i));
    CHECK(report.operations == 7);
  }
}

TEST_CASE("source and target may be one buffer") {
  Machine m;
  m.loopback(kShim).configure();
  Words data = counting(4096);
  m.run(copy(linear(4096), 0, 0, linear(4096), 0, 0), {view(data)});
  CHECK(data == counting(4096));
  m.run(copy(linear(4000), 0, 0, linear(4000), 0, 4), {view(data)});  // overlapping by one word
  CHECK(data[0] == 1);
}

TEST_CASE("buffers need no alignment and may end in a part of a word") {
  std::vector<std::byte> bytes(4 * 4 + 3 + 2);
  Words in = counting(4);
  Machine m;
  m.loopback(kShim).configure();
  m.run(copy(linear(4), 0, 0, linear(4), 1, 0), {view(in), {bytes.data() + 1, 18, true}});
  CHECK(std::memcmp(bytes.data() + 1, in.data(), 16) == 0);
  Words five = counting(5);
  check_error(ErrorKind::kOutOfRange, {"only 4 words"}, [&] {
    m.run(copy(linear(5), 0, 0, linear(5), 1, 0), {view(five), {bytes.data() + 1, 18, true}});
  });
}

TEST_CASE("arguments are checked before anything runs") {
  Machine m;
  Words data(4);
  check_error(ErrorKind::kArgument, {"[submit]", "call configure first"},
              [&] { m.run(Script(), {view(data)}); });
  m.loopback(kShim).configure();
  check_error(ErrorKind::kArgument, {"513 arguments", "at most 512"},
              [&] { m.run(Script(), std::vector<emulator::Argument>(513, view(data))); });
  check_error(ErrorKind::kArgument, {"argument 0", "at most 2^38"}, [&] {
    m.run(Script(), {{reinterpret_cast<std::byte*>(data.data()), size_t{1} << 39, true}});
  });
  check_error(ErrorKind::kArgument, {"argument 1", "null pointer of 8 bytes"},
              [&] { m.run(Script(), {view(data), {nullptr, 8, true}}); });
  m.run(Script(), {view(data), {nullptr, 0, true}});  // none of these was a fault of the array
}

TEST_CASE("an array runs one call at a time") {
  Machine m;
  m.config.lock({0, 2}, 0, 1);
  m.configure();
  int calls = 0;
  m.attach(
      {0, 2}, "acquire_ge 0 1\ncall f\n",
      [&](std::span<const KernelArgument>) {
        ++calls;
        check_error(ErrorKind::kArgument, {"[submit]", "executing a stream"},
                    [&] { m.run(Script()); });
        check_error(ErrorKind::kArgument, {"[configure]", "executing a stream"},
                    [&] { m.configure(); });
        check_error(ErrorKind::kArgument, {"[attach]", "executing a stream"},
                    [&] { m.attach({0, 3}, "acquire_ge 0 1\n"); });
        // Another array is another matter.
        Machine other;
        other.loopback(kShim).configure();
        other.run(Script());
      },
      true);
  m.run(Script());
  CHECK(calls == 1);
  m.run(Script());
  CHECK(calls == 1);
}
