// A lowered design: what the array is configured with once. One serialised form, written by
// designs/lowering and read here without Python.
//
// Form: UTF-8 lines up to a line "txn BYTES", then BYTES bytes of the static TXN stream.
//   npu-config 1
//   name NAME     generation npu1|npu2     source SHA256      of the design and the kernel sources
//   param NAME INTEGER                    anything the runtime needs (tile_m, ...)
//   port NAME COL s2mm|mm2s CHANNEL [ID]  a shim channel; ID: what is sent are packets of this id,
//                                         of which ports with other ids may share an MM2S channel
//   rtp NAME COL ROW ADDRESS              an int32 in a core's data memory, or a register of a
//                                         memtile: a lock, or the task queue of a channel
//   rtplock COL ROW LOCK                  the lock that guards a core's RTPs
//   resource COL ROW KIND USED LIMIT      memory, locks, bds, ... (for `npu inspect`); `program` is
//                                         an estimate and may exceed the limit
//   core COL ROW                          then program lines (runtime/program.h) up to endcore
//   overlay NAME BYTES COUNTERS           then program lines up to endoverlay
//
// Overlays are programs of which a core has one at a time in its program memory; streams load them
// (runtime/overlay.h). All cores with an empty program run them. BYTES: of an overlay's image, a
// multiple of 16 that program memory holds. COUNTERS: where the slot counters of the program lie in
// each core's data memory, int32 words, so that they keep their values when another overlay is
// loaded; 0 after the configuration has been loaded. Overlays may share them.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arch/geometry.h"
#include "runtime/program.h"

namespace npu {

struct Configuration {
  struct Port {
    std::string name;
    int col;
    arch::Direction direction;
    int channel;
    std::optional<uint32_t> packet{};  // id
  };
  struct Rtp {
    std::string name;
    int col, row;
    uint32_t address;
  };
  struct RtpLock {
    int col, row, lock;
  };
  struct Resource {
    int col, row;
    std::string kind;
    int64_t used, limit;
  };
  struct Core {
    int col, row;
    Program program;
  };

  struct Overlay {
    std::string name;
    uint32_t bytes, counters;
    Program program;
    // What program memory holds on the device that this is for (with_images in runtime/overlay.h);
    // empty: the stand-in.
    std::vector<uint32_t> image{};
  };

  // What the hardware artefact built from this design and these kernels is called.
  std::string artefact() const;

  uint64_t id = 0;  // unique per parse(), so that devices can tell configurations apart
  std::string name, source;
  arch::Generation generation = arch::Generation::kNpu2;
  std::map<std::string, int64_t> params;
  std::vector<Port> ports;
  std::vector<Rtp> rtps;
  std::vector<RtpLock> rtp_locks;
  std::vector<Resource> resources;
  std::vector<Core> cores;
  std::vector<Overlay> overlays;
  std::vector<std::byte> txn;

  // Throws Error(kFormat) with the line number and what is wrong.
  static Configuration parse(std::span<const std::byte> bytes);
  // A parameter that must be there; throws Error(kFormat).
  int64_t param(const std::string& key) const;
  // The same; throws for values outside [min, max], too.
  int64_t param(const std::string& key, int64_t min, int64_t max) const;
  // A port that must be there; throws Error(kFormat).
  const Port& port(const std::string& key) const;
};

}  // namespace npu
