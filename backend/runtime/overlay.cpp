// Images of overlays and the control packets that load them (overlay.h).
#include "runtime/overlay.h"

#include <algorithm>
#include <charconv>

#include "arch/control_packet.h"
#include "error.h"

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

}  // namespace

OverlayMark overlay_mark(const Configuration& configuration, size_t overlay) {
  uint32_t hash = 0;  // the parser has made sure that there are eight hexadecimal digits
  const char* const digits = configuration.source.data();
  std::from_chars(digits, digits + std::min<size_t>(configuration.source.size(), 8), hash, 16);
  return {kMagic, static_cast<uint32_t>(overlay), hash};
}

std::vector<uint32_t> overlay_image(const Configuration& configuration, size_t overlay) {
  if (overlay >= configuration.overlays.size()) {
    fail(ErrorKind::kArgument,
         "[overlay_image] overlay %zu was asked for; configuration \"%s\" has %zu", overlay,
         configuration.name.c_str(), configuration.overlays.size());
  }
  const OverlayMark mark = overlay_mark(configuration, overlay);
  std::vector<uint32_t> image(configuration.overlays[overlay].bytes / 4);
  std::copy(mark.begin(), mark.end(), image.begin());
  return image;
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
