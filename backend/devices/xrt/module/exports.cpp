// The module's C interface over Session: no exception leaves these functions.
#include <algorithm>
#include <cstdio>
#include <new>
#include <string>

#include "failure.h"
#include "module_abi.h"
#include "session.h"

struct npu_xrt_device {
  explicit npu_xrt_device(uint32_t index) : session(index) {}
  npu::xrt_module::Session session;
};

namespace {

using npu::xrt_module::Failure;

int report(npu_xrt_error* error, const Failure& failure) noexcept {
  *error = {failure.what, failure.code, failure.asked, failure.limit, {}};
  std::snprintf(error->text, sizeof error->text, "%s", failure.text.c_str());
  return failure.what;
}

template <typename Call>
int guarded(npu_xrt_error* error, const Call& call) noexcept {
  *error = {};
  try {
    call();
    return NPU_XRT_OK;
  } catch (const Failure& failure) {
    return report(error, failure);
  } catch (const std::bad_alloc&) {
    return report(error, {NPU_XRT_MEMORY, 0, "this process has no memory left"});
  } catch (const std::exception& other) {
    error->code = npu::xrt_module::errno_of(other);
    std::snprintf(error->text, sizeof error->text, "%s", other.what());
  } catch (...) {
    std::snprintf(error->text, sizeof error->text, "an unknown exception");
  }
  return error->what = NPU_XRT_INTERNAL;
}

// Destructors of XRT's objects may throw only by a defect of XRT.
template <typename Call>
void quietly(const Call& call) noexcept {
  npu_xrt_error ignored;
  guarded(&ignored, call);
}

int count_devices(uint32_t* devices, npu_xrt_error* error) {
  return guarded(error, [&] {
    *devices = npu::xrt_module::calling(NPU_XRT_NO_DEVICE, 0,
                                        [] { return xrt::system::enumerate_devices(); });
  });
}

int open_device(uint32_t index, npu_xrt_device** device, npu_xrt_error* error) {
  return guarded(error, [&] { *device = new npu_xrt_device(index); });
}

void close_device(npu_xrt_device* device) {
  quietly([&] { delete device; });
}

int info(npu_xrt_device* device, npu_xrt_info* out, npu_xrt_error* error) {
  return guarded(error, [&] { *out = device->session.info(); });
}

int load(npu_xrt_device* device, const char* xclbin, uint32_t* arguments, npu_xrt_error* error) {
  return guarded(error, [&] { *arguments = device->session.load(xclbin); });
}

void drop(npu_xrt_device* device) {
  quietly([&] { device->session.drop(); });
}

void drop_all(npu_xrt_device* device) {
  quietly([&] { device->session.drop_all(); });
}

int allocate(npu_xrt_device* device, uint64_t bytes, npu_xrt_buffer** buffer,
             npu_xrt_error* error) {
  return guarded(error, [&] { *buffer = device->session.allocate(bytes).release(); });
}

int wrap(npu_xrt_device* device, void* memory, uint64_t bytes, int32_t read_only,
         npu_xrt_buffer** buffer, npu_xrt_error* error) {
  return guarded(error,
                 [&] { *buffer = device->session.wrap(memory, bytes, read_only != 0).release(); });
}

void buffer_free(npu_xrt_buffer* buffer) {
  quietly([&] { delete buffer; });
}

void* buffer_host(npu_xrt_buffer* buffer) { return buffer->host; }

int buffer_sync(npu_xrt_buffer* buffer, int32_t to_device, uint64_t offset, uint64_t bytes,
                npu_xrt_error* error) {
  return guarded(error, [&] { npu::xrt_module::sync(*buffer, to_device != 0, offset, bytes); });
}

int stream_patch(npu_xrt_device* device, uint64_t stream, const npu_xrt_patch* patches,
                 uint64_t count, npu_xrt_error* error) {
  return guarded(error, [&] { device->session.patch(stream, {patches, count}); });
}

void stream_forget(npu_xrt_device* device, uint64_t stream) {
  quietly([&] { device->session.forget(stream); });
}

int submit(npu_xrt_device* device, uint64_t stream, const npu_xrt_words* parts, uint64_t part_count,
           const npu_xrt_argument* arguments, uint64_t argument_count, npu_xrt_error* error) {
  return guarded(error, [&] {
    device->session.submit(stream, {parts, part_count}, {arguments, argument_count});
  });
}

int wait_for(npu_xrt_device* device, uint32_t milliseconds, npu_xrt_outcome* outcome,
             npu_xrt_error* error) {
  return guarded(error, [&] { *outcome = device->session.wait(milliseconds); });
}

constexpr npu_xrt_module kModule = {NPU_XRT_MODULE_ABI,
                                    sizeof(npu_xrt_module),
                                    count_devices,
                                    open_device,
                                    close_device,
                                    info,
                                    load,
                                    drop,
                                    drop_all,
                                    allocate,
                                    wrap,
                                    buffer_free,
                                    buffer_host,
                                    buffer_sync,
                                    stream_patch,
                                    stream_forget,
                                    submit,
                                    wait_for};

}  // namespace

extern "C" __attribute__((visibility("default"))) const npu_xrt_module* npu_xrt_module_get(void) {
  return &kModule;
}
