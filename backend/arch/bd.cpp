// BD field packing. One table per tile kind says which bits of which word hold a field; encode and
// decode walk the same table, so they cannot disagree.
#include "arch/bd.h"

#include <cassert>

#include "error.h"

namespace npu::arch {

namespace {

// A field at bits [low, low+bits) of `word`.
struct Slot {
  int word, low, bits;
};

uint32_t mask_of(int bits) { return bits >= 32 ? 0xFFFFFFFFu : (1u << bits) - 1; }

class Decoder {
 public:
  explicit Decoder(std::span<const uint32_t> words) : words_(words) {}
  static constexpr bool kDecoding = true;
  template <typename T>
  void field(const char*, Slot s, T& value, uint32_t bias = 0) {
    value = static_cast<T>((words_[static_cast<size_t>(s.word)] >> s.low & mask_of(s.bits)) + bias);
  }
  void flag(Slot s, bool& value) { value = words_[static_cast<size_t>(s.word)] >> s.low & 1; }
  void signed7(const char*, Slot s, int& value) {
    const int raw = static_cast<int>(words_[static_cast<size_t>(s.word)] >> s.low & 0x7F);
    value = raw >= 64 ? raw - 128 : raw;
  }

 private:
  std::span<const uint32_t> words_;
};

class Encoder {
 public:
  explicit Encoder(int words) : words_(static_cast<size_t>(words), 0) {}
  static constexpr bool kDecoding = false;
  template <typename T>
  void field(const char* name, Slot s, T& value, uint32_t bias = 0) {
    const uint64_t wide = value;
    if (wide < bias || wide - bias > mask_of(s.bits)) {
      fail(ErrorKind::kArgument,
           "[encode_bd] %s = %llu does not fit its %d-bit field (allowed %u..%llu)", name,
           static_cast<unsigned long long>(wide), s.bits, bias,
           static_cast<unsigned long long>(mask_of(s.bits)) + bias);
    }
    words_[static_cast<size_t>(s.word)] |= static_cast<uint32_t>(wide - bias) << s.low;
  }
  void flag(Slot s, bool& value) {
    words_[static_cast<size_t>(s.word)] |= static_cast<uint32_t>(value) << s.low;
  }
  void signed7(const char* name, Slot s, int& value) {
    if (value < -64 || value > 63) {
      fail(ErrorKind::kArgument, "[encode_bd] %s = %d does not fit a signed 7-bit field", name,
           value);
    }
    words_[static_cast<size_t>(s.word)] |= (static_cast<uint32_t>(value) & 0x7F) << s.low;
  }
  std::vector<uint32_t> take() { return std::move(words_); }

