// C = A @ B on a device: chooses the layout, pads and packs, looks up or builds the stream,
// submits.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "formats/pack.h"
#include "ops/gemm/gemm_schedule.h"
#include "runtime/operation.h"
#include "runtime/operation_type.h"

namespace npu::ops {

extern const OperationType kGemmType;

// B in panels in device memory, ready for any number of multiplications.
struct PackedB {
  std::shared_ptr<SharedDevice> device;  // outlives the buffer
  std::unique_ptr<Buffer> buffer;
  int64_t k = 0, n = 0;                // logical
  int64_t padded_k = 0, padded_n = 0;  // of the configuration that packed it
  BufferRef ref() const { return {buffer.get(), 0, buffer->bytes(), Access::kRead}; }
  GemmTile tile;
};

class Gemm {
 public:
  Gemm(std::shared_ptr<SharedDevice> device, Configuration configuration,
       const GemmLimits& limits = {});

  // B (K, N), any strides. Thread-safe, as is run(). Throws Error(kShape, kDtype), for a
  // configuration that reads blocks Error(kArgument): these are packed already.
  std::shared_ptr<const PackedB> pack(const MatrixView& b);
  // c: row-major (M, N) of the configuration's C type, of BFP16 in tiles as A and B are. All sizes
  // >= 1. `shift`: see GemmProblem. Throws Error(kShape, kDtype, kArgument).
  RunReport run(const MatrixView& a, const MatrixView& b, std::byte* c, int shift = 0);
  RunReport run(const MatrixView& a, const PackedB& b, std::byte* c, int shift = 0);
  OperationCounters counters() const { return operation_.counters(); }
  const Configuration& configuration() const { return operation_.configuration(); }
  ElementType input_type() const { return a_type_; }
  ElementType b_type() const { return b_type_; }
  ElementType output_type() const { return output_; }

 private:
  // Where the device reads one matrix: parts of it in place, the rest packed.
  struct Operand {
    GemmFeed feed;
    Wrapped matrix;
    BufferRef packed, tail;
  };
  Operand place(const MatrixView& matrix, bool is_b, Scratch& scratch,
                GemmOrder order = GemmOrder::kAlong);
  bool read_across(const MatrixView& x, bool is_b, GemmOrder order) const;
  std::pair<GemmOrder, GemmOrder> orders(const MatrixView& a, const MatrixView& b) const;
  const GemmCell& cell(bool is_b) const { return is_b ? tile_.b : tile_.a; }
  int64_t direct_rows(const MatrixView& matrix, bool is_b) const;
  void pack_part(const MatrixView& part, bool is_b, std::byte* out, size_t bytes,
                 GemmOrder order = GemmOrder::kAlong);
  RunReport multiply(const Operand& a, const Operand& b, GemmExtent extent, std::byte* c);
  RunReport run_block(const GemmBlock& block, const Operand& a, const Operand& b,
                      const BufferRef& c);
  void copy_edges(const GemmBlock& block, int64_t stride, const std::byte* edges,
                  std::byte* target);
  void check(const MatrixView& a, int64_t b_rows, int64_t b_cols, ElementType b_type) const;
  void check_type(ElementType type, ElementType wanted) const;

  Operation<GemmProblem> operation_;
  GemmTile tile_;
  GemmLimits limits_;
  ElementType a_type_, b_type_, output_;
  Scratch a_scratch_, b_scratch_, c_scratch_;
};

}  // namespace npu::ops
