// Operations on arrays (plain_operation.h).
#include "runtime/plain_operation.h"

#include <cassert>
#include <cstring>
#include <functional>
#include <utility>

#include "error.h"

namespace npu {

void PlainOperation::check_result(const Layouts& layouts, std::span<const HostArray> arrays,
                                  size_t index) const {
  const HostArray& result = arrays[index];
  if (!result.writable) {
    fail(ErrorKind::kArgument,
         "[%s] %s is written to, and cannot be where it is; pass a writable C-contiguous uint8 "
         "array",
         type_.name, layouts[index].name.c_str());
  }
  const std::less<const std::byte*> before;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const HostArray& other = arrays[i];
    if (i == index || result.bytes == 0 || other.bytes == 0 ||
        !before(other.data, result.data + result.bytes) ||
        !before(result.data, other.data + other.bytes)) {
      continue;
    }
    fail(ErrorKind::kArgument,
         "[%s] %s is written to and shares memory with %s; pass memory of "
         "its own",
         type_.name, layouts[index].name.c_str(), layouts[i].name.c_str());
  }
}

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
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (writes(layouts[i].access)) check_result(layouts, arrays, i);
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