 private:
  std::vector<uint32_t> words_;
};

// Lock and chain fields shared by compute (word 5) and shim (word 7) BDs.
template <typename Coder>
void chain_word(Coder& c, int w, Bd& bd) {
  c.flag({w, 31, 1}, bd.tlast_suppress);
  c.field("next_bd", {w, 27, 4}, bd.next_bd);
  c.flag({w, 26, 1}, bd.use_next);
  c.flag({w, 25, 1}, bd.valid);
  c.signed7("release_value", {w, 18, 7}, bd.release_value);
  c.field("release_id", {w, 13, 4}, bd.release_id);
  c.flag({w, 12, 1}, bd.acquire_enable);
  c.signed7("acquire_value", {w, 5, 7}, bd.acquire_value);
  c.field("acquire_id", {w, 0, 4}, bd.acquire_id);
}

template <typename Coder>
void core_fields(Coder& c, Bd& bd) {
  c.field("base", {0, 14, 14}, bd.base);
  c.field("length", {0, 0, 14}, bd.length);
  c.flag({1, 31, 1}, bd.compression);
  c.flag({1, 30, 1}, bd.packet_enable);
  c.field("out_of_order_id", {1, 24, 6}, bd.out_of_order_id);
  c.field("packet_id", {1, 19, 5}, bd.packet_id);
  c.field("packet_type", {1, 16, 3}, bd.packet_type);
  c.field("d1 step", {2, 13, 13}, bd.step[1], 1);
  c.field("d0 step", {2, 0, 13}, bd.step[0], 1);
  c.field("d1 wrap", {3, 21, 8}, bd.wrap[1]);
  c.field("d0 wrap", {3, 13, 8}, bd.wrap[0]);
  c.field("d2 step", {3, 0, 13}, bd.step[2], 1);
  c.field("iteration_current", {4, 19, 6}, bd.iteration_current);
  c.field("iteration_wrap", {4, 13, 6}, bd.iteration_wrap, 1);
  c.field("iteration_step", {4, 0, 13}, bd.iteration_step, 1);
  chain_word(c, 5, bd);
}

template <typename Coder>
void mem_fields(Coder& c, Bd& bd) {
  c.flag({0, 31, 1}, bd.packet_enable);
  c.field("packet_type", {0, 28, 3}, bd.packet_type);
  c.field("packet_id", {0, 23, 5}, bd.packet_id);
  c.field("out_of_order_id", {0, 17, 6}, bd.out_of_order_id);
  c.field("length", {0, 0, 17}, bd.length);
  c.field("d0 pad before", {1, 26, 6}, bd.pad_before[0]);
  c.field("next_bd", {1, 20, 6}, bd.next_bd);
  c.flag({1, 19, 1}, bd.use_next);
  c.field("base", {1, 0, 19}, bd.base);
  c.flag({2, 31, 1}, bd.tlast_suppress);
  c.field("d0 wrap", {2, 17, 10}, bd.wrap[0]);
  c.field("d0 step", {2, 0, 17}, bd.step[0], 1);
  c.field("d1 pad before", {3, 27, 5}, bd.pad_before[1]);
  c.field("d1 wrap", {3, 17, 10}, bd.wrap[1]);
  c.field("d1 step", {3, 0, 17}, bd.step[1], 1);
  c.flag({4, 31, 1}, bd.compression);
  c.field("d2 pad before", {4, 27, 4}, bd.pad_before[2]);
  c.field("d2 wrap", {4, 17, 10}, bd.wrap[2]);
  c.field("d2 step", {4, 0, 17}, bd.step[2], 1);
  c.field("d2 pad after", {5, 28, 4}, bd.pad_after[2]);
  c.field("d1 pad after", {5, 23, 5}, bd.pad_after[1]);
  c.field("d0 pad after", {5, 17, 6}, bd.pad_after[0]);
  c.field("d3 step", {5, 0, 17}, bd.step[3], 1);
  c.field("iteration_current", {6, 23, 6}, bd.iteration_current);
  c.field("iteration_wrap", {6, 17, 6}, bd.iteration_wrap, 1);
  c.field("iteration_step", {6, 0, 17}, bd.iteration_step, 1);
  c.flag({7, 31, 1}, bd.valid);
  c.signed7("release_value", {7, 24, 7}, bd.release_value);
  c.field("release_id", {7, 16, 8}, bd.release_id);
  c.flag({7, 15, 1}, bd.acquire_enable);
  c.signed7("acquire_value", {7, 8, 7}, bd.acquire_value);
  c.field("acquire_id", {7, 0, 8}, bd.acquire_id);
}

template <typename Coder>
void shim_fields(Coder& c, Bd& bd) {
  c.field("length", {0, 0, 32}, bd.length);
  // The 48-bit byte address lies in two words; its low two bits do not exist.
  uint64_t low_words = bd.base >> 2 & 0x3FFFFFFF, high = bd.base >> 32;
  c.field("base low", {1, 2, 30}, low_words);
  c.field("base high", {2, 0, 16}, high);
  if (Coder::kDecoding) bd.base = high << 32 | low_words << 2;
  c.flag({2, 30, 1}, bd.packet_enable);
  c.field("out_of_order_id", {2, 24, 6}, bd.out_of_order_id);
  c.field("packet_id", {2, 19, 5}, bd.packet_id);
  c.field("packet_type", {2, 16, 3}, bd.packet_type);
  c.flag({3, 30, 1}, bd.secure);
  c.field("d0 wrap", {3, 20, 10}, bd.wrap[0]);
  c.field("d0 step", {3, 0, 20}, bd.step[0], 1);
  c.field("burst", {4, 30, 2}, bd.burst);
  c.field("d1 wrap", {4, 20, 10}, bd.wrap[1]);
  c.field("d1 step", {4, 0, 20}, bd.step[1], 1);
  c.field("smid", {5, 28, 4}, bd.smid);
  c.field("axcache", {5, 24, 4}, bd.axcache);
  c.field("axqos", {5, 20, 4}, bd.axqos);
  c.field("d2 step", {5, 0, 20}, bd.step[2], 1);
  c.field("iteration_current", {6, 26, 6}, bd.iteration_current);
  c.field("iteration_wrap", {6, 20, 6}, bd.iteration_wrap, 1);
  c.field("iteration_step", {6, 0, 20}, bd.iteration_step, 1);
  chain_word(c, 7, bd);
}

template <typename Coder>
void all_fields(Coder& c, TileKind kind, Bd& bd) {
  switch (kind) {
    case TileKind::kShim:
      return shim_fields(c, bd);
    case TileKind::kMem:
      return mem_fields(c, bd);
    case TileKind::kCore:
      return core_fields(c, bd);
  }
}

}  // namespace

Bd decode_bd(TileKind kind, std::span<const uint32_t> words) {
  assert(words.size() >= static_cast<size_t>(tile_geometry(kind).bd_words));
  Decoder decoder(words);
  Bd bd;
  all_fields(decoder, kind, bd);
  return bd;
}

std::vector<uint32_t> encode_bd(TileKind kind, const Bd& bd) {
  if (kind == TileKind::kShim && bd.base % 4 != 0) {
    fail(ErrorKind::kMisaligned, "[encode_bd] shim base 0x%llx is not a multiple of 4 bytes",
         static_cast<unsigned long long>(bd.base));
  }
  Encoder encoder(tile_geometry(kind).bd_words);
  Bd copy = bd;
  all_fields(encoder, kind, copy);
  std::vector<uint32_t> words = encoder.take();
  if (decode_bd(kind, words) != bd) {
    fail(ErrorKind::kArgument,
         "[encode_bd] a field is set that a %s BD does not have: padding and d3 are for memtiles, "
         "burst, AxCache, QoS, SMID and secure for shims, compression not for shims",
         tile_geometry(kind).name);
  }
  return words;
}

}  // namespace npu::arch
