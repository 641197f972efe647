// A core as an agent: what the rest of the array sees of one. ProgramCore (program_core.h)
// interprets worker programs, DrivenCore (driven_core.h) performs operations that a callback names
// one by one.
#pragma once

#include <cstdint>
#include <string>

#include "devices/emulator/agent.h"
#include "devices/emulator/tile.h"
#include "error.h"

namespace npu::emulator {

class Core : public Agent {
 public:
  Core(Array& array, Tile& tile) : Agent(tile.col), array_(array), tile_(tile) {}

  // A write to Core_Control: `value` has the bits of kCoreEnable and kCoreReset (overlay.h).
  virtual void control(uint32_t value) = 0;
  virtual void check_reset() const {}  // throws if a core with overlays must not be reset now
  // Of a core with overlays, if it is in the middle of a program: what it does there. Else empty.
  virtual std::string unfinished() const { return ""; }
  virtual bool has_overlays() const { return false; }
  // Keeps what of data memory is this core's state out of a record (ActionLog::reserve).
  virtual void reserve_state(ActionLog&) const {}
  virtual bool unloaded() const { return false; }  // it has overlays, none of which is loaded
  virtual uint32_t status() const = 0;             // the Core_Status register
  virtual bool calling() const = 0;  // a job of it or of its stream ports is under way
  std::string name() const final { return tile_.name(); }
  // Whether its memory may be aliased: all its kernels declare what they access.
  bool accepts_aliases() const { return accepts_aliases_; }
  // Whether it reaches the locks and memory of a tile.
  virtual bool reaches(const Tile& tile) const { return &tile == &tile_; }
  // Whether it may release this lock of a tile.
  virtual bool releases(const Tile& owner, int lock) const = 0;

 protected:
  [[noreturn]] void error(ErrorKind kind, const std::string& text) const;  // "[submit] <name> text"

  Array& array_;
  Tile& tile_;
  bool accepts_aliases_ = true;
};

}  // namespace npu::emulator
