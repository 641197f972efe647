// Routes through the stream switches, found from the switch registers alone (hardware.md section
// 3): circuit-switched masters name a slave; packet-switched slaves match the header and pick an
// arbiter.
#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "arch/switch_ports.h"
#include "devices/emulator/array.h"
#include "devices/emulator/ports.h"
#include "devices/emulator/sender.h"
#include "devices/emulator/tile.h"
#include "error.h"

namespace npu::emulator {

using arch::PortRange;
using arch::TileKind;
using Side = arch::PortSide;

namespace {

struct Port {
  Side side;
  int lane;
};

Port port_of(TileKind kind, bool master, int number) {
  for (const PortRange& range : arch::port_ranges(kind, master)) {
    if (number >= range.first && number < range.first + range.count) {
      return {range.side, number - range.first};
    }
  }
  return {Side::kOther, number};
}

int port_number(TileKind kind, bool master, Side side, int lane) {
  for (const PortRange& range : arch::port_ranges(kind, master)) {
    if (range.side == side && lane < range.count) return range.first + lane;
  }
  return -1;
}

// To the tile that master ports of a side lead to, and the side by which their words enter it.
struct Step {
  int dx = 0, dy = 0;
  Side enters = Side::kOther;
};

Step step_of(Side side) {
  switch (side) {
    case Side::kSouth:
      return {0, -1, Side::kNorth};
    case Side::kNorth:
      return {0, 1, Side::kSouth};
    case Side::kWest:
      return {-1, 0, Side::kEast};
    case Side::kEast:
      return {1, 0, Side::kWest};
    default:
      return {};
  }
}

const char* side_name(Side side) {
  switch (side) {
    case Side::kDma:
      return "DMA";
    case Side::kSouth:
      return "South";
    case Side::kWest:
      return "West";
    case Side::kNorth:
      return "North";
    case Side::kEast:
      return "East";
    case Side::kControl:
      return "TileControl";
    case Side::kCore:
      return "Core";
    case Side::kOther:
      break;  // or a trace port, as a slave
  }
  return "FIFO";
}

}  // namespace

int switch_ports(TileKind kind, bool master) {
  const PortRange& last = arch::port_ranges(kind, master).back();
  return last.first + last.count;
}

namespace {

constexpr uint32_t kPacketIds = 32;

// The first slot of a slave port that takes packets with this header, or null.
const uint32_t* matching_slot(const StreamSwitch& sw, int slave, uint32_t header) {
  for (const uint32_t& slot : sw.slot[static_cast<size_t>(slave)]) {
    const uint32_t mask = slot >> 16 & 0x1F, id = slot >> 24 & 0x1F;
    if ((slot >> 8 & 1) && (header & mask) == (id & mask)) return &slot;
  }
  return nullptr;
}

// Depth-first walk from a slave port to every S2MM channel or control port it feeds.
class Tracer {
 public:
  Tracer(Array& array, const Sender& sender, uint32_t header)
      : array_(array), sender_(sender), header_(header) {}

  void slave(Tile& tile, int port, bool keeps_header) {
    const Port where = port_of(tile.geometry.kind, false, port);
    const uint32_t config = tile.stream_switch.slave[static_cast<size_t>(port)];
    if (!(config >> 31)) {
      dead_end(tile, strf("slave port %s %d is not enabled", side_name(where.side), where.lane));
    }
    const bool packet = config >> 30 & 1;
    bool any = false;
    int arbiter = -1, msel = -1;
    if (packet) match(tile, port, &arbiter, &msel);
    if (packet) hold(tile, arbiter);
    for (int m = 0; m < switch_ports(tile.geometry.kind, true); ++m) {
      const uint32_t master = tile.stream_switch.master[static_cast<size_t>(m)];
      if (!(master >> 31) || (master >> 30 & 1) != packet) continue;
      if (packet ? static_cast<int>(master & 7) != arbiter || !(master >> (3 + msel) & 1)
                 : static_cast<int>(master & 0x1F) != port) {
        continue;
      }
      any = true;
      const bool drops = packet && (master >> 7 & 1);
      follow(tile, m, keeps_header && !drops);
    }
    if (!any) {
      dead_end(tile,
               strf("no master port takes slave port %s %d", side_name(where.side), where.lane));
    }
  }

