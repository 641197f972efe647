// The sending side of a DMA channel (MM2S): it pairs with every Receiver its route reaches and
// moves as many words at once as all of them have room for. Streams hold no words of their own: the
// FIFOs of switches and DMAs (a few words per hop) are not modelled, so a BD's data leaves its
// memory only when every receiver runs a BD with room for it. A program that needs that slack to
// progress deadlocks here; one that runs here does not need it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "devices/emulator/aliasing.h"
#include "devices/emulator/bd_engine.h"
#include "devices/emulator/control_port.h"
#include "devices/emulator/receiver.h"
#include "devices/emulator/stream_switch.h"

namespace npu::emulator {

class ActionLog;

class Sender : public BdEngine {
 public:
  Sender(Array& array, Tile& tile, int index)
      : BdEngine(array, tile, arch::Direction::kMM2S, index) {}
  Sender(Array& array, Tile& tile, NoBds ports)
      : BdEngine(array, tile, arch::Direction::kMM2S, ports) {}

  void reset() override;  // and the packet
  std::optional<Rest> rest() const override;
  void execute() override;
  void complete() override;
  void start(Timeline& timeline) override;
  // Whether it has sent a part of a transfer to control ports, which TLAST has not ended.
  bool within_control() const { return !control_words_.empty(); }

 private:
  friend class Recorder;
  // From header to TLAST.
  struct Packet {
    bool open = false;
    bool header_pending = false;  // receivers that keep the header have not got it yet
    uint32_t header = 0;
  };
  // What a sender in kMove waits for: a receiver, an arbiter of a tile, or a route.
  struct Blocked {
    const Receiver* receiver = nullptr;
    const Tile* tile = nullptr;
    int arbiter = 0;
    bool routeless = false;  // Array::wait_for_route
  };

  // Contiguous words of an argument.
  struct Piece {
    std::byte* data;
    uint64_t words;
  };

  bool transfer() override;
  bool has_work_left() const override { return current_.left > 0 || packet_.header_pending; }
  void prepare_transfer(const Memory& memory) override;
  void end_of_data() override;
  bool stream_crosses() const override;
  std::string waiting_for_stream() const override;

  virtual int slave_port() const;
  uint32_t packet_header() const;
  bool route_stands() const;
  bool open_route();  // false while an arbiter is taken
  std::shared_ptr<const Route> find_route(uint32_t header);
  void open_packet(uint32_t header, bool header_in_data);
  bool take_arbiters(const Route& route);
  void close_packet();
  bool receivers_ready(uint64_t* words);
  bool begin_move(uint64_t words);
  void finish_move();
  void locate(uint64_t words);
  bool fills_whole_tiles(uint64_t words) const;
  bool can_share(uint64_t words) const;
  bool can_keep(uint64_t words) const;
  bool can_hand_on(uint64_t words) const;
  bool alias_argument(uint64_t words);
  void log_move(ActionLog& log) const;
  void move_header();
  // Control ports (control_port.h) take words as fast as they come. A transfer to them is one BD up
  // to TLAST, or several of which all but the last suppress it.
  bool begin_control();
  void parse_control();
  void log_control(ActionLog& log) const;
  void finish_control();
  bool to_control() const { return route_ && !route_->controls.empty(); }
  const std::byte* copy_words(Walk& to);
  Receiver& first_receiver() const { return *route_->sinks[0].receiver; }

  std::shared_ptr<const Route> route_;
  // Routes of packets, by their headers: a program is loaded by a thousand of them.
  std::vector<std::pair<uint32_t, std::shared_ptr<const Route>>> packet_routes_;
  Packet packet_;
  uint64_t move_words_ = 0;  // of the posted job
  // What its receivers' memories alias instead of being written: pieces of an argument (with a
  // block for their packed form), or a block.
  std::vector<Piece> pieces_;
  BlockRef block_;
  BlockRef source_;                // holds the next words
  bool whole_ = false;             // they are all of its alias
  bool constant_ = false;          // the next words lie in an argument that nothing writes
  bool padded_ = false;            // they have been staged
  std::vector<std::byte> staged_;  // padded or gathered data
  // On their way to control ports: the words of a transfer so far, and what they say.
  std::vector<uint32_t> control_words_;
  std::vector<ControlAccess> control_accesses_;
  Blocked blocked_;
};

}  // namespace npu::emulator
