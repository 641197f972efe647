// The machine's settings, counters and faults, devices and xclbins (../control.h).
#include "machine.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <random>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "xrt/experimental/xrt_system.h"

namespace xrt_double {

namespace {

constexpr const char* kMagic = "npu-xclbin-stand-in 1";

}  // namespace

std::vector<std::byte> without_shim_dmas(std::span<const std::byte> txn) {
  const npu::stream::Stream all = npu::stream::Stream::parse(txn);
  const std::span<const uint32_t> words = all.words();
  std::vector<uint32_t> kept(words.begin(), words.begin() + 4);
  kept[2] = 0;
  for (const npu::stream::Operation& one : all.operations()) {
    const uint64_t row = one.address >> 20 & 31, offset = one.address & 0xFFFFF;
    if (row == 0 && offset >= 0x1D000 && offset < 0x1D220) continue;
    const auto part = words.subspan(one.byte_offset / 4, one.bytes / 4);
    kept.insert(kept.end(), part.begin(), part.end());
    ++kept[2];
  }
  kept[3] = static_cast<uint32_t>(4 * kept.size());
  const auto bytes = std::as_bytes(std::span(kept));
  return {bytes.begin(), bytes.end()};
}

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
  if (code == kNoHostMemory) throw std::bad_alloc();
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

void refuse_contexts(int count, int code, const std::string& call) {
  machine().contexts = {count, code};
  machine().contexts_call = call;
}
void refuse_devices(int count, int code, const std::string& call) {
  machine().devices = {count, code};
  machine().devices_call = call;
}
void interrupt_waits(int count) { machine().waits = {count, EINTR}; }
void refuse_buffers(int count, int code) { machine().buffers = {count, code}; }
void refuse_instructions(int count, int code) { machine().instructions = {count, code}; }
void refuse_syncs(int count, int code) { machine().syncs = {count, code}; }
Counters counters() { return machine().counters; }
std::vector<std::string> take_violations() { return std::exchange(machine().violations, {}); }
std::string last_failure() { return machine().last_failure; }

std::vector<uint32_t> machine_code(const npu::Configuration& configuration, size_t overlay) {
  const npu::Configuration::Overlay& about = configuration.overlays[overlay];
  std::seed_seq seed(about.name.begin(), about.name.end());
  std::mt19937 random(seed);
  std::vector<uint32_t> code(about.bytes / 4);
  for (uint32_t& word : code) word = static_cast<uint32_t>(random());
  return code;
}

const char* xrt_double_complaints() {
  static std::string text;
  text.clear();
  for (const std::string& violation : take_violations()) text += violation + "\n";
  text += std::exchange(machine().last_failure, {});
  return text.c_str();
}

int xrt_double_write_xclbin(const char* path, const void* configuration, size_t bytes,
                            size_t buffers) {
  try {
    write_xclbin(path, {static_cast<const std::byte*>(configuration), bytes}, buffers);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

void write_xclbin(const std::string& path, std::span<const std::byte> configuration, size_t buffers,
                  const std::string& kernel) {
  std::ofstream out(path, std::ios::binary);
  out << kMagic << '\n' << kernel << '\n' << buffers << '\n';
  out.write(reinterpret_cast<const char*>(configuration.data()),
            static_cast<std::streamsize>(configuration.size()));
  const npu::Configuration parsed = npu::Configuration::parse(configuration);
  for (size_t i = 0; i < parsed.overlays.size(); ++i) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    std::ofstream image(folder / (parsed.overlays[i].name + ".overlay.bin"), std::ios::binary);
    const std::vector<uint32_t> code = machine_code(parsed, i);
    image.write(reinterpret_cast<const char*>(code.data()),
                static_cast<std::streamsize>(4 * code.size()));
    if (!image) throw std::runtime_error("cannot write an overlay beside " + path);
  }
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
  auto configuration = std::make_shared<npu::Configuration>(
      npu::Configuration::parse(std::as_bytes(std::span(bytes.data(), bytes.size()))));
  configuration->txn = xrt_double::without_shim_dmas(configuration->txn);
  for (size_t i = 0; i < configuration->overlays.size(); ++i) {
    configuration->overlays[i].image = xrt_double::machine_code(*configuration, i);
  }
  impl->uuid = configuration->id;
  impl->configuration = std::move(configuration);
  handle_ = std::move(impl);
}

std::vector<xclbin::kernel> xclbin::get_kernels() const {
  return {{handle_->kernel, handle_->buffers + 3}};
}

uuid xclbin::get_uuid() const { return uuid(handle_->uuid); }

unsigned int system::enumerate_devices() {
  const xrt_double::Settings& settings = machine().settings;
  return static_cast<unsigned int>(settings.before.size()) + (settings.present ? 1 : 0);
}

device::device(unsigned int index) : index_(index) {
  xrt_double::refuse_if(machine().devices, machine().devices_call + " failed");
  if (index >= system::enumerate_devices()) {
    throw std::runtime_error("No such device with index '" + std::to_string(index) + "'");
  }
}

uuid device::register_xclbin(const xclbin& xclbin) {
  machine().xclbins[xclbin.get_uuid()] = xclbin.get_handle();
  return xclbin.get_uuid();
}

std::string device::info(info::device param) const {
  const xrt_double::Settings& settings = machine().settings;
  // An address that no machine has.
  if (param == info::device::bdf) return "ffff:0" + std::to_string(index_) + ":00.1";
  return index_ < settings.before.size() ? settings.before[index_] : settings.name;
}

}  // namespace xrt
