// Control packets as tiles execute them (control_port.h).
#include "devices/emulator/control_port.h"

#include "arch/control_packet.h"
#include "devices/emulator/array.h"
#include "devices/emulator/sender.h"
#include "error.h"
#include "runtime/overlay.h"

namespace npu::emulator {

namespace {

constexpr uint32_t kOffsetEnd = 1u << 20;  // of a tile's registers

class Parser {
 public:
  Parser(std::span<const uint32_t> words, arch::Generation generation, const Sender& sender)
      : words_(words), generation_(generation), sender_(sender) {}

  std::vector<ControlWrite> parse() {
    while (at_ < words_.size()) {
      if (at_ > 0 && generation_ == arch::Generation::kNpu1) {
        bad(ErrorKind::kUnsupported,
            "a second packet; npu1 takes one packet per transfer, so send each with a BD of its "
            "own");
      }
      packet();
    }
    return std::move(writes_);
  }

 private:
  [[noreturn]] void bad(ErrorKind kind, const std::string& what) const {
    sender_.error(kind, strf("sends to a TileControl port, at word %zu of %zu of a transfer, %s",
                             at_, words_.size(), what.c_str()));
  }

  // The next word, whose parity must be odd.
  uint32_t checked(const char* what) {
    if (at_ == words_.size()) {
      bad(ErrorKind::kFormat, strf("the end of the transfer where %s should be", what));
    }
    const uint32_t word = words_[at_];
    if (!arch::has_odd_parity(word)) {
      bad(ErrorKind::kFormat,
          strf("0x%08x where %s should be, whose parity is even; bit 31 makes it odd", word, what));
    }
    return word;
  }

  void packet() {
    const uint32_t header = checked("a packet header");
    if ((header & arch::kHeaderReserved) != 0) {
      bad(ErrorKind::kFormat,
          strf("0x%08x where a packet header should be, with reserved bits 0x%08x set; check the "
               "lengths of the packets before",
               header, header & arch::kHeaderReserved));
    }
    ++at_;
    const arch::ControlWord control = arch::decode_control_word(checked("a control word"));
    if (control.operation != arch::ControlOperation::kWrite) {
      bad(ErrorKind::kUnsupported,
          strf("a control word 0x%08x with operation %d; only writes (0) are modelled", words_[at_],
               static_cast<int>(control.operation)));
    }
    if (control.offset % 4 != 0 || control.offset + 4 * control.count > kOffsetEnd) {
      bad(ErrorKind::kMisaligned,
          strf(
              "a control word 0x%08x that writes %u words at offset 0x%05x of the tile; it must be "
              "a multiple of 4 inside the tile",
              words_[at_], control.count, control.offset));
    }
    ++at_;
    if (words_.size() - at_ < control.count) {
      bad(ErrorKind::kFormat, strf("%zu of the %u data words of a packet before the transfer ends",
                                   words_.size() - at_, control.count));
    }
    const std::span<const uint32_t> data = words_.subspan(at_, control.count);
    at_ += control.count;
    if (writes_.empty() ||
        writes_.back().offset + 4 * writes_.back().words.size() != control.offset) {
      writes_.push_back({control.offset, {}});
    }
    writes_.back().words.insert(writes_.back().words.end(), data.begin(), data.end());
  }

  std::span<const uint32_t> words_;
  arch::Generation generation_;
  const Sender& sender_;
  size_t at_ = 0;
  std::vector<ControlWrite> writes_;
};

}  // namespace

std::vector<ControlWrite> parse_control_packets(std::span<const uint32_t> words,
                                                arch::Generation generation, const Sender& sender) {
  return Parser(words, generation, sender).parse();
}

namespace {

// Names the sender in errors until the end, whatever is thrown.
class Naming {
 public:
  Naming(const Sender*& named, const Sender& sender) : named_(named) { named_ = &sender; }
  ~Naming() { named_ = nullptr; }
  Naming(const Naming&) = delete;
  Naming& operator=(const Naming&) = delete;

 private:
  const Sender*& named_;
};

}  // namespace

// The first word of a transfer may reset a core long before the last one arrives.
void Array::begin_control(const Sender& sender, std::span<Tile* const> ports,
                          std::span<const ControlWrite> writes) {
  const Naming naming(control_sender_, sender);
  for (const ControlWrite& write : writes) {
    const size_t at = (size_t{kCoreControl} - write.offset) / 4;  // wraps around if it lies before
    if (at >= write.words.size() || (write.words[at] & kCoreReset) == 0) continue;
    for (const Tile* const port : ports) {
      if (port->core) port->core->check_reset();
    }
  }
}

void Array::control(const Sender& sender, std::span<Tile* const> ports,
                    std::span<const ControlWrite> writes) {
  const Naming naming(control_sender_, sender);
  for (const ControlWrite& write : writes) {
    for (Tile* const port : ports) write_registers(*port, write.offset, write.words);
  }
}

}  // namespace npu::emulator
