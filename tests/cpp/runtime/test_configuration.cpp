// The serialised form of a configuration: every entry, the errors a user sees with their line, and
// random damage.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "error.h"
#include "fuzz.h"
#include "runtime/configuration.h"
#include "stream/txn.h"

using namespace npu;

namespace {

std::string txn(arch::Generation generation = arch::Generation::kNpu2) {
  stream::Builder builder(generation, 4);
  builder.write(arch::tile_address(0, 2, 0x1F000), 2);
  builder.block_write(arch::tile_address(0, 1, 0xA0000), std::vector<uint32_t>(8, 1), 0, 1);
  const std::vector<uint32_t> words = builder.finish();
  return {reinterpret_cast<const char*>(words.data()), words.size() * 4};
}

const std::string kHead = "npu-config 1\nname gemm\ngeneration npu2\nsource 0123abcd\n";
const std::string kBody =
    "param tile_m 64\n"
    "param bias -3\n"
    "port A0 0 mm2s 0\n"
    "port C7 7 s2mm 1\n"
    "port B3 3 mm2s 1 1\n"
    "port programs 3 mm2s 1 31\n"
    "rtp k_tiles 0 2 1024\n"
    "rtp k_tiles 1 2 1024\n"
    "rtplock 0 2 15\n"
    "resource 0 1 memory 100 524288\n"
    "resource 0 2 program 20000 16384\n"
    "core 0 2\n"
    "  loop forever\n"
    "    acquire_ge 0 1\n"
    "    call mac @1024\n"
    "  end\n"
    "endcore\n"
    "core 1 2\n"
    "endcore\n"
    "overlay products 8192 65000\n"
    "  loop 2\n"
    "    call mac @1024|2048%1\n"
    "    advance 1 2\n"
    "  end\n"
    "endoverlay\n"
    "overlay norm 16384 65000\n"
    "endoverlay\n";

std::string with_txn(const std::string& text, const std::string& stream = txn()) {
  return text + "txn " + std::to_string(stream.size()) + "\n" + stream;
}

Configuration parse(const std::string& text) {
  return Configuration::parse(std::as_bytes(std::span(text.data(), text.size())));
}

std::string refusal(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kFormat);
    return error.what();
  }
  return "accepted";
}

bool contains(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("\"" << text << "\" does not contain \"" << part << "\"");
  return found;
}

// The message for `line` appended to a valid head (so it is line 5).
std::string line_refusal(const std::string& line) { return refusal(with_txn(kHead + line + "\n")); }

}  // namespace

TEST_CASE("every entry is read") {
  const Configuration c = parse(with_txn(kHead + kBody));
  CHECK(c.name == "gemm");
  CHECK(c.source == "0123abcd");
  CHECK(c.generation == arch::Generation::kNpu2);
  CHECK(c.param("tile_m") == 64);
  CHECK(c.param("bias") == -3);
  REQUIRE(c.ports.size() == 4);
  CHECK(!c.port("A0").packet.has_value());
  CHECK(c.port("B3").packet == 1u);
  CHECK(c.port("programs").packet == 31u);
  CHECK(c.port("programs").channel == c.port("B3").channel);
  CHECK(c.port("C7").col == 7);
  CHECK(c.port("C7").direction == arch::Direction::kS2MM);
  CHECK(c.port("C7").channel == 1);
  CHECK(c.port("A0").direction == arch::Direction::kMM2S);
  REQUIRE(c.rtps.size() == 2);
  CHECK(c.rtps[1].col == 1);
  CHECK(c.rtps[1].address == 1024u);
  REQUIRE(c.rtp_locks.size() == 1);
  CHECK(c.rtp_locks[0].lock == 15);
  REQUIRE(c.resources.size() == 2);
  CHECK(c.resources[1].used == 20000);  // an estimate may exceed the limit
  CHECK(c.resources[0].kind == "memory");
  CHECK(c.resources[0].limit == 524288);
  REQUIRE(c.cores.size() == 2);
  CHECK(c.cores[0].program.code.size() == 4);
  CHECK(c.cores[1].program.code.empty());
  REQUIRE(c.overlays.size() == 2);
  CHECK(c.overlays[0].name == "products");
  CHECK(c.overlays[0].bytes == 8192);
  CHECK(c.overlays[0].counters == 65000);
  CHECK(c.overlays[0].program.code.size() == 4);
  CHECK(c.overlays[0].program.counters == 2);
  CHECK(c.overlays[1].name == "norm");
  CHECK(c.overlays[1].program.code.empty());
  CHECK(c.txn.size() == txn().size());
  CHECK_THROWS_AS(c.param("tile_k"), Error);
  CHECK_THROWS_AS(c.port("B0"), Error);
}

