// C = A @ B on a device: chooses the layout, pads and packs, looks up or builds the stream,
// submits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

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

// c = a @ b; b: values, or nothing beside a B that was packed before.
struct GemmProduct {
  MatrixView a, b;
  const PackedB* packed = nullptr;
  std::byte* c = nullptr;
  int shift = 0;  // see GemmProblem
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
  // Two products, one after the other: results are those of two calls, but where each fits a
  // submission there is one for both. On a device that takes fewer arguments than both have, two.
  // Throws Error(kArgument) if one writes between the first and the last byte of what the other
  // writes or reads.
  RunReport run_both(const GemmProduct& first, const GemmProduct& second);
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
  // Scratch memory of one product of a submission.
  struct Memory {
    Scratch a, b, c;
  };
  // A product whose operands are where the device reads them.
  struct Planned {
    Operand a, b;
    Wrapped direct;  // C, where it is written in place
    std::byte* c;
    int64_t c_stride, c_step;  // of C's rows: cells, bytes
    Memory& memory;
    std::vector<GemmBlock> blocks;
  };
  struct Part {
    Planned& product;
    const GemmBlock& block;
  };
  Operand place(const MatrixView& matrix, bool is_b, Scratch& scratch,
                GemmOrder order = GemmOrder::kAlong);
  bool read_across(const MatrixView& x, bool is_b, GemmOrder order) const;
  std::pair<GemmOrder, GemmOrder> orders(const MatrixView& a, const MatrixView& b) const;
  const GemmCell& cell(bool is_b) const { return is_b ? tile_.b : tile_.a; }
  int64_t direct_rows(const MatrixView& matrix, bool is_b) const;
  void pack_part(const MatrixView& part, bool is_b, std::byte* out, size_t bytes,
                 GemmOrder order = GemmOrder::kAlong);
  void check(const GemmProduct& product) const;
  void check_apart(const GemmProduct& writes, const GemmProduct& other) const;
  Planned plan(const GemmProduct& product, Memory& memory);
  Planned plan(Operand a, Operand b, GemmExtent extent, std::byte* c, Memory& memory);
  // One submission of a block of a product, or of two products.
  RunReport submit(std::span<const Part> parts);
  RunReport submit_all(Planned& product, size_t first, size_t end);
  void copy_edges(const Part& part);
  void check(const MatrixView& a, int64_t b_rows, int64_t b_cols, ElementType b_type) const;
  void check_type(ElementType type, ElementType wanted) const;

  Operation<std::vector<GemmProblem>> operation_;  // of a submission: one or two
  GemmTile tile_;
  GemmLimits limits_;
  ElementType a_type_, b_type_, output_;
  Memory memory_[2];
};

}  // namespace npu::ops
