// The machine's settings, counters and faults, devices and xclbins (../control.h).
#include "machine.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>

namespace xrt_double {

namespace {

constexpr const char* kMagic = "npu-xclbin-stand-in 1";

}  // namespace

Machine& machine() {
  static Machine the_machine = [] {
    Machine fresh;
    const char* device = std::getenv("NPU_XRT_DOUBLE");
    if (device != nullptr && *device != '\0') fresh.settings.device = device;
    const bool npu1 = fresh.settings.device.find("npu1") != std::string::npos;
    fresh.settings.name = npu1 ? "NPU Phoenix" : "NPU Strix";
    return fresh;
  }();
  return the_machine;
}

void refuse(int code, const std::string& text) {
  // Like XRT: some errors carry a negative number.
  throw std::system_error(std::error_code(-code, std::generic_category()), text);
}

npu::Device& Machine::emulator() {
  if (!device) device = npu::open_device(settings.device, "fast");
  return *device;
}

void reset(const Settings& settings) {
  Machine& m = machine();
  m = Machine{};
  m.settings = settings;
}

void inject(Fault fault, uint32_t number, uint32_t version) {
  machine().injected.push_back({fault, number, version});
}

void refuse_contexts(int count, int code) { machine().contexts = {count, code}; }
void refuse_buffers(int count, int code) { machine().buffers = {count, code}; }
Counters counters() { return machine().counters; }
std::vector<std::string> take_violations() { return std::exchange(machine().violations, {}); }
std::string last_failure() { return machine().last_failure; }

void write_xclbin(const std::string& path, std::span<const std::byte> configuration, size_t buffers,
                  const std::string& kernel) {
  std::ofstream out(path, std::ios::binary);
  out << kMagic << '\n' << kernel << '\n' << buffers << '\n';
  out.write(reinterpret_cast<const char*>(configuration.data()),
            static_cast<std::streamsize>(configuration.size()));
  if (!out) throw std::runtime_error("cannot write " + path);
}

}  // namespace xrt_double

namespace xrt {

using xrt_double::machine;

xclbin::xclbin(const std::string& filename) {
  std::ifstream in(filename, std::ios::binary);
  std::string magic, buffers;
  auto impl = std::make_shared<xclbin_impl>();
  if (!std::getline(in, magic) || magic != xrt_double::kMagic || !std::getline(in, impl->kernel) ||
      !std::getline(in, buffers)) {
    throw std::runtime_error("No such xclbin: " + filename);
  }
  impl->buffers = std::stoul(buffers);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  impl->configuration = std::make_shared<const npu::Configuration>(
      npu::Configuration::parse(std::as_bytes(std::span(bytes.data(), bytes.size()))));
  impl->uuid = impl->configuration->id;
  handle_ = std::move(impl);
}

std::vector<xclbin::kernel> xclbin::get_kernels() const {
  return {{handle_->kernel, handle_->buffers + 3}};
}

uuid xclbin::get_uuid() const { return uuid(handle_->uuid); }

device::device(unsigned int index) {
  if (index != 0 || !machine().settings.present) {
    throw std::runtime_error("No such device with index '" + std::to_string(index) + "'");
  }
}

uuid device::register_xclbin(const xclbin& xclbin) {
  machine().xclbins[xclbin.get_uuid()] = xclbin.get_handle();
  return xclbin.get_uuid();
}

std::string device::info(info::device param) const {
  return param == info::device::name ? machine().settings.name : "0000:66:00.1";
}

}  // namespace xrt
