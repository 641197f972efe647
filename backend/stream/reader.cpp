// The reading half of the TXN format: bytes -> header and typed operations, for header versions 0.1
// and 1.0. Every length is checked before it is used; an inconsistent stream is rejected with
// the operation, its byte offset and the cause. Formats: docs/reference/command_stream.md.
#include <algorithm>
#include <cstring>

#include "error.h"
#include "stream/txn.h"

namespace npu::stream {

namespace {

constexpr uint32_t kHeaderBytes = 16;

uint64_t wide(uint32_t low, uint32_t high) { return static_cast<uint64_t>(high) << 32 | low; }

Header read_header(std::span<const uint32_t> words) {
  Header h;
  h.major = static_cast<uint8_t>(words[0]);
  h.minor = static_cast<uint8_t>(words[0] >> 8);
  h.generation = static_cast<uint8_t>(words[0] >> 16);
  h.rows = static_cast<uint8_t>(words[0] >> 24);
  h.columns = static_cast<uint8_t>(words[1]);
  h.memtile_rows = static_cast<uint8_t>(words[1] >> 8);
  h.operations = words[2];
  h.bytes = words[3];
  return h;
}

void check_header(const Header& h, size_t bytes) {
  const bool known = (h.major == 0 && h.minor == 1) || (h.major == 1 && h.minor == 0);
  if (!known) {
    fail(ErrorKind::kFormat, "[Stream::parse] header version %d.%d; this reader knows 0.1 and 1.0",
         h.major, h.minor);
  }
  if (h.generation != static_cast<uint8_t>(arch::Generation::kNpu1) &&
      h.generation != static_cast<uint8_t>(arch::Generation::kNpu2)) {
    fail(ErrorKind::kFormat,
         "[Stream::parse] header names device generation %d; known are 3 "
         "(npu1) and 4 (npu2)",
         h.generation);
  }
  const int limit = arch::device_geometry(static_cast<arch::Generation>(h.generation)).columns;
  if (h.rows != arch::kRows || h.memtile_rows != arch::kMemTileRows || h.columns < 1 ||
      h.columns > limit) {
    fail(ErrorKind::kFormat,
         "[Stream::parse] header names an array of %d rows (%d of memtiles) and %d columns; "
         "expected %d rows (%d) and 1..%d columns",
         h.rows, h.memtile_rows, h.columns, arch::kRows, arch::kMemTileRows, limit);
  }
  if (h.bytes != bytes) {
    fail(ErrorKind::kFormat,
         "[Stream::parse] header says %u bytes (itself included), %zu were given; the stream is "
         "truncated or has trailing bytes",
         h.bytes, bytes);
  }
}

// Decodes one operation at a time; knows the words left.
class OperationReader {
 public:
  OperationReader(std::span<const uint32_t> words, size_t position, uint32_t index, bool compact)
      : words_(words.subspan(position)), compact_(compact) {
    op_.index = index;
    op_.byte_offset = static_cast<uint32_t>(position * 4);
    op_.opcode = static_cast<Opcode>(words_[0] & 0xFF);
  }

  Operation read() {
    switch (op_.opcode) {
      case Opcode::kWrite:
        write();
        break;
      case Opcode::kBlockWrite:
        block_write();
        break;
      case Opcode::kMaskWrite:
      case Opcode::kMaskPoll:
      case Opcode::kMaskPollBusy:
        mask();
        break;
      case Opcode::kNoop:
        fixed(1);
        break;
      case Opcode::kPreempt:
        fixed(1);
        op_.level = w(0) >> 8 & 0xFF;
        break;
      case Opcode::kLoadPdi:
        fixed(4);
        op_.pdi_id = w(0) >> 16;
        op_.pdi_bytes = w(1);
        op_.address = wide(w(2), w(3));
        break;
      case Opcode::kLoadPmStart:  // 24-bit load sequence count, program memory id
        fixed(2);
        op_.value = w(0) >> 8;
        op_.pdi_id = w(1);
        break;
      case Opcode::kCreateScratchpad:
        fixed(4);
        op_.level = w(0) >> 8;
        op_.value = w(1);
        op_.address = wide(w(2), w(3));
        break;
      case Opcode::kUpdateReg:
        fixed(3);
        op_.state_index = w(0) >> 8 & 0xFF;
        op_.function = w(0) >> 16 & 0xFF;
        op_.value = w(1);
        op_.address = w(2);
        break;
      case Opcode::kUpdateStateTable:
      case Opcode::kUpdateScratch:
        bad("this reader does not know its layout, so it cannot find what follows");
      case Opcode::kSync:
        sync();
        break;
      case Opcode::kAddressPatch:
        address_patch();
        break;
      case Opcode::kReadRegs:
      case Opcode::kRecordTimer:
      case Opcode::kMergeSync:
        custom();
        break;
      default:
        bad(strf("unknown opcode 0x%02x", words_[0] & 0xFF));
    }
    return op_;
  }

