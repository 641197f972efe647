// Operations on arrays (plain_operation.h).
#include "runtime/plain_operation.h"

#include <cassert>
#include <cstring>
#include <utility>

#include "error.h"

namespace npu {

void PlainOperation::check(const Layouts& layouts, std::span<const HostArray> arrays) const {
  if (arrays.size() != layouts.size()) {
    fail(ErrorKind::kArgument, "[%s] takes %zu arrays, %zu were given", type_.name, layouts.size(),
         arrays.size());
  }
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (arrays[i].bytes == layouts[i].bytes) continue;
    fail(ErrorKind::kShape, "[%s] %s has %zu bytes, the request needs %zu", type_.name,
         layouts[i].name.c_str(), arrays[i].bytes, layouts[i].bytes);
  }
}

RunReport PlainOperation::run(const Request& request, std::span<const HostArray> arrays) {
  const auto guard = operation_.lock();
  Device& device = operation_.device();
  const auto entry = operation_.prepare_words(request, [&] {
    std::vector<Submission> all = type_.submissions(operation_.configuration(), request);
    assert(all.size() == 1 && all[0].count == 1);
    return std::pair(std::move(all[0].words), std::move(all[0].arguments));
  });
  const Layouts& layouts = entry->schedule;
  check(layouts, arrays);
  scratch_.resize(layouts.size());
  std::vector<Wrapped> wrapped;
  std::vector<BufferRef> refs;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const Access access = layouts[i].access;
    wrapped.push_back(wrap_memory(device, arrays[i].data, arrays[i].bytes, access));
    if (wrapped[i]) {
      refs.push_back(wrapped[i].ref);
      continue;
    }
    refs.push_back(scratch_[i].get(device, arrays[i].bytes, access));
    if (!reads(access)) continue;
    std::memcpy(refs[i].host(), arrays[i].data, arrays[i].bytes);
    refs[i].sync_to_device();
    operation_.count_copy(arrays[i].bytes);
  }
  const RunReport report = operation_.submit(*entry, refs);
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (wrapped[i] || !writes(layouts[i].access)) continue;
    std::memcpy(arrays[i].data, refs[i].host(), arrays[i].bytes);
    operation_.count_copy(arrays[i].bytes);
  }
  return report;
}

}  // namespace npu
