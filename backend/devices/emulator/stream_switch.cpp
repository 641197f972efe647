// Routes through the stream switches, found from the switch registers alone (hardware.md section
// 3): circuit-switched masters name a slave; packet-switched slaves match the header and pick an
// arbiter.
#include <algorithm>
#include <cassert>
#include <set>
#include <span>
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
    for (uint32_t slot : tile.stream_switch.slot[static_cast<size_t>(port)]) {
      if (!(slot >> 8 & 1)) continue;
      const uint32_t mask = slot >> 16 & 0x1F, id = slot >> 24 & 0x1F;
      if ((header_ & mask) != (id & mask)) continue;
      *arbiter = static_cast<int>(slot & 7);
      *msel = static_cast<int>(slot >> 4 & 3);
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
std::span<const int> trace_ports(TileKind kind) {
  static constexpr int kCore[] = {23, 24}, kMem[] = {17}, kShim[] = {22};
  switch (kind) {
    case TileKind::kCore:
      return kCore;
    case TileKind::kMem:
      return kMem;
    case TileKind::kShim:
      break;
  }
  return kShim;
}

// Whether a master takes words of a slave port; of some packet, if they are packet-switched.
bool feeds(const StreamSwitch& sw, size_t slave, size_t master) {
  const uint32_t in = sw.slave[slave], out = sw.master[master];
  if (!(in >> 31) || !(out >> 31) || (in >> 30 & 1) != (out >> 30 & 1)) return false;
  if (!(in >> 30 & 1)) return (out & 0x1F) == slave;
  return std::ranges::any_of(sw.slot[slave], [out](uint32_t slot) {
    return (slot >> 8 & 1) && (slot & 7) == (out & 7) && (out >> (3 + (slot >> 4 & 3)) & 1);
  });
}

}  // namespace

// Whether the switches lead from a trace unit to this S2MM channel of a shim tile.
bool Array::receives_trace(const Tile& shim, int channel) const {
  const arch::ShimDmaPort& dma = arch::shim_dma_port(arch::Direction::kS2MM, channel);
  if ((shim.shim_demux >> dma.shift & 3) != 1) return false;
  const std::pair<const Tile*, int> goal{
      &shim, port_number(TileKind::kShim, true, Side::kSouth, dma.lane)};
  std::set<std::pair<const Tile*, int>> seen;  // slave ports
  std::vector<std::pair<const Tile*, int>> open;
  const auto visit = [&](const Tile& tile, int port) {
    if (port >= 0 && seen.insert({&tile, port}).second) open.push_back({&tile, port});
  };
  for (const auto& t : tiles_) {
    for (const int port : trace_ports(t->geometry.kind)) visit(*t, port);
  }
  while (!open.empty()) {
    const auto [tile, slave] = open.back();
    open.pop_back();
    const TileKind kind = tile->geometry.kind;
    for (int m = 0; m < switch_ports(kind, true); ++m) {
      if (!feeds(tile->stream_switch, static_cast<size_t>(slave), static_cast<size_t>(m))) continue;
      if (std::pair(tile, m) == goal) return true;
      const Port out = port_of(kind, true, m);
      const Step step = step_of(out.side);
      if (step.dx == 0 && step.dy == 0) continue;
      const Tile* next = find_tile(tile->col + step.dx, tile->row + step.dy);
      if (next) visit(*next, port_number(next->geometry.kind, false, step.enters, out.lane));
    }
  }
  return false;
}

}  // namespace npu::emulator
