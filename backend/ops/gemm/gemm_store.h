// Memtiles that keep an operand of a GEMM (Design.store in designs/api.py): objects of A, or of B,
// are read once from host memory and sent to the cores for every column, or row, of blocks of C.
// Memtile channels wait for tasks, which the stream of a problem starts: their first BDs and how
// often they repeat are all that differs from size to size.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/gemm/gemm_schedule.h"
#include "runtime/configuration.h"
#include "stream/txn.h"

namespace npu::ops {

// What memtiles have for one operand, as the configuration says; alike in all.
struct GemmStoreSide {
  // Registers of the memtile of a column, as addresses of the array.
  struct Registers {
    uint32_t tasks_in, tasks_out;
    std::vector<uint32_t> gates;  // locks, one per group
  };
  int keep_in, keep_out;        // BDs: the first of an object each, and of a group
  int ring_in, ring_out;        // the first of those of objects that pass by
  int again_out;                // the same for objects that are sent `times` times as they pass by
  int64_t ring, times;          // objects of the ring
  std::vector<int64_t> groups;  // objects that are kept, by what is sent at a time
  std::vector<Registers> columns;

  // The first group of those that keep `objects`; nothing if these are no whole groups, or too
  // many.
  std::optional<size_t> first_group(int64_t objects) const;
};

struct GemmStore {
  GemmStoreSide a, b;
  // Nothing for a configuration whose memtiles keep none. Throws Error(kFormat).
  static std::optional<GemmStore> of(const Configuration& configuration);
};

enum class GemmKept : uint8_t { kNone, kA, kB };

// Which operand is kept: the one that leaves fewer bytes to read, if its objects fill whole groups
// and fit. A is at most `panels` rows of blocks of C high.
GemmKept kept_operand(const GemmStore& store, const GemmTile& tile, const GemmProblem& problem,
                      int64_t panels);

// Where B is kept: whether an object of A, which then is a whole row of blocks, is read once and
// sent for each of their columns as it passes by.
bool sends_again(const GemmStore& store, const GemmTile& tile, const GemmProblem& problem);

// Output rounds that one submission may have: the memtiles' tasks are queued at its start.
int64_t store_rounds(const GemmTile& tile, int64_t k);

// Appends the memtiles' tasks. Throws Error(kShape) for more rounds than store_rounds().
void append_store_tasks(stream::Builder& builder, const GemmStore& store, const GemmTile& tile,
                        const GemmProblem& problem, GemmKept kept);
// Appends what leaves the gates as they were, once all results have left.
void append_store_end(stream::Builder& builder, const GemmStore& store, const GemmTile& tile,
                      const GemmProblem& problem, GemmKept kept);

}  // namespace npu::ops
