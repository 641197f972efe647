// Images of overlays and the control packets that load them (overlay.h).
#include "runtime/overlay.h"

#include <algorithm>
#include <charconv>

#include "arch/control_packet.h"
#include "error.h"
#include "runtime/device.h"

namespace npu {

namespace {

constexpr uint32_t kMagic = 0x5855504E;  // "NPUX", first letter in the low byte

struct Packets {
  bool headers;
  std::vector<uint32_t> words;

  void append(uint32_t offset, std::span<const uint32_t> data) {
    if (headers) words.push_back(arch::packet_header(0));
    words.push_back(arch::encode_control_word(
        {arch::ControlOperation::kWrite, static_cast<uint32_t>(data.size()), offset}));
    words.insert(words.end(), data.begin(), data.end());
  }
};

// Where a word of an image is wrong, it shall not look right: a finalizer of MurmurHash3.
uint32_t mixed(uint32_t value) {
  value = (value ^ value >> 16) * 0x85ebca6bu;
  value = (value ^ value >> 13) * 0xc2b2ae35u;
  return value ^ value >> 16;
}

void check_overlay(const Configuration& configuration, size_t overlay) {
  if (overlay < configuration.overlays.size()) return;
  fail(ErrorKind::kArgument,
       "[overlay_image] overlay %zu was asked for; configuration \"%s\" has %zu", overlay,
       configuration.name.c_str(), configuration.overlays.size());
}

}  // namespace

OverlayMark overlay_mark(const Configuration& configuration, size_t overlay) {
  uint32_t hash = 0;  // the parser has made sure that there are eight hexadecimal digits
  const char* const digits = configuration.source.data();
  std::from_chars(digits, digits + std::min<size_t>(configuration.source.size(), 8), hash, 16);
  return {kMagic, static_cast<uint32_t>(overlay), hash};
}

std::vector<uint32_t> stand_in(const Configuration& configuration, size_t overlay) {
  check_overlay(configuration, overlay);
  const OverlayMark mark = overlay_mark(configuration, overlay);
  std::vector<uint32_t> image(configuration.overlays[overlay].bytes / 4);
  std::copy(mark.begin(), mark.end(), image.begin());
  for (size_t i = mark.size(); i < image.size(); ++i) {
    image[i] = mixed(mark[2] + static_cast<uint32_t>(overlay << 16 | i));
  }
  return image;
}

std::vector<uint32_t> overlay_image(const Configuration& configuration, size_t overlay) {
  check_overlay(configuration, overlay);
  const std::vector<uint32_t>& own = configuration.overlays[overlay].image;
  return own.empty() ? stand_in(configuration, overlay) : own;
}

Configuration with_images(Device& device, Configuration configuration) {
  for (size_t i = 0; i < configuration.overlays.size(); ++i) {
    configuration.overlays[i].image = device.overlay_image(configuration, i);
  }
  return configuration;
}

std::vector<uint32_t> control_packets(std::span<const uint32_t> image, bool headers) {
  if (image.empty() || image.size() % arch::kMaxControlWords != 0 ||
      image.size() > kProgramMemoryBytes / 4) {
    fail(ErrorKind::kArgument,
         "[control_packets] an image of %zu words was given; program memory takes a multiple of "
         "%u, at most %u",
         image.size(), arch::kMaxControlWords, kProgramMemoryBytes / 4);
  }
  static_assert(kRoundWords == 1 + int64_t{arch::kMaxControlWords});
  Packets packets{headers, {}};
  packets.append(kCoreControl, std::span(&kCoreReset, 1));
  for (size_t at = 0; at < image.size(); at += arch::kMaxControlWords) {
    packets.append(kProgramMemory + static_cast<uint32_t>(4 * at),
                   image.subspan(at, arch::kMaxControlWords));
  }
  packets.append(kCoreControl, std::span(&kCoreEnable, 1));
  return std::move(packets.words);
}

}  // namespace npu
