// C = A @ B on a device: chooses the layout, pads and packs, looks up or builds the stream,
// submits.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "configuration.h"
#include "device.h"
#include "ops/gemm_stream.h"
#include "ops/pack.h"
#include "stream/cache.h"

namespace npu::ops {

// A device with the lock that makes it usable from several threads.
struct SharedDevice {
  explicit SharedDevice(std::unique_ptr<Device> d) : device(std::move(d)) {}
  // `bytes` of a buffer that is made larger when it is too small; its contents are then lost.
  BufferView scratch(std::unique_ptr<Buffer>& buffer, size_t bytes) const;

  std::unique_ptr<Device> device;
  std::mutex mutex;
};

// B in panels in device memory, ready for any number of multiplications.
struct PackedB {
  std::shared_ptr<SharedDevice> device;  // outlives the buffer
  std::unique_ptr<Buffer> buffer;
  int64_t k = 0, n = 0;                // logical
  int64_t padded_k = 0, padded_n = 0;  // of the configuration that packed it
  GemmTile tile;
};

struct OpCounters {
  uint64_t streams_built = 0, stream_hits = 0;
  uint64_t host_copy_bytes = 0;  // of operands packed and results copied, padding included
  // Host time in submissions besides the array's own and the building of new streams.
  uint64_t submit_overhead_ns = 0;
  uint64_t stream_build_ns = 0;  // building, parsing and checking new streams
};

// What one submission may cover; larger problems are computed in blocks of C. 0 columns: as many as
// a shim BD can address.
struct GemmLimits {
  int64_t rounds = 2048;  // output rounds, which bound a stream's length: about 6 MB on npu2
  int64_t columns = 0;    // of C, rounded down to the native size
};

class Gemm {
 public:
  Gemm(std::shared_ptr<SharedDevice> device, Configuration configuration,
       const GemmLimits& limits = {});

  // B (K, N), any strides. Thread-safe, as is run(). Throws Error(kShape, kDtype).
  std::shared_ptr<const PackedB> pack(const MatrixView& b);
  // c: row-major (M, N) of the configuration's C type. All sizes >= 1. `shift`: see GemmProblem.
  // Throws Error(kShape, kDtype, kArgument).
  RunReport run(const MatrixView& a, const MatrixView& b, std::byte* c, int shift = 0);
  RunReport run(const MatrixView& a, const PackedB& b, std::byte* c, int shift = 0);
  OpCounters counters() const;
  // Whether ragged operands are packed whole instead of at their edges only (to compare).
  void set_whole_padding(bool on) { whole_padding_ = on; }
  const Configuration& configuration() const { return configuration_; }
  ElementType input_type() const { return input_; }
  ElementType output_type() const { return output_; }

 private:
  // Where the device reads one matrix: parts of it in place, the rest packed.
  struct Operand {
    GemmFeed feed;
    BufferView matrix, packed, tail;
  };
  struct Block {  // of C
    int64_t row, col, rows, cols;
  };
  struct Call {  // one multiplication
    Operand a, b;
    int64_t m, n, padded_m, padded_k, padded_n;
    std::byte* c;
    int shift;
  };
  Operand place(const MatrixView& matrix, bool is_b, std::unique_ptr<Buffer>& buffer);
  int64_t direct_rows(const MatrixView& matrix, bool is_b) const;
  void pack_part(const MatrixView& part, bool is_b, std::byte* out, size_t bytes);
  RunReport multiply(const Call& call);
  RunReport multiply_block(const Block& block, const Call& call);
  void place_c(GemmProblem& problem, int64_t rows, int64_t cols, int64_t stride,
               const std::byte* target) const;
  void copy_edges(const GemmProblem& problem, int64_t rows, int64_t cols, int64_t stride,
                  const std::byte* edges, std::byte* target);
  void check(const MatrixView& a, int64_t b_rows, int64_t b_cols, ElementType b_type) const;
  void check_type(ElementType type) const;

  std::shared_ptr<SharedDevice> shared_;
  Configuration configuration_;
  GemmTile tile_;
  int64_t max_rounds_, max_columns_;
  ElementType input_, output_;
  stream::StreamCache<GemmProblem> streams_;
  uint64_t host_copy_bytes_ = 0, submit_overhead_ns_ = 0, stream_build_ns_ = 0;
  std::atomic<bool> whole_padding_ = false;
  std::unique_ptr<Buffer> a_scratch_, b_scratch_, c_scratch_;  // grown, reused between calls
};

}  // namespace npu::ops
