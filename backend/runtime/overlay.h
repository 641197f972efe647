// Programs that a stream loads into cores (Configuration::overlays): what their program memory
// holds, and the words that a shim DMA channel sends to load it.
//
// On hardware an overlay's image is the machine code that the kernels' compiler makes of its
// program (the .text section of the core's ELF file), supplied with the hardware artefact; a device
// says what it is (Device::overlay_image). Where no compiler has run - on the emulator - an image
// of the same size stands in for it. An emulated core recognises its program by the whole image, so
// that a packet that is lost is seen.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/configuration.h"

namespace npu {

class Device;

inline constexpr uint32_t kProgramMemory = 0x20000, kProgramMemoryBytes = 0x4000;  // of a core
inline constexpr uint32_t kCoreControl = 0x32000;  // bit 0 enables, bit 1 holds in reset
inline constexpr uint32_t kCoreEnable = 1, kCoreReset = 2;

// How a stand-in begins: "NPUX", the overlay's number in order of appearance, the first 32 bits of
// the configuration's source hash.
using OverlayMark = std::array<uint32_t, 3>;
OverlayMark overlay_mark(const Configuration& configuration, size_t overlay);

// The stand-in: the mark, then words that differ by position and overlay; Overlay::bytes in all.
// Throws Error(kArgument) for an overlay that the configuration does not have.
std::vector<uint32_t> stand_in(const Configuration& configuration, size_t overlay);

// What program memory holds of an overlay: Overlay::image, or the stand-in. Throws as stand_in().
std::vector<uint32_t> overlay_image(const Configuration& configuration, size_t overlay);

// The configuration with the images that its overlays have on a device. Throws what
// Device::overlay_image() throws.
Configuration with_images(Device& device, Configuration configuration);

// Control packets that load an image into whatever cores they reach: reset, program memory from its
// begin on in packets of four words, enable. image: a multiple of four words that program memory
// holds, else Error(kArgument). npu2 takes all of them in one transfer, npu1 one packet a transfer.
// headers: false if BDs give the packets their headers; the first and the last then have
// kSwitchWords, those between them kRoundWords.
std::vector<uint32_t> control_packets(std::span<const uint32_t> image, bool headers = true);
inline constexpr int64_t kSwitchWords = 2, kRoundWords = 5;

}  // namespace npu