 private:
  uint32_t w(size_t i) const { return words_[i]; }

  [[noreturn]] void bad(const std::string& cause) const {
    fail(ErrorKind::kFormat, "[Stream::parse] operation %u (%s) at byte 0x%x: %s", op_.index,
         opcode_name(op_.opcode), op_.byte_offset, cause.c_str());
  }

  // Checks that `words` words are there.
  void need(size_t words) const {
    if (words_.size() < words) {
      bad(strf("needs %zu bytes, the stream ends after %zu", words * 4, words_.size() * 4));
    }
  }

  void fixed(size_t words) {
    need(words);
    op_.bytes = static_cast<uint32_t>(words * 4);
  }

  // Takes the operation's size from word `at`; it must cover `min_bytes`.
  void sized(size_t at, uint32_t min_bytes) {
    need(at + 1);
    const uint32_t size = w(at);
    if (size % 4 != 0) bad(strf("size field %u is not a multiple of 4", size));
    if (size < min_bytes) bad(strf("size field %u, at least %u expected", size, min_bytes));
    need(size / 4);
    op_.bytes = size;
  }

  void write() {
    if (compact_) {
      fixed(3);
      op_.address = w(1);
      op_.value = w(2);
      return;
    }
    sized(5, 24);
    if (op_.bytes != 24) bad(strf("size field %u, expected 24", op_.bytes));
    op_.address = wide(w(2), w(3));
    op_.value = w(4);
  }

  void block_write() {
    const size_t data = compact_ ? 3 : 4;
    sized(data - 1, static_cast<uint32_t>(data * 4 + 4));
    op_.address = w(data - 2);
    if (!compact_) {
      op_.column = static_cast<int>(w(1) & 0xFF);
      op_.row = static_cast<int>(w(1) >> 8 & 0xFF);
    }
    op_.data = words_.subspan(data, op_.bytes / 4 - data);
  }

  void mask() {
    if (compact_) {
      fixed(4);
      op_.address = w(1);
      op_.value = w(2);
      op_.mask = w(3);
      return;
    }
    // 28 bytes from mlir-aie; 32 from aie-rt, whose C struct is padded.
    sized(6, 28);
    if (op_.bytes > 32) bad(strf("size field %u, expected 28 or 32", op_.bytes));
    op_.address = wide(w(2), w(3));
    op_.value = w(4);
    op_.mask = w(5);
  }

  void custom() {
    sized(1, 8);
    op_.data = words_.subspan(2, op_.bytes / 4 - 2);
  }

  void sync() {
    custom();
    if (op_.bytes != 16) bad(strf("size field %u, expected 16", op_.bytes));
    const uint32_t direction = w(2) & 0xFF;
    if (direction > 1) bad(strf("direction %u, expected 0 (S2MM) or 1 (MM2S)", direction));
    op_.direction = static_cast<arch::Direction>(direction);
    op_.row = static_cast<int>(w(2) >> 8 & 0xFF);
    op_.column = static_cast<int>(w(2) >> 16 & 0xFF);
    op_.rows = static_cast<int>(w(3) >> 8 & 0xFF);
    op_.columns = static_cast<int>(w(3) >> 16 & 0xFF);
    op_.channel = static_cast<int>(w(3) >> 24 & 0xFF);
    if (op_.rows == 0 || op_.columns == 0) {
      bad(strf("waits for an empty rectangle of %d x %d tiles", op_.columns, op_.rows));
    }
  }

  void address_patch() {
    custom();
    if (op_.bytes == 24) {  // compact payload of aie-rt
      op_.address = w(2);
      op_.argument = w(3) & 0xFF;
      op_.argument_offset = wide(w(4), w(5));
    } else if (op_.bytes == 44 || op_.bytes == 48) {  // 44: no word for the offset's high half
      op_.address = wide(w(6), w(7));
      op_.argument = w(8);
      op_.argument_offset = wide(w(10), op_.bytes == 48 ? w(11) : 0);
    } else {
      bad(strf("size field %u, expected 24 (compact) or 48 (long)", op_.bytes));
    }
  }

