// The text form of worker programs: parsing, links, printing (parse and print are inverses), the
// errors a user sees, and random damage.
#include <doctest/doctest.h>

#include <random>
#include <string>

#include "error.h"
#include "fuzz.h"
#include "runtime/program.h"

using namespace npu;
using Code = Instruction::Code;

namespace {

const char* const kGemm =
    "loop forever\n"
    "  acquire_ge 8 1\n"
    "  acquire_ge 4 1\n"
    "  call zero @1024|9216%0\n"
    "  loop rtp:512\n"
    "    acquire_ge 1 1\n"
    "    call mac @16384|20480%1 @1024|9216%0 #64 $516\n"
    "    release 0 1\n"
    "    advance 1 2\n"
    "  end\n"
    "  release 5 1\n"
    "  acquire_eq 9 0\n"
    "  advance 0 2\n"
    "end\n";

// The message of the Error(kFormat) that `text` causes.
std::string refusal(const std::string& text) {
  try {
    parse_program(text, "core(0,2)");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kFormat);
    return error.what();
  }
  return "accepted";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string looped(int depth) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += "loop 2\n";
  for (int i = 0; i < depth; ++i) text += "end\n";
  return text;
}

}  // namespace

TEST_CASE("a GEMM worker") {
  const Program p = parse_program(kGemm, "gemm");
  REQUIRE(p.code.size() == 14);
  CHECK(p.functions == std::vector<std::string>{"zero", "mac"});
  CHECK(p.counters == 2);
  CHECK(p.code[0].code == Code::kLoopForever);
  CHECK(p.code[0].target == 13);
  CHECK(p.code[13].target == 0);
  CHECK(p.code[4].code == Code::kLoopRtp);
  CHECK(p.code[4].value == 512);
  CHECK(p.code[4].target == 9);
  CHECK(p.code[9].target == 4);
  CHECK(p.code[11].code == Code::kAcquireEq);
  CHECK(p.code[11].lock == 9);
  CHECK(p.code[11].value == 0);
  const Instruction& mac = p.code[6];
  CHECK(mac.function == 1);
  REQUIRE(mac.operands.size() == 4);
  CHECK(mac.operands[0].kind == Operand::Kind::kRotating);
  CHECK(mac.operands[0].addresses == std::vector<uint32_t>{16384, 20480});
  CHECK(mac.operands[0].counter == 1);
  CHECK(mac.operands[2].kind == Operand::Kind::kConstant);
  CHECK(mac.operands[2].value == 64);
  CHECK(mac.operands[3].kind == Operand::Kind::kRtp);
  CHECK(mac.operands[3].value == 516);
  CHECK(print_program(p) == kGemm);
}

TEST_CASE("spacing, blank lines and a missing last newline do not matter") {
  const Program p = parse_program("\n  loop   3 \n\n\tcall f  @0\nend", "x");
  CHECK(print_program(p) == "loop 3\n  call f @0\nend\n");
  CHECK(parse_program("", "x").code.empty());
}

TEST_CASE("random programs: print, parse, print gives the same text and members") {
  std::mt19937 random(7);
  const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    std::string text;
    int depth = 0;
    for (int i = below(30); i > 0; --i) {
      const std::string indent(static_cast<size_t>(2 * depth), ' ');
      switch (below(6)) {
        case 0:
          if (depth == 16) break;
          text += indent + (below(2) == 0 ? strf("loop %d\n", below(100))
                                          : strf("loop rtp:%d\n", 4 * below(16384)));
          ++depth;
          break;
        case 1:
          if (depth > 0) text += std::string(static_cast<size_t>(2 * --depth), ' ') + "end\n";
          break;
        case 2:
          text += indent + strf("acquire_ge %d %d\n", below(16), 1 + below(63));
          break;
        case 3:
          text += indent + strf("release %d %d\n", below(16), 1 + below(63));
          break;
        case 4:
          text += indent + strf("advance %d %d\n", below(64), 1 + below(2));
          break;
        default:
          text += indent + strf("call f%d @%d #%d $%d @%d|%d%%%d\n", below(9), below(65536),
                                below(1000) - 500, 4 * below(16384), below(65536), below(65536),
                                below(64));
      }
    }
    while (depth > 0) text += std::string(static_cast<size_t>(2 * --depth), ' ') + "end\n";
    Program p = parse_program(text, "random");
    CHECK(print_program(p) == text);
    link_program(p, "random");  // linking again changes nothing
    CHECK(print_program(p) == text);
    for (size_t i = 0; i < p.code.size(); ++i) {
      if (p.code[i].target < 0) continue;
      CHECK(p.code[static_cast<size_t>(p.code[i].target)].target == static_cast<int>(i));
    }
  }
}

