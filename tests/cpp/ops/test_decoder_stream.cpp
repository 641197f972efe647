// The stream of a token (ops/decoder), replayed: only shim tiles are touched; no channel gets more
// tasks than it takes and no BD is written before waits prove that the tasks before have ended;
// every token that is asked for is waited for, results always ask; all stays within the parts'
// ranges of arguments; patches make the stream of another position, or of another layer. What the
// vector core has read follows from its jobs: that side runs in
// tests/python/designs/test_decoder_stream.py, on the emulator, which refuses overruns.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "devices/emulator/walk.h"
#include "error.h"
#include "gemm_fixture.h"
#include "ops/decoder/decoder_stream.h"
#include "runtime/configuration.h"
#include "streams.h"

namespace {

using namespace npu;
using ops::DecoderArray;
using ops::DecoderAttention;
using ops::DecoderModel;
using ops::DecoderPart;
using ops::DecoderPosition;
using ops::DecoderWorkspace;
using ops::KvLayout;

constexpr blocks::Format kFormats[] = {blocks::Format::kQ4nx, blocks::Format::kQ8,
                                       blocks::Format::kBf16, blocks::Format::kQ4_0,
                                       blocks::Format::kQ8_0};
constexpr blocks::Format kFourBits[] = {blocks::Format::kQ4nx, blocks::Format::kQ4_0};

int64_t block_size(blocks::Format format) {
  return format == blocks::Format::kQ4_0 || format == blocks::Format::kQ8_0 ? 4608 : 5120;
}

// For a format and those of the same size of blocks.
Configuration configuration(arch::Generation generation, blocks::Format format) {
  const int columns = arch::device_geometry(generation).columns, last = columns - 1;
  std::string text = strf("npu-config 1\nname decoder\ngeneration %s\n",
                          generation == arch::Generation::kNpu1 ? "npu1" : "npu2");
  text += "source " + std::string(64, '0') + "\n";
  text += strf("param columns %d\nparam pairs %d\nparam run_blocks 3\n", columns, last);
  text += strf("param block_bytes %d\n", static_cast<int>(block_size(format)));
  for (int c = 0; c < columns; ++c)
    text += strf("port W%d %d mm2s 0\nport Y%d %d s2mm 0\n", c, c, c, c);
  for (int c = 0; c < last; ++c)
    text += strf("port KV%d %d mm2s 1\nport O%d %d s2mm 1\n", c, c, c, c);
  text += strf("port X %d mm2s 1\nport H %d s2mm 1\n", last, last);
  const std::vector<uint32_t> txn = stream::Builder(generation, columns).finish();
  text += strf("txn %zu\n", txn.size() * 4);
  text.append(reinterpret_cast<const char*>(txn.data()), txn.size() * 4);
  return Configuration::parse(std::as_bytes(std::span(text.data(), text.size())));
}

struct Random {
  std::mt19937 engine;
  int64_t below(int64_t most) { return int64_t(engine() % uint64_t(most)); }
};

struct Sizes {
  int64_t width, heads, kv_heads, head_dim, ffn, vocabulary;
};

DecoderModel model_of(const Sizes& s, std::vector<int64_t> windows, blocks::Format format) {
  DecoderModel model;
  ops::DecoderShape& shape = model.shape;
  shape.width = s.width, shape.heads = s.heads, shape.kv_heads = s.kv_heads;
  shape.head_dim = shape.dim = s.head_dim, shape.ffn = s.ffn, shape.vocabulary = s.vocabulary;
  int64_t next = 0;
  const auto matrix = [&](int64_t n, int64_t k) -> ops::DecoderMatrix {
    const ops::DecoderSegment segment{0, next, n, k, format};
    next += segment.row_blocks() * segment.column_blocks() * block_size(format);
    return {segment};
  };
  for (const int64_t window : windows) {
    ops::DecoderLayer layer;
    layer.window = window;
    layer.qkv = matrix(shape.qkv_rows(), s.width);
    layer.output = matrix(s.width, s.heads * s.head_dim);
    layer.gate_up = matrix(2 * s.ffn, s.width);
    layer.down = matrix(s.width, s.ffn);
    model.layers.push_back(layer);
  }
  model.head = matrix(s.vocabulary, s.width);
  // Small blocks are read in objects of 5120 bytes, too (ops/prefill).
  model.region_bytes = {next + 5120 - block_size(format)};
  model.check();
  return model;
}

using Pages = std::vector<std::vector<int64_t>>;

// Pages of all layers for positions below `end`: runs and jumps.
Pages random_pages(const DecoderModel& model, int64_t end, Random& random) {
  Pages pages(model.layers.size());
  std::set<int64_t> used;
  for (auto& layer : pages) {
    const int64_t count = (end + 255) / 256;
    for (int64_t i = 0; i < count; ++i) {
      int64_t next = layer.empty() || random.below(3) == 0 ? random.below(4096) : layer.back() + 1;
      while (!used.insert(next).second) next = random.below(4096);
      layer.push_back(next);
    }
  }
  return pages;
}

DecoderPosition position_of(const DecoderArray& array, const DecoderModel& model, int64_t at,
                            const Pages& pages) {
  DecoderPosition out = DecoderPosition::of(array, model, at);
  for (const auto& layer : pages) out.pages.emplace_back(layer);
  return out;
}

// A channel of a shim tile, as a stream drives it.
struct Channel {
  struct Task {
    int bd;
    bool token;
    int64_t runs;
  };
  std::vector<Task> tasks;
  size_t ended = 0;  // proven to have
  int tokens = 0;    // asked for and not waited for

