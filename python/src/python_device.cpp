// A device written in Python (python_device.h): every call of the contract takes the GIL and calls
// the method of the same name of a DeviceBackend (python/npu/device_contract.py).
#include "python_device.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "runtime/overlay.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

// An object that may be released on a thread without the GIL.
class Held {
 public:
  explicit Held(nb::object object) : object_(std::move(object)) {}
  Held(Held&&) = default;
  Held& operator=(Held&&) = delete;
  ~Held() {
    if (!object_.is_valid()) return;
    nb::gil_scoped_acquire gil;
    object_.reset();
  }
  const nb::object& get() const { return object_; }

 private:
  nb::object object_;
};

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using View = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

View view_of(std::byte* memory, size_t bytes) {
  return View(reinterpret_cast<uint8_t*>(memory), {bytes}, nb::handle());
}

// Part of an error's message: the value as Python prints it, or its type where it cannot.
std::string described(nb::handle value) {
  try {
    const std::string text = nb::repr(value).c_str();
    if (text.size() <= 80) return text;
  } catch (nb::python_error&) {
  }
  return std::string("a ") + nb::inst_name(value).c_str();
}

// `what`: the method, and the field of its result, that gave a value which the contract excludes.
[[noreturn]] void refuse(const std::string& device, const char* what, nb::handle found,
                         const std::string& wanted) {
  fail(ErrorKind::kDevice, "[device] %s: %s is %s; return %s", device.c_str(), what,
       described(found).c_str(), wanted.c_str());
}

void check_methods(const std::string& device, const char* what, nb::handle found,
                   std::initializer_list<const char*> methods, const char* base) {
  for (const char* method : methods) {
    if (!nb::hasattr(found, method)) {
      refuse(device, what, found, strf("a %s, with %s()", base, method));
    }
  }
}

// A value as the type that the contract says; `wanted` tells the device's author.
template <typename T>
T given(const std::string& device, const char* what, nb::handle value, const char* wanted) {
  T found{};
  // Integers of NumPy are converted, numbers in a string are not.
  const bool convert = PyIndex_Check(value.ptr()) != 0;
  if (!nb::try_cast(value, found, convert)) refuse(device, what, value, wanted);
  return found;
}

// The dict that a method of a device returned.
class Fields {
 public:
  Fields(const std::string& device, const char* method, nb::handle found)
      : device_(device),
        method_(method),
        fields_(given<nb::dict>(device, method, found, "a dict")) {}
  bool has(const char* key) const { return fields_.contains(key); }
  template <typename T>
  T get(const char* key, const char* wanted) const {
    if (!has(key)) refuse(device_, method_, fields_, strf("a dict with \"%s\", %s", key, wanted));
    const nb::object value = fields_[key];
    return given<T>(device_, strf("%s[\"%s\"]", method_, key).c_str(), value, wanted);
  }
  [[noreturn]] void refuse_field(const char* key, const char* wanted) const {
    const nb::object value = fields_[key];
    refuse(device_, strf("%s[\"%s\"]", method_, key).c_str(), value, wanted);
  }
  uint64_t count(const char* key) const {
    return has(key) ? get<uint64_t>(key, "an integer, at least 0") : 0;
  }

 private:
  const std::string& device_;
  const char* method_;
  nb::dict fields_;
};

// Buffers of a Python device have `memory`, a C-contiguous uint8 array.
class PythonBuffer final : public Buffer {
 public:
  // With the GIL. `bytes`: what was asked for from `method` of `device`.
  PythonBuffer(nb::object buffer, size_t bytes, Access access, const std::string& device,
               const char* method)
      : buffer_(buffer),
        array_(nb::getattr(buffer, "memory", nb::none())),
        bytes_(bytes),
        access_(access) {
    check_methods(device, method, buffer, {"sync_to_device", "sync_from_device"}, "DeviceBuffer");
    // Not converted: a temporary would not be the device's memory.
    nb::ndarray<uint8_t, nb::ndim<1>, nb::ro, nb::c_contig, nb::device::cpu> read;
    Bytes written;
    const bool fits = writes(access) ? nb::try_cast(array_.get(), written, false)
                                     : nb::try_cast(array_.get(), read, false);
    if (!fits || (writes(access) ? written.size() : read.size()) < bytes) {
      refuse(device, strf("%s.memory", method).c_str(), array_.get(),
             strf("a%s C-contiguous uint8 array of at least %zu bytes",
                  writes(access) ? " writable" : "", bytes));
    }
    const uint8_t* data = writes(access) ? written.data() : read.data();
    memory_ = reinterpret_cast<std::byte*>(const_cast<uint8_t*>(data));
  }
  std::byte* host() override { return memory_; }
  size_t bytes() const override { return bytes_; }
  Access access() const override { return access_; }
  void sync_to_device(size_t offset, size_t bytes) override {
    nb::gil_scoped_acquire gil;
    buffer_.get().attr("sync_to_device")(offset, bytes);
  }
  void sync_from_device(size_t offset, size_t bytes) override {
    nb::gil_scoped_acquire gil;
    buffer_.get().attr("sync_from_device")(offset, bytes);
  }
  const nb::object& object() const { return buffer_.get(); }

