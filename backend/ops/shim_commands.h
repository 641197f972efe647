// What the runtime streams of all operations have in common: shim BDs, task queues and tokens,
// appended to the builder of a stream.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arch/bd.h"
#include "arch/geometry.h"
#include "error.h"
#include "runtime/configuration.h"
#include "runtime/operation_type.h"
#include "stream/txn.h"

namespace npu::ops {

constexpr uint32_t kAxCache = 2;  // NoC upsizing, as mlir-aie's runtime sequences set it
// Packet id of a shim tile's task-complete tokens, as mlir-aie numbers row 0.
constexpr uint32_t kShimControllerId = 15;

// The words of a stream to which append(builder) adds the commands.
template <typename Append>
std::vector<uint32_t> stream_words(const Configuration& configuration, const Append& append) {
  stream::Builder builder(configuration.generation,
                          arch::device_geometry(configuration.generation).columns);
  append(builder);
  return builder.finish();
}

// OperationType::submissions of an operation with one stream per request. Commands: a ShimCommands
// made of a builder, a configuration and a request, with append() and arguments().
template <typename Commands>
std::vector<Submission> one_submission(const Configuration& configuration, const Request& request) {
  Submission out;
  out.words = stream_words(configuration, [&](stream::Builder& builder) {
    Commands commands(builder, configuration, request);
    commands.append();
    out.arguments = commands.arguments();
  });
  return {std::move(out)};
}

// A BD with what all shim BDs have in common.
inline arch::Bd shim_bd(const arch::Bd& bd, const arch::Geometry& geometry) {
  arch::Bd out = bd;
  out.burst = geometry.shim_burst;
  out.axcache = kAxCache;
  return out;
}

// Where write_bd() puts a BD, in words from the end of the stream before it, and where the offset
// of its address is, in words from the BD: for patches of the stream.
constexpr size_t kBdWord = 4, kBdOffsetWord = 8 + 10;

// Share `index` of `shares` equal ones of `count` things: [first, end).
inline std::pair<int64_t, int64_t> equal_share(int64_t count, int64_t index, int64_t shares) {
  return {count * index / shares, count * (index + 1) / shares};
}

// Consecutive groups of things, one BD repeated.
struct GroupTask {
  int64_t first, groups;  // first: thing
};

// Groups [first, end) of `group` things each, of all `count` things, in tasks as long as a BD can
// repeat. Things that are no multiple of a group: the last one begins earlier and has some again.
inline std::vector<GroupTask> group_tasks(int64_t first, int64_t end, int64_t group,
                                          int64_t count) {
  const int64_t limit = arch::tile_geometry(arch::TileKind::kShim).max_iteration;
  const bool ragged = end * group > count;
  std::vector<GroupTask> out;
  for (const int64_t whole = end - ragged; first < whole; first += limit) {
    out.push_back({first * group, std::min(limit, whole - first)});
  }
  if (ragged) out.push_back({count - group, 1});
  return out;
}

// Tasks in flight: a task is pushed into the next of `slots` slots, once no more than `in_flight`
// are under way; `wait` waits for the oldest.
class TaskRing {
 public:
  explicit TaskRing(int64_t slots, int64_t in_flight = 0)
      : slots_(slots), in_flight_(in_flight > 0 ? in_flight : slots) {
    assert(in_flight_ <= slots_);
  }
  // The slot of the next task.
  template <typename Wait>
  int next(const Wait& wait) {
    if (pushed_ - done_ == in_flight_) {
      wait();
      ++done_;
    }
    return static_cast<int>(pushed_++ % slots_);
  }
  template <typename Wait>
  void drain(const Wait& wait) {
    for (; done_ < pushed_; ++done_) wait();
  }

 private:
  int64_t slots_, in_flight_, pushed_ = 0, done_ = 0;
};

// Base of the classes that append an operation's commands.
class ShimCommands {
 protected:
  using Port = Configuration::Port;

  ShimCommands(stream::Builder& builder, const Configuration& configuration)
      : configuration_(configuration),
        geometry_(arch::device_geometry(configuration.generation)),
        builder_(builder) {}
  ~ShimCommands() = default;

  // Tasks of one channel of results, of which a few are in flight; the end of a task's results
  // frees its BDs.
  template <typename Task>
  struct Lane {
    const Port* results;
    std::vector<Task> tasks;
    TaskRing ring;
  };

  const Port* port(const std::string& name) const { return &configuration_.port(name); }
  // The port of a column: "X3".
  const Port* port(const char* name, int col) const { return port(strf("%s%d", name, col)); }

  // A BD for `words` contiguous 32-bit words.
  arch::Bd linear_bd(uint32_t words) const {
    arch::Bd bd;
    bd.length = words;
    return shim_bd(bd, geometry_);
  }

  // Word of the stream where the BD begins that is written next.
  size_t next_bd_word() const { return builder_.bytes() / 4 + kBdWord; }

  static uint32_t bd_address(const Port& at, int id) {
    const uint32_t base = arch::tile_geometry(arch::TileKind::kShim).bd_base;
    return arch::tile_address(at.col, 0, base + 0x20u * static_cast<uint32_t>(id));
  }