  void end_to(size_t count) { ended = std::max(ended, count); }
  bool busy(int bd) const {
    for (size_t i = ended; i < tasks.size(); ++i) {
      if (tasks[i].bd == bd) return true;
    }
    return false;
  }
};

class Replay {
 public:
  Replay(const DecoderArray& array, const DecoderWorkspace& workspace, const DecoderPart& part)
      : parted_(workspace.parts().size() > 1),
        last_(array.columns - 1),
        needed_(size_t(array.columns)),
        arguments_{{ops::kDecoderWorkspace, {0, part.workspace}},
                   {ops::kDecoderConstants, {0, part.constants.count()}}} {
    for (size_t region = 0; region < part.weights.size(); ++region) {
      arguments_[ops::kDecoderRegions + uint32_t(region)] = {0, part.weights[region].count()};
    }
    // Runs of weights until the end of every pass that a column takes part in.
    for (size_t i = part.first; i < part.last; ++i) {
      const ops::DecoderStep& step = workspace.steps()[i];
      if (step.pass == nullptr) continue;
      for (int c = 0; c < step.pass->active(); ++c) {
        auto& needed = needed_[size_t(c)];
        int64_t runs = needed.empty() ? 0 : needed.back();
        for (const auto& task : step.pass->reads(array, c)) runs += task.repeats;
        needed.push_back(runs);
      }
    }
  }

  void run(const stream::Stream& parsed) {
    for (const stream::Operation& op : parsed.operations()) {
      if (op.opcode == stream::Opcode::kBlockWrite) {
        write_bd(uint32_t(op.address), op.data);
      } else if (op.opcode == stream::Opcode::kWrite) {
        push(uint32_t(op.address), op.value);
      } else if (op.opcode == stream::Opcode::kSync) {
        for (int c = 0; c < op.columns; ++c) wait(op.column + c, op.direction, op.channel);
      } else {
        REQUIRE(op.opcode == stream::Opcode::kAddressPatch);
        const auto address = uint32_t(op.address);
        REQUIRE(arch::address_row(address) == 0);
        const int bd = int(arch::address_offset(address) - 0x1D004) / 0x20;
        places_[{arch::address_col(address), bd}] = {op.argument, op.argument_offset};
      }
    }
    for (const auto& [argument, bytes] : arguments_) {
      CAPTURE(argument);
      if (argument == ops::kDecoderWorkspace || !parted_) continue;
      CHECK(used_[argument].first == bytes.first);
      CHECK(used_[argument].end == bytes.end);
    }
    for (const auto& [key, channel] : channels_) {
      CAPTURE(std::get<0>(key));
      REQUIRE(channel.tokens == 0);
      if (!is_vector(key)) REQUIRE(channel.ended == channel.tasks.size());
    }
    for (size_t c = 0; c < needed_.size(); ++c) {
      const Channel& weights = channels_[{int(c), true, 0}];
      int64_t runs = 0;
      for (const Channel::Task& task : weights.tasks) runs += task.runs;
      REQUIRE(runs == (needed_[c].empty() ? 0 : needed_[c].back()));
    }
  }

