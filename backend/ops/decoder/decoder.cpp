// Tokens on a device (decoder.h).
#include "ops/decoder/decoder.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "error.h"
#include "ops/shim_commands.h"
#include "rounding.h"

namespace npu::ops {

namespace {

std::vector<std::vector<int64_t>> copied(std::span<const std::span<const int64_t>> pages) {
  std::vector<std::vector<int64_t>> out;
  for (const std::span<const int64_t> one : pages) out.emplace_back(one.begin(), one.end());
  return out;
}

// Whether the latest token with these pages was one of the same sequence: nobody else writes to the
// page that it wrote to.
bool same_sequence(std::span<const std::vector<int64_t>> before,
                   std::span<const std::span<const int64_t>> now) {
  const std::vector<int64_t>& pages = before.front();
  return !pages.empty() && pages.size() <= now.front().size() &&
         pages.back() == now.front()[pages.size() - 1];
}

// Partial results that nobody writes count nothing: their denominators are zero.
void clear_statistics(const DecoderModel& model, const DecoderWorkspace& workspace,
                      std::span<std::byte> memory) {
  const int64_t statistics = (workspace.partial_objects() - 1) * attention::kOutBytes;
  for (int kind = 0; kind < DecoderWorkspace::kKinds; ++kind) {
    for (int64_t head = 0; head < model.shape.kv_heads; ++head) {
      for (int64_t part = 0; part < DecoderArray::kMaxParts; ++part) {
        std::memset(memory.data() + workspace.partial(kind, head, part) + statistics, 0,
                    attention::kOutBytes);
      }
    }
  }
}

}  // namespace

Decoder::Decoder(std::shared_ptr<SharedDevice> device, Configuration configuration,
                 DecoderModel model, std::span<const std::span<const std::byte>> regions,
                 const DecoderNorms& norms)
    : operation_(std::move(device), std::move(configuration)),
      array_(DecoderArray::of(operation_.configuration())),
      model_(std::move(model)),
      norms_(norms) {
  model_.check();
  // What cannot be laid out is refused here, not with the first token.
  const auto guard = operation_.lock();
  place(gemv::Output::kF32, 0, model_.shape.vocabulary);
  regions_ = std::make_unique<ModelRegions>("decoder", operation_.device(), regions,
                                            size_t{kDecoderRegions});
  operation_.count_copy(regions_->copied());
}

Decoder::Place& Decoder::place(gemv::Output output, int top, int64_t rows, bool together) {
  using Cut = DecoderWorkspace::Cut;
  const Cut parts = together ? Cut::kHalves : Cut::kLayers;
  const Cut cut = operation_.device().repeats() ? parts : Cut::kWhole;
  const std::tuple key{output, top, rows, cut};
  if (places_.size() == kMaxPlaces && !places_.contains(key)) places_.clear();
  Place& at = places_[key];
  if (at.layout == nullptr) {
    at.layout = std::make_unique<DecoderWorkspace>(array_, model_, output, top, rows, cut);
  }
  return at;
}

Decoder::Space& Decoder::space(Place& at, size_t number) {
  if (number < at.spaces.size()) return *at.spaces[number];
  const auto bytes = static_cast<size_t>(at.layout->bytes());
  std::unique_ptr<Buffer> buffer = operation_.device().allocate(bytes);
  const std::span memory(buffer->host(), bytes);
  std::memset(memory.data(), 0, bytes);
  at.layout->write_constants(norms_, memory);
  buffer->sync_to_device(0, bytes);
  at.spaces.push_back(std::make_unique<Space>(Space{std::move(buffer), {}}));
  return *at.spaces.back();
}

void Decoder::write_control(const DecoderToken& token, const DecoderPosition& position,
                            const DecoderWorkspace& layout, Space& space) const {
  const std::span memory(space.buffer->host(), static_cast<size_t>(layout.bytes()));
  const auto row = static_cast<size_t>(layout.row());
  std::memset(memory.data() + row, 0, static_cast<size_t>(4 * layout.width_words()));
  std::memcpy(memory.data() + row, token.embedding.data(), token.embedding.size_bytes());
  for (int kind = 0; kind < DecoderWorkspace::kKinds; ++kind) {
    const std::span<const float> rotation = token.rotations[static_cast<size_t>(kind)];
    const size_t half = rotation.size() / 2;
    std::byte* to = memory.data() + layout.rotation(kind);
    std::memcpy(to, rotation.data(), half * 4);
    std::memcpy(to + vector::kInBytes / 2, rotation.data() + half, half * 4);
  }
  write_records(model_, layout, position, memory);
  if (same_ranges(position.attention, space.combined)) {
    space.buffer->sync_to_device(0, static_cast<size_t>(layout.control_bytes()));
    return;
  }
  space.combined = {};  // until all of it has reached the device
  write_parts(layout, position, memory);
  clear_statistics(model_, layout, memory);
  space.buffer->sync_to_device(0, memory.size());
  space.combined = position.attention;
}

// Without its entry.
std::shared_ptr<Decoder::PartStream> Decoder::build(std::vector<uint32_t>& words,
                                                    const DecoderPosition& position,
                                                    const Place& at, size_t part) const {
  auto made = std::make_shared<PartStream>();
  words = stream_words(operation_.configuration(), [&](stream::Builder& builder) {
    made->variables = append_decoder(builder, operation_.configuration(), array_, model_,
                                     *at.layout, at.layout->parts()[part], position);
  });
  return made;
}

void Decoder::prepare(PartStream& made, std::vector<uint32_t> words) {
  static constexpr ArgumentRange kMoving[] = {{kDecoderPool}};
  made.entry = operation_.prepare_once(std::move(words));
  made.entry->stream->expect_repeats(kMoving);
}

// Of tokens in parts one that is kept, if it is the same but for places in the pool.
std::shared_ptr<Decoder::PartStream> Decoder::part_stream(const DecoderPosition& position,
                                                          const Place& at, size_t part) {
  std::vector<uint32_t> words;
  const std::shared_ptr<PartStream> made = build(words, position, at, part);
  if (at.layout->parts().size() == 1) {
    prepare(*made, std::move(words));
    return made;
  }
  made->form = words;
  for (const DecoderVariable& one : made->variables) {
    std::fill_n(made->form.begin() + static_cast<std::ptrdiff_t>(one.offset_word()), 2, 0);
  }
  const auto same = [&](const auto& other) {
    return !other->patching && other->form == made->form;
  };
  if (const auto found = std::ranges::find_if(parts_, same); found != parts_.end()) {
    parts_.splice(parts_.begin(), parts_, found);
    return parts_.front();
  }
  prepare(*made, std::move(words));
  const size_t layer = at.layout->parts()[part].layer;
  const bool attends = std::ranges::any_of(made->variables, [](const DecoderVariable& one) {
    return one.kind == DecoderVariable::Kind::kRead;
  });
  made->grows = attends && model_.layers[layer].window == 0;
  parts_.push_front(made);
  return made;
}

void Decoder::drop_unused() {
  size_t unused = 0;
  std::erase_if(parts_, [&](const std::shared_ptr<PartStream>& one) {
    return one.use_count() == 1 && (one->grows || ++unused > kMostUnused);
  });
}

// Streams of a position with the same pages and ranges; a stream of a whole token can be made one
// for other pages and ranges as well. A device that repeats runs would record it anew.
std::shared_ptr<Decoder::Prepared> Decoder::kept(const DecoderPosition& position, Place& at) {
  const auto same = [](const auto& a, const auto& b) { return std::ranges::equal(a, b); };
  const auto latest = [&](size_t number) {
    const auto one = at.prepared.begin() + static_cast<std::ptrdiff_t>(number);
    std::rotate(one, one + 1, at.prepared.end());
    return at.prepared.back();
  };
  for (size_t i = at.prepared.size(); i-- > 0;) {
    const Prepared& one = *at.prepared[i];
    if (same_ranges(position.attention, one.attention) &&
        std::ranges::equal(position.pages, one.pages, same)) {
      return latest(i);
    }
  }
  if (at.layout->parts().size() > 1) return nullptr;
  for (size_t i = at.prepared.size(); i-- > 0;) {
    Prepared& one = *at.prepared[i];
    if (!same_form(position.attention, one.attention)) continue;
    auto reads = read_patches(array_.generation, model_, 0, position, one.parts[0]->variables);
    if (!reads) continue;
    one.reads[0] = *std::move(reads);
    one.attention = position.attention;
    one.pages = copied(position.pages);
    return latest(i);
  }
  return nullptr;
}

std::shared_ptr<Decoder::Prepared> Decoder::prepare(const DecoderPosition& position, Place& at) {
  if (std::shared_ptr<Prepared> one = kept(position, at)) return one;
  auto made = std::make_shared<Prepared>();
  const std::vector<DecoderPart>& parts = at.layout->parts();
  for (size_t i = 0; i < parts.size(); ++i) {
    made->parts.push_back(part_stream(position, at, i));
    auto reads = read_patches(array_.generation, model_, parts[i].layer, position,
                              made->parts[i]->variables);
    assert(reads.has_value());  // of this position
    made->reads.push_back(*std::move(reads));
  }
  made->attention = position.attention;
  made->pages = copied(position.pages);
  // A sequence that goes on does not come back to what its attention read before. Streams that it
  // leaves go when the next ones are there, which may use the memory of their recordings.
  std::vector<std::shared_ptr<Prepared>>& all = at.prepared;
  std::erase_if(all, [&](const auto& one) { return same_sequence(one->pages, position.pages); });
  if (all.size() == kMostPrepared) all.erase(all.begin());
  all.push_back(made);
  drop_unused();
  return made;
}

void Decoder::check(const DecoderToken& token) const {
  const DecoderShape& shape = model_.shape;
  if (token.embedding.size() != static_cast<size_t>(shape.width) ||
      token.pages.size() != model_.layers.size() ||
      std::ranges::any_of(token.rotations, [&](const auto& rotation) {
        return rotation.size() != static_cast<size_t>(shape.dim);
      })) {
    fail(ErrorKind::kShape,
         "[decoder] expected an embedding of %lld, rotations of %lld and pages of %zu layers",
         static_cast<long long>(shape.width), static_cast<long long>(shape.dim),
         model_.layers.size());
  }
}

void Decoder::check_sequence(std::span<const DecoderToken> tokens) const {
  if (tokens.empty()) fail(ErrorKind::kShape, "[decoder] no token was given; give one at least");
  for (const DecoderToken& token : tokens) check(token);
}

Decoder::Started Decoder::start(const DecoderToken& token, Place& at, size_t number) {
  Started out;
  out.position = DecoderPosition::of(array_, model_, token.position);
  out.position.pages = token.pages;
  out.space = &space(at, number);
  write_control(token, out.position, *at.layout, *out.space);
  // Copied with every token where the device does not reach it.
  out.pool = std::make_unique<CachePool>(operation_.device(), token.pool);
  assert(number == 0 || !out.pool->is_copy());  // it would not have what the others write
  out.prepared = prepare(out.position, at);
  return out;
}

std::vector<BufferRef> Decoder::arguments(const Started& token, const Place& at,
                                          const DecoderPart& part) const {
  Buffer* const buffer = token.space->buffer.get();
  const auto all = static_cast<size_t>(at.layout->bytes());
  std::vector<BufferRef> out = {part_of({buffer, 0, all, Access::kReadWrite}, {0, part.workspace}),
                                part_of({buffer, 0, all, Access::kRead}, part.constants),
                                token.pool->ref()};
  for (size_t i = 0; i < part.weights.size(); ++i) {
    out.push_back(part_of(regions_->refs()[i], part.weights[i]));
  }
  return out;
}

// Makes the stream of a part that of this token.
bool Decoder::patch(PartStream& of, const Started& token, const Place& at, size_t part) {
  if (of.patching) return false;
  std::vector<StreamPatch> patches =
      row_patches(at.layout->parts()[part].layer, token.position, of.variables);
  const std::vector<StreamPatch>& reads = token.prepared->reads[part];
  patches.insert(patches.end(), reads.begin(), reads.end());
  const std::span<const uint32_t> words = of.entry->stream->words();
  std::erase_if(patches, [&](const StreamPatch& one) { return words[one.word] == one.value; });
  if (patches.empty()) return true;
  of.patching = true;
  of.patching = !operation_.patch(*of.entry, patches);
  return !of.patching;
}

// The stream of a token's part, a new one where the device cannot patch the one there is.
const Operation<int>::Entry& Decoder::moved(Started& token, const Place& at, size_t part) {
  std::shared_ptr<PartStream>& of = token.prepared->parts[part];
  if (!patch(*of, token, at, part)) {
    std::vector<uint32_t> words;
    const std::shared_ptr<PartStream> made = build(words, token.position, at, part);
    prepare(*made, std::move(words));
    of = made;
  }
  return *of->entry;
}

void Decoder::end(std::span<Started> tokens, RunReport& total) {
  for (Started& one : tokens) add(total, operation_.end(*one.run, one.arguments));
}

// Beside each other as far as the device takes it. An error would end those under way, too.
void Decoder::run_part(std::span<Started> tokens, const Place& at, size_t part, RunReport& total) {
  size_t first = 0;  // of those under way
  for (size_t i = 0; i < tokens.size(); ++i) {
    Started& token = tokens[i];
    const auto end_others = [&] {
      end(tokens.subspan(first, i - first), total);
      first = i;
    };
    if (!operation_.device().takes_more()) end_others();
    const Operation<int>::Entry& entry = moved(token, at, part);
    token.arguments = arguments(token, at, at.layout->parts()[part]);
    const auto start = [&] { return operation_.start(entry, token.arguments, i > first); };
    token.run = start();
    if (token.run == nullptr) {
      end_others();
      token.run = start();
    }
  }
  end(tokens.subspan(first), total);
}

RunReport Decoder::run(std::span<const DecoderToken> tokens, Place& at, size_t heads) {
  operation_.load();
  RunReport total;
  std::vector<Started> all;
  for (const DecoderToken& token : tokens) all.push_back(start(token, at, all.size()));
  {
    const Series series(operation_.device());
    const size_t parts = at.layout->parts().size();
    for (size_t part = 0; part < parts; ++part) {
      const bool head = parts > 1 && part + 1 == parts;
      run_part(std::span(all).last(head ? heads : all.size()), at, part, total);
    }
  }
  for (Started& one : all) operation_.count_copy(one.pool->finish());
  return total;
}

// A device that does not repeat runs takes none beside another one.
RunReport Decoder::logits(std::span<const DecoderToken> tokens, float* out) {
  for (const DecoderToken& token : tokens) check(token);
  const auto guard = operation_.lock();
  Place& at = place(gemv::Output::kF32, 0, model_.shape.vocabulary);
  const auto vocabulary = static_cast<size_t>(model_.shape.vocabulary);
  const size_t most = at.layout->parts().size() > 1 ? tokens.size() : 1;
  RunReport total;
  for (size_t first = 0; first < tokens.size(); first += most) {
    const size_t count = std::min(most, tokens.size() - first);
    add(total, run(tokens.subspan(first, count), at, count));
    for (size_t i = 0; i < count; ++i, out += vocabulary) {
      std::memcpy(out, at.spaces[i]->buffer->host() + at.layout->logits(),
                  vocabulary * sizeof(float));
    }
  }
  return total;
}

// One after the other where a token is one stream.
Decoder::Space& Decoder::run_sequence(std::span<const DecoderToken> tokens, Place& at, size_t heads,
                                      RunReport& total) {
  if (at.layout->parts().size() > 1) {
    add(total, run(tokens, at, heads));
    return *at.spaces[tokens.size() - 1];
  }
  for (const DecoderToken& token : tokens) add(total, run({&token, 1}, at, 1));
  return *at.spaces[0];
}

RunReport Decoder::last_logits(std::span<const DecoderToken> tokens, float* out) {
  check_sequence(tokens);
  const auto guard = operation_.lock();
  Place& at = place(gemv::Output::kF32, 0, model_.shape.vocabulary, tokens.size() > 1);
  RunReport total;
  const Space& space = run_sequence(tokens, at, 1, total);
  std::memcpy(out, space.buffer->host() + at.layout->logits(),
              static_cast<size_t>(model_.shape.vocabulary) * sizeof(float));
  return total;
}

RunReport Decoder::extend(std::span<const DecoderToken> tokens) {
  check_sequence(tokens);
  const auto guard = operation_.lock();
  Place& at = place(gemv::Output::kF32, 0, model_.shape.vocabulary, tokens.size() > 1);
  RunReport total;
  run_sequence(tokens, at, 0, total);
  return total;
}

RunReport Decoder::top(std::span<const DecoderToken> tokens, int64_t k, int64_t rows,
                       TopEntry* out) {
  if (k < 1 || k > kMaxTop || k > rows || rows > model_.shape.vocabulary) {
    fail(ErrorKind::kArgument, "[decoder] the %lld largest of %lld logits; use 1 to %lld",
         static_cast<long long>(k), static_cast<long long>(rows),
         static_cast<long long>(std::min(kMaxTop, rows)));
  }
  check_sequence(tokens);
  const auto guard = operation_.lock();
  const int top = static_cast<int>(round_up(k, gemv::kPieceBytes / gemv::kTopBytes));
  Place& at = place(gemv::Output::kTop, top, rows, tokens.size() > 1);
  RunReport report;
  const Space& space = run_sequence(tokens, at, 1, report);
  TopLists lists;
  for (const DecoderPass& pass : at.layout->head()) {
    for (int64_t list = 0; list < pass.active() * DecoderArray::kRows; ++list) {
      lists.add(space.buffer->host() + pass.y + list * pass.y_bytes() / 2, top, pass.segment.n,
                pass.first_row);
    }
  }
  lists.take(k, out);
  return report;
}

}  // namespace npu::ops
