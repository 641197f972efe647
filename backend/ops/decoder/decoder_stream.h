// The stream of one token: steps in order, weights as far ahead as queues allow.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/decoder/decoder_attention.h"
#include "ops/decoder/decoder_workspace.h"
#include "runtime/device.h"
#include "stream/txn.h"

namespace npu::ops {

// Arguments of a stream; regions of weights follow.
enum DecoderArgument : uint32_t { kDecoderWorkspace, kDecoderPool, kDecoderRegions };

// Where a token stands: per layer the pages of the cache by position / 256, and attention's work
// for either kind of layer.
struct DecoderPosition {
  KvLayout layout;
  std::vector<std::span<const int64_t>> pages;
  using Attention = std::array<DecoderAttention, DecoderWorkspace::kKinds>;
  Attention attention;
};

// What of a stream depends on the position, and where it is: a stream for one position becomes that
// of another one by a patch of these words, as long as attention has as many transfers.
struct DecoderVariable {
  enum class Kind : uint8_t { kRow, kRead };  // the row of keys and values, a read of them
  Kind kind;
  int layer;
  size_t range, read;  // of attention's ranges; of the range's reads
  size_t word;         // of the stream: a row's offset, or a BD, its offset kBdOffsetWord later
};

// The words of `variables` at another position; empty if the position needs another stream.
// reads_change: whether attention may read elsewhere than before; if not, only rows are written
// elsewhere.
std::vector<StreamPatch> decoder_patches(arch::Generation generation, const DecoderModel& model,
                                         const DecoderPosition& before,
                                         const DecoderPosition& position,
                                         std::span<const DecoderVariable> variables,
                                         bool reads_change);

// Returns what depends on the position.
std::vector<DecoderVariable> append_decoder(stream::Builder& builder,
                                            const Configuration& configuration,
                                            const DecoderArray& array, const DecoderModel& model,
                                            const DecoderWorkspace& workspace,
                                            const DecoderPosition& position);

}  // namespace npu::ops