 private:
  Held buffer_;
  Held array_;  // `memory` may be a property that makes an array each time
  std::byte* memory_ = nullptr;
  size_t bytes_;
  Access access_;
};

class PythonRun final : public Run {
 public:
  PythonRun(std::string device, nb::object run, std::shared_ptr<const PreparedStream> stream,
            std::function<void()> failed)
      : device_(std::move(device)),
        run_(std::move(run)),
        stream_(std::move(stream)),
        failed_(std::move(failed)) {}
  ~PythonRun() override {
    try {
      cancel();
    } catch (...) {  // a device that cannot even cancel: the next load will tell
    }
  }
  State state() const override { return state_; }
  bool wait(std::chrono::nanoseconds timeout) override;
  void cancel() override {
    if (state_ != State::kRunning) return;
    state_ = State::kCancelled;
    failed_();
    nb::gil_scoped_acquire gil;
    run_.get().attr("cancel")();
  }
  const RunReport& report() const override { return report_; }

 private:
  bool ended(std::chrono::nanoseconds timeout);
  void abandon(bool over);

  std::string device_;  // its name
  Held run_;
  std::shared_ptr<const PreparedStream> stream_;
  std::function<void()> failed_;
  State state_ = State::kRunning;
  RunReport report_;
};

bool PythonRun::ended(std::chrono::nanoseconds timeout) {
  const nb::object seconds =
      timeout == kForever ? nb::none()
                          : nb::object(nb::float_(std::chrono::duration<double>(timeout).count()));
  const nb::object found = run_.get().attr("wait")(seconds);
  return given<bool>(device_, "wait()", found, "True or False");
}

// `over`: the run has ended. Otherwise the device may still write to memory that the caller is
// about to release.
void PythonRun::abandon(bool over) {
  state_ = State::kFailed;
  failed_();
  if (over) return;
  try {
    run_.get().attr("cancel")();
  } catch (nb::python_error& error) {  // what made us stop is what the caller hears of
    error.discard_as_unraisable("DeviceRun.cancel");
  }
}

bool PythonRun::wait(std::chrono::nanoseconds timeout) {
  if (state_ != State::kRunning) return true;
  nb::gil_scoped_acquire gil;
  bool over = false;
  try {
    over = ended(timeout);
    if (!over) return false;
    const nb::object returned = run_.get().attr("report")();
    const Fields report(device_, "report()", returned);
    report_.operations = report.count("operations");
    report_.kernel_calls = report.count("kernel_calls");
    report_.shim_read_bytes = report.count("shim_read");
    report_.shim_write_bytes = report.count("shim_write");
    report_.array_ns = report.count("array_ns");
  } catch (const nb::python_error& error) {
    // An error of the run ends it; anything else (KeyboardInterrupt) only ends the waiting.
    abandon(over || error.matches(nb::module_::import_("npu.errors").attr("NpuError")));
    throw;
  } catch (...) {
    abandon(over);
    throw;
  }
  state_ = State::kDone;
  return true;
}

class PythonStream final : public PreparedStream {
 public:
  PythonStream(std::vector<uint32_t> words, nb::object prepared)
      : PreparedStream(std::move(words)), prepared_(std::move(prepared)) {}
  const nb::object& object() const { return prepared_.get(); }

 private:
  Held prepared_;
};

const arch::Geometry& geometry_of(const Fields& info) {
  constexpr const char* kWanted = "\"npu1\" or \"npu2\"";
  const auto name = info.get<std::string>("generation", kWanted);
  if (name != "npu1" && name != "npu2") info.refuse_field("generation", kWanted);
  return arch::device_geometry(name);
}

class PythonDevice final : public Device {
 public:
  explicit PythonDevice(nb::object backend) : backend_(backend) {
    info_.name = nb::inst_name(backend).c_str();  // until it says its own
    const nb::object returned = backend.attr("info")();
    const Fields info(info_.name, "info()", returned);
    info_.name = info.get<std::string>("name", "a string");
    const arch::Geometry& model = geometry_of(info);
    info_.generation = model.generation;
    info_.columns = model.columns;
    info_.clock_hz = model.clock_hz;
    info_.emulated = info.get<bool>("emulated", "True or False");
    info_.computes = !info.has("computes") || info.get<bool>("computes", "True or False");
    info_.arithmetic = info.get<std::string>("arithmetic", "a string");
    if (info.has("max_arguments")) {
      info_.max_arguments = info.get<size_t>("max_arguments", "an integer, at least 0");
    }
  }
  DeviceInfo info() const override { return info_; }

