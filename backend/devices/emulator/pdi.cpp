// LOADPDI: a stream that loads a whole configuration (docs/reference/command_stream.md). On
// hardware the operation names a PDI by its number and, once the driver has patched it, by its
// address in memory; here the caller gives configurations under their numbers beforehand.
#include "devices/emulator/array.h"
#include "error.h"

namespace npu::emulator {

using stream::Opcode;
using stream::Operation;

namespace {

constexpr size_t kMaxPdis = 1 << 16;  // numbers have 16 bits

// A PDI holds register writes, nothing that waits or needs arguments.
bool writes_registers(Opcode opcode) {
  return opcode == Opcode::kWrite || opcode == Opcode::kBlockWrite ||
         opcode == Opcode::kMaskWrite || opcode == Opcode::kNoop;
}

}  // namespace

void Array::add_pdi(uint32_t id, std::span<const std::byte> txn,
                    std::function<void()> attach_programs) {
  const Entry entry(*this, "add_pdi");
  if (id >= kMaxPdis) {
    fail(ErrorKind::kArgument, "[add_pdi] PDI %u: numbers have 16 bits; use 0..%zu", id,
         kMaxPdis - 1);
  }
  stream::Stream parsed = stream::Stream::parse(txn);
  check_generation("add_pdi", parsed);
  for (const Operation& op : parsed.operations()) {
    if (writes_registers(op.opcode)) continue;
    fail(ErrorKind::kFormat,
         "[add_pdi] PDI %u: operation %u is a %s; a configuration only writes registers", id,
         op.index, opcode_name(op.opcode));
  }
  pdis_.insert_or_assign(id, Pdi{std::move(parsed), std::move(attach_programs)});
  loaded_pdi_ = kNoPdi;  // this one may have replaced what was loaded
}

// The memories of the tiles outlive a load (mlir-aie's test
// reconfigure_loadpdi_persistent_memtile).
void Array::load_pdi(const Operation& op) {
  const auto found = pdis_.find(op.pdi_id);
  if (found == pdis_.end() || configuring_) {
    fail(ErrorKind::kUnknownOperation,
         "[%s] (opcode 0x%02x at byte %u) loads PDI %u, which firmware reads from memory: %s",
         who().c_str(), static_cast<unsigned>(op.opcode), op.byte_offset, op.pdi_id,
         configuring_ ? "a configuration cannot load another"
                      : "give its configuration to add_pdi() first");
  }
  const uint64_t key = op.address != 0 ? op.address : op.pdi_id;
  if (loaded_pdi_ == key) return;  // the firmware skips what it loaded last
  if (timeline_) {
    while (step()) continue;  // an untimed array has settled
  }
  check_finished(strf("the stream loads PDI %u", op.pdi_id).c_str());
  const std::vector<double> busy = core_cycles();
  reset_tiles(std::nullopt);
  execute_pdi(found->second.configuration);
  loaded_pdi_ = key;
  if (found->second.attach_programs) {
    attaching_ = std::this_thread::get_id();
    struct Reset {
      std::atomic<std::thread::id>& thread;
      ~Reset() { thread = std::thread::id(); }
    } reset{attaching_};
    found->second.attach_programs();
  }
  if (timeline_) spend_load(busy);
  start_cores();
  fresh_ = true;
}

// Errors name the operation of the PDI as one of "configure".
void Array::execute_pdi(const stream::Stream& configuration) {
  struct Restore {
    Array& array;
    const Operation* operation;
    ~Restore() {
      array.configuring_ = false;
      array.operation_ = operation;
    }
  } restore{*this, operation_};
  configuring_ = true;
  for (const Operation& op : configuration.operations()) {
    operation_ = &op;
    run_operation(op);
  }
}

// To the state before any configuration; contents: of the memories, which else stay.
void Array::reset_tiles(std::optional<std::byte> contents) {
  scheduler_.reset();
  for (auto& t : tiles_) t->reset(contents);
  stirred_.clear();
  tokens_.clear();
  for (ColumnCounts& column : column_counts_) column.tokens.clear();
  undecoded_since_configure_ = 0;
  switches_changed();
}

}  // namespace npu::emulator