 private:
  using Key = std::tuple<int, bool, int>;  // column, to the array, channel
  bool is_vector(const Key& key) const { return key == Key{last_, true, 1}; }

  void write_bd(uint32_t address, std::span<const uint32_t> words) {
    REQUIRE(arch::address_row(address) == 0);
    const uint32_t offset = arch::address_offset(address);
    REQUIRE(offset >= 0x1D000);
    REQUIRE(offset < 0x1D200);
    const int col = arch::address_col(address), bd = int(offset - 0x1D000) / 0x20;
    for (const bool in : {false, true}) {
      for (const int channel : {0, 1}) {
        const Key key{col, in, channel};
        if (!is_vector(key)) REQUIRE(!channels_[key].busy(bd));
      }
    }
    written_[{col, bd}] = arch::decode_bd(arch::TileKind::kShim, words);
  }

  void push(uint32_t address, uint32_t value) {
    REQUIRE(arch::address_row(address) == 0);
    const uint32_t offset = arch::address_offset(address);
    const int col = arch::address_col(address), bd = int(value & 15);
    Key key{};
    for (const auto direction : {arch::Direction::kS2MM, arch::Direction::kMM2S}) {
      for (const int channel : {0, 1}) {
        if (arch::channel_queue(arch::TileKind::kShim, direction, channel) != offset) continue;
        key = {col, direction == arch::Direction::kMM2S, channel};
      }
    }
    Channel& channel = channels_[key];
    REQUIRE(offset >= 0x1D204);  // the queue of some channel
    REQUIRE(written_.count({col, bd}) == 1);
    const bool token = value >> 31 != 0;
    if (!std::get<1>(key)) {
      REQUIRE(token);  // results always tell
      const uint32_t argument = places_.at({col, bd}).first;
      REQUIRE((argument == ops::kDecoderWorkspace || argument == ops::kDecoderPool));
    }
    check_inside(written_[{col, bd}], places_.at({col, bd}), int64_t(value >> 16 & 0xFF) + 1);
    if (!is_vector(key)) REQUIRE(channel.tasks.size() - channel.ended < 4);
    channel.tasks.push_back({bd, token, int64_t(value >> 16 & 0xFF) + 1});
    channel.tokens += token;
  }

  // Reads and writes stay in what the part says that it uses.
  void check_inside(const arch::Bd& bd, const std::pair<uint32_t, uint64_t>& place, int64_t runs) {
    const auto argument = arguments_.find(place.first);
    if (argument == arguments_.end()) return;
    const uint64_t last =
        emulator::last_offset(bd, 3, bd.length) + uint64_t(runs - 1) * bd.iteration_step;
    const ops::DecoderBytes bytes{int64_t(place.second), int64_t(place.second + 4 * last + 4)};
    REQUIRE(bytes.first >= argument->second.first);
    REQUIRE(bytes.end <= argument->second.end);
    used_[place.first].add(bytes);
  }

  void wait(int col, arch::Direction direction, int number) {
    const bool in = direction == arch::Direction::kMM2S;
    Channel& channel = channels_[{col, in, number}];
    REQUIRE(channel.tokens > 0);
    --channel.tokens;
    size_t next = channel.ended;
    while (!channel.tasks[next].token) ++next;
    channel.end_to(next + 1);
    if (in) return;
    if (number == 0) {  // the results of a pass: its weights have been read
      const size_t pass = channel.ended;
      Channel& weights = channels_[{col, true, 0}];
      const int64_t runs = needed_[size_t(col)][pass - 1];
      int64_t read = 0;
      size_t count = 0;
      while (count < weights.tasks.size() && read + weights.tasks[count].runs <= runs) {
        read += weights.tasks[count++].runs;
      }
      weights.end_to(count);
    } else if (col != last_ && channel.tokens == 0) {
      // All partial results under way: what was pushed of keys and values has been read, unless
      // tasks with tokens say so themselves.
      Channel& kv = channels_[{col, true, 1}];
      if (kv.tokens == 0) kv.end_to(kv.tasks.size());
    }
  }

