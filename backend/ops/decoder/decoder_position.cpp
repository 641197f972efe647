// What a token's position changes in the workspace (decoder_position.h).
#include "ops/decoder/decoder_position.h"

#include <algorithm>
#include <cstring>

namespace npu::ops {

DecoderPosition DecoderPosition::of(const DecoderArray& array, const DecoderModel& model,
                                    int64_t position) {
  DecoderPosition out;
  out.layout = {model.shape.kv_heads, model.shape.head_dim};
  std::array<int64_t, DecoderWorkspace::kKinds> windows{};
  for (const DecoderLayer& layer : model.layers) {
    windows[static_cast<size_t>(DecoderWorkspace::kind_of(layer))] = layer.window;
  }
  for (size_t kind = 0; kind < windows.size(); ++kind) {
    out.attention[kind] =
        DecoderAttention::of(model.shape, out.layout, array.pairs, position, windows[kind]);
  }
  return out;
}

bool same_ranges(const DecoderPosition::Attention& a, const DecoderPosition::Attention& b) {
  return std::ranges::equal(a, b, {}, &DecoderAttention::ranges, &DecoderAttention::ranges);
}

bool same_form(const DecoderPosition::Attention& a, const DecoderPosition::Attention& b) {
  const auto same_place = [](const DecoderRange& x, const DecoderRange& y) {
    return x.pair == y.pair && x.kv_head == y.kv_head && x.part == y.part;
  };
  return std::ranges::equal(a, b, [&](const DecoderAttention& x, const DecoderAttention& y) {
    return x.parts == y.parts && std::ranges::equal(x.ranges, y.ranges, same_place);
  });
}

void write_records(const DecoderModel& model, const DecoderWorkspace& workspace,
                   const DecoderPosition& position, std::span<std::byte> memory) {
  const DecoderShape& shape = model.shape;
  for (int kind = 0; kind < DecoderWorkspace::kKinds; ++kind) {
    const DecoderAttention& work = position.attention[static_cast<size_t>(kind)];
    std::byte* tables = memory.data() + workspace.tables(kind);
    std::memset(tables, 0, static_cast<size_t>(shape.kv_heads * attention::kTableBytes));
    for (const DecoderRange& range : work.ranges) {
      const attention::Record record = work.record(shape, position.layout, range);
      std::memcpy(tables + range.kv_head * attention::kTableBytes +
                      range.pair * attention::kRecordWords * 4,
                  &record, sizeof record);
    }
  }
}

void write_parts(const DecoderWorkspace& workspace, const DecoderPosition& position,
                 std::span<std::byte> memory) {
  workspace.write_parts({position.attention[0].parts, position.attention[1].parts}, memory);
}

}  // namespace npu::ops
