// Configuration, attached programs and host buffers of the emulated array (array.h).
#include "devices/emulator/array.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <iterator>

#include "devices/emulator/driven_core.h"
#include "devices/emulator/ports.h"
#include "devices/emulator/replay/joint_replay.h"
#include "devices/emulator/replay/recordings.h"
#include "error.h"
#include "host/thread_pool.h"

namespace npu::emulator {

namespace {

constexpr size_t kMaxArguments = 512;
constexpr std::chrono::milliseconds kBetweenChecks{20};  // for Ctrl-C

}  // namespace

Array::Array(const arch::Geometry& device)
    : device_(device),
      blocks_(static_cast<size_t>(device.columns)),
      memories_(std::make_shared<TileMemories>(device)) {
  scheduler_.set_columns(device.columns);
  column_counts_.resize(static_cast<size_t>(device.columns));
  for (int col = 0; col < device.columns; ++col) {
    for (int row = 0; row < arch::kRows; ++row) {
      tiles_.push_back(std::make_unique<Tile>(*this, col, row, memories_));
    }
  }
}

Array::~Array() = default;

Tile* Array::find_tile(int col, int row) const {
  if (col < 0 || col >= device_.columns || row < 0 || row >= arch::kRows) return nullptr;
  return tiles_[static_cast<size_t>(col * arch::kRows + row)].get();
}

Tile& Array::tile(int col, int row) {
  Tile* found = find_tile(col, row);
  if (!found) {
    fail(ErrorKind::kArgument,
         "[array] tile (%d,%d) was requested; %s has columns 0..%d and rows 0..%d", col, row,
         device_.name, device_.columns - 1, arch::kRows - 1);
  }
  found->aliases.flush_all();
  left_by_.reset();  // whoever asks may change it
  return *found;
}

Array::HostMemory Array::host_memory(uint64_t address) const {
  const uint64_t window = address >> kArgumentWindowBits;
  if (window == 0 || window > buffers_.size()) return {};
  const Argument& buffer = buffers_[window - 1];
  const uint64_t offset = address & ((uint64_t{1} << kArgumentWindowBits) - 1);
  if (offset >= buffer.bytes) return {};
  static std::byte nowhere;  // not dereferenced in a run without data
  const bool present = buffer.data != nullptr;
  return {present ? buffer.data + offset : &nowhere, buffer.bytes - offset, buffer.writable,
          constant_[window - 1], present};
}

std::string Array::describe_buffers() const {
  if (buffers_.empty()) return "no arguments were given";
  std::string text;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    text += strf("%sargument %zu at 0x%llx, %zu bytes", i ? ", " : "", i,
                 static_cast<unsigned long long>(uint64_t{i + 1} << kArgumentWindowBits),
                 buffers_[i].bytes);
    if (i == 5 && buffers_.size() > 7) {
      text += strf(", ... (%zu arguments)", buffers_.size());
      break;
    }
  }
  return text;
}

Array::Entry::Entry(Array& array, const char* function, bool while_attaching)
    : array_(array),
      nested_(while_attaching && array.attaching_.load() == std::this_thread::get_id()) {
  if (!nested_ && array.busy_.exchange(true)) {
    fail(ErrorKind::kArgument,
         "[%s] called while the array is executing a stream, from a kernel or another thread; "
         "wait until that call returns",
         function);
  }
}

Array::Entry::~Entry() {
  if (!nested_) array_.busy_ = false;
}

RunReport Array::configure(std::span<const std::byte> txn, std::byte contents) {
  const Entry entry(*this, "configure");
  const stream::Stream parsed = stream::Stream::parse(txn);
  if (timeline_) timeline_->begin();  // its events name agents that go
  reset_tiles(contents);
  scheduler_.set_log(nullptr);
  log_ = nullptr;
  begin_epoch();
  buffers_.clear();
  report_ = RunReport{};
  for (ColumnCounts& column : column_counts_) column = {};
  loaded_pdi_ = kNoPdi;
  configured_ = faulted_ = reconfigured_ = false;
  configuring_ = true;
  try {
    start_stream(parsed);
    paused_ = false;
    deadline_ = Deadline::max();
    execute();
  } catch (...) {
    configuring_ = false;
    faulted_ = true;
    stream_ = nullptr;
    throw;
  }
  configuring_ = false;
  stream_ = nullptr;
  configured_ = true;
  return whole_report();
}