  bool parted_;
  int last_;
  std::vector<std::vector<int64_t>> needed_;
  std::map<Key, Channel> channels_;
  std::map<std::pair<int, int>, arch::Bd> written_;
  std::map<std::pair<int, int>, std::pair<uint32_t, uint64_t>> places_;  // argument, byte
  std::map<uint32_t, ops::DecoderBytes> arguments_, used_;
};

struct Made {
  std::vector<uint32_t> words;
  std::vector<ops::DecoderVariable> variables;
};

Made make(const Configuration& config, const DecoderArray& array, const DecoderModel& model,
          const DecoderWorkspace& workspace, const DecoderPart& part,
          const DecoderPosition& position) {
  Made out;
  out.words = test::words_of(config, [&](stream::Builder& builder) {
    out.variables = ops::append_decoder(builder, config, array, model, workspace, part, position);
  });
  return out;
}

// A token in one stream, and in one or two for each layer and one for the head.
void replay(const Configuration& config, const DecoderModel& model, const DecoderPosition& position,
            gemv::Output output, int top) {
  const DecoderArray array = DecoderArray::of(config);
  using Cut = DecoderWorkspace::Cut;
  for (const auto cut : {Cut::kWhole, Cut::kLayers, Cut::kHalves}) {
    const DecoderWorkspace workspace(array, model, output, top, model.shape.vocabulary, cut);
    for (const DecoderPart& part : workspace.parts()) {
      const Made made = make(config, array, model, workspace, part, position);
      const auto bytes = std::as_bytes(std::span(made.words));
      const stream::Stream parsed = stream::Stream::parse(bytes);
      CHECK_NOTHROW(stream::check_runtime_stream(parsed, {}));
      Replay(array, workspace, part).run(parsed);
    }
  }
}

void put(std::span<const StreamPatch> patches, Made& made) {
  for (const StreamPatch& patch : patches) made.words[patch.word] = patch.value;
}

// Of models that the array runs.
DecoderModel random_model(Random& random, std::vector<int64_t> windows, blocks::Format format) {
  while (true) {
    const int64_t kv = 1 + random.below(8);
    const Sizes s{
        64 * (1 + random.below(24)), kv * (1 + random.below(8)),  kv,
        64 << random.below(3),       64 * (1 + random.below(40)), 64 + random.below(9000)};
    try {
      return model_of(s, windows, format);
    } catch (const Error&) {
    }
  }
}

}  // namespace

