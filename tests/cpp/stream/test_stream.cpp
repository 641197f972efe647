// The TXN format: builder and reader against words published by mlir-aie's tests, whole files
// written by its compiler (tests/golden), both header versions, malformed
// input, the disassembler's names and the runtime-stream check.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "error.h"
#include "fuzz.h"
#include "golden.h"
#include "stream/register_name.h"
#include "stream/txn.h"

using namespace npu;
using namespace npu::stream;
using arch::Direction;
using arch::Generation;

namespace {

using Words = std::vector<uint32_t>;

Stream parse(const Words& words) {
  return Stream::parse(std::as_bytes(std::span(words.data(), words.size())));
}

Stream parse(const std::string& bytes) {
  return Stream::parse(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

// A stream of the given version around hand-written operation words.
Words around(const Words& body, uint32_t operations, uint32_t version = 0x0100) {
  Words words{0x06030000 | version, 0x104, operations, static_cast<uint32_t>(16 + 4 * body.size())};
  words.insert(words.end(), body.begin(), body.end());
  return words;
}

// What a builder appends after the header.
template <typename Build>
Words body(Build&& build) {
  Builder builder(Generation::kNpu1, 4);
  build(builder);
  const Words words = builder.finish();
  return {words.begin() + 4, words.end()};
}

template <typename Run>
std::string refusal(ErrorKind kind, Run&& run) {
  try {
    run();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "accepted";
}

std::string parse_refusal(const Words& words) {
  return refusal(ErrorKind::kFormat, [&] { parse(words); });
}

bool contains(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("\"" << text << "\" does not contain \"" << part << "\"");
  return found;
}

const Words kPayload{0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6A, 0x6B};

void golden_operations(Builder& b) {
  b.write(arch::tile_address(3, 4, 0xABC00DEF), 0x42);
  b.write(0xABC00DEF, 0x314);
  b.block_write(0x12345679, kPayload);
  b.block_write(arch::tile_address(1, 1, 100), kPayload, 1, 1);
  b.mask_write(arch::tile_address(2, 3, 0x567A), 0x1001, 0xF00FF00F);
  b.sync(3, 4, Direction::kMM2S, 5, 1, 2);
}

// Appends a read operation again.
void repeat(Builder& b, const Operation& op) {
  const uint32_t address = static_cast<uint32_t>(op.address);
  switch (op.opcode) {
    case Opcode::kWrite:
      return b.write(address, op.value);
    case Opcode::kBlockWrite:
      return b.block_write(address, op.data, op.column, op.row);
    case Opcode::kMaskWrite:
      return b.mask_write(address, op.value, op.mask);
    case Opcode::kMaskPoll:
      return b.mask_poll(address, op.value, op.mask);
    case Opcode::kNoop:
      return b.noop();
    case Opcode::kPreempt:
      return b.preempt(op.level);
    case Opcode::kLoadPdi:
      return b.load_pdi(op.pdi_id, op.pdi_bytes, op.address);
    case Opcode::kSync:
      return b.sync(op.column, op.row, op.direction, op.channel, op.columns, op.rows);
    case Opcode::kAddressPatch:
      return b.address_patch(address, op.argument, op.argument_offset, false);
    default:
      FAIL("no builder method for " << opcode_name(op.opcode));
  }
}

Words rebuilt(const Stream& stream) {
  Builder builder(static_cast<Generation>(stream.header().generation), stream.header().columns);
  for (const Operation& op : stream.operations()) repeat(builder, op);
  return builder.finish();
}

// A passthrough of 4096 words on one npu1 column.
Words passthrough() {
  Builder b(Generation::kNpu1, 1);
  const Words bd{0x1000, 0, 0, 0, 0x80000000, 0x02000000, 0, 0x02000000};
  b.block_write(0x1D020, bd);
  b.address_patch(0x1D024, 1, 0);
  b.mask_write(0x1D200, 0xF00, 0x1F00);
  b.write(0x1D204, 0x80000001);
  b.block_write(0x1D000, bd);
  b.address_patch(0x1D004, 0, 0);
  b.write(0x1D214, 0);
  b.sync(0, 0, Direction::kS2MM, 0);
  return b.finish();
}

}  // namespace

TEST_CASE("golden words of single operations") {
  const auto tile = [](int c, int r, uint32_t a) { return arch::tile_address(c, r, a); };
  CHECK(body([&](Builder& b) { b.write(tile(3, 4, 0xABC00DEF), 0x42); }) ==
        Words{0, 0, 0x06400DEF, 0, 0x42, 0x18});
  CHECK(body([](Builder& b) { b.write(0xABC00DEF, 0x314); }) ==
        Words{0, 0, 0xABC00DEF, 0, 0x314, 0x18});
  CHECK(body([](Builder& b) { b.block_write(0x12345679, kPayload); }) ==
        Words{1, 0, 0x12345679, 0x30, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6A, 0x6B});
  CHECK(body([&](Builder& b) { b.block_write(tile(1, 1, 100), kPayload, 1, 1); }) ==
        Words{1, 0x101, 0x02100064, 0x30, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6A, 0x6B});
  CHECK(body([&](Builder& b) { b.mask_write(tile(2, 3, 0x567A), 0x1001, 0xF00FF00F); }) ==
        Words{3, 0, 0x0430567A, 0, 0x1001, 0xF00FF00F, 0x1C});
  CHECK(body([](Builder& b) { b.sync(3, 4, Direction::kMM2S, 5, 1, 2); }) ==
        Words{0x80, 0x10, 0x00030401, 0x05010200});
  CHECK(body([](Builder& b) { b.load_pdi(2, 1024, 0xABC12345678); }) ==
        Words{0x00020008, 0x400, 0x12345678, 0xABC});
  CHECK(body([](Builder& b) { b.preempt(3); }) == Words{0x306});
  CHECK(body([&](Builder& b) { b.write(tile(2, 2, 0x04040404), 0); })[2] == 0x04240404u);
}

TEST_CASE("golden address patches: the aperture is folded in from argument 5 on") {
  const auto patch = [](uint32_t argument, bool fold) {
    return body([&](Builder& b) { b.address_patch(74560, argument, 0x100, fold); });
  };
  CHECK(patch(4, true) == Words{0x81, 0x30, 0, 0, 0, 0, 74560, 0, 4, 0, 0x100, 0});
  CHECK(patch(4, false) == patch(4, true));
  CHECK(patch(5, true)[10] == 0x80000100u);
  CHECK(patch(5, false)[10] == 0x100u);
  const Words high = body([](Builder& b) { b.address_patch(0, 7, 0xFFFFFFFF); });
  CHECK(high[10] == 0x7FFFFFFFu);  // the carry of the fold reaches the high word
  CHECK(high[11] == 1u);
}

TEST_CASE("golden headers") {
  CHECK(Builder(Generation::kNpu2, 1).finish() == Words{0x06040100, 0x101, 0, 0x10});
  Builder npu1(Generation::kNpu1, 4);
  golden_operations(npu1);
  npu1.load_pdi(2, 1024, 0xABC12345678);
  CHECK(npu1.operations() == 7);
  const Words one = npu1.finish();
  CHECK(Words(one.begin(), one.begin() + 4) == Words{0x06030100, 0x104, 7, 0xDC});
  Builder npu2(Generation::kNpu2, 8);
  golden_operations(npu2);
  npu2.preempt(3);
  const Words two = npu2.finish();
  CHECK(Words(two.begin(), two.begin() + 4) == Words{0x06040100, 0x108, 7, 0xD0});
}

TEST_CASE("a complete runtime stream, word for word") {
  const Words expected{0x06030100, 0x00000101, 8,          0x12C,  //
                       1,          0,          0x1D020,    0x30,      0x1000,     0,      0,
                       0,          0x80000000, 0x02000000, 0,         0x02000000,  // BD 1
                       0x81,       0x30,       0,          0,         0,          0,      0x1D024,
                       0,          1,          0,          0,         0,                         //
                       3,          0,          0x1D200,    0,         0xF00,      0x1F00, 0x1C,  //
                       0,          0,          0x1D204,    0,         0x80000001, 0x18,          //
                       1,          0,          0x1D000,    0x30,      0x1000,     0,      0,
                       0,          0x80000000, 0x02000000, 0,         0x02000000,  // BD 0
                       0x81,       0x30,       0,          0,         0,          0,      0x1D004,
                       0,          0,          0,          0,         0,                 //
                       0,          0,          0x1D214,    0,         0,          0x18,  //
                       0x80,       0x10,       0,          0x00010100};
  CHECK(passthrough() == expected);
  CHECK(rebuilt(parse(expected)) == expected);
}

TEST_CASE("every operation the builder writes is read back") {
  Builder b(Generation::kNpu2, 8);
  golden_operations(b);
  b.mask_poll(0x1D220, 0, 3);
  b.noop();
  b.preempt(2);
  b.load_pdi(0xFFFF, 0xFFFFFFFF, 0xFEDCBA9876543210);
  b.address_patch(0x1D004, 200, 0x123456789A, false);
  b.sync(7, 0, Direction::kS2MM, 1);
  const Stream s = parse(b.finish());
  REQUIRE(s.operations().size() == 12);
  CHECK(s.header().columns == 8);
  const Operation& sync = s.operations()[5];
  CHECK(sync.direction == Direction::kMM2S);
  CHECK(sync.column == 3);
  CHECK(sync.row == 4);
  CHECK(sync.columns == 1);
  CHECK(sync.rows == 2);
  CHECK(sync.channel == 5);
  CHECK(s.operations()[9].address == 0xFEDCBA9876543210u);
  CHECK(s.operations()[9].pdi_id == 0xFFFFu);
  CHECK(s.operations()[10].argument_offset == 0x123456789Au);
  CHECK(rebuilt(s) == b.finish());
  const Stream moved = std::move(const_cast<Stream&>(s));
  CHECK(moved.operations()[2].data[7] == 0x6Bu);  // spans survive a move
}

TEST_CASE("builder arguments") {
  const auto bad = [](auto&& run) {
    CHECK(contains(refusal(ErrorKind::kArgument,
                           [&] {
                             Builder b(Generation::kNpu1, 4);
                             run(b);
                           }),
                   "["));
  };
  bad([](Builder&) { Builder(Generation::kNpu1, 5); });
  bad([](Builder&) { Builder(Generation::kNpu2, 0); });
  bad([](Builder& b) { b.block_write(0, {}); });
  bad([](Builder& b) { b.block_write(0, kPayload, 256, 0); });
  bad([](Builder& b) { b.preempt(4); });
  bad([](Builder& b) { b.load_pdi(0x10000, 0, 0); });
  bad([](Builder& b) { b.sync(-1, 0, Direction::kS2MM, 0); });
  bad([](Builder& b) { b.sync(0, 0, Direction::kS2MM, 0, 0, 1); });
  bad([](Builder& b) { b.address_patch(0, 5, ~uint64_t{0}); });
}

TEST_CASE("aie-rt's forms: padded mask operations, column and row in word 0, custom operations") {
  const Stream s = parse(around(
      {
          0x00020103, 0,   0x1D200, 0, 0xF00,   0x1F00, 32, 0xDEAD,  // MASKWRITE of 32 bytes
          4,          0,   0x1D220, 0, 0,       3,      28,          // MASKPOLL
          7,          0,   0x1D220, 0, 0,       3,      32, 0,       // MASKPOLL_BUSY
          0x82,       24,  1,       0, 0x1D220, 0,                   // READ_REGS
          0x83,       12,  42,                                       // RECORD_TIMER
          0x84,       8,                                             // MERGE_SYNC
          0x00012309, 5,                                             // LOAD_PM_START
          0x0000000A, 128, 0,       0,                               // CREATE_SCRATCHPAD
          0x0001020C, 9,   0x1D004,                                  // UPDATE_REG
          5,                                                         // NOOP
      },
      10));
  const std::vector<Operation>& ops = s.operations();
  REQUIRE(ops.size() == 10);
  CHECK(ops[0].bytes == 32);
  CHECK(ops[0].mask == 0x1F00u);
  CHECK(ops[1].byte_offset == 48);
  CHECK(ops[2].opcode == Opcode::kMaskPollBusy);
  CHECK(ops[3].data.size() == 4);
  CHECK(ops[3].data[2] == 0x1D220u);
  CHECK(ops[4].data[0] == 42u);
  CHECK(ops[5].data.empty());
  CHECK(ops[6].value == 0x123u);
  CHECK(ops[6].pdi_id == 5u);
  CHECK(ops[8].state_index == 2u);
  CHECK(ops[8].function == 1u);
  CHECK(ops[8].address == 0x1D004u);
  CHECK(ops[9].opcode == Opcode::kNoop);
}

TEST_CASE("header version 1.0: compact layouts") {
  const Stream s = parse(around(
      {
          0,       0x1D204, 7,                                      // WRITE
          1,       0x1D000, 20,         11,         12,             // BLOCKWRITE
          3,       0x1D200, 0xF00,      0x1F00,                     // MASKWRITE
          4,       0x1D220, 0,          3,                          // MASKPOLL
          0x106,                                                    // PREEMPT
          0x80,    16,      0x00020001, 0x01010100,                 // SYNC
          0x81,    24,      0x1D004,    3,          0x100,      1,  // compact ADDRESS_PATCH
          0x81,    48,      0,          0,          0,          0,
          0x1D024, 0,       6,          0,          0x80000100, 0,  // long ADDRESS_PATCH
      },
      8, 0x0001));
  const std::vector<Operation>& ops = s.operations();
  REQUIRE(ops.size() == 8);
  CHECK(s.header().major == 1);
  CHECK(s.header().minor == 0);
  CHECK(ops[0].address == 0x1D204u);
  CHECK(ops[0].value == 7u);
  CHECK(Words(ops[1].data.begin(), ops[1].data.end()) == Words{11, 12});
  CHECK(ops[2].mask == 0x1F00u);
  CHECK(ops[3].bytes == 16u);
  CHECK(ops[4].level == 1u);
  CHECK(ops[5].column == 2);
  CHECK(ops[5].direction == Direction::kMM2S);
  CHECK(ops[6].address == 0x1D004u);
  CHECK(ops[6].argument == 3u);
  CHECK(ops[6].argument_offset == 0x100000100u);
  CHECK(ops[7].address == 0x1D024u);
  CHECK(ops[7].argument == 6u);
}

TEST_CASE("malformed headers") {
  CHECK(contains(parse_refusal({}), "0 bytes given"));
  CHECK(contains(parse_refusal({0x06030100, 0x104, 0}), "12 bytes given"));
  CHECK(
      contains(refusal(ErrorKind::kFormat, [] { parse(std::string(18, '\0')); }), "multiple of 4"));
  CHECK(contains(parse_refusal({0x06030200, 0x104, 0, 16}), "version 0.2"));
  CHECK(contains(parse_refusal({0x06050100, 0x104, 0, 16}), "generation 5"));
  CHECK(contains(parse_refusal({0x07030100, 0x104, 0, 16}), "7 rows"));
  CHECK(contains(parse_refusal({0x06030100, 0x105, 0, 16}), "5 columns"));
  CHECK(contains(parse_refusal({0x06030100, 0x104, 0, 20}), "header says 20 bytes"));
  CHECK(contains(parse_refusal({0x06030100, 0x104, 0, 12}), "header says 12 bytes"));
  CHECK(contains(parse_refusal({0x06030100, 0x104, 0xFFFFFFFF, 16}), "4294967295 operations"));
  CHECK(contains(parse_refusal(around({5, 5}, 1)), "byte 0x14 of 24 starts another"));
  CHECK(contains(parse_refusal(around({5, 5}, 3)), "the stream holds 2"));
}

TEST_CASE("malformed operations name index, offset and cause") {
  const auto second = [](Words words) {
    words.insert(words.begin(), 5);  // a NOOP first
    return parse_refusal(around(words, 2));
  };
  CHECK(contains(second({0x42}), "operation 1 (?) at byte 0x14: unknown opcode 0x42"));
  CHECK(contains(second({2, 0, 0, 0}), "unknown opcode 0x02"));
  CHECK(contains(second({0x0B, 0, 0}), "(UPDATE_STATE_TABLE) at byte 0x14: this reader"));
  CHECK(contains(second({0, 0, 0}),
                 "(WRITE) at byte 0x14: needs 24 bytes, the stream ends after 12"));
  CHECK(contains(second({0, 0, 0, 0, 0, 20}), "size field 20, at least 24"));
  CHECK(contains(second({0, 0, 0, 0, 0, 28, 0}), "size field 28, expected 24"));
  CHECK(contains(second({1, 0, 0, 0, 0}), "size field 0, at least 20"));
  CHECK(contains(second({1, 0, 0, 16, 0}), "size field 16, at least 20"));
  CHECK(contains(second({1, 0, 0, 21, 0, 0}), "size field 21 is not a multiple of 4"));
  CHECK(contains(second({1, 0, 0, 0xFFFFFFFC, 0}), "needs 4294967292 bytes"));
  CHECK(contains(second({3, 0, 0, 0, 0, 0, 36, 0, 0}), "expected 28 or 32"));
  CHECK(contains(second({0x80, 12, 0}), "size field 12, expected 16"));
  CHECK(contains(second({0x80, 16, 2, 0x00010100}), "direction 2"));
  CHECK(contains(second({0x80, 16, 0, 0x00010000}), "empty rectangle"));
  CHECK(contains(second({0x81, 32, 0, 0, 0, 0, 0, 0}), "size field 32, expected 24"));
  CHECK(contains(second({0x82, 0}), "size field 0, at least 8"));
  CHECK(contains(second({0x83}), "needs 8 bytes"));
  CHECK(contains(second({8, 0, 0}), "needs 16 bytes"));
}

TEST_CASE("register names") {
  CHECK(register_name(0x1D020) == "shim(0,0).bd[1]");
  CHECK(register_name(0x1D024) == "shim(0,0).bd[1]+0x4");
  CHECK(register_name(arch::tile_address(1, 2, 0x1F030)) == "core(1,2).lock[3]");
  CHECK(register_name(arch::tile_address(0, 1, 0xA0634)) == "mem(0,1).mm2s[0].queue");
  CHECK(register_name(arch::tile_address(0, 1, 0xA062C)) == "mem(0,1).s2mm[5].queue");
  CHECK(register_name(arch::tile_address(0, 1, 0xA0630)) == "mem(0,1).mm2s[0].control");
  CHECK(register_name(arch::tile_address(2, 0, 0x1D208)) == "shim(2,0).s2mm[1].control");
  CHECK(register_name(arch::tile_address(0, 1, 0xA05E0)) == "mem(0,1).bd[47]");
  CHECK(register_name(arch::tile_address(0, 3, 0x400)) == "core(0,3).memory[0x400]");
  CHECK(register_name(arch::tile_address(0, 3, 0x20010)) == "core(0,3).program[0x10]");
  CHECK(register_name(arch::tile_address(0, 0, 0x3F104)) == "shim(0,0).switch[0x104]");
  CHECK(register_name(arch::tile_address(0, 0, 0x1F000)) == "shim(0,0).0x1f000");
  CHECK(register_name(arch::tile_address(0, 0, 0x1D240)) == "shim(0,0).0x1d240");
  CHECK(register_name(0x00700000) == "0x00700000");
  CHECK(register_name(0x100000000) == "0x100000000");
}

TEST_CASE("disassembly of a runtime stream") {
  const std::string text = disassemble(parse(passthrough()));
  CHECK(text ==
        "txn 0.1 npu1, 1 columns, 8 operations, 300 bytes\n"
        "    0 000010 BLOCKWRITE    shim(0,0).bd[1] length 4096 base 0x0 dims *x*x* step 1,1,1 "
        "burst 256 axcache 2\n"
        "    1 000040 ADDRESS_PATCH shim(0,0).bd[1]+0x4 <- argument 1 + 0x0\n"
        "    2 000070 MASKWRITE     shim(0,0).s2mm[0].control = 0x00000f00 mask 0x00001f00\n"
        "    3 00008c WRITE         shim(0,0).s2mm[0].queue push bd[1] runs 1 token\n"
        "    4 0000a4 BLOCKWRITE    shim(0,0).bd[0] length 4096 base 0x0 dims *x*x* step 1,1,1 "
        "burst 256 axcache 2\n"
        "    5 0000d4 ADDRESS_PATCH shim(0,0).bd[0]+0x4 <- argument 0 + 0x0\n"
        "    6 000104 WRITE         shim(0,0).mm2s[0].queue push bd[0] runs 1\n"
        "    7 00011c SYNC          shim(0,0).s2mm[0]\n");
}

TEST_CASE("disassembly spells out memtile BDs and several BDs in one block") {
  const Words mem{1, 0x00580002, 0x000C0005, 0x00100007, 9, 0, 0x059A000C, 0x84038201};
  Builder b(Generation::kNpu1, 4);
  b.block_write(arch::tile_address(3, 1, 0xA00C0), mem, 3, 1);
  b.block_write(arch::tile_address(0, 2, 0x1D000), Words(14, 0), 0, 2);
  b.block_write(arch::tile_address(0, 2, 0x20000), Words(100, 7), 0, 2);
  const std::string text = disassemble(parse(b.finish()));
  CHECK(contains(text,
                 "mem(3,1).bd[6] length 1 base 0x2 dims *x*x8x6 step 1,10,8,6 iteration 11/14 "
                 "step 13 acquire lock[1] == 2 release lock[3] +4 next bd[5]\n"));
  CHECK(contains(text, "core(0,2).bd[0] length 0 base 0x0 dims *x*x* step 1,1,1 INVALID; bd[1] "));
  CHECK(contains(text, "core(0,2).program[0x0] 100 words 00000007"));
}

TEST_CASE("what a runtime stream may touch") {
  Permissions rtps;
  rtps.rtp_words.push_back({0, 2, 0x400, 8});
  rtps.rtp_locks.push_back({0, 2, 15});
  const auto verdict = [&](auto&& build) {
    Builder b(Generation::kNpu1, 4);
    b.noop();
    build(b);
    const Stream s = parse(b.finish());
    return refusal(ErrorKind::kForbidden, [&] { check_runtime_stream(s, rtps); });
  };
  const auto tile = [](int c, int r, uint32_t a) { return arch::tile_address(c, r, a); };

  CHECK_NOTHROW(check_runtime_stream(parse(passthrough()), {}));
  CHECK(verdict([&](Builder& b) { b.write(tile(3, 0, 0x14010), 1); }) == "accepted");
  CHECK(verdict([&](Builder& b) { b.write(tile(0, 2, 0x400), 1); }) == "accepted");
  CHECK(verdict([&](Builder& b) { b.write(tile(0, 2, 0x404), 1); }) == "accepted");
  CHECK(verdict([&](Builder& b) { b.write(tile(0, 2, 0x1F0F0), 1); }) == "accepted");
  CHECK(verdict([&](Builder& b) { b.mask_poll(tile(0, 0, 0x1D220), 0, 3); }) == "accepted");
  CHECK(verdict([&](Builder& b) { b.sync(0, 0, Direction::kS2MM, 1, 4, 1); }) == "accepted");

  CHECK(contains(verdict([&](Builder& b) { b.write(tile(0, 2, 0x408), 1); }),
                 "operation 1 (WRITE) at byte 0x14: writes core(0,2).memory[0x408]"));
  CHECK(contains(verdict([&](Builder& b) { b.write(tile(0, 3, 0x400), 1); }), "core(0,3)"));
  CHECK(contains(verdict([&](Builder& b) { b.write(tile(0, 2, 0x1F0E0), 1); }), "lock[14]"));
  CHECK(contains(verdict([&](Builder& b) { b.block_write(tile(0, 2, 0x404), kPayload); }),
                 "memory[0x408]"));
  CHECK(contains(verdict([&](Builder& b) { b.mask_write(tile(0, 2, 0x32000), 1, 1); }),
                 "core(0,2).0x32000"));
  CHECK(contains(verdict([&](Builder& b) { b.write(tile(0, 1, 0xA0000), 1); }), "mem(0,1).bd[0]"));
  CHECK(contains(verdict([&](Builder& b) { b.write(tile(0, 0, 0x3F000), 1); }), "switch"));
  CHECK(contains(verdict([&](Builder& b) { b.write(tile(0, 0, 0x1F000), 1); }), "0x1f000"));
  CHECK(contains(verdict([&](Builder& b) { b.write(tile(4, 0, 0x1D000), 1); }), "4 columns"));
  CHECK(contains(verdict([&](Builder& b) { b.write(tile(0, 0, 0x1D001), 1); }), "not a register"));
  CHECK(contains(verdict([&](Builder& b) { b.block_write(tile(0, 0, 0x1D210), kPayload); }),
                 "0x1d220"));
  CHECK(contains(verdict([&](Builder& b) { b.sync(0, 2, Direction::kS2MM, 0); }), "row"));
  CHECK(
      contains(verdict([&](Builder& b) { b.sync(0, 0, Direction::kS2MM, 0, 1, 2); }), "rows 0..1"));
  CHECK(contains(verdict([&](Builder& b) { b.sync(2, 0, Direction::kS2MM, 0, 3, 1); }), "columns"));
  CHECK(contains(verdict([&](Builder& b) { b.sync(0, 0, Direction::kS2MM, 2); }), "channel 2"));
  CHECK(contains(verdict([&](Builder& b) { b.load_pdi(0, 0, 0); }), "LOADPDI"));
  CHECK(contains(verdict([&](Builder& b) { b.address_patch(0x1D000, 0, 0); }), "only word 1"));
  CHECK(contains(verdict([&](Builder& b) { b.address_patch(tile(0, 1, 0xA0004), 0, 0); }), "mem"));
  CHECK(contains(verdict([&](Builder& b) { b.mask_poll(tile(0, 2, 0x32004), 0, 3); }), "polls"));
}

TEST_CASE("streams of the public compiler: rebuilt byte for byte, runtime ones pass the check") {
  for (const char* program :
       {"relay_npu1", "relay_npu2", "gemm_npu1_2x2_i16", "gemm_npu2_4x8_bf16"}) {
    for (const char* name : {"insts.bin", "config.bin"}) {
      const std::string bytes = golden::bytes(std::string(program) + "/" + name);
      const Stream s = parse(bytes);
      const Words words = rebuilt(s);
      CHECK(std::string(reinterpret_cast<const char*>(words.data()), 4 * words.size()) == bytes);
      CHECK(!disassemble(s).empty());
      if (std::string(name) == "insts.bin") CHECK_NOTHROW(check_runtime_stream(s, {}));
      if (std::string(name) == "config.bin") CHECK_THROWS_AS(check_runtime_stream(s, {}), Error);
    }
  }
}

TEST_CASE("damaged streams parse or are refused") {
  Builder b(Generation::kNpu2, 8);
  golden_operations(b);
  b.load_pdi(1, 2, 3);
  b.address_patch(0x1D004, 7, 0);
  const Words words = b.finish();
  const Words compact = around({0, 1, 2, 1, 0x1D000, 16, 9, 3, 1,     2,    3,  0x81, 24,
                                4, 5, 6, 7, 0x82,    16, 1, 2, 0x106, 0x80, 16, 1,    0x01010100},
                               7, 0x0001);
  const auto read = [](const std::string& bytes) {
    const Stream s = parse(bytes);
    CHECK(!disassemble(s).empty());
    try {
      check_runtime_stream(s, {});
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kForbidden);
    }
  };
  for (const Words& valid : {words, compact, passthrough()}) {
    const std::string bytes(reinterpret_cast<const char*>(valid.data()), 4 * valid.size());
    CHECK(test::fuzz(bytes, 7000, read) > 100);
  }
}