// Of what was configured or submitted.
RunReport Array::whole_report() {
  for (const ColumnCounts& column : column_counts_) add(report_, column.report);
  report_.undecoded_writes = undecoded_since_configure_;
  return report_;
}

Tile& Array::tile_for_program(int col, int row) {
  Tile& target = tile(col, row);
  if (target.geometry.kind != arch::TileKind::kCore) {
    fail(ErrorKind::kArgument, "[attach] %s has no core; cores are in rows %d..%d",
         target.name().c_str(), arch::kFirstCoreRow, arch::kRows - 1);
  }
  if (!configured_) {
    fail(ErrorKind::kArgument, "[attach] configure the array before attaching programs to cores");
  }
  return target;
}

void Array::put_core(Tile& target, std::unique_ptr<Core> core) {
  leave_put_off();
  begin_epoch();
  // An earlier program may still wait for a lock, its own or a neighbour's, or for a cascade.
  for (auto& t : tiles_) {
    for (Lock& lock : t->locks) std::erase(lock.waiters, target.core.get());
    std::erase(t->ports->cascade.waiters, target.core.get());
  }
  target.ports->core_in.reset();
  target.ports->core_out.reset();
  scheduler_.forget(target.core.get());
  target.core = std::move(core);
  target.program_lost = false;
  target.attached_in_run = stream_ ? runs_ : runs_ + 1;
}

void Array::attach(int col, int row, Program program, std::vector<KernelFunction> functions) {
  const Entry entry(*this, "attach", true);
  Tile& target = tile_for_program(col, row);
  link_program(program, target.name());
  if (functions.size() != program.functions.size()) {
    fail(ErrorKind::kKernel,
         "[attach] the program of %s names %zu functions, %zu were given; give one for each",
         target.name().c_str(), program.functions.size(), functions.size());
  }
  put_core(target, std::make_unique<ProgramCore>(
                       *this, target, CoreProgram{std::move(program), std::move(functions)}));
}

void Array::attach(int col, int row, const Overlays& overlays) {
  const Entry entry(*this, "attach", true);
  Tile& target = tile_for_program(col, row);
  for (const OverlayProgram& overlay : *overlays) {
    assert(overlay.functions.size() == overlay.program.functions.size());
    std::fill_n(target.memory.data() + overlay.counters, 4 * overlay.program.counters,
                std::byte{0});
  }
  put_core(target, std::make_unique<ProgramCore>(*this, target, overlays));
}

void Array::attach(int col, int row, CoreDriver driver) {
  const Entry entry(*this, "attach", true);
  Tile& target = tile_for_program(col, row);
  put_core(target, std::make_unique<DrivenCore>(*this, target, std::move(driver)));
}

void Array::start_cores() {
  for (auto& t : tiles_) {
    if (t->core) scheduler_.wake(t->core.get(), nullptr);
    for (auto& side : t->channels) {
      for (auto& channel : side) {
        if (!channel->idle()) scheduler_.wake(channel, nullptr);
      }
    }
  }
}

bool Array::step() {
  if (interrupt_ || deadline_ != Deadline::max()) {
    const auto now = std::chrono::steady_clock::now();
    if (interrupt_ && now > next_check_) {
      next_check_ = now + kBetweenChecks;
      interrupt_();
    }
    paused_ = now >= deadline_;
  }
  if (scheduler_.work() > watchdog_budget_) livelock();
  const bool progressed = scheduler_.round();
  for (ColumnCounts& column : column_counts_) {
    for (const uint32_t key : column.tokens) ++tokens_[key];
    column.tokens.clear();
  }
  return progressed;
}

RunReport Array::submit(std::span<const std::byte> txn, std::span<const Argument> buffers) {
  const stream::Stream parsed = stream::Stream::parse(txn);
  begin(parsed, buffers);
  resume(Deadline::max());
  return report_;
}

void Array::take_buffers(std::span<const Argument> buffers) {
  const auto begin = [](const Argument& a) { return reinterpret_cast<uintptr_t>(a.data); };
  buffers_.assign(buffers.begin(), buffers.end());
  std::vector<Argument> writable;
  std::copy_if(buffers.begin(), buffers.end(), std::back_inserter(writable),
               [](const Argument& a) { return a.writable; });
  constant_.clear();
  for (const Argument& a : buffers_) {
    constant_.push_back(std::none_of(writable.begin(), writable.end(), [&](const Argument& other) {
      return begin(other) < begin(a) + a.bytes && begin(a) < begin(other) + other.bytes;
    }));
  }
}

