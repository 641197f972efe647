// The stream of one token: steps in order, weights as far ahead as queues allow.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/decoder/decoder_attention.h"
#include "ops/decoder/decoder_workspace.h"
#include "stream/txn.h"

namespace npu::ops {

// Arguments of a stream; regions of weights follow.
enum DecoderArgument : uint32_t { kDecoderWorkspace, kDecoderPool, kDecoderRegions };

// Where a token stands: per layer the pages of the cache by position / 256, and attention's work
// for either kind of layer.
struct DecoderPosition {
  KvLayout layout;
  std::vector<std::span<const int64_t>> pages;
  std::array<DecoderAttention, DecoderWorkspace::kKinds> attention;
};

void append_decoder(stream::Builder& builder, const Configuration& configuration,
                    const DecoderArray& array, const DecoderModel& model,
                    const DecoderWorkspace& workspace, const DecoderPosition& position);

}  // namespace npu::ops