  // The address of BD `id`: `offset` bytes into the runtime argument.
  void patch_bd(const Port& at, int id, uint32_t argument, int64_t offset) {
    builder_.address_patch(bd_address(at, id) + 4, argument, static_cast<uint64_t>(offset));
  }

  // A BD and the address it gets. What a port with a packet id sends is a packet.
  void write_bd(const Port& at, int id, arch::Bd bd, uint32_t argument, int64_t offset) {
    bd.packet_enable = at.packet.has_value();
    bd.packet_id = at.packet.value_or(0);
    builder_.block_write(bd_address(at, id), arch::encode_bd(arch::TileKind::kShim, bd));
    patch_bd(at, id, argument, offset);
  }

  void queue(const Port& at, int id, int64_t repeats, bool token) {
    const uint32_t offset = arch::channel_queue(arch::TileKind::kShim, at.direction, at.channel);
    builder_.write(arch::tile_address(at.col, 0, offset),
                   static_cast<uint32_t>(id) | static_cast<uint32_t>(repeats - 1) << 16 |
                       (token ? 1u << 31 : 0u));
  }

  // A BD, pushed as soon as it is written.
  void push_bd(const Port& at, int id, const arch::Bd& bd, uint32_t argument, int64_t offset,
               int64_t repeats, bool token) {
    write_bd(at, id, bd, argument, offset);
    queue(at, id, repeats, token);
  }

  // The first task of every lane, the second of every lane, ... to the end of all:
  // push(lane, number of the task, slot of the ring).
  template <typename Task, typename Push>
  void run(std::vector<Lane<Task>>& lanes, const Push& push) {
    bool more = true;
    for (size_t i = 0; more; ++i) {
      more = false;
      for (Lane<Task>& lane : lanes) {
        if (i >= lane.tasks.size()) continue;
        more = true;
        push(lane, i, lane.ring.next([&] { wait(*lane.results); }));
      }
    }
    for (Lane<Task>& lane : lanes) lane.ring.drain([&] { wait(*lane.results); });
  }

  // Tokens travel as packets under the shim tile's controller id.
  void route_tokens(const Port& at) {
    const uint32_t control = arch::channel_control(arch::TileKind::kShim, at.direction, at.channel);
    builder_.mask_write(arch::tile_address(at.col, 0, control), kShimControllerId << 8, 0x1F00);
  }

  // Runtime parameters of the cores in columns that `uses(col)` picks, then the locks that let the
  // workers read them. value(rtp): of a Configuration::Rtp; workers read an int32.
  template <typename Uses, typename Value>
  void write_rtps(const Uses& uses, const Value& value) {
    for (const Configuration::Rtp& rtp : configuration_.rtps) {
      if (rtp.row < arch::kFirstCoreRow || !uses(rtp.col)) continue;
      builder_.write(arch::tile_address(rtp.col, rtp.row, rtp.address), value(rtp));
    }
    release_rtps(uses);
  }

  // Lets the workers read them.
  template <typename Uses>
  void release_rtps(const Uses& uses) {
    const uint32_t locks = arch::tile_geometry(arch::TileKind::kCore).lock_base;
    for (const Configuration::RtpLock& lock : configuration_.rtp_locks) {
      if (!uses(lock.col)) continue;
      const uint32_t offset = locks + 0x10u * static_cast<uint32_t>(lock.lock);
      builder_.write(arch::tile_address(lock.col, lock.row, offset), 1);
    }
  }

  // The same for all cores, neighbouring words of a core at once.
  template <typename Value>
  void write_rtp_blocks(const Value& value) {
    std::vector<uint32_t> words;
    for (size_t i = 0; i < configuration_.rtps.size(); ++i) {
      const Configuration::Rtp& rtp = configuration_.rtps[i];
      if (rtp.row < arch::kFirstCoreRow) continue;
      words.push_back(value(rtp));
      const Configuration::Rtp* next =
          i + 1 < configuration_.rtps.size() ? &configuration_.rtps[i + 1] : nullptr;
      if (next && next->col == rtp.col && next->row == rtp.row &&
          next->address == rtp.address + 4) {
        continue;
      }
      const auto before = static_cast<uint32_t>(4 * (words.size() - 1));
      builder_.block_write(arch::tile_address(rtp.col, rtp.row, rtp.address - before), words);
      words.clear();
    }
    release_rtps([](int) { return true; });
  }

  // The same for one column, by the parameters' names.
  void write_rtps(int col, std::initializer_list<std::pair<std::string_view, int64_t>> values) {
    write_rtps([&](int used) { return used == col; },
               [&](const Configuration::Rtp& rtp) {
                 for (const auto& [name, value] : values) {
                   if (name == rtp.name) return static_cast<uint32_t>(value);
                 }
                 fail(ErrorKind::kFormat,
                      "[%s] the configuration has an RTP \"%s\" that the stream does not know; "
                      "lower the design again",
                      configuration_.name.c_str(), rtp.name.c_str());
               });
  }

  // For the tokens of `columns` neighbouring shim tiles.
  void wait(const Port& at, int columns = 1) {
    builder_.sync(at.col, 0, at.direction, at.channel, columns);
  }

  const Configuration& configuration_;
  const arch::Geometry& geometry_;
  stream::Builder& builder_;
};

}  // namespace npu::ops