// The arguments of a run are the caller's again.
void Array::drop_buffers() {
  // Tiles of a column are neighbours in the list: those of one thread.
  ThreadPool::shared().parallel_for(tiles_.size(),
                                    [&](size_t i) { tiles_[i]->aliases.flush_arguments(); });
  buffers_.clear();
}

void Array::begin(const stream::Stream& stream, std::span<const Argument> buffers,
                  Recordings* recordings) {
  const char* const name = run_function();
  {
    const Entry entry(*this, name);
    check_begin(name, buffers);
  }
  const bool rests = recordings != nullptr && recordings->enabled() && find_rest();
  const Entry entry(*this, name);
  start(stream, buffers, rests ? recordings : nullptr);
}

void Array::check_begin(const char* name, std::span<const Argument> buffers) const {
  if (stream_ != nullptr) {
    fail(ErrorKind::kArgument,
         "[%s] the array is executing another stream; wait until that run has ended", name);
  }
  if (faulted_) {
    fail(ErrorKind::kArgument,
         "[%s] the array stopped on an error in an earlier run; configure it again first", name);
  }
  if (!configured_) {
    fail(ErrorKind::kArgument, "[%s] the array has no configuration; call configure first", name);
  }
  check_arguments(name, buffers);
}

void Array::check_arguments(const char* name, std::span<const Argument> buffers) const {
  if (buffers.size() > kMaxArguments) {
    fail(ErrorKind::kArgument, "[%s] %zu arguments were given; at most %zu are possible", name,
         buffers.size(), kMaxArguments);
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].bytes >> kArgumentWindowBits) {
      fail(ErrorKind::kArgument, "[%s] argument %zu has %zu bytes; at most 2^%d are possible", name,
           i, buffers[i].bytes, kArgumentWindowBits);
    }
    if (!buffers[i].data && buffers[i].bytes != 0 && moves_data()) {
      fail(ErrorKind::kArgument, "[%s] argument %zu is a null pointer of %zu bytes; pass memory",
           name, i, buffers[i].bytes);
    }
  }
}

// With recordings the array is at rest.
void Array::start(const stream::Stream& stream, std::span<const Argument> buffers,
                  Recordings* recordings) {
  take_buffers(buffers);
  report_ = RunReport{};
  for (ColumnCounts& column : column_counts_) column.report = {};
  array_time_ = {};
  drained_ = false;
  unwaited_count_ = 0;
  dropped_.clear();
  ++runs_;
  address_patches_ = 0;
  if (recordings && begin_replay(*recordings)) {
    stream_ = &stream;
    return;
  }
  leave_put_off();
  left_by_.reset();
  try {
    begin_timing();
    if (recordings) begin_recording(stream, *recordings);
    settled_ = false;
    fresh_ = true;
    start_cores();
    start_stream(stream);
  } catch (...) {
    abort();
    throw;
  }
}

bool Array::resume(Deadline deadline) {
  const Entry entry(*this, run_function());
  if (stream_ == nullptr) return true;
  const auto begin = std::chrono::steady_clock::now();
  deadline_ = deadline;
  paused_ = false;
  if (replay_) return resume_replay(begin);
  const ActionLog::Scope logged(log_.get());
  try {
    if (!advance()) {
      array_time_ += std::chrono::steady_clock::now() - begin;
      return false;
    }
    check_finished("the stream ended");
    end_timing();
  } catch (...) {
    abort();
    throw;
  }
  stream_ = nullptr;
  whole_report();
  if (log_) end_recording();
  drop_buffers();
  array_time_ += std::chrono::steady_clock::now() - begin;
  report_.array_ns = static_cast<uint64_t>(array_time_.count());
  return true;
}

// The stream's operations, then whatever the array still does.
bool Array::advance() {
  if (!drained_) {
    if (!execute()) return false;
    stream_done();
    scheduler_.progressed();
    drained_ = true;
  }
  while (step()) {
    if (paused_) return false;
  }
  return true;
}

void Array::abort() {
  faulted_ = true;
  stream_ = nullptr;
  recorded_ = nullptr;
  replay_ = nullptr;
  put_off_ = nullptr;
  drop_buffers();
}

}  // namespace npu::emulator
