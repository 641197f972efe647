// Where a token stands in its sequence, and what that changes in the workspace.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/decoder/decoder_attention.h"
#include "ops/decoder/decoder_workspace.h"

namespace npu::ops {

// Per layer the pages of the cache by position / 256, and attention's work for either kind of
// layer.
struct DecoderPosition {
  using Attention = std::array<DecoderAttention, DecoderWorkspace::kKinds>;

  KvLayout layout;
  std::vector<std::span<const int64_t>> pages;
  Attention attention;

  // Without pages.
  static DecoderPosition of(const DecoderArray& array, const DecoderModel& model, int64_t position);
};

bool same_ranges(const DecoderPosition::Attention& a, const DecoderPosition::Attention& b);
// Whether attention has the same transfers but for their addresses and lengths.
bool same_form(const DecoderPosition::Attention& a, const DecoderPosition::Attention& b);

// Tables of records per key head, control words of every token.
void write_records(const DecoderModel& model, const DecoderWorkspace& workspace,
                   const DecoderPosition& position, std::span<std::byte> memory);
// The combinations' jobs.
void write_parts(const DecoderWorkspace& workspace, const DecoderPosition& position,
                 std::span<std::byte> memory);

}  // namespace npu::ops
