// The registry of array operations: what each is called, how a request is described, and which
// submissions it becomes. Simulation, `npu inspect`, `npu compile` and the conformance suite work
// from this, and Python's registry lists what this does; the list is in ops/registry.cpp.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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

  static ArgumentLayout input(std::string name, int64_t bytes,
                              std::span<const std::byte> contents = {}) {
    return {std::move(name),
            static_cast<size_t>(bytes),
            Access::kRead,
            {contents.begin(), contents.end()}};
  }
  static ArgumentLayout output(std::string name, int64_t bytes) {
    return {std::move(name), static_cast<size_t>(bytes), Access::kWrite};
  }
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

struct OperationType;

// The numbers of one call.
class Request {
 public:
  using Values = std::map<std::string, int64_t>;
  // Every name must be a field, every field without a default be given: Error(kArgument).
  Request(const OperationType& type, const Values& values);

  int64_t operator[](std::string_view field) const;
  // The same, a multiple of `step` within limits: Error(kShape).
  int64_t get(std::string_view field, int64_t min, int64_t max, int64_t step = 1) const;
  auto operator<=>(const Request&) const = default;

 private:
  const OperationType* type_;
  std::vector<int64_t> values_;  // in the order of OperationType::fields
};

struct OperationType {
  const char* name;  // also of the design: designs/NAME.py
  const char* summary;
  std::vector<RequestField> fields;
  std::vector<std::pair<const char*, Request::Values>> examples;  // of sizes that models have
  // What the operation submits for a request on operands that lie dense in memory. Throws
  // Error(kShape, kArgument, kOutOfRange).
  std::vector<Submission> (*submissions)(const Configuration& configuration,
                                         const Request& request);
};

std::span<const OperationType* const> operation_types();
// Throws Error(kArgument) with the names there are.
const OperationType& operation_type(std::string_view name);

}  // namespace npu