TEST_CASE("the head may share a line") {
  const Configuration c = parse(
      with_txn("npu-config 1\nname a generation npu1   source b\n", txn(arch::Generation::kNpu1)));
  CHECK(c.name == "a");
  CHECK(c.source == "b");
  CHECK(c.generation == arch::Generation::kNpu1);
}

TEST_CASE("the head must be complete and come first") {
  CHECK(contains(refusal(""), "line 1: the file ends"));
  CHECK(contains(refusal("npu-config 2\n"), "line 1: expected \"npu-config 1\""));
  CHECK(contains(refusal(kHead), "line 5: the file ends before \"txn BYTES\""));
  CHECK(contains(refusal(kHead + "param a 1"), "ends inside a line"));
  CHECK(
      contains(refusal(with_txn("npu-config 1\nname a\nsource b\n")), "\"generation\" is missing"));
  CHECK(contains(refusal(with_txn("npu-config 1\nname a\ngeneration npu1\n")),
                 "\"source\" is missing"));
  CHECK(contains(refusal(with_txn("npu-config 1\nport A0 0 mm2s 0\n")), "line 2: \"name\""));
  CHECK(contains(line_refusal("name other"), "line 5: name is given twice"));
  CHECK(contains(refusal("npu-config 1\ngeneration npu3\n"), "use npu1 or npu2"));
  CHECK(contains(refusal("npu-config 1\nname\n"), "expected pairs"));
}

TEST_CASE("errors of entries name the line and the cause") {
  CHECK(contains(line_refusal("color red"), "line 5: unknown entry \"color\""));
  CHECK(contains(line_refusal("param a"), "expected \"param NAME INTEGER\""));
  CHECK(contains(line_refusal("param a 1.5"), "not an integer"));
  CHECK(contains(line_refusal("param a 1\nparam a 1"), "line 6: parameter \"a\" is given twice"));
  CHECK(contains(line_refusal("port A 8 mm2s 0"), "column 8 is out of range 0..7"));
  CHECK(contains(line_refusal("port A 0 mm2s 2"), "channel 2"));
  CHECK(contains(line_refusal("port A 0 out 0"), "use s2mm or mm2s"));
  CHECK(contains(line_refusal("port A 0 mm2s 0\nport A 1 mm2s 0"), "port name is given twice"));
  CHECK(contains(line_refusal("port A 0 mm2s 0\nport B 0 mm2s 0"), "shim channel is given twice"));
  CHECK(contains(line_refusal("rtp a 0 0 0"), "row 0 is out of range 1..5"));
  CHECK(contains(line_refusal("rtp a 0 1 0"), "neither a lock nor the queue of a channel"));
  CHECK(contains(line_refusal("rtp a 0 1 655364"), "nor the length or the iterations of a BD"));
  CHECK(contains(line_refusal("rtp a 0 2 2"), "not a multiple of 4"));
  CHECK(contains(line_refusal("rtp a 0 2 65536"), "out of range"));
  CHECK(contains(line_refusal("rtp a 0 2 0\nrtp a 0 2 4"), "RTP of this core is given twice"));
  CHECK(contains(line_refusal("rtp a 0 2 0\nrtp b 0 2 0"), "RTP word is given twice"));
  CHECK(contains(line_refusal("rtplock 0 2 16"), "lock 16"));
  CHECK(contains(line_refusal("rtplock 0 2 1\nrtplock 0 2 1"), "given twice"));
  CHECK(contains(line_refusal("resource 0 0 bds 17 16"), "use 17 is out of range 0..16"));
  CHECK(contains(line_refusal("resource 0 0 bds 1 16\nresource 0 0 bds 2 16"), "given twice"));
  CHECK(contains(line_refusal("core 0 6"), "row 6"));
  CHECK(contains(line_refusal("core 0 2\nendcore\ncore 0 2\nendcore"), "line 7: this core"));
  CHECK(contains(line_refusal("core 0 2\nloop 2\nendcore"), "core(0,2), line 6 (loop 2)"));
  CHECK(contains(line_refusal("core 0 2\n\nspin"), "endcore is missing"));
  CHECK(contains(line_refusal("core 0 2\n\nspin\nendcore"), "core(0,2), line 7: unknown"));
  CHECK(contains(line_refusal("param a\r 1"), "control byte 0x0d"));
  CHECK(contains(line_refusal(std::string(5000, 'x')), "line 5: longer than 4096"));
  CHECK(contains(line_refusal("param " + std::string(200, 'x') + " 1"), "longer than 128"));
}

