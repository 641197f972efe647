// An operation without host code of its own: its arguments are arrays, and a request is one
// submission (operation_type.h). Operations that consist of a design, a schedule and kernels run
// through this.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "runtime/operation.h"
#include "runtime/operation_type.h"

namespace npu {

struct HostArray {
  std::byte* data = nullptr;
  size_t bytes = 0;
  bool writable = true;
};

class PlainOperation {
 public:
  PlainOperation(std::shared_ptr<SharedDevice> device, Configuration configuration,
                 const OperationType& type)
      : operation_(std::move(device), std::move(configuration)), type_(type) {}
  PlainOperation(const PlainOperation&) = delete;
  PlainOperation& operator=(const PlainOperation&) = delete;

  // arrays: one per argument, of its size; read or written where they lie if the device reaches
  // them, otherwise copied. Thread-safe. Throws what OperationType::submissions() throws and
  // Error(kShape) for arrays of other sizes and Error(kArgument) for results that are not
  // writable or share memory with another array.
  RunReport run(const Request& request, std::span<const HostArray> arrays);
  const OperationType& type() const { return type_; }
  OperationCounters counters() const { return operation_.counters(); }

 private:
  using Layouts = std::vector<ArgumentLayout>;
  void check(const Layouts& layouts, std::span<const HostArray> arrays) const;
  void check_result(const Layouts& layouts, std::span<const HostArray> arrays, size_t index) const;

  Operation<Request, Layouts> operation_;
  const OperationType& type_;
  std::vector<Scratch> scratch_;
};

}  // namespace npu