  Route route;

 private:
  [[noreturn]] void dead_end(const Tile& tile, const std::string& why) {
    sender_.error(
        ErrorKind::kNoConsumer,
        strf("sends on a route that ends in %s, where %s; every branch must reach an S2MM "
             "channel, a core or a TileControl port",
             tile.name().c_str(), why.c_str()));
  }

  void match(Tile& tile, int port, int* arbiter, int* msel) {
    if (const uint32_t* slot = matching_slot(tile.stream_switch, port, header_)) {
      *arbiter = static_cast<int>(*slot & 7);
      *msel = static_cast<int>(*slot >> 4 & 3);
      return;
    }
    const Port where = port_of(tile.geometry.kind, false, port);
    dead_end(tile, strf("no slot of slave port %s %d matches packet id %u", side_name(where.side),
                        where.lane, header_ & 0x1F));
  }

  // A packet that meets an arbiter it already holds would wait for itself. This check also ends
  // every loop: a slave port is fed by one master, and that by one slave port or one arbiter, so a
  // walk can reach a port twice only through an arbiter.
  void hold(Tile& tile, int arbiter) {
    for (const auto& [other, number] : route.arbiters) {
      if (other != &tile || number != arbiter) continue;
      sender_.error(
          ErrorKind::kNoConsumer,
          strf("sends packets on a route that meets itself at arbiter %d of %s (a loop, or "
               "branches that join); separate them",
               arbiter, tile.name().c_str()));
    }
    route.arbiters.push_back({&tile, arbiter});
  }

  void follow(Tile& tile, int master, bool keeps_header) {
    const Port out = port_of(tile.geometry.kind, true, master);
    switch (out.side) {
      case Side::kDma:
        return sink(tile, out.lane, keeps_header);
      case Side::kSouth:
        if (tile.geometry.kind == TileKind::kShim) return shim_sink(tile, out.lane, keeps_header);
        break;
      case Side::kNorth:
      case Side::kWest:
      case Side::kEast:
        break;
      case Side::kControl:
        return control(tile, keeps_header);
      case Side::kCore:
        route.sinks.push_back({&tile.ports->core_in, keeps_header});
        return;
      case Side::kOther:
        sender_.error(ErrorKind::kUnsupported,
                      strf("sends on a route that reaches the %s %d port of %s; only DMA channels, "
                           "cores and TileControl ports are modelled as consumers",
                           side_name(out.side), out.lane, tile.name().c_str()));
    }
    const Step step = step_of(out.side);
    Tile* next = array_.find_tile(tile.col + step.dx, tile.row + step.dy);
    if (!next) {
      dead_end(tile,
               strf("master port %s %d leads out of the array", side_name(out.side), out.lane));
    }
    const int port = port_number(next->geometry.kind, false, step.enters, out.lane);
    if (port < 0) {
      dead_end(tile, strf("master port %s %d has no counterpart in %s", side_name(out.side),
                          out.lane, next->name().c_str()));
    }
    slave(*next, port, keeps_header);
  }

  void sink(Tile& tile, int channel, bool keeps_header) {
    route.sinks.push_back({tile.receivers[static_cast<size_t>(channel)].get(), keeps_header});
  }

  void control(Tile& tile, bool keeps_header) {
    if (!keeps_header) {
      sender_.error(ErrorKind::kUnsupported,
                    strf("sends on a route that drops packet headers before the TileControl port "
                         "of %s, which needs them; keep them in all master ports on the way",
                         tile.name().c_str()));
    }
    route.controls.push_back(&tile);
  }

  // South masters of a shim tile leave through the demux.
  void shim_sink(Tile& tile, int lane, bool keeps_header) {
    for (int channel = 0; channel < tile.geometry.channels; ++channel) {
      const arch::ShimDmaPort& port = arch::shim_dma_port(arch::Direction::kS2MM, channel);
      if (port.lane != lane || (tile.shim_demux >> port.shift & 3) != 1) continue;
      return sink(tile, channel, keeps_header);
    }
    dead_end(tile, strf("South %d is not connected to the DMA (demux 0x1F004 = 0x%08x)", lane,
                        tile.shim_demux));
  }