  std::span<const uint32_t> words_;
  bool compact_;
  Operation op_;
};

}  // namespace

const char* opcode_name(Opcode opcode) {
  switch (opcode) {
    case Opcode::kWrite:
      return "WRITE";
    case Opcode::kBlockWrite:
      return "BLOCKWRITE";
    case Opcode::kMaskWrite:
      return "MASKWRITE";
    case Opcode::kMaskPoll:
      return "MASKPOLL";
    case Opcode::kNoop:
      return "NOOP";
    case Opcode::kPreempt:
      return "PREEMPT";
    case Opcode::kMaskPollBusy:
      return "MASKPOLL_BUSY";
    case Opcode::kLoadPdi:
      return "LOADPDI";
    case Opcode::kLoadPmStart:
      return "LOAD_PM_START";
    case Opcode::kCreateScratchpad:
      return "CREATE_SCRATCHPAD";
    case Opcode::kUpdateStateTable:
      return "UPDATE_STATE_TABLE";
    case Opcode::kUpdateReg:
      return "UPDATE_REG";
    case Opcode::kUpdateScratch:
      return "UPDATE_SCRATCH";
    case Opcode::kSync:
      return "SYNC";
    case Opcode::kAddressPatch:
      return "ADDRESS_PATCH";
    case Opcode::kReadRegs:
      return "READ_REGS";
    case Opcode::kRecordTimer:
      return "RECORD_TIMER";
    case Opcode::kMergeSync:
      return "MERGE_SYNC";
  }
  return "?";
}

Stream Stream::parse(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) {
    fail(ErrorKind::kFormat, "[Stream::parse] %zu bytes given, the header alone is %u",
         bytes.size(), kHeaderBytes);
  }
  if (bytes.size() % 4 != 0 || bytes.size() > Stream::kMaxBytes) {
    fail(ErrorKind::kFormat,
         "[Stream::parse] %zu bytes given; expected a multiple of 4, at most "
         "%zu",
         bytes.size(), Stream::kMaxBytes);
  }
  Stream stream;
  stream.words_.resize(bytes.size() / 4);
  std::memcpy(stream.words_.data(), bytes.data(), bytes.size());
  stream.header_ = read_header(stream.words_);
  const Header& header = stream.header_;
  check_header(header, bytes.size());

  const std::span<const uint32_t> words = stream.words_;
  const bool compact = header.major == 1;
  size_t position = kHeaderBytes / 4;
  while (position < words.size()) {
    const uint32_t index = static_cast<uint32_t>(stream.operations_.size());
    if (index == header.operations) {
      fail(ErrorKind::kFormat,
           "[Stream::parse] header says %u operations, but byte 0x%zx of %zu starts another",
           header.operations, position * 4, bytes.size());
    }
    stream.operations_.push_back(OperationReader(words, position, index, compact).read());
    position += stream.operations_.back().bytes / 4;
  }
  if (stream.operations_.size() != header.operations) {
    fail(ErrorKind::kFormat, "[Stream::parse] header says %u operations, the stream holds %zu",
         header.operations, stream.operations_.size());
  }
  return stream;
}

Stream::Range Stream::patchable(const Operation& operation) const {
  if (operation.opcode == Opcode::kBlockWrite) {
    return {static_cast<size_t>(operation.data.data() - words_.data()), operation.data.size()};
  }
  constexpr size_t kOffset = 10;  // of the long form of an ADDRESS_PATCH: low half, high half
  if (operation.opcode == Opcode::kAddressPatch && operation.bytes == 48) {
    return {operation.byte_offset / 4 + kOffset, 2};
  }
  return {0, 0};
}

std::vector<Stream::Range> Stream::patchable() const {
  std::vector<Range> ranges;
  for (const Operation& operation : operations_) {
    const Range range = patchable(operation);
    if (range.count != 0) ranges.push_back(range);
  }
  return ranges;
}

void Stream::patch(size_t word, uint32_t value) {
  if (operation_of_.empty()) {
    operation_of_.resize(words_.size(), UINT32_MAX);
    for (const Operation& operation : operations_) {
      const Range range = patchable(operation);
      std::fill_n(operation_of_.begin() + static_cast<ptrdiff_t>(range.first), range.count,
                  operation.index);
    }
  }
  const uint32_t index = word < words_.size() ? operation_of_[word] : UINT32_MAX;
  if (index == UINT32_MAX) refuse_patch(word, words_.size());
  words_[word] = value;
  Operation& operation = operations_[index];
  if (operation.opcode != Opcode::kAddressPatch) return;
  const uint32_t* half = words_.data() + patchable(operation).first;
  operation.argument_offset = uint64_t{half[1]} << 32 | half[0];
}

void Stream::refuse_patch(size_t word, size_t words) {
  fail(ErrorKind::kForbidden,
       "[Stream::patch] word %zu of %zu is neither data of a BLOCKWRITE nor the offset of an "
       "ADDRESS_PATCH; build another stream",
       word, words);
}

}  // namespace npu::stream
