// Shim channels with several tasks under way that end at different times: which BD a task gets, how
// many more the channel takes, which tasks have ended. ShimCommands' TaskRing is the simpler case
// of one channel whose tasks are waited for one by one.
//
// A task's BD may be written again, and its place in the channel's queue is free, once something
// proves that it has ended: its token, or results that could not be there without it.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "arch/bd.h"
#include "arch/geometry.h"
#include "ops/shim_commands.h"

namespace npu::ops {

// BDs of a shim tile that one channel uses in turn.
struct BdRing {
  int first, count;
};

// Tasks of one channel: those under way end in order.
class ShimQueue {
 public:
  ShimQueue() = default;
  ShimQueue(const Configuration::Port* port, BdRing ring) : port_(port), ring_(ring) {}
  const Configuration::Port& port() const { return *port_; }
  // Tasks that may be under way: each has a place in the queue and a BD of its own.
  int64_t limit() const { return std::min(arch::kTaskQueueDepth, ring_.count); }
  int64_t room() const { return limit() - under_way(); }
  int64_t pushed() const { return pushed_; }
  int64_t done() const { return done_; }
  int64_t under_way() const { return pushed_ - done_; }
  // The BD of the next task, which counts as pushed from here on.
  int next() { return ring_.first + static_cast<int>(pushed_++ % ring_.count); }
  void ended(int64_t tasks) { done_ = std::max(done_, tasks); }  // the first so many
  void oldest_ended() { ended(done_ + 1); }
  void all_ended() { ended(pushed_); }

 private:
  const Configuration::Port* port_ = nullptr;
  BdRing ring_{};
  int64_t pushed_ = 0, done_ = 0;
};

// Base of the classes that append commands by such queues.
class QueueCommands : protected ShimCommands {
 protected:
  using ShimCommands::ShimCommands;

  // A task with the next BD of the queue, pushed as soon as it is written.
  void push(ShimQueue& queue, const arch::Bd& bd, uint32_t argument, int64_t offset,
            int64_t repeats, bool token) {
    assert(queue.room() > 0);
    push_bd(queue.port(), queue.next(), shim_bd(bd, geometry_), argument, offset, repeats, token);
  }

  // The BD of a task that is pushed later, by queue(queue.port(), the id returned, ...).
  int write_ahead(ShimQueue& queue, const arch::Bd& bd, uint32_t argument, int64_t offset) {
    assert(queue.room() > 0);
    const int id = queue.next();
    write_bd(queue.port(), id, shim_bd(bd, geometry_), argument, offset);
    return id;
  }

  // For the token of the oldest task.
  void wait_oldest(ShimQueue& queue) {
    assert(queue.under_way() > 0);
    wait(queue.port());
    queue.oldest_ended();
  }
};

}  // namespace npu::ops