TEST_CASE("errors name the line and the cause") {
  CHECK(contains(refusal("call f @0\nrelease 0\n"), "core(0,2), line 2: expected"));
  CHECK(contains(refusal("jump 3"), "unknown instruction \"jump\""));
  CHECK(contains(refusal("loop 2\ncall f"), "line 1 (loop 2): has no matching end"));
  CHECK(contains(refusal("end"), "closes no loop"));
  CHECK(contains(refusal("loop x\nend"), "loop count \"x\" is not an integer"));
  CHECK(contains(refusal("loop -1\nend"), "out of range"));
  CHECK(contains(refusal("loop rtp:6\nend"), "multiple of 4"));
  CHECK(contains(refusal("loop rtp:65536\nend"), "out of range 0..65532"));
  CHECK(contains(refusal("acquire_ge 16 1"), "lock 16 is out of range"));
  CHECK(contains(refusal("acquire_ge 63 1"), "own tile's locks 0..15"));
  CHECK(contains(refusal("acquire_ge 0 64"), "lock value 64 is out of range 1..63"));
  CHECK(contains(refusal("acquire_ge 0 0"), "out of range 1..63"));
  CHECK(contains(refusal("release 0 0"), "out of range 1..63"));
  CHECK(contains(refusal("release 1.5 1"), "not an integer"));
  CHECK(contains(refusal("call 9f"), "not an identifier"));
  CHECK(contains(refusal("call f 12"), "operand \"12\""));
  CHECK(contains(refusal("call f @"), "not an integer"));
  CHECK(contains(refusal("call f @65536"), "out of range 0..65535"));
  CHECK(contains(refusal("call f @0|%0"), "not an integer"));
  CHECK(contains(refusal("call f @0|4%64"), "counter 64 is out of range"));
  CHECK(contains(refusal("call f $2"), "multiple of 4"));
  CHECK(contains(refusal("call f #99999999999"), "out of range"));
  CHECK(contains(refusal("call f #99999999999999999999"), "not an integer"));
  CHECK(contains(refusal("advance 0 0"), "modulus 0 is out of range"));
  CHECK(contains(refusal("call f @0|4%0\nadvance 0 3"), "chooses between 2 slots"));
  std::string many = "call f";
  for (int i = 0; i < 33; ++i) many += " #1";
  CHECK(contains(refusal(many), "33 operands"));
}

TEST_CASE("an infinite loop must contain an acquire") {
  CHECK(contains(refusal("loop forever\ncall f\nend"), "without an acquire"));
  CHECK(contains(refusal("loop forever\nrelease 0 1\nend"), "without an acquire"));
  CHECK(contains(refusal("loop forever\nloop 0\nacquire_ge 0 1\nend\nend"), "without an acquire"));
  CHECK(refusal("loop forever\nloop 2\nacquire_ge 0 1\nend\nend") == "accepted");
  CHECK(refusal("loop forever\nacquire_eq 0 0\nend") == "accepted");
}

TEST_CASE("limits") {
  CHECK(refusal(looped(16)) == "accepted");
  CHECK(contains(refusal(looped(17)), "nest deeper"));
  std::string long_text;
  for (int i = 0; i < 65537; ++i) long_text += "release 0 1\n";
  CHECK(contains(refusal(long_text), "more than 65536 instructions"));
  std::string functions;
  for (int i = 0; i < 257; ++i) functions += strf("call f%d\n", i);
  CHECK(contains(refusal(functions), "more than 256 functions"));
}

TEST_CASE("programs built by hand are checked too") {
  Program p;
  p.code.resize(1);
  p.code[0].code = Code::kCall;
  p.code[0].function = 3;
  CHECK_THROWS_AS(link_program(p, "hand"), Error);
  p.code[0].function = -1;
  CHECK_THROWS_AS(link_program(p, "hand"), Error);
}

TEST_CASE("damaged programs parse or are refused") {
  const int accepted = test::fuzz(kGemm, 20000, [](const std::string& text) {
    const Program p = parse_program(text, "fuzz");
    REQUIRE(print_program(parse_program(print_program(p), "again")) == print_program(p));
  });
  CHECK(accepted > 100);  // the damage is not so heavy that only errors are tested
}
