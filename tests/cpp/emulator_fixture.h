// Small arrays for the emulator tests: a script of register writes (locks, BDs, routes, pushes,
// waits) written with stream::Builder and arch::encode_bd only, and the array that executes it.
// Port numbers are those of the register map (hardware.md 3.2), spelled out once here.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "arch/bd.h"
#include "devices/emulator/array.h"
#include "error.h"
#include "kernels/registry.h"
#include "stream/txn.h"

namespace npu::test {

using arch::Bd;
using arch::Direction;
using arch::Generation;
using arch::TileKind;
using emulator::Array;
using Words = std::vector<uint32_t>;

inline constexpr Direction kS2MM = Direction::kS2MM, kMM2S = Direction::kMM2S;

// Master (out of the switch) and slave (into the switch) ports.
namespace port {
namespace core {  // DMA masters feed S2MM, DMA slaves come from MM2S
inline constexpr int kDma = 1, kSouthMaster = 5, kWestMaster = 9, kNorthMaster = 13,
                     kEastMaster = 19;
inline constexpr int kSouthSlave = 5, kWestSlave = 11, kNorthSlave = 15, kEastSlave = 19;
}  // namespace core
namespace mem {
inline constexpr int kDma = 0, kSouthMaster = 7, kNorthMaster = 11, kSouthSlave = 7,
                     kNorthSlave = 13;
}
namespace shim {
inline constexpr int kSouthMaster = 2, kWestMaster = 8, kNorthMaster = 12, kEastMaster = 18;
inline constexpr int kSouthSlave = 2, kWestSlave = 10, kNorthSlave = 14, kEastSlave = 18;
inline constexpr int kMm2s0 = kSouthSlave + 3, kMm2s1 = kSouthSlave + 7;
inline constexpr int kS2mm0 = kSouthMaster + 2, kS2mm1 = kSouthMaster + 3;
}  // namespace shim
}  // namespace port
namespace cp = port::core;
namespace mp = port::mem;
namespace sp = port::shim;

struct At {
  int col, row;
  uint32_t address(uint32_t offset) const { return arch::tile_address(col, row, offset); }
  TileKind kind() const { return arch::tile_kind(row); }
  const arch::TileGeometry& model() const { return arch::tile_geometry(kind()); }
};

// A memory access of `length` words from word `base`; shim: from byte `base`.
inline Bd linear(uint32_t length, uint64_t base = 0) {
  Bd bd;
  bd.length = length;
  bd.base = base;
  return bd;
}

inline Bd acquiring(Bd bd, uint32_t lock, int value) {
  bd.acquire_enable = true;
  bd.acquire_id = lock;
  bd.acquire_value = value;
  return bd;
}

inline Bd releasing(Bd bd, uint32_t lock, int value) {
  bd.release_id = lock;
  bd.release_value = value;
  return bd;
}

inline Bd followed_by(Bd bd, uint32_t next) {
  bd.use_next = true;
  bd.next_bd = next;
  return bd;
}

inline constexpr uint32_t kOwnMem = 0x20000;  // word address and lock base of a memtile's own side
inline constexpr uint32_t kOwnLock = 64, kEastLock = 128;

// One TXN stream under construction.
class Script {
 public:
  explicit Script(Generation generation = Generation::kNpu2)
      : raw(generation, arch::device_geometry(generation).columns) {}

  Script& bd(At at, int id, const Bd& bd) {
    const Words words = arch::encode_bd(at.kind(), bd);
    raw.block_write(at.address(at.model().bd_base + 0x20u * static_cast<uint32_t>(id)), words);
    return *this;
  }
  // A shim BD whose base is patched to `bytes` into argument `argument`.
  Script& host_bd(int col, int id, const Bd& what, uint32_t argument, uint64_t bytes = 0) {
    const At shim{col, 0};
    bd(shim, id, what);
    raw.address_patch(shim.address(0x1D004 + 0x20u * static_cast<uint32_t>(id)), argument, bytes);
    return *this;
  }
  Script& push(At at, Direction direction, int channel, int id, int repeats = 1,
               bool token = false) {
    raw.write(at.address(arch::channel_queue(at.kind(), direction, channel)),
              static_cast<uint32_t>(id) | static_cast<uint32_t>(repeats - 1) << 16 |
                  static_cast<uint32_t>(token) << 31);
    return *this;
  }
  Script& control(At at, Direction direction, int channel, uint32_t value) {
    raw.write(at.address(arch::channel_control(at.kind(), direction, channel)), value);
    return *this;
  }
  Script& sync(At at, Direction direction, int channel) {
    raw.sync(at.col, at.row, direction, channel);
    return *this;
  }
  Script& lock(At at, int id, uint32_t value) {
    raw.write(at.address(at.model().lock_base + 0x10u * static_cast<uint32_t>(id)), value);
    return *this;
  }
  Script& memory(At at, uint32_t word, const Words& values) {
    raw.block_write(at.address(4 * word), values);
    return *this;
  }
  Script& write(At at, uint32_t offset, uint32_t value) {
    raw.write(at.address(offset), value);
    return *this;
  }