TEST_CASE("decoder workspace: what every token writes comes first") {
  Random random{std::mt19937(8)};
  for (int round = 0; round < 20; ++round) {
    const auto format = kFourBits[round % 2];
    const auto config = configuration(arch::Generation::kNpu2, format);
    const auto array = DecoderArray::of(config);
    const auto model = random_model(random, {0, 20}, format);
    const DecoderWorkspace workspace(array, model, gemv::Output::kF32, 0, model.shape.vocabulary);
    const int64_t end = workspace.control_bytes(), heads = model.shape.kv_heads;
    REQUIRE(workspace.row() + 4 * workspace.width_words() <= end);
    for (int kind = 0; kind < DecoderWorkspace::kKinds; ++kind) {
      REQUIRE(workspace.tables(kind) + heads * attention::kTableBytes <= end);
    }
    REQUIRE(workspace.header(0) >= end);
    REQUIRE(workspace.constants() > workspace.header(0));
    std::vector<std::byte> memory(size_t(workspace.bytes()), std::byte{0});
    workspace.write_constants({}, memory);
    workspace.write_parts({1, 1}, memory);
    // What is written once comes last.
    REQUIRE(std::all_of(memory.begin(), memory.begin() + workspace.constants(),
                        [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST_CASE("decoder stream: no channel is overrun, no token is left, for random models") {
  Random random{std::mt19937(1)};
  for (int round = 0; round < 100; ++round) {
    const auto generation = round % 2 ? arch::Generation::kNpu1 : arch::Generation::kNpu2;
    const auto format = kFormats[random.below(5)];
    const Configuration config = configuration(generation, format);
    const DecoderArray array = DecoderArray::of(config);
    CAPTURE(round);
    const DecoderModel model = random_model(random, {1 + random.below(600), 0}, format);
    CAPTURE(model.shape.kv_heads);
    const bool top = random.below(2) == 0;
    const int64_t at = random.below(2) ? random.below(70) : random.below(3000);
    CAPTURE(at);
    const Pages pages = random_pages(model, at + 1, random);
    replay(config, model, position_of(array, model, at, pages),
           top ? gemv::Output::kTop : gemv::Output::kF32, top ? 8 : 0);
  }
}

TEST_CASE("decoder stream: real models at every kind of position") {
  Random random{std::mt19937(2)};
  const Sizes sizes[] = {{1152, 4, 1, 256, 6912, 32768},
                         {2560, 8, 4, 256, 10240, 32768},
                         {640, 4, 1, 256, 2048, 262144},
                         {3840, 16, 8, 256, 15360, 4096}};
  for (const Sizes& s : sizes) {
    for (int i = 0; i < 4; ++i) {
      const auto generation = i % 2 ? arch::Generation::kNpu1 : arch::Generation::kNpu2;
      const auto format = kFourBits[i / 2];
      const Configuration config = configuration(generation, format);
      const DecoderArray array = DecoderArray::of(config);
      const DecoderModel model = model_of(s, {512, 512, 0}, format);
      for (const int64_t at : {0, 15, 16, 31, 255, 256, 511, 512, 4095, 32767}) {
        CAPTURE(s.width);
        CAPTURE(at);
        const Pages pages = random_pages(model, at + 1, random);
        replay(config, model, position_of(array, model, at, pages), gemv::Output::kTop, 8);
      }
    }
  }
}

TEST_CASE("decoder stream: the longest lists of the largest heads have room") {
  Random random{std::mt19937(4)};
  for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
    for (const int64_t width : {2560, 5376}) {
      CAPTURE(width);
      const Configuration config = configuration(generation, blocks::Format::kBf16);
      const DecoderArray array = DecoderArray::of(config);
      const DecoderModel model =
          model_of({width, 8, 4, 256, 2048, 262144}, {0}, blocks::Format::kBf16);
      const Pages pages = random_pages(model, 10, random);
      replay(config, model, position_of(array, model, 9, pages), gemv::Output::kTop, 64);
    }
  }
}

TEST_CASE("decoder stream: patches make the stream of another position, or say that they cannot") {
  Random random{std::mt19937(3)};
  int patched = 0;
  for (int round = 0; round < 150; ++round) {
    const auto generation = round % 2 ? arch::Generation::kNpu1 : arch::Generation::kNpu2;
    const auto format = kFourBits[round / 2 % 2];
    const Configuration config = configuration(generation, format);
    const DecoderArray array = DecoderArray::of(config);
    const int64_t kv = 1 + random.below(4);
    const Sizes s{128, kv * 2, kv, 64 << random.below(3), 128, 256};
    const DecoderModel model = model_of(s, {1 + random.below(300), 0}, format);
    const DecoderWorkspace workspace(array, model, gemv::Output::kTop, 8, s.vocabulary);
    const DecoderPart& part = workspace.parts()[0];
    const int64_t at = random.below(1500), next = random.below(4) ? at + 1 : random.below(1500);
    CAPTURE(at);
    CAPTURE(next);
    const Pages pages = random_pages(model, 1501, random);
    // The same pages, or those of another cache.
    const Pages others = random.below(2) ? pages : random_pages(model, 1501, random);
    const DecoderPosition before = position_of(array, model, at, pages);
    const DecoderPosition after = position_of(array, model, next, others);
    if (!ops::same_form(before.attention, after.attention)) continue;
    Made made = make(config, array, model, workspace, part, before);
    const Made expected = make(config, array, model, workspace, part, after);
    const auto reads = ops::read_patches(generation, model, 0, after, made.variables);
    if (!reads) continue;
    put(*reads, made);
    put(ops::row_patches(0, after, made.variables), made);
    ++patched;
    REQUIRE(made.words == expected.words);
  }
  CHECK(patched > 30);
}

TEST_CASE("decoder parts: streams of layers of one kind differ in places of the pool alone") {
  Random random{std::mt19937(5)};
  for (int round = 0; round < 20; ++round) {
    const auto format = kFourBits[round % 2];
    const Configuration config = configuration(arch::Generation::kNpu2, format);
    const DecoderArray array = DecoderArray::of(config);
    const DecoderModel model = random_model(random, {300, 300, 0, 300, 0}, format);
    const bool halves = round % 3 == 2;
    const auto cut = halves ? DecoderWorkspace::Cut::kHalves : DecoderWorkspace::Cut::kLayers;
    const DecoderWorkspace workspace(array, model, gemv::Output::kTop, 8, model.shape.vocabulary,
                                     cut);
    const std::vector<DecoderPart>& parts = workspace.parts();
    REQUIRE(parts.size() == (halves ? 11 : 6));
    // One run of pages, so that all layers read in the same pieces.
    Pages pages(model.layers.size());
    for (size_t i = 0; i < pages.size(); ++i) {
      for (int64_t page = 0; page < 4; ++page) pages[i].push_back(int64_t(10 * i) + page);
    }
    const DecoderPosition position = position_of(array, model, random.below(1000), pages);
    using Pairs = std::vector<std::pair<size_t, size_t>>;
    const Pairs alike = halves ? Pairs{{2, 6}, {3, 7}, {4, 8}, {5, 9}} : Pairs{{1, 3}, {2, 4}};
    for (const auto& [from, to] : alike) {
      CAPTURE(from);
      Made made = make(config, array, model, workspace, parts[from], position);
      const Made other = make(config, array, model, workspace, parts[to], position);
      CHECK(made.words != other.words);
      const size_t layer = parts[to].layer;
      auto patches = ops::row_patches(layer, position, made.variables);
      const auto reads =
          ops::read_patches(array.generation, model, layer, position, made.variables);
      REQUIRE(reads.has_value());
      patches.insert(patches.end(), reads->begin(), reads->end());
      for (const StreamPatch& patch : patches) {
        if (made.words[patch.word] == patch.value) continue;
        const auto is_place = [&](const ops::DecoderVariable& one) {
          return patch.word - one.offset_word() < 2;
        };
        REQUIRE(std::ranges::any_of(made.variables, is_place));
        made.words[patch.word] = patch.value;
      }
      CHECK(made.words == other.words);
      CHECK(parts[from].constants.count() == parts[to].constants.count());
      CHECK(parts[from].weights[0].count() == parts[to].weights[0].count());
    }
    const Made first = make(config, array, model, workspace, parts[0], position);
    const Made second = make(config, array, model, workspace, parts[1], position);
    CHECK(first.words.size() != second.words.size());  // which has a norm of results
  }
}

TEST_CASE("decoder model: regions have room for an object of a large block at every small one") {
  for (const auto format : kFormats) {
    CAPTURE(static_cast<int>(format));
    DecoderModel model = model_of({128, 2, 1, 64, 128, 256}, {0}, format);
    model.region_bytes[0] -= 4;
    try {
      model.check();
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kShape);
      CHECK(std::string(error.what()).starts_with("[decoder] head"));  // the last matrix
    }
  }
}

TEST_CASE("decoder stream: a model of the other size of blocks is refused") {
  for (const auto of : kFourBits) {
    const DecoderArray array = DecoderArray::of(configuration(arch::Generation::kNpu2, of));
    CHECK(array.block_bytes == block_size(of));
    for (const auto format : kFormats) {
      CAPTURE(static_cast<int>(format));
      const DecoderModel model = model_of({640, 4, 1, 64, 1280, 2560}, {0}, format);
      const auto make = [&] {
        const DecoderWorkspace workspace(array, model, gemv::Output::kF32, 0, 2560);
      };
      if (block_size(format) == block_size(of)) {
        CHECK_NOTHROW(make());
        continue;
      }
      try {
        make();
        FAIL("no error");
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::kArgument);
      }
    }
  }
}
