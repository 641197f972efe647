// The writing half of the TXN format: one method per operation, each appending the words mlir-aie
// emits for it (header version 0.1). Formats: docs/reference/command_stream.md.
#include <cassert>
#include <limits>

#include "error.h"
#include "stream/txn.h"

namespace npu::stream {

namespace {

constexpr size_t kHeaderWords = 4;

uint32_t low(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t high(uint64_t value) { return static_cast<uint32_t>(value >> 32); }
uint32_t code(Opcode opcode) { return static_cast<uint32_t>(opcode); }

// A number that must fit the byte the format has for it.
uint32_t byte_field(const char* function, const char* name, int value) {
  if (value < 0 || value > 255) {
    fail(ErrorKind::kArgument, "[%s] %s = %d does not fit its 8-bit field; use 0..255", function,
         name, value);
  }
  return static_cast<uint32_t>(value);
}

}  // namespace

Builder::Builder(arch::Generation generation, int columns)
    : words_(kHeaderWords, 0), generation_(generation), columns_(columns) {
  const arch::Geometry& device = arch::device_geometry(generation);
  if (columns < 1 || columns > device.columns) {
    fail(ErrorKind::kArgument, "[Builder] %d columns were requested; %s has 1..%d", columns,
         device.name, device.columns);
  }
}

void Builder::write(uint32_t address, uint32_t value) {
  words_.insert(words_.end(), {code(Opcode::kWrite), 0, address, 0, value, 24});
  ++operations_;
}

void Builder::block_write(uint32_t address, std::span<const uint32_t> data, int column, int row) {
  // The size field counts bytes in 32 bits.
  constexpr size_t kMaxWords = (std::numeric_limits<uint32_t>::max() - 16) / 4;
  if (data.empty() || data.size() > kMaxWords) {
    fail(ErrorKind::kArgument, "[block_write] %zu data words; use 1..%zu", data.size(), kMaxWords);
  }
  const uint32_t place =
      byte_field("block_write", "column", column) | byte_field("block_write", "row", row) << 8;
  words_.insert(words_.end(), {code(Opcode::kBlockWrite), place, address,
                               static_cast<uint32_t>(16 + 4 * data.size())});
  words_.insert(words_.end(), data.begin(), data.end());
  ++operations_;
}

void Builder::mask_write(uint32_t address, uint32_t value, uint32_t mask) {
  words_.insert(words_.end(), {code(Opcode::kMaskWrite), 0, address, 0, value, mask, 28});
  ++operations_;
}

void Builder::mask_poll(uint32_t address, uint32_t value, uint32_t mask) {
  words_.insert(words_.end(), {code(Opcode::kMaskPoll), 0, address, 0, value, mask, 28});
  ++operations_;
}

void Builder::noop() {
  words_.push_back(code(Opcode::kNoop));
  ++operations_;
}

void Builder::preempt(uint32_t level) {
  if (level > 3) {
    fail(ErrorKind::kArgument,
         "[preempt] level %u; use 0 (none), 1 (memtile), 2 (tile) or 3 (registers)", level);
  }
  words_.push_back(code(Opcode::kPreempt) | level << 8);
  ++operations_;
}

void Builder::load_pdi(uint32_t id, uint32_t bytes, uint64_t address) {
  if (id > 0xFFFF) {
    fail(ErrorKind::kArgument, "[load_pdi] id %u does not fit its 16-bit field", id);
  }
  words_.insert(words_.end(),
                {code(Opcode::kLoadPdi) | id << 16, bytes, low(address), high(address)});
  ++operations_;
}

void Builder::sync(int column, int row, arch::Direction direction, int channel, int columns,
                   int rows) {
  if (columns < 1 || rows < 1) {
    fail(ErrorKind::kArgument, "[sync] a rectangle of %d x %d tiles; both must be at least 1",
         columns, rows);
  }
  const uint32_t where = static_cast<uint32_t>(direction) | byte_field("sync", "row", row) << 8 |
                         byte_field("sync", "column", column) << 16;
  const uint32_t what = byte_field("sync", "rows", rows) << 8 |
                        byte_field("sync", "columns", columns) << 16 |
                        byte_field("sync", "channel", channel) << 24;
  words_.insert(words_.end(), {code(Opcode::kSync), 16, where, what});
  ++operations_;
}

void Builder::address_patch(uint32_t register_address, uint32_t argument, uint64_t offset,
                            bool fold) {
  if (fold && argument >= static_cast<uint32_t>(arch::kFirstFoldedArgument)) {
    if (offset > std::numeric_limits<uint64_t>::max() - arch::kDdrAperture) {
      fail(ErrorKind::kArgument, "[address_patch] offset 0x%llx overflows with the DDR aperture",
           static_cast<unsigned long long>(offset));
    }
    offset += arch::kDdrAperture;
  }
  words_.insert(words_.end(), {code(Opcode::kAddressPatch), 48, 0, 0, 0, 0, register_address, 0,
                               argument, 0, low(offset), high(offset)});
  ++operations_;
}

std::vector<uint32_t> Builder::finish() const {
  const size_t bytes = words_.size() * 4;
  if (bytes > std::numeric_limits<uint32_t>::max()) {
    fail(ErrorKind::kArgument, "[finish] a stream of %zu bytes; the header holds 32 bits", bytes);
  }
  std::vector<uint32_t> stream = words_;
  const Header form;  // version 0.1 and the row counts
  stream[0] = static_cast<uint32_t>(form.major) | static_cast<uint32_t>(form.minor) << 8 |
              static_cast<uint32_t>(generation_) << 16 | static_cast<uint32_t>(form.rows) << 24;
  stream[1] = static_cast<uint32_t>(columns_) | static_cast<uint32_t>(form.memtile_rows) << 8;
  stream[2] = operations_;
  stream[3] = static_cast<uint32_t>(bytes);
  return stream;
}

}  // namespace npu::stream
