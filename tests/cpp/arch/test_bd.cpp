// BD packing against words published by mlir-aie's tests and a worked GEMM example, and refusal of
// values that no register holds.
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "arch/bd.h"
#include "error.h"

using namespace npu;
using namespace npu::arch;

namespace {

using Words = std::vector<uint32_t>;

// Words -> fields -> words, and fields -> words.
void both_ways(TileKind kind, const Bd& bd, const Words& words) {
  CHECK(encode_bd(kind, bd) == words);
  CHECK(decode_bd(kind, words) == bd);
}

ErrorKind encode_error(TileKind kind, const std::function<void(Bd&)>& change) {
  Bd bd;
  change(bd);
  try {
    encode_bd(kind, bd);
  } catch (const Error& error) {
    return error.kind();
  }
  FAIL("encoded a value that does not fit");
  return ErrorKind::kArgument;
}

}  // namespace

TEST_CASE("memtile golden words") {
  Bd bd;
  bd.length = 1;
  bd.base = 2;
  bd.wrap = {6, 8, 0};
  bd.step = {6, 8, 10, 1};
  bd.iteration_current = 11;
  bd.iteration_step = 13;
  bd.iteration_wrap = 14;
  bd.acquire_enable = true;
  bd.acquire_id = 1;
  bd.acquire_value = 2;
  bd.release_id = 3;
  bd.release_value = 4;
  bd.use_next = true;
  bd.next_bd = 5;
  both_ways(TileKind::kMem, bd,
            {0x00000001, 0x00580002, 0x000C0005, 0x00100007, 0x00000009, 0x00000000, 0x059A000C,
             0x84038201});
}

TEST_CASE("core golden words") {
  Bd bd;
  bd.length = 837;
  bd.base = 72;
  bd.packet_enable = true;
  bd.packet_id = 7;
  bd.packet_type = 5;
  bd.out_of_order_id = 21;
  bd.wrap = {62, 127, 0};
  bd.step = {565, 1111, 802, 1};
  bd.iteration_current = 42;
  bd.iteration_wrap = 29;
  bd.iteration_step = 500;
  bd.acquire_enable = true;
  bd.acquire_id = 12;
  bd.acquire_value = 42;
  bd.release_id = 11;
  bd.release_value = 85 - 128;  // the raw field 85 is a negative 7-bit number
  bd.use_next = true;
  bd.next_bd = 10;
  both_ways(TileKind::kCore, bd,
            {0x00120345, 0x553D0000, 0x008AC234, 0x0FE7C321, 0x015381F3, 0x5755754C});
}

TEST_CASE("shim golden words") {
  Bd bd;
  bd.length = 2048;
  bd.wrap = {32, 32, 0};
  bd.step = {1, 64, 2048, 1};
  bd.burst = 2;
  bd.axcache = 2;
  both_ways(TileKind::kShim, bd, {0x800, 0, 0, 0x02000000, 0x8200003F, 0x020007FF, 0, 0x02000000});

  Bd packet;
  packet.packet_enable = true;
  packet.packet_id = 2;
  packet.packet_type = 3;
  CHECK(encode_bd(TileKind::kShim, packet)[2] == 0x40130000u);
}

TEST_CASE("shim words of a 512 x 512 x 512 bf16 GEMM") {
  struct Case {
    uint32_t length, d0, d1, step2, iterations, iteration_step;
    Words expected;  // words 0, 3, 4, 5, 6
  };
  const std::vector<Case> cases{
      {0x4000, 32, 64, 32, 1, 1, {0x4000, 0x02000000, 0x840000FF, 0x0200001F, 0}},
      {0x2000, 16, 64, 16384, 4, 64, {0x2000, 0x01000000, 0x840000FF, 0x02003FFF, 0x0030003F}},
      {0x4000, 16, 256, 64, 2, 65536, {0x4000, 0x01000000, 0x900000FF, 0x0200003F, 0x0010FFFF}}};
  for (const Case& c : cases) {
    Bd bd;
    bd.length = c.length;
    bd.wrap = {c.d0, c.d1, 0};
    bd.step = {1, 256, c.step2, 1};
    bd.iteration_wrap = c.iterations;
    bd.iteration_step = c.iteration_step;
    bd.burst = 2;
    bd.axcache = 2;
    const Words w = encode_bd(TileKind::kShim, bd);
    CHECK(Words{w[0], w[3], w[4], w[5], w[6]} == c.expected);
    CHECK(w[7] == 0x02000000u);
  }
}

TEST_CASE("the 48-bit shim base") {
  Bd bd;
  bd.base = 0xABCD'1234'5678;
  const Words words = encode_bd(TileKind::kShim, bd);
  CHECK(words[1] == 0x12345678u);
  CHECK(words[2] == 0xABCDu);
  CHECK(decode_bd(TileKind::kShim, words).base == bd.base);
  CHECK(encode_error(TileKind::kShim, [](Bd& b) { b.base = 2; }) == ErrorKind::kMisaligned);
  CHECK(encode_error(TileKind::kShim, [](Bd& b) { b.base = uint64_t{1} << 48; }) ==
        ErrorKind::kArgument);
}

TEST_CASE("memtile padding: 6, 5 and 4 bits before and after d0, d1 and d2") {
  Bd bd;
  bd.pad_before = {63, 31, 15};
  CHECK(encode_bd(TileKind::kMem, bd) ==
        Words{0, 0xFC000000, 0, 0xF8000000, 0x78000000, 0, 0, 0x80000000});
  bd.pad_before = {0, 0, 0};
  bd.pad_after = {63, 31, 15};
  CHECK(encode_bd(TileKind::kMem, bd) == Words{0, 0, 0, 0, 0, 0xFFFE0000, 0, 0x80000000});
  bd.pad_after = {1, 2, 4};
  CHECK(encode_bd(TileKind::kMem, bd)[5] == (4u << 28 | 2u << 23 | 1u << 17));
}

TEST_CASE("values that no register holds are refused") {
  const auto refused = [](TileKind kind, const std::function<void(Bd&)>& change) {
    CHECK(encode_error(kind, change) == ErrorKind::kArgument);
  };
  refused(TileKind::kCore, [](Bd& b) { b.length = 16384; });
  refused(TileKind::kCore, [](Bd& b) { b.step[0] = 0; });
  refused(TileKind::kCore, [](Bd& b) { b.step[2] = 8193; });
  refused(TileKind::kCore, [](Bd& b) { b.wrap[1] = 256; });
  refused(TileKind::kMem, [](Bd& b) { b.iteration_wrap = 0; });
  refused(TileKind::kMem, [](Bd& b) { b.iteration_wrap = 65; });
  refused(TileKind::kMem, [](Bd& b) { b.pad_before[0] = 64; });
  refused(TileKind::kMem, [](Bd& b) { b.acquire_value = -65; });
  refused(TileKind::kMem, [](Bd& b) { b.release_value = 64; });
  // Fields that belong to another kind of tile.
  refused(TileKind::kCore, [](Bd& b) { b.pad_before[0] = 1; });
  refused(TileKind::kShim, [](Bd& b) { b.pad_after[2] = 1; });
  refused(TileKind::kCore, [](Bd& b) { b.step[3] = 2; });
  refused(TileKind::kCore, [](Bd& b) { b.wrap[2] = 1; });
  refused(TileKind::kMem, [](Bd& b) { b.burst = 1; });
  refused(TileKind::kShim, [](Bd& b) { b.compression = true; });
}
