// Memtiles that keep an operand of a GEMM (Design.store in designs/api.py): objects of A, or of B,
// are read once from host memory and sent to the cores for every column, or row, of blocks of C.
// Memtile channels wait for tasks, which the stream of a problem starts: their first BDs and how
// often they repeat differ from size to size, and a word of BDs whose objects are fewer than usual.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "ops/gemm/gemm_schedule.h"
#include "runtime/configuration.h"
#include "stream/txn.h"

namespace npu::ops {

// What memtiles have for one operand, as the configuration says; alike in all.
struct GemmStoreSide {
  struct Queues {  // of the channels of the memtile of a column, as addresses of the array
    uint32_t in, out;
  };
  // BDs with which tasks begin. Of objects that stay: one by one in and out, all of them out.
  int keep_in, keep_out, keep_on;
  int ring_in, ring_out, again_out;  // of those that pass by, once or `times` times
  // Halves: of those that pass by, the first half of each, and what comes by the other operand's
  // channel: an object of that one that stays, and the second half, which a task may begin with.
  // Objects of the other operand that stay can arrive before this one's by its channel: `ahead` of
  // them while this one's stay.
  int first_in = -1, beside_in = -1, second_in = -1, ahead_in = -1;
  int64_t ahead = 0;
  int64_t objects;      // that can stay
  int64_t ring, times;  // slots, times
  bool halves;          // of the rows of objects that pass by have BDs of their own
  std::vector<Queues> columns;
};

struct GemmStore {
  GemmStoreSide a, b;
  // By BD, the registers of memtiles: of BDs that advance, how far and how often, and the length
  // of those that send all that stays.
  std::map<int, std::vector<uint32_t>> turns, lengths;
  // Nothing for a configuration whose memtiles keep none. Throws Error(kFormat).
  static std::optional<GemmStore> of(const Configuration& configuration);
};

enum class GemmKept : uint8_t { kNone, kA, kB };

// How a problem uses the memtiles.
struct GemmStorePlan {
  GemmKept kept = GemmKept::kNone;
  // The other operand, which has one object per row, or column, of blocks of C then, is read once
  // and sent for each of their columns, or rows, as it passes by.
  bool again = false;
  // A is kept, and its channels read the second half of every object of B besides.
  bool beside = false;
  // Objects of A that B's channels read while the product before is computed, which keeps its B.
  int64_t ahead = 0;
};

// The operand that leaves fewer bytes to read is kept, if its objects fit. It is at most `panels`
// blocks of C high, or wide.
GemmStorePlan plan_store(const GemmStore& store, const GemmTile& tile, const GemmProblem& problem,
                         int64_t panels);

// Output rounds that one submission may have: the memtiles' tasks are queued at its start.
int64_t store_rounds(const GemmTile& tile, int64_t k);

// How many objects of A, which stays beside B, can be read while a product is computed that keeps
// its B; and how many second halves of B as soon as its channels are idle. None if their tasks
// would be too many.
int64_t ahead_of(const GemmStore& store, const GemmTile& tile, const GemmProblem& problem,
                 const GemmStorePlan& plan);
int64_t halves_ahead_of(const GemmStore& store, const GemmTile& tile, const GemmProblem& problem);

// Appends the tasks of the memtile of a column, by which objects arrive. Throws Error(kShape) for
// more rounds than store_rounds().
void append_store_in(stream::Builder& builder, const GemmStore& store, const GemmTile& tile,
                     const GemmProblem& problem, const GemmStorePlan& plan, size_t column);
// Of a plan that reads ahead those of the rest of A, and of what comes beside it, are another
// call's, when the product before has ended.
void append_store_rest(stream::Builder& builder, const GemmStore& store, const GemmTile& tile,
                       const GemmProblem& problem, const GemmStorePlan& plan, size_t column);
// Those by which the memtiles send them.
void append_store_out(stream::Builder& builder, const GemmStore& store, const GemmTile& tile,
                      const GemmProblem& problem, const GemmStorePlan& plan);
// Appends what leaves the BDs as they were: those of objects that come and go one by one where they
// stay, once the blocks of C that take each of them once have left, and the others, once all have.
void append_store_settled(stream::Builder& builder, const GemmStore& store, const GemmTile& tile,
                          const GemmProblem& problem, const GemmStorePlan& plan);
void append_store_end(stream::Builder& builder, const GemmStore& store, const GemmTile& tile,
                      const GemmProblem& problem, const GemmStorePlan& plan);

}  // namespace npu::ops
