// Control packets as tiles execute them (control_port.h).
#include "devices/emulator/control_port.h"

#include "arch/control_packet.h"
#include "devices/emulator/array.h"
#include "devices/emulator/ports.h"
#include "devices/emulator/replay/action_log.h"
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

  std::vector<ControlAccess> parse() {
    while (at_ < words_.size()) {
      if (at_ > 0 && generation_ == arch::Generation::kNpu1) {
        bad(ErrorKind::kUnsupported,
            "a second packet; npu1 takes one packet per transfer, so send each with a BD of its "
            "own");
      }
      packet();
    }
    return std::move(accesses_);
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
    if (control.offset % 4 != 0 || control.offset + 4 * control.count > kOffsetEnd) {
      bad(ErrorKind::kMisaligned,
          strf("a control word 0x%08x for %u words at offset 0x%05x of the tile; it must be "
               "a multiple of 4 inside the tile",
               words_[at_], control.count, control.offset));
    }
    ++at_;
    if (control.operation == arch::ControlOperation::kRead) {
      accesses_.push_back({control.offset, {}, control.count, control.response});
      return;
    }
    if (words_.size() - at_ < control.count) {
      bad(ErrorKind::kFormat, strf("%zu of the %u data words of a packet before the transfer ends",
                                   words_.size() - at_, control.count));
    }
    const std::span<const uint32_t> data = words_.subspan(at_, control.count);
    at_ += control.count;
    if (accesses_.empty() || accesses_.back().reads > 0 ||
        accesses_.back().offset + 4 * accesses_.back().words.size() != control.offset) {
      accesses_.push_back({control.offset, {}});
    }
    accesses_.back().words.insert(accesses_.back().words.end(), data.begin(), data.end());
  }

  std::span<const uint32_t> words_;
  arch::Generation generation_;
  const Sender& sender_;
  size_t at_ = 0;
  std::vector<ControlAccess> accesses_;
};

}  // namespace

std::vector<ControlAccess> parse_control_packets(std::span<const uint32_t> words,
                                                 arch::Generation generation,
                                                 const Sender& sender) {
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
                          std::span<const ControlAccess> accesses) {
  const Naming naming(control_sender_, sender);
  for (const ControlAccess& access : accesses) {
    const size_t at = (size_t{kCoreControl} - access.offset) / 4;  // wraps around if it lies before
    if (at >= access.words.size() || (access.words[at] & kCoreReset) == 0) continue;
    for (const Tile* const port : ports) {
      if (port->core) port->core->check_reset();
    }
  }
}

namespace {

// Whether it writes program memory or enables and resets a core that runs overlays: their state is
// what runs begin and end with (ControlState).
bool loads_program(const Tile& tile, const ControlAccess& access) {
  if (access.reads > 0 || !tile.core || !tile.core->has_overlays()) return false;
  const auto bytes = static_cast<uint32_t>(4 * access.words.size());
  const auto within = [&](uint32_t begin, uint32_t size) {
    return access.offset >= begin && access.offset + bytes <= begin + size;
  };
  return within(kProgramMemory, kProgramMemoryBytes) || within(kCoreControl, 4);
}

}  // namespace

void Array::control(const Sender& sender, std::span<Tile* const> ports,
                    std::span<const ControlAccess> accesses) {
  const Naming naming(control_sender_, sender);
  for (const ControlAccess& access : accesses) {
    for (Tile* const port : ports) {
      if (log_ && !loads_program(*port, access)) log_->refuse("control packets for registers");
      if (access.reads == 0) {
        write_registers(*port, access.offset, access.words);
      } else {
        respond(*port, access);
      }
    }
  }
}

// A packet of the words read: its header names the tile (hardware.md 3.5).
void Array::respond(Tile& tile, const ControlAccess& access) {
  std::vector<uint32_t> words{arch::packet_header(
      access.response, 0, static_cast<uint32_t>(tile.col), static_cast<uint32_t>(tile.row))};
  for (uint32_t i = 0; i < access.reads; ++i) {
    words.push_back(read_register(arch::tile_address(tile.col, tile.row, access.offset + 4 * i)));
  }
  tile.ports->control.send(std::move(words), true, nullptr);
}

}  // namespace npu::emulator
