// Control packets: register writes that arrive at a tile as data of a stream that ends in its
// TileControl port (docs/reference/hardware.md 3.5). A packet is a header word, a control word and,
// unless it is a read, one to four data words. A read is answered by a packet of as many words.
#pragma once

#include <bit>
#include <cstdint>

namespace npu::arch {

inline constexpr uint32_t kMaxControlWords = 4;  // data words of one packet

// The word with bit 31 such that an odd number of its bits is set.
constexpr uint32_t with_odd_parity(uint32_t word) {
  word &= 0x7FFFFFFFu;
  return std::popcount(word) % 2 == 0 ? word | 1u << 31 : word;
}

constexpr bool has_odd_parity(uint32_t word) { return std::popcount(word) % 2 == 1; }

// [4:0] id, [14:12] type, [20:16] row and [27:21] column of the sender.
constexpr uint32_t packet_header(uint32_t id, uint32_t type = 0, uint32_t col = 0,
                                 uint32_t row = 0) {
  return with_odd_parity(id | type << 12 | row << 16 | col << 21);
}

inline constexpr uint32_t kHeaderReserved = 0x70008FE0;  // bits that are zero in a packet header

// [30:24] stream id of the response, whose low five bits are its packet id, [23:22] operation,
// [21:20] data words - 1, [19:0] address in the tile. All three writes are to consecutive
// registers.
enum class ControlOperation : uint8_t { kWrite = 0, kRead = 1, kWriteIncrement = 2, kBlock = 3 };

struct ControlWord {
  ControlOperation operation;
  uint32_t count;  // data words
  uint32_t offset;
  uint32_t response = 0;  // packet id
};

constexpr uint32_t encode_control_word(const ControlWord& word) {
  return with_odd_parity(word.response << 24 | static_cast<uint32_t>(word.operation) << 22 |
                         (word.count - 1) << 20 | word.offset);
}

constexpr ControlWord decode_control_word(uint32_t word) {
  return {static_cast<ControlOperation>(word >> 22 & 3), (word >> 20 & 3) + 1, word & 0xFFFFF,
          word >> 24 & 0x1F};
}

}  // namespace npu::arch