TEST_CASE("ports: a channel is one port's, or that of packets with different ids") {
  const char* const twice = "shim channel is given twice";
  CHECK(contains(line_refusal("port A 0 mm2s 0 1\nport B 0 mm2s 0 1"), twice));
  CHECK(contains(line_refusal("port A 0 mm2s 0 0\nport B 0 mm2s 0"), twice));
  CHECK(contains(line_refusal("port A 0 mm2s 0\nport B 0 mm2s 0 31"), twice));
  CHECK(line_refusal("port A 0 mm2s 0 1\nport B 0 mm2s 1 1\nport C 1 mm2s 0 1") == "accepted");
  CHECK(line_refusal("port A 0 mm2s 0 1\nport B 0 s2mm 0") == "accepted");
  CHECK(contains(line_refusal("port A 0 mm2s 0 32"), "line 5: packet id 32 is out of range 0..31"));
  CHECK(contains(line_refusal("port A 0 mm2s 0 -1"), "packet id -1 is out of range"));
  CHECK(contains(line_refusal("port A 0 mm2s 0 x"), "packet id \"x\" is not an integer"));
  CHECK(contains(line_refusal("port A 0 s2mm 0 1"), "only mm2s ports send packets"));
  for (const char* line : {"port A 0 mm2s", "port A 0 mm2s 0 1 2"}) {
    CHECK(contains(line_refusal(line), "expected \"port NAME COL s2mm|mm2s CHANNEL [ID]\""));
  }
}

TEST_CASE("overlays: sizes, counters, names and programs are checked") {
  CHECK(contains(line_refusal("overlay a 16"), "expected \"overlay NAME BYTES COUNTERS\""));
  CHECK(contains(line_refusal("overlay a 24 0\nendoverlay"), "line 5: image size 24 is not a mul"));
  CHECK(
      contains(line_refusal("overlay a 0 0\nendoverlay"), "image size 0 is out of range 16..1638"));
  CHECK(contains(line_refusal("overlay a 16400 0\nendoverlay"), "image size 16400"));
  CHECK(
      contains(line_refusal("overlay a 16 2\nendoverlay"), "counter address 2 is not a multiple"));
  CHECK(contains(line_refusal("overlay a 16 65536\nendoverlay"), "counter address 65536"));
  CHECK(contains(line_refusal("overlay a 16 0\nendoverlay\noverlay a 16 0\nendoverlay"),
                 "line 7: this overlay is given twice"));
  const std::string third = "call f @0%2\nadvance 2 1\nendoverlay";
  CHECK(contains(line_refusal("overlay a 16 65528\n" + third),
                 "line 5: 3 slot counters at address 65528 reach past the 65536 bytes"));
  CHECK(parse(with_txn(kHead + "overlay a 16 65524\n" + third + "\n")).overlays.size() == 1);
  CHECK(contains(line_refusal("overlay a 16 0\nacquire_ge 16 1\nendoverlay"),
                 "overlay \"a\", line 6 (acquire_ge 16 1): lock 16 is out of range"));
  CHECK(
      contains(line_refusal("overlay a 16 0\nspin\nendoverlay"), "overlay \"a\", line 6: unknow"));
  CHECK(contains(line_refusal("overlay a 16 0\ncore 0 2\nendcore"), "endoverlay is missing"));
  CHECK(contains(line_refusal("overlay a 16 0\nendcore"), "endoverlay is missing"));
  CHECK(contains(line_refusal("core 0 2\noverlay a 16 0"), "endcore is missing"));
  CHECK(contains(refusal(kHead + "overlay a 16 0\n"), "line 6: the file ends"));
  CHECK(contains(refusal(with_txn("npu-config 1\nname a generation npu2 source 0123abc\n"
                                  "overlay a 16 0\nendoverlay\n")),
                 "must begin with 8 hexadecimal digits; it is \"0123abc\""));
}

TEST_CASE("columns follow the generation") {
  const std::string head = "npu-config 1\nname a generation npu1 source b\n";
  CHECK(contains(refusal(head + "port A 4 mm2s 0\n"), "column 4 is out of range 0..3"));
}

TEST_CASE("the txn part") {
  CHECK(contains(refusal(kHead + "txn 10\n123"), "announces 10 bytes, 3 follow"));
  CHECK(contains(refusal(kHead + "txn -1\n"), "out of range"));
  CHECK(contains(refusal(with_txn(kHead) + "x"), "follow"));
  CHECK(contains(refusal(kHead + "txn 0\n"), "does not parse: [Stream::parse]"));
  std::string broken = txn();
  broken[16] = 0x77;
  CHECK(contains(refusal(with_txn(kHead, broken)), "unknown opcode 0x77"));
  CHECK(contains(refusal(with_txn(kHead, txn(arch::Generation::kNpu1))), "generation code 3"));
}

TEST_CASE("damaged configurations parse or are refused") {
  const int accepted =
      test::fuzz(with_txn(kHead + kBody), 20000, [](const std::string& text) { parse(text); });
  CHECK(accepted > 100);
}
