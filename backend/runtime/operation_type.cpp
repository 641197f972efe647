// Requests to operations (operation_type.h).
#include "runtime/operation_type.h"

#include <algorithm>
#include <cassert>

#include "error.h"

namespace npu {

Request::Request(const OperationType& type, const Values& values) : type_(&type) {
  for (const RequestField& field : type.fields) {
    const auto found = values.find(field.name);
    if (found == values.end() && field.fallback == RequestField::kRequired) {
      fail(ErrorKind::kArgument, "[%s] %s is missing: %s", type.name, field.name, field.meaning);
    }
    values_.push_back(found == values.end() ? field.fallback : found->second);
  }
  for (const auto& [name, value] : values) {
    const auto same = [&](const RequestField& field) { return name == field.name; };
    if (std::none_of(type.fields.begin(), type.fields.end(), same)) {
      fail(ErrorKind::kArgument, "[%s] there is no field \"%s\" in a request", type.name,
           name.c_str());
    }
  }
}

int64_t Request::operator[](std::string_view field) const {
  size_t i = 0;
  while (i < values_.size() && field != type_->fields[i].name) ++i;
  assert(i < values_.size());
  return values_[i];
}

int64_t Request::get(std::string_view field, int64_t min, int64_t max, int64_t step) const {
  const int64_t value = (*this)[field];
  if (value >= min && value <= max && value % step == 0) return value;
  const std::string multiple =
      step == 1 ? "" : strf("a multiple of %lld, ", static_cast<long long>(step));
  fail(ErrorKind::kShape, "[%s] %.*s is %lld; use %s%lld to %lld", type_->name,
       static_cast<int>(field.size()), field.data(), static_cast<long long>(value),
       multiple.c_str(), static_cast<long long>(min), static_cast<long long>(max));
}

}  // namespace npu
