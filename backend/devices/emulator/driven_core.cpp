// Cores whose programs are callbacks (driven_core.h).
#include "devices/emulator/driven_core.h"

#include <algorithm>
#include <utility>

#include "arch/switch_ports.h"
#include "devices/emulator/array.h"
#include "devices/emulator/ports.h"
#include "devices/emulator/timed_run.h"
#include "runtime/overlay.h"

namespace npu::emulator {

namespace {

using Code = CoreOperation::Code;

constexpr int kLocksOfSide = 16;
constexpr CoreSide kSides[] = {CoreSide::kSouth, CoreSide::kWest, CoreSide::kNorth, CoreSide::kOwn};
// Operations in a row while others wait.
constexpr int kMaxOperations = 256;

// Accumulator_Control: where the cascade comes from and goes to (aie-rt xaiemlgbl_params.h,
// xaie2pgbl_params.h).
constexpr uint32_t kCascadeControl = 0x36060, kFromWest = 1, kToEast = 2;

uint32_t cascade_control(const Tile& tile) {
  const auto found = tile.other_registers.find(kCascadeControl);
  return found == tile.other_registers.end() ? 0 : found->second;
}

constexpr const char* kSideNames[] = {"southern", "western", "northern", "own"};

const char* code_name(Code code) {
  switch (code) {
    case Code::kAcquireGe:
    case Code::kAcquireEq:
      return "acquires";
    default:
      return "releases";
  }
}

}  // namespace

Tile* reached_by_core(const Array& array, int col, int row, CoreSide side) {
  if (side == CoreSide::kSouth) --row;
  if (side == CoreSide::kNorth) ++row;
  if (side == CoreSide::kWest) --col;
  Tile* tile = array.find_tile(col, row);
  return tile && tile->geometry.kind == arch::TileKind::kCore ? tile : nullptr;
}

DrivenCore::DrivenCore(Array& array, Tile& tile, CoreDriver driver)
    : Core(array, tile), driver_(std::move(driver)) {
  accepts_aliases_ = false;
  run_serially();
}

void DrivenCore::control(uint32_t value) {
  if (value & kCoreReset) {
    fresh_ = true;
    pending_ = blocked_ = done_ = begun_ = false;
    lock_operations_ = cascade_transfers_ = 0;
    tile_.ports->core_in.reset();
    tile_.ports->core_out.reset();
  }
  halted_ = (value & (kCoreReset | kCoreEnable)) != kCoreEnable;
}

bool DrivenCore::calling() const {
  return working_ || tile_.ports->core_in.moving() || tile_.ports->core_out.moving();
}

uint32_t DrivenCore::status() const {
  if (halted_) return 0;
  uint32_t bits = 1u | (done_ ? 1u << 20 : 0u);
  if (!blocked_) return bits;
  switch (operation_.code) {  // bits of the stalls (hardware.md 1.7)
    case Code::kGet:
      return bits | 1u << 10;
    case Code::kPut:
      return bits | 1u << 12;
    case Code::kGetCascade:
      return bits | 1u << 14;
    case Code::kPutCascade:
      return bits | 1u << 15;
    default:
      return bits | 1u << (6 + operation_.lock / kLocksOfSide);
  }
}

void DrivenCore::advance() {
  if (done_ || halted_ || working_) return;
  if (!array_.moves_data()) {
    error(ErrorKind::kUnsupported,
          "runs a callback, which computes on data that a run without data does not have; time it "
          "with data");
  }
  for (int i = 0; i < kMaxOperations; ++i) {
    if (!pending_) fetch();
    if (done_) return;
    blocked_ = !perform();
    if (blocked_) return;
    if (array_.timed() && operation_.code == Code::kWork) {
      working_ = true;
      return array_.scheduler().post(this);
    }
    if (operation_.code == Code::kWork) lock_operations_ = cascade_transfers_ = 0;
    pending_ = begun_ = false;
    array_.scheduler().add_job(this);
  }
  array_.scheduler().wake(this, this);  // lets others and the watchdog run
}

void DrivenCore::start(Timeline& timeline) {
  const double locks = static_cast<double>(std::exchange(lock_operations_, 0));
  const double transfers = static_cast<double>(std::exchange(cascade_transfers_, 0));
  timeline.after(this, operation_.cycles + locks * timeline.timing().lock_operation + transfers);
}

void DrivenCore::complete() {
  working_ = pending_ = false;
  array_.scheduler().wake(this, this);
}

// Its callback computes in the memories that it reaches: their words have to be there.
void DrivenCore::fetch() {
  for (const CoreSide side : kSides) {
    if (Tile* tile = reached_by_core(array_, tile_.col, tile_.row, side)) tile->aliases.flush_all();
  }
  const bool restart = std::exchange(fresh_, false);
  if (restart) result_.clear();
  const std::vector<uint32_t> result = std::exchange(result_, {});
  operation_ = driver_.next(restart, result);
  cascaded_ = 0;
  pending_ = true;
  done_ = operation_.code == Code::kEnd;
}

bool DrivenCore::perform() {
  switch (operation_.code) {
    case Code::kAcquireGe:
    case Code::kAcquireEq:
      return acquire();
    case Code::kRelease:
      release();
      return true;
    case Code::kPut:
      return put();
    case Code::kGet:
      return get();
    case Code::kPutCascade:
      return put_cascade();
    case Code::kGetCascade:
      return get_cascade();
    case Code::kWork:
    case Code::kEnd:
      break;
  }
  return true;
}

Tile& DrivenCore::lock_owner() const {
  const auto side = static_cast<CoreSide>(operation_.lock / kLocksOfSide);
  if (Tile* owner = reached_by_core(array_, tile_.col, tile_.row, side)) return *owner;
  error(
      ErrorKind::kLock,
      strf("%s lock %d of its %s neighbour, where there is no core tile (a core reaches the locks "
           "of core tiles only); correct the side%s",
           code_name(operation_.code), operation_.lock % kLocksOfSide,
           kSideNames[static_cast<size_t>(side)], place().c_str()));
}

bool DrivenCore::acquire() {
  Lock& lock = lock_owner().locks[static_cast<size_t>(operation_.lock % kLocksOfSide)];
  const bool equal = operation_.code == Code::kAcquireEq;
  if (equal ? lock.value != operation_.value : lock.value < operation_.value) {
    add_waiter(lock.waiters, this);
    return false;
  }
  lock_operations_ += array_.timed();
  lock.value -= operation_.value;
  if (operation_.value != 0) array_.scheduler().wake_all(lock.waiters, this);
  return true;
}

void DrivenCore::release() {
  const Tile& owner = lock_owner();
  const int id = operation_.lock % kLocksOfSide;
  Lock& lock = lock_owner().locks[static_cast<size_t>(id)];
  const int value = lock.value + operation_.value;
  if (value > arch::kMaxLockValue || value < 0) {
    error(
        ErrorKind::kLock,
        strf("releases lock %d of %s by %d, which makes it %d; a lock holds 0..%d, so balance its "
             "acquires and releases%s",
             id, owner.name().c_str(), operation_.value, value, arch::kMaxLockValue,
             place().c_str()));
  }
  lock_operations_ += array_.timed();
  lock.value = value;
  array_.scheduler().wake_all(lock.waiters, this);
}

bool DrivenCore::put() {
  PortSender& port = tile_.ports->core_out;
  if (!std::exchange(begun_, true)) {
    port.send(std::move(operation_.words), operation_.tlast, this);
    return false;
  }
  return port.idle();
}

// A master port that takes nothing would let the core wait for ever.
void DrivenCore::check_stream_input() const {
  const int port = arch::first_port(arch::TileKind::kCore, true, arch::PortSide::kCore);
  const uint32_t master = tile_.stream_switch.master[static_cast<size_t>(port)];
  if (master >> 31) return;
  error(
      ErrorKind::kNoConsumer,
      strf("takes words from its stream port, but master port Core 0 of its switch is not enabled "
           "(0x%08x); route a stream there%s",
           master, place().c_str()));
}

bool DrivenCore::get() {
  PortReceiver& port = tile_.ports->core_in;
  if (!std::exchange(begun_, true)) {
    check_stream_input();
    port.take(operation_.count, this);
    return false;
  }
  if (!port.idle()) return false;
  result_.assign(port.words().begin(), port.words().end());
  return true;
}

Cascade& DrivenCore::cascade_output() const {
  const bool east = cascade_control(tile_) & kToEast;
  const int col = tile_.col + east, row = tile_.row - !east;
  const Tile* to = array_.find_tile(col, row);
  const bool core = to && to->geometry.kind == arch::TileKind::kCore;
  if (core && static_cast<bool>(cascade_control(*to) & kFromWest) == east) {
    return to->ports->cascade;
  }
  error(
      ErrorKind::kNoConsumer,
      strf("writes its cascade to the %s (Accumulator_Control 0x36060 = 0x%x), where %s; set both "
           "cores' directions%s",
           east ? "east" : "south", cascade_control(tile_),
           core ? strf("%s takes its cascade from the %s", to->name().c_str(),
                       east ? "north" : "west")
                      .c_str()
                : "there is no core",
           place().c_str()));
}

void DrivenCore::check_cascade_input() const {
  const bool west = cascade_control(tile_) & kFromWest;
  const Tile* from = array_.find_tile(tile_.col - west, tile_.row + !west);
  if (from && static_cast<bool>(cascade_control(*from) & kToEast) == west) return;
  error(ErrorKind::kNoConsumer,
        strf("reads its cascade from the %s (Accumulator_Control 0x36060 = 0x%x), where %s; set "
             "both cores' directions%s",
             west ? "west" : "north", cascade_control(tile_),
             from ? strf("%s writes its cascade to the %s", from->name().c_str(),
                         west ? "south" : "east")
                        .c_str()
                  : "there is no core",
             place().c_str()));
}

bool DrivenCore::put_cascade() {
  Cascade& cascade = cascade_output();
  for (; cascaded_ < operation_.words.size(); cascaded_ += Cascade::kWords) {
    if (cascade.values.size() == Cascade::kDepth) {
      add_waiter(cascade.waiters, this);
      return false;
    }
    std::copy_n(operation_.words.begin() + static_cast<std::ptrdiff_t>(cascaded_), Cascade::kWords,
                cascade.values.emplace_back().begin());
    cascade_transfers_ += array_.timed();
    array_.scheduler().wake_all(cascade.waiters, this);
  }
  return true;
}

bool DrivenCore::get_cascade() {
  Cascade& cascade = tile_.ports->cascade;
  if (cascade.values.empty()) check_cascade_input();
  for (; cascaded_ < operation_.count; cascaded_ += Cascade::kWords) {
    if (cascade.values.empty()) {
      add_waiter(cascade.waiters, this);
      return false;
    }
    const auto& value = cascade.values.front();
    result_.insert(result_.end(), value.begin(), value.end());
    cascade.values.pop_front();
    cascade_transfers_ += array_.timed();
    array_.scheduler().wake_all(cascade.waiters, this);
  }
  return true;
}

std::string DrivenCore::place() const {
  const std::string where = driver_.place ? driver_.place() : "";
  return where.empty() ? "" : ", at " + where;
}

std::string DrivenCore::waiting() const {
  if (halted_) return "is disabled (Core_Control, 0x32000)";
  if (!blocked_ || done_) return "";
  std::string what;
  const size_t left =
      (operation_.code == Code::kPutCascade ? operation_.words.size() : operation_.count) -
      cascaded_;
  switch (operation_.code) {
    case Code::kPut:
      what = "sends words of its stream port: it " + tile_.ports->core_out.waiting();
      break;
    case Code::kGet:
      what = "waits for words at its stream port: it " + tile_.ports->core_in.waiting();
      break;
    case Code::kPutCascade:
      what = strf("waits for room in its cascade output, for %zu more values of 512 bits",
                  left / Cascade::kWords);
      break;
    case Code::kGetCascade:
      what = strf("waits for %zu more values of 512 bits of its cascade input",
                  left / Cascade::kWords);
      break;
    default: {
      const Tile& owner = lock_owner();
      const int id = operation_.lock % kLocksOfSide;
      what = strf("waits for lock %d of %s to be %s %d (it is %d)", id, owner.name().c_str(),
                  operation_.code == Code::kAcquireEq ? "==" : ">=", operation_.value,
                  owner.locks[static_cast<size_t>(id)].value);
    }
  }
  return what + place();
}

bool DrivenCore::waits_for(const Tile& owner, int lock) const {
  const bool acquires = operation_.code == Code::kAcquireGe || operation_.code == Code::kAcquireEq;
  return blocked_ && acquires && operation_.lock % kLocksOfSide == lock && &lock_owner() == &owner;
}

bool DrivenCore::reaches(const Tile& tile) const {
  return std::ranges::any_of(kSides, [&](CoreSide side) {
    return reached_by_core(array_, tile_.col, tile_.row, side) == &tile;
  });
}

bool DrivenCore::releases(const Tile& owner, int lock) const {
  return !done_ && lock < kLocksOfSide && !waits_for(owner, lock) && reaches(owner);
}

}  // namespace npu::emulator