  Array& array_;
  const Sender& sender_;
  uint32_t header_;
};

}  // namespace

Route Array::trace(const Sender& sender, int slave_port, uint32_t header) {
  Tracer tracer(*this, sender, header);
  const Tile& from = sender.tile();
  tracer.slave(*find_tile(from.col, from.row), slave_port, true);
  Route route = std::move(tracer.route);
  route.epoch = switch_epoch_;
  if (!route.controls.empty() && !route.sinks.empty()) {
    sender.error(ErrorKind::kUnsupported,
                 strf("sends on a route that reaches both %s and the TileControl port of %s; "
                      "separate data from control packets",
                      route.sinks[0].receiver->name().c_str(), route.controls[0]->name().c_str()));
  }
  route.crosses = !route.arbiters.empty() || !route.controls.empty();
  for (const Route::Sink& sink : route.sinks) {
    const Tile& to = sink.receiver->tile();
    route.crosses |= to.col != from.col;
    route.reaches_memtile |= to.geometry.kind == TileKind::kMem;
  }
  return route;
}

namespace {

// Slave ports by which a tile's trace units enter its switch (hardware.md 3.2).
bool is_trace_port(TileKind kind, int slave) {
  switch (kind) {
    case TileKind::kCore:
      return slave == 23 || slave == 24;
    case TileKind::kMem:
      return slave == 17;
    case TileKind::kShim:
      break;
  }
  return slave == 22;
}

// Whether a master takes words of a slave port: a packet with this header, if it takes packets.
bool feeds(const StreamSwitch& sw, int slave, int master, uint32_t header) {
  const uint32_t in = sw.slave[static_cast<size_t>(slave)];
  const uint32_t out = sw.master[static_cast<size_t>(master)];
  if (!(in >> 31) || !(out >> 31) || (in >> 30 & 1) != (out >> 30 & 1)) return false;
  if (!(in >> 30 & 1)) return static_cast<int>(out & 0x1F) == slave;
  const uint32_t* slot = matching_slot(sw, slave, header);
  return slot && (*slot & 7) == (out & 7) && (out >> (3 + (*slot >> 4 & 3)) & 1);
}

struct Sources {
  bool traces = false, data = false;
};

// What the switches lead from to a master port; header: of the packets, where they switch those.
void find_sources(const Array& array, const Tile& tile, int master, uint32_t header, Sources* all) {
  std::vector<std::pair<const Tile*, int>> masters{{&tile, master}};
  for (size_t i = 0; i < masters.size(); ++i) {
    const auto [at, out] = masters[i];
    const TileKind kind = at->geometry.kind;
    for (int slave = 0; slave < switch_ports(kind, false); ++slave) {
      if (!feeds(at->stream_switch, slave, out, header)) continue;
      const Port in = port_of(kind, false, slave);
      const Step step = step_of(in.side);
      const Tile* from = array.find_tile(at->col + step.dx, at->row + step.dy);
      if (is_trace_port(kind, slave)) {
        all->traces = true;
      } else if (in.side == Side::kDma || in.side == Side::kCore || in.side == Side::kControl ||
                 (in.side == Side::kSouth && !from)) {  // a shim's DMA
        all->data = true;
      } else if (from && from != at) {
        const std::pair next{from, port_number(from->geometry.kind, true, step.enters, in.lane)};
        if (next.second >= 0 && std::ranges::find(masters, next) == masters.end()) {
          masters.push_back(next);
        }
      }
    }
  }
}

}  // namespace

bool Array::receives_no_data(const Tile& shim, int channel) const {
  if (waits_required_) return false;
  const arch::ShimDmaPort& dma = arch::shim_dma_port(arch::Direction::kS2MM, channel);
  const int master = port_number(TileKind::kShim, true, Side::kSouth, dma.lane);
  const bool enabled = shim.stream_switch.master[static_cast<size_t>(master)] >> 31;
  if (!enabled || (shim.shim_demux >> dma.shift & 3) != 1) return true;
  Sources sources;
  for (uint32_t id = 0; id < kPacketIds; ++id) find_sources(*this, shim, master, id, &sources);
  return sources.traces && !sources.data;
}

}  // namespace npu::emulator
