// What every function of the C interface is wrapped in: exceptions become statuses and the thread's
// last message. And what is behind the handles.
#pragma once

#include <npu/npu.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "error.h"
#include "ops/gemm/matmul.h"

struct npu_device {
  std::shared_ptr<npu::SharedDevice> device;
  npu::DeviceInfo info;
  bool bfp16 = false;
  npu::ops::DesignPreference preference;
  std::unique_ptr<npu::ops::Matmul> matmul;
};

struct npu_packed {
  npu::ops::PackedMatrix matrix;
};

namespace npu::api {

npu_status status_of(ErrorKind kind);
// Keeps the message for npu_last_error(); never throws.
npu_status failed(npu_status status, const char* message) noexcept;

template <typename Call>
npu_status guarded(const Call& call) noexcept {
  try {
    call();
    return NPU_OK;
  } catch (const Error& error) {
    return failed(status_of(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    return failed(NPU_ERROR_MEMORY, "[npu] out of memory; use smaller matrices");
  } catch (const std::length_error&) {
    return failed(NPU_ERROR_MEMORY, "[npu] out of memory; use smaller matrices");
  } catch (const std::exception& error) {
    return failed(NPU_ERROR_INTERNAL, error.what());
  } catch (...) {
    return failed(NPU_ERROR_INTERNAL, "[npu] an unknown exception");
  }
}

// A word of the caller, else of an environment variable, else "".
std::string word_of(const char* given, const char* variable);

// Bytes of a struct in the first version that had it: programs compiled then pass as many, newer
// ones more than this library knows.
template <typename Struct>
inline constexpr size_t kFirstSize = 0;
template <>
inline constexpr size_t kFirstSize<npu_device_options> = 48;
template <>
inline constexpr size_t kFirstSize<npu_device_info> = 1192;
template <>
inline constexpr size_t kFirstSize<npu_matmul_options> = 32;
template <>
inline constexpr size_t kFirstSize<npu_run> = 264;

// A null pointer is fine.
template <typename Struct>
void check_size(const Struct* given, const char* function, const char* macro) {
  static_assert(kFirstSize<Struct> > 0 && kFirstSize<Struct> <= sizeof(Struct));
  if (given != nullptr && given->size < kFirstSize<Struct>) {
    fail(ErrorKind::kArgument, "[%s] size is %zu, expected at least %zu; initialise with %s",
         function, given->size, kFirstSize<Struct>, macro);
  }
}

// What the caller's struct has of this version's members, over `defaults`.
template <typename Struct>
Struct read_struct(const Struct* given, Struct defaults) {
  if (given != nullptr) std::memcpy(&defaults, given, std::min(given->size, sizeof(Struct)));
  return defaults;
}

// Fills the members that the caller's struct has.
template <typename Struct>
void write_struct(Struct* out, Struct value) {
  if (out == nullptr) return;
  value.size = out->size;
  std::memcpy(out, &value, std::min(out->size, sizeof(Struct)));
}

// Copies a text to a field of a struct, cut to its length.
template <size_t N>
void put(char (&field)[N], const std::string& text) {
  const size_t length = text.copy(field, N - 1);
  field[length] = '\0';
}

}  // namespace npu::api
