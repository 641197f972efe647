// The registry of array operations: what each is called, how a request is described, and which
// submissions it becomes. Simulation, `npu inspect`, `npu compile` and the conformance suite work
// from this; the list is in ops/registry.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/configuration.h"
#include "runtime/device.h"

namespace npu {

// An argument of a submission. `contents`: control data that the stream relies on (loop counts in
// a table, say); empty where any data will do.
struct ArgumentLayout {
  std::string name;
  size_t bytes = 0;  // 0: the stream leaves it alone
  Access access = Access::kRead;
  std::vector<std::byte> contents = {};
};

struct Submission {
  std::vector<uint32_t> words;
  std::vector<ArgumentLayout> arguments;
  uint64_t count = 1;  // equal ones, of other parts of the data
};

// A number of a request: a size or an option.
struct RequestField {
  static constexpr int64_t kRequired = INT64_MIN;
  const char* name;
  const char* meaning;
  int64_t fallback = kRequired;
};

using Request = std::vector<int64_t>;  // in the order of OperationType::fields

struct OperationType {
  const char* name;
  const char* summary;
  std::vector<RequestField> fields;
  // What the operation submits for a request on operands that lie dense in memory. Throws
  // Error(kShape, kArgument, kOutOfRange).
  std::vector<Submission> (*submissions)(const Configuration& configuration,
                                         const Request& request);
};

std::span<const OperationType* const> operation_types();
// Throws Error(kArgument) with the names there are.
const OperationType& operation_type(std::string_view name);

}  // namespace npu
