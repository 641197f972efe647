// Models that the prefill configuration runs (ops::check_prefill), by their blocks: matrices of
// either size of blocks, none of both, in regions that end with an object at their last block.
#include <doctest/doctest.h>

#include <string>

#include "prefill_models.h"

namespace {

using namespace npu;
using namespace npu::prefill_test;

const Formats kSmall = {Format::kQ4_0, Format::kQ8_0};
const Formats kLarge = {Format::kQ4nx, Format::kQ8, Format::kBf16};

// q, k, v in two parts of `first` and `second` formats, the other matrices of either.
DecoderModel model_of(Random& random, const Formats& first, const Formats& second) {
  DecoderModel model;
  ops::DecoderShape& s = model.shape;
  s.width = 128, s.heads = 2, s.kv_heads = 1, s.dim = s.head_dim = 64, s.ffn = 96;
  s.vocabulary = 64, s.attention_scale = 0.1f;
  ops::DecoderLayer layer;
  Matrices matrix(random, model);
  layer.qkv = matrix(s.qkv_rows() / 2, s.width, first);
  for (const auto& part : matrix(s.qkv_rows() / 2, s.width, second)) layer.qkv.push_back(part);
  layer.output = matrix(s.width, s.heads * s.dim, first);
  layer.gate_up = matrix(2 * s.ffn, s.width, second);
  layer.down = matrix(s.width, s.ffn, first);
  model.layers = {layer};
  model.head = matrix(s.vocabulary, s.width, second);
  return model;
}

// What the error says; empty if there is none.
std::string refusal(const DecoderModel& model) {
  for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
    try {
      ops::check_prefill(array_of(generation), model);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kShape);
      return error.what();
    }
  }
  return "";
}

}  // namespace

TEST_CASE("prefill models: a matrix with blocks of both sizes is refused, in either order") {
  Random random;
  for (int round = 0; round < 10; ++round) {
    for (const bool first : {false, true}) {
      for (const bool second : {false, true}) {
        const std::string said =
            refusal(model_of(random, first ? kSmall : kLarge, second ? kSmall : kLarge));
        CHECK((said.find("the size of a block") != std::string::npos) == (first != second));
        CHECK(said.empty() == (first == second));
      }
    }
    DecoderModel model = model_of(random, kSmall, kSmall);
    Matrices matrix(random, model);
    for (const auto& part : matrix(32, model.shape.width, kLarge)) model.head.push_back(part);
    model.shape.vocabulary += 32;
    CHECK(refusal(model).find("the size of a block") != std::string::npos);
  }
}

TEST_CASE("prefill models: the matrices of a model may have either size, each its own") {
  Random random;
  for (const bool small : {false, true}) {
    DecoderModel model = model_of(random, small ? kSmall : kLarge, small ? kSmall : kLarge);
    Matrices matrix(random, model);
    const ops::DecoderShape& s = model.shape;
    model.layers[0].down = matrix(s.width, s.ffn, small ? kLarge : kSmall);
    model.head = matrix(s.vocabulary, s.width, small ? kLarge : kSmall);
    CHECK(refusal(model).empty());
  }
}

TEST_CASE("prefill models: a region that ends before an object at its last block is refused") {
  Random random;
  for (const Formats& formats : {kSmall, kLarge}) {
    for (int round = 0; round < 5; ++round) {
      DecoderModel model = model_of(random, formats, formats);
      const ops::DecoderSegment& last = model.head.back();
      REQUIRE(model.region_bytes.back() ==
              last.offset + (last.n + 31) / 32 * last.column_blocks() * block_size(last.format) +
                  5120 - block_size(last.format));
      CHECK(refusal(model).empty());
      model.region_bytes.back() -= 4;
      CHECK(refusal(model).starts_with("[decoder] head"));
    }
  }
}
