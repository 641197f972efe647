// The operation "decoder" by name: a model from a request's numbers, as tools and tests ask for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/decoder/decoder_model.h"
#include "runtime/operation_type.h"

namespace npu::ops {

extern const OperationType kDecoderType;

// The model that a request describes: its weights lie one after the other, each matrix in one
// format.
DecoderModel decoder_model_of(const Request& request);
// The fields of such a request, after the operation's own. head_rows: what "vocabulary" is where it
// is not given, or RequestField::kRequired.
std::vector<RequestField> decoder_model_fields(std::vector<RequestField> own, int64_t head_rows);

// Pages for a request: those that queries at positions [first, last] see, one after the other.
struct DecoderPages {
  std::vector<std::vector<int64_t>> tables;  // per layer, by position / 256
  int64_t count = 0;

  DecoderPages(const DecoderModel& model, int64_t first, int64_t last);
  std::vector<std::span<const int64_t>> spans() const { return {tables.begin(), tables.end()}; }
};

}  // namespace npu::ops
