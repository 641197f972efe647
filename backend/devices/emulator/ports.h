// Ends of streams that no DMA channel drives: the stream ports of a core (it sends and takes words
// itself) and the TileControl port as a sender (responses to control packets). As senders and
// receivers they follow the rules of DMA channels: a word leaves when its receiver has room. And
// the cascade, the 512-bit link from a core to its southern or eastern neighbour.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "arch/switch_ports.h"
#include "devices/emulator/receiver.h"
#include "devices/emulator/sender.h"

namespace npu::emulator {

// Sends words that it is given, in order; TLAST ends a packet.
class PortSender final : public Sender {
 public:
  PortSender(Array& array, Tile& tile, arch::PortSide side);
  // `then` is woken when all words have been taken; may be null.
  void send(std::vector<uint32_t> words, bool tlast, Agent* then);
  void reset() override;
  std::string name() const override;

 private:
  int slave_port() const override;
  void task_ended() override;
  struct Transfer {
    std::vector<uint32_t> words;
    bool tlast;
    Agent* then;
  };
  void begin();

  const arch::PortSide side_;
  std::deque<Transfer> transfers_;  // the first one runs
};

// The words that a core takes from the stream switch.
class PortReceiver final : public Receiver {
 public:
  PortReceiver(Array& array, Tile& tile) : Receiver(array, tile, BdEngine::NoBds{}) {}
  // Takes so many words; `then` is woken when they are there.
  void take(size_t words, Agent* then);
  std::span<const uint32_t> words() const { return words_; }  // of the last take that ended
  void reset() override;
  std::string name() const override;

 private:
  void task_ended() override;

  std::vector<uint32_t> words_;
  Agent* then_ = nullptr;
};

// The input side of a core's cascade. The hardware stores two words at each end of the link.
struct Cascade {
  static constexpr size_t kDepth = 4, kWords = 16;  // 512 bits on both generations
  std::deque<std::array<uint32_t, kWords>> values;
  WaitList waiters;  // for a value or for room
};

// Of one tile; cores alone have stream ports and a cascade.
struct Ports {
  Ports(Array& array, Tile& tile)
      : control(array, tile, arch::PortSide::kControl),
        core_out(array, tile, arch::PortSide::kCore),
        core_in(array, tile) {}
  void reset() {
    control.reset();
    core_out.reset();
    core_in.reset();
    cascade = {};
  }

  PortSender control, core_out;
  PortReceiver core_in;
  Cascade cascade;
};

}  // namespace npu::emulator
