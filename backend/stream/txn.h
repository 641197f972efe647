// The TXN command stream: operations, reader and builder. Format: mlir-aie TxnEncoding.h, restated
// in docs/reference/command_stream.md. All words are little-endian 32 bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arch/geometry.h"

namespace npu::stream {

enum class Opcode : uint8_t {
  kWrite = 0x00,
  kBlockWrite = 0x01,
  kMaskWrite = 0x03,
  kMaskPoll = 0x04,
  kNoop = 0x05,
  kPreempt = 0x06,
  kMaskPollBusy = 0x07,
  kLoadPdi = 0x08,
  kLoadPmStart = 0x09,
  kCreateScratchpad = 0x0A,
  kUpdateStateTable = 0x0B,
  kUpdateReg = 0x0C,
  kUpdateScratch = 0x0D,
  kSync = 0x80,          // TCT: wait for task-complete tokens
  kAddressPatch = 0x81,  // DDR_PATCH
  kReadRegs = 0x82,
  kRecordTimer = 0x83,
  kMergeSync = 0x84,
};

const char* opcode_name(Opcode opcode);

struct Header {
  uint8_t major = 0, minor = 1;
  uint8_t generation = 4;  // arch::Generation
  uint8_t rows = arch::kRows;
  uint8_t columns = 8;
  uint8_t memtile_rows = arch::kMemTileRows;
  uint32_t operations = 0;
  uint32_t bytes = 0;  // header included
};

// One decoded operation. Which members are meaningful depends on the opcode.
struct Operation {
  Opcode opcode = Opcode::kNoop;
  uint32_t index = 0;        // position in the stream
  uint32_t byte_offset = 0;  // of its first word
  uint32_t bytes = 0;        // its size
  uint64_t address = 0;      // WRITE, BLOCKWRITE, MASK*, ADDRESS_PATCH (register), LOADPDI (memory)
  uint32_t value = 0, mask = 0;
  std::span<const uint32_t> data;  // BLOCKWRITE payload; custom operations: raw payload
  // SYNC
  arch::Direction direction = arch::Direction::kS2MM;
  int column = 0, row = 0, columns = 1, rows = 1, channel = 0;
  // ADDRESS_PATCH
  uint32_t argument = 0;
  uint64_t argument_offset = 0;  // arg_plus, aperture included if the writer folded it
  // PREEMPT level; LOADPDI id and size; CREATE_SCRATCHPAD usage; UPDATE_REG state index and
  // function
  uint32_t level = 0, pdi_id = 0, pdi_bytes = 0, state_index = 0, function = 0;
};

// A parsed stream that owns its words.
class Stream {
 public:
  // Far above any real stream (a whole array's program memories are 0.5 MiB); bounds what a damaged
  // or hostile file can make us hold.
  static constexpr size_t kMaxBytes = size_t{16} << 20;

  // Parses bytes; throws Error(kFormat) naming the operation, its offset and what is wrong.
  // Both header versions (0.1, 1.0) are read; operations advance by their size field.
  static Stream parse(std::span<const std::byte> bytes);

  const Header& header() const { return header_; }
  const std::vector<Operation>& operations() const { return operations_; }
  std::span<const uint32_t> words() const { return words_; }
  // Words that patch() may change, in order.
  struct Range {
    size_t first, count;
  };
  Range patchable(const Operation& operation) const;  // of one of them; count 0: nothing
  std::vector<Range> patchable() const;
  // Gives a word of a BLOCKWRITE's data, or of an ADDRESS_PATCH's offset, another value: what a
  // stream touches stays the same. Throws Error(kForbidden) for any other word.
  void patch(size_t word, uint32_t value);
  // The error for another word of a stream of `words`.
  [[noreturn]] static void refuse_patch(size_t word, size_t words);

 private:
  Header header_;
  std::vector<uint32_t> words_;
  std::vector<Operation> operations_;   // spans point into words_ (stable: moved, never copied)
  std::vector<uint32_t> operation_of_;  // of every word; made by the first patch()
 public:
  Stream() = default;
  Stream(Stream&&) = default;
  Stream& operator=(Stream&&) = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
};

// Appends operations in the 0.1 form, word for word as mlir-aie emits them.
class Builder {
 public:
  Builder(arch::Generation generation, int columns);
  void write(uint32_t address, uint32_t value);
  // `column`/`row` are the informative fields mlir-aie puts in word 1; 0 when built from an
  // address.
  void block_write(uint32_t address, std::span<const uint32_t> data, int column = 0, int row = 0);
  void mask_write(uint32_t address, uint32_t value, uint32_t mask);
  void mask_poll(uint32_t address, uint32_t value, uint32_t mask);
  void noop();
  void preempt(uint32_t level);
  void load_pdi(uint32_t id, uint32_t bytes, uint64_t address);
  void sync(int column, int row, arch::Direction direction, int channel, int columns = 1,
            int rows = 1);
  // `offset` is the byte offset into the argument; for argument >= 5 the DDR aperture is folded in
  // (hardware.md 4.6) unless `fold` is false.
  void address_patch(uint32_t register_address, uint32_t argument, uint64_t offset,
                     bool fold = true);
  uint32_t operations() const { return operations_; }
  size_t bytes() const { return words_.size() * sizeof(uint32_t); }
  // The finished stream, header filled in. The builder stays usable.
  std::vector<uint32_t> finish() const;

 private:
  std::vector<uint32_t> words_;  // header slots included
  uint32_t operations_ = 0;
  arch::Generation generation_;
  int columns_;
};

// One line per operation, addresses as tile/register names, BD words spelled out.
std::string disassemble(const Stream& stream);

// What a runtime stream may touch besides shim tiles (docs/architecture.md).
struct Permissions {
  struct Range {
    int col, row;
    uint32_t offset, bytes;
  };
  std::vector<Range> rtp_words;  // data memory words of cores
  struct Lock {
    int col, row, id;
  };
  std::vector<Lock> rtp_locks;
};
// Throws Error(kForbidden) naming the first operation outside `permissions`.
void check_runtime_stream(const Stream& stream, const Permissions& permissions);

}  // namespace npu::stream
