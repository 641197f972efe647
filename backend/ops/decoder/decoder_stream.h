// The stream of one token: steps in order, weights as far ahead as queues allow.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/decoder/decoder_position.h"
#include "ops/shim_commands.h"
#include "runtime/device.h"
#include "stream/txn.h"

namespace npu::ops {

// Arguments of a stream: the workspace up to its constants, those of the part, the pool of the
// cache; regions of weights follow, of each what the part reads.
enum DecoderArgument : uint32_t {
  kDecoderWorkspace,
  kDecoderConstants,
  kDecoderPool,
  kDecoderRegions
};

// What of a stream depends on the position, and where it is: a stream for one position becomes that
// of another one, or of another layer, by a patch of these words, as long as attention has as many
// transfers.
struct DecoderVariable {
  enum class Kind : uint8_t { kRow, kRead };  // the row of keys and values, a read of them
  Kind kind;
  size_t layer;        // of the part
  size_t range, read;  // of attention's ranges; of the range's reads
  size_t word;         // of the stream: a row's offset, or a BD, its offset kBdOffsetWord later

  // The first of the two words that tell where it is in the pool.
  size_t offset_word() const { return kind == Kind::kRow ? word : word + kBdOffsetWord; }
};

// The words of `variables` that tell where the rows of a token at a position go, and what attention
// reads, of a part that begins with `layer`. No reads if the position needs another stream.
std::vector<StreamPatch> row_patches(size_t layer, const DecoderPosition& position,
                                     std::span<const DecoderVariable> variables);
std::optional<std::vector<StreamPatch>> read_patches(arch::Generation generation,
                                                     const DecoderModel& model, size_t layer,
                                                     const DecoderPosition& position,
                                                     std::span<const DecoderVariable> variables);

// The steps of a part. Returns what depends on the position.
std::vector<DecoderVariable> append_decoder(stream::Builder& builder,
                                            const Configuration& configuration,
                                            const DecoderArray& array, const DecoderModel& model,
                                            const DecoderWorkspace& workspace,
                                            const DecoderPart& part,
                                            const DecoderPosition& position);

}  // namespace npu::ops