  std::unique_ptr<Buffer> allocate(size_t bytes) override {
    nb::gil_scoped_acquire gil;
    return std::make_unique<PythonBuffer>(backend_.get().attr("allocate")(bytes), bytes,
                                          Access::kReadWrite, info_.name, "allocate()");
  }
  std::unique_ptr<Buffer> wrap(std::byte* memory, size_t bytes, Access access) override {
    nb::gil_scoped_acquire gil;
    const nb::object array = nb::cast(view_of(memory, bytes), nb::rv_policy::reference);
    const nb::object buffer = backend_.get().attr("wrap")(array, writes(access));
    if (buffer.is_none()) return nullptr;
    return std::make_unique<PythonBuffer>(buffer, bytes, access, info_.name, "wrap()");
  }

 protected:
  std::vector<uint32_t> do_overlay_image(const Configuration& configuration,
                                         size_t overlay) override {
    const std::string& name = configuration.overlays[overlay].name;
    nb::gil_scoped_acquire gil;
    const nb::object found = backend_.get().attr("overlay_image")(
        nb::cast(std::make_shared<Configuration>(configuration)), name);
    if (found.is_none()) return stand_in(configuration, overlay);
    nb::bytes bytes;
    if (!nb::try_cast(found, bytes, false) || bytes.size() % 4 != 0) {
      refuse(info_.name, "overlay_image()", found, "bytes, a multiple of 4, or None");
    }
    std::vector<uint32_t> image(bytes.size() / 4);
    std::memcpy(image.data(), bytes.data(), bytes.size());
    return image;
  }
  void do_load(const Configuration& configuration) override {
    nb::gil_scoped_acquire gil;
    backend_.get().attr("load")(nb::cast(std::make_shared<Configuration>(configuration)));
  }
  std::shared_ptr<PreparedStream> do_prepare(std::vector<uint32_t> words,
                                             stream::Stream /*parsed*/) override {
    nb::gil_scoped_acquire gil;
    nb::object prepared = backend_.get().attr("prepare")(nb::bytes(words.data(), words.size() * 4));
    return std::make_shared<PythonStream>(std::move(words), std::move(prepared));
  }
  bool do_patch(PreparedStream& stream, std::span<const StreamPatch> patches) override {
    const auto& changed = static_cast<const PythonStream&>(stream);
    nb::gil_scoped_acquire gil;
    auto pairs = std::make_unique<std::vector<uint32_t>>();
    for (const StreamPatch& patch : patches) {
      pairs->insert(pairs->end(), {static_cast<uint32_t>(patch.word), patch.value});
    }
    uint32_t* const data = pairs->data();
    const nb::capsule owner(pairs.release(), [](void* held) noexcept {
      delete static_cast<std::vector<uint32_t>*>(held);
    });
    const nb::ndarray<nb::numpy, uint32_t, nb::ndim<2>> array(data, {patches.size(), 2}, owner);
    const nb::object done = backend_.get().attr("patch")(changed.object(), array);
    return given<bool>(info_.name, "patch()", done, "True or False");
  }
  std::unique_ptr<Run> do_submit(std::shared_ptr<const PreparedStream> stream,
                                 std::span<const BufferRef> refs) override {
    nb::gil_scoped_acquire gil;
    nb::list arguments;
    for (const BufferRef& ref : refs) {
      if (ref.buffer == nullptr) {
        arguments.append(nb::none());
      } else {
        const auto& buffer = static_cast<const PythonBuffer&>(*ref.buffer);
        arguments.append(
            nb::make_tuple(buffer.object(), ref.offset, ref.bytes, writes(ref.access)));
      }
    }
    const nb::object prepared = static_cast<const PythonStream&>(*stream).object();
    nb::object run = backend_.get().attr("submit")(prepared, arguments);
    check_methods(info_.name, "submit()", run, {"wait", "report", "cancel"}, "DeviceRun");
    return std::make_unique<PythonRun>(info_.name, std::move(run), std::move(stream),
                                       [this] { forget_configuration(); });
  }

 private:
  Held backend_;
  DeviceInfo info_;
};

}  // namespace

std::unique_ptr<Device> open_python_device(nb::object backend) {
  for (const char* method :
       {"info", "allocate", "wrap", "overlay_image", "load", "prepare", "patch", "submit"}) {
    if (nb::hasattr(backend, method)) continue;
    fail(ErrorKind::kDevice,
         "[device] the Python device has no method %s(); derive it from "
         "npu.device_contract.DeviceBackend",
         method);
  }
  return std::make_unique<PythonDevice>(std::move(backend));
}

}  // namespace npu::python
