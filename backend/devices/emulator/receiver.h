// The receiving side of a DMA channel (S2MM): it offers the room of its running BD. Senders, which
// find it by their routes, put the words there.
#pragma once

#include "devices/emulator/aliasing.h"
#include "devices/emulator/bd_engine.h"

namespace npu::emulator {

class Receiver : public BdEngine {
 public:
  Receiver(Array& array, Tile& tile, int index)
      : BdEngine(array, tile, arch::Direction::kS2MM, index) {}
  Receiver(Array& array, Tile& tile, NoBds ports)
      : BdEngine(array, tile, arch::Direction::kS2MM, ports) {}

  // What a sender asks before a move.
  bool ready() const { return state_ == State::kMove; }
  uint64_t room() const { return current_.left; }    // words
  uint32_t patch() const { return current_.patch; }  // Place::patch
  Walk& walk() { return current_.walk; }
  const Walk& walk() const { return current_.walk; }
  void add_sender(Agent* sender) { add_waiter(senders_, sender); }  // woken when it is ready again
  // Whether these words are a whole tile of a core whose memory may be aliased.
  bool takes_tile(uint64_t words) const;
  // Whether they are a whole object of a memtile that may stay in a block.
  bool takes_object(uint64_t words) const;
  bool fills_range() const;  // its BD writes every word of a range, in any order
  // Whether its memory may alias these words of an argument, which holds them in runs of `run`.
  bool can_alias(uint64_t words, uint64_t run) const;

  // A move: begin, then either words in the walk's places or aliases of them, then accept.
  void begin_move(bool aliased);
  void alias_tile(uint64_t words, const AliasSource& source);
  void alias_next(uint64_t words, std::byte* argument, const BlockRef& packing);
  void accept(uint64_t words);

 private:
  bool transfer() override;
  std::string waiting_for_stream() const override;

  WaitList senders_;  // blocked until this channel is ready again
};

}  // namespace npu::emulator
