// Images of overlays and the control packets that load them, word by word: the fields are put
// together and the parities counted here, bit by bit.
#include <doctest/doctest.h>

#include <numeric>
#include <set>
#include <string>

#include "emulator_fixture.h"
#include "runtime/device.h"
#include "runtime/overlay.h"
#include "stream/txn.h"

using namespace npu;
using test::Words;

namespace {

int set_bits(uint32_t word) {
  int count = 0;
  for (int bit = 0; bit < 32; ++bit) count += static_cast<int>(word >> bit & 1);
  return count;
}

// The word as it is, or with its highest bit, whichever has an odd number of bits.
uint32_t odd(uint32_t word) { return set_bits(word) % 2 == 1 ? word : word + 0x80000000u; }

Configuration two_overlays() {
  const Words txn = stream::Builder(arch::Generation::kNpu2, 8).finish();
  std::string text =
      "npu-config 1\nname a generation npu2 source 0123abcdef\n"
      "overlay first 32 0\nendoverlay\noverlay second 16384 4\nendoverlay\ntxn " +
      std::to_string(4 * txn.size()) + "\n";
  text.append(reinterpret_cast<const char*>(txn.data()), 4 * txn.size());
  return Configuration::parse(std::as_bytes(std::span(text)));
}

}  // namespace

TEST_CASE("overlay image: a stand-in is a mark, then words that are all different") {
  const Configuration c = two_overlays();
  const Words first = overlay_image(c, 0), second = overlay_image(c, 1);
  REQUIRE(first.size() == 8);
  CHECK(Words(first.begin(), first.begin() + 3) == Words{0x5855504E, 0, 0x0123abcd});
  REQUIRE(second.size() == 4096);
  CHECK(second[1] == 1);
  CHECK(std::string(reinterpret_cast<const char*>(second.data()), 4) == "NPUX");
  std::set<uint32_t> words(first.begin() + 3, first.end());
  words.insert(second.begin() + 3, second.end());
  CHECK(words.size() == 5 + 4093);
  CHECK(words.count(0) == 0);
  test::check_error(ErrorKind::kArgument, {"[overlay_image]", "overlay 2", "has 2"},
                    [&] { overlay_image(c, 2); });
}

namespace {

// A device with machine code of its own: words counted from its number on.
class Own final : public Device {
 public:
  explicit Own(uint32_t number) : number_(number) {}
  DeviceInfo info() const override {
    DeviceInfo own;
    own.name = "own";
    return own;
  }
  std::unique_ptr<Buffer> allocate(size_t) override { return nullptr; }
  size_t extra = 0;  // words

 protected:
  void do_load(const Configuration&) override {}
  std::unique_ptr<Run> do_submit(std::shared_ptr<const PreparedStream>,
                                 std::span<const BufferRef>) override {
    return nullptr;
  }
  std::vector<uint32_t> do_overlay_image(const Configuration& configuration,
                                         size_t overlay) override {
    Words image(configuration.overlays[overlay].bytes / 4 + extra);
    std::iota(image.begin(), image.end(), number_ + static_cast<uint32_t>(1000 * overlay));
    return image;
  }

 private:
  uint32_t number_;
};

}  // namespace

TEST_CASE("overlay image: a device's own, of the size that streams load") {
  const Configuration c = two_overlays();
  Own first(50), second(70000);
  CHECK(first.overlay_image(c, 0) == Words{50, 51, 52, 53, 54, 55, 56, 57});
  const Configuration of_first = with_images(first, c), of_second = with_images(second, c);
  CHECK(overlay_image(of_first, 1).front() == 1050);
  CHECK(overlay_image(of_second, 1).front() == 71000);
  CHECK(overlay_image(c, 1) == stand_in(c, 1));  // unchanged
  CHECK(stand_in(of_first, 1) == stand_in(c, 1));
  test::check_error(ErrorKind::kArgument, {"[overlay_image]", "overlay 2", "has 2"},
                    [&] { (void)first.overlay_image(c, 2); });
  for (const size_t extra : {size_t{1}, ~size_t{0}}) {
    first.extra = extra;
    test::check_error(ErrorKind::kDevice,
                      {extra == 1 ? "device \"own\" gave 36 bytes" : "device \"own\" gave 28 bytes",
                       "[overlay_image]", "\"first\"", "\"a\"", "load 32; build"},
                      [&] { (void)first.overlay_image(c, 0); });
  }
}

TEST_CASE("overlay packets: reset, program memory four words at a time, enable") {
  const Words image{11, 12, 13, 14, 15, 16, 17, 18};
  const Words packets = control_packets(image);
  const Words expected{odd(0), odd(0x32000),           2,               //
                       odd(0), odd(3 << 20 | 0x20000), 11, 12, 13, 14,  //
                       odd(0), odd(3 << 20 | 0x20010), 15, 16, 17, 18,  //
                       odd(0), odd(0x32000),           1};
  CHECK(packets == expected);
  // Without headers, for BDs that insert them: a packet is a control word and its data.
  const Words bare{odd(0x32000),           2,               //
                   odd(3 << 20 | 0x20000), 11, 12, 13, 14,  //
                   odd(3 << 20 | 0x20010), 15, 16, 17, 18,  //
                   odd(0x32000),           1};
  CHECK(control_packets(image, false) == bare);
  CHECK(bare.size() == 2 * kSwitchWords + 2 * kRoundWords);
  CHECK(odd(0) == 0x80000000u);  // id 0, type 0: only the parity
  CHECK(odd(0x32000) == 0x32000u);
  CHECK(odd(3 << 20 | 0x20010) == 0x80320010u);
  CHECK(control_packets(Words(4096)).size() == 3 + 1024 * 6 + 3);
  for (const size_t wrong : {size_t{0}, size_t{6}, size_t{4100}}) {
    test::check_error(ErrorKind::kArgument, {"[control_packets]", "a multiple of 4, at most 4096"},
                      [&] { control_packets(Words(wrong)); });
  }
}