  // Circuit-switched: `master` takes what `slave` brings.
  Script& connect(At at, int slave, int master) {
    write(at, slave_register(at, slave), 1u << 31);
    return write(at, master_register(at, master), 1u << 31 | static_cast<uint32_t>(slave));
  }
  // Packet-switched slave port: packets with (id & mask) == (match & mask) go to (arbiter, msel).
  Script& packet_slave(At at, int slave, int slot, uint32_t match, uint32_t mask, uint32_t arbiter,
                       uint32_t msel) {
    write(at, slave_register(at, slave), 3u << 30);
    return write(at,
                 at.model().switch_base + 0x200 + 0x10u * static_cast<uint32_t>(slave) +
                     4u * static_cast<uint32_t>(slot),
                 match << 24 | mask << 16 | 1u << 8 | msel << 4 | arbiter);
  }
  Script& packet_master(At at, int master, uint32_t arbiter, uint32_t msel_mask, bool drop_header) {
    return write(at, master_register(at, master),
                 3u << 30 | static_cast<uint32_t>(drop_header) << 7 | msel_mask << 3 | arbiter);
  }
  // Shim DMA channels to and from the switch.
  Script& shim_dma(int col) {
    write({col, 0}, 0x1F000, 1u << 10 | 1u << 14);
    return write({col, 0}, 0x1F004, 1u << 4 | 1u << 6);
  }

  std::vector<uint32_t> words() const { return raw.finish(); }

  static uint32_t master_register(At at, int p) {
    return at.model().switch_base + 4u * static_cast<uint32_t>(p);
  }
  static uint32_t slave_register(At at, int p) {
    return at.model().switch_base + 0x100 + 4u * static_cast<uint32_t>(p);
  }

  stream::Builder raw;
};

// An array with its configuration script. Tiles loop back on themselves with
//   loopback(at, m, s): MM2S m of the tile feeds its own S2MM s.
class Machine {
 public:
  explicit Machine(Generation generation = Generation::kNpu2)
      : config(generation), array(arch::device_geometry(generation)), generation_(generation) {}

  Script script() const { return Script(generation_); }
  Machine& loopback(At at, int mm2s = 0, int s2mm = 0) {
    switch (at.kind()) {
      case TileKind::kShim:
        config.shim_dma(at.col);
        config.connect(at, mm2s ? sp::kMm2s1 : sp::kMm2s0, s2mm ? sp::kS2mm1 : sp::kS2mm0);
        break;
      case TileKind::kMem:
        config.connect(at, mp::kDma + mm2s, mp::kDma + s2mm);
        break;
      case TileKind::kCore:
        config.connect(at, cp::kDma + mm2s, cp::kDma + s2mm);
        break;
    }
    return *this;
  }
  RunReport configure() {
    const Words txn = config.words();
    return array.configure(std::as_bytes(std::span(txn)));
  }
  RunReport run(const Script& stream, const std::vector<emulator::Argument>& buffers = {}) {
    const Words txn = stream.words();
    return array.submit(std::as_bytes(std::span(txn)), buffers);
  }
  uint32_t word(At at, uint32_t index) { return array.read_register(at.address(4 * index)); }
  Words words(At at, uint32_t index, uint32_t count) {
    Words result(count);
    std::memcpy(result.data(), array.tile(at.col, at.row).memory.data() + 4 * index, 4 * count);
    return result;
  }
  int lock(At at, int id) {
    return array.tile(at.col, at.row).locks[static_cast<size_t>(id)].value;
  }
  // A program in text form whose functions all are `kernel`; those that have the name of a kernel
  // of aie_kernels/ are declared as that.
  void attach(At at, const std::string& text,
              const std::function<void(std::span<const KernelArgument>)>& kernel = {},
              bool serial = false) {
    Program program = parse_program(text, "test");
    std::vector<emulator::KernelFunction> functions;
    for (const std::string& name : program.functions) {
      functions.push_back({[kernel](std::span<const KernelArgument> a, CoreState&) { kernel(a); },
                           serial, kernels::find_declaration(name, generation_)});
    }
    array.attach(at.col, at.row, std::move(program), std::move(functions));
  }

  Script config;
  Array array;

 private:
  Generation generation_;
};

inline emulator::Argument view(Words& words, bool writable = true) {
  return {reinterpret_cast<std::byte*>(words.data()), 4 * words.size(), writable};
}

// first, first + 1, ...
inline Words counting(size_t count, uint32_t first = 1) {
  Words words(count);
  std::iota(words.begin(), words.end(), first);
  return words;
}

// Runs `body`, which must raise `kind` with all of `telling` in a message of the form "[function]
// ...".
template <typename Body>
void check_error(ErrorKind kind, std::initializer_list<const char*> telling, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    const std::string message = error.what();
    INFO(message);
    CHECK(std::string(kind_name(error.kind())) == kind_name(kind));
    CHECK(message.rfind("[", 0) == 0);
    for (const char* part : telling) {
      CAPTURE(part);
      CHECK(message.find(part) != std::string::npos);
    }
    return;
  }
  FAIL("no error was raised; expected " << kind_name(kind));
}

}  // namespace npu::test
