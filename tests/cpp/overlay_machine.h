// A column whose shim channel MM2S 0 sends control packets to the TileControl ports of cores (0,2)
// and (0,3), which run overlays: the words that load them, and what the cores called.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "arch/control_packet.h"
#include "emulator_fixture.h"
#include "runtime/overlay.h"

namespace npu::test {

inline constexpr At kShim0{0, 0}, kCores[2] = {{0, 2}, {0, 3}};
inline constexpr int kControlMaster = 3;  // of a core tile
inline constexpr uint32_t kCounters = 60000, kCoreStatus = 0x32004, kDone = 1u << 20;

// A packet that writes `data` from `offset` on.
inline Words packet(uint32_t offset, const Words& data) {
  Words words{arch::packet_header(0),
              arch::encode_control_word(
                  {arch::ControlOperation::kWrite, static_cast<uint32_t>(data.size()), offset})};
  words.insert(words.end(), data.begin(), data.end());
  return words;
}

struct OverlayMachine : Machine {
  explicit OverlayMachine(Generation generation = Generation::kNpu2) : Machine(generation) {
    config.shim_dma(0).connect(kShim0, sp::kMm2s0, sp::kNorthMaster);
    config.connect({0, 1}, mp::kSouthSlave, mp::kNorthMaster);
    config.connect(kCores[0], cp::kSouthSlave, cp::kNorthMaster);
    config.connect(kCores[0], cp::kSouthSlave, kControlMaster);
    config.connect(kCores[1], cp::kSouthSlave, kControlMaster);
  }

  // One overlay per text; both cores get them all. Names are "o0", "o1", ...; words: of an image.
  void load(const std::vector<std::string>& texts, size_t words = 4) {
    configure();
    std::vector<emulator::OverlayProgram> overlays;
    for (const std::string& text : texts) {
      emulator::OverlayProgram overlay;
      overlay.program = parse_program(text, "test");
      for (const std::string& name : overlay.program.functions) {
        overlay.functions.push_back(
            {[this, name](auto a, CoreState& state) { called(name, a, state); }, false,
             kernels::find_declaration(name, array.device().generation)});
      }
      overlay.name = "o" + std::to_string(overlays.size());
      overlay.image = image(overlays.size(), words);
      overlay.counters = kCounters;
      overlays.push_back(std::move(overlay));
    }
    const auto shared = std::make_shared<const std::vector<emulator::OverlayProgram>>(overlays);
    for (const At core : kCores) array.attach(core.col, core.row, shared);
  }

  static OverlayMark mark(size_t overlay) {
    return {0x5855504E, static_cast<uint32_t>(overlay), 7};
  }
  // A mark, then words that tell overlays and places apart.
  static Words image(size_t overlay, size_t words = 4) {
    Words out(words);
    for (size_t i = 0; i < words; ++i)
      out[i] = static_cast<uint32_t>(0xAB000000 + (overlay << 16) + i);
    const OverlayMark begin = mark(overlay);
    std::copy(begin.begin(), begin.end(), out.begin());
    return out;
  }
  static Words packets(size_t overlay, size_t words = 16) {
    return control_packets(image(overlay, words));
  }

  // Sends `count` words of argument `argument` as one transfer and waits for its end.
  Script& send(Script& s, size_t count, uint32_t argument = 0) const {
    s.host_bd(0, 0, linear(static_cast<uint32_t>(count)), argument);
    return s.push(kShim0, kMM2S, 0, 0, 1, true).sync(kShim0, kMM2S, 0);
  }
  // Until both programs have ended.
  static Script& await_cores(Script& s) {
    for (const At core : kCores) s.raw.mask_poll(core.address(kCoreStatus), kDone, kDone);
    return s;
  }
  RunReport send(Words words) {
    Script s = script();
    return run(send(s, words.size()), {view(words, false)});
  }

  // What core kCores[i] called: the kernel and the address of its first operand.
  using Calls = std::vector<std::pair<std::string, int64_t>>;
  std::array<Calls, 2> calls;
  std::array<std::vector<int>, 2> roundings;  // CoreState::rounding at each call, which sets it

 private:
  void called(const std::string& name, std::span<const KernelArgument> a, CoreState& state) {
    for (size_t i = 0; i < 2; ++i) {
      const std::span<std::byte> memory = array.find_tile(kCores[i].col, kCores[i].row)->memory;
      if (a[0].data < memory.data() || a[0].data >= memory.data() + memory.size()) continue;
      calls[i].emplace_back(name, a[0].data - memory.data());
      roundings[i].push_back(state.rounding);
      const auto value = static_cast<int32_t>(calls[i].size());
      std::memcpy(a[0].data, &value, 4);
    }
    state.rounding = 12;
  }
};

}  // namespace npu::test
