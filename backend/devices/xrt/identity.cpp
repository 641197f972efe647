// PCI ids and names of NPUs (identity.h). Ids: xdna-driver, npu*_regs.c; names: its firmware tables
// and xrt-smi.
#include "devices/xrt/identity.h"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <regex>

#include "error.h"
#include "text.h"

namespace npu::xrt {

namespace {

constexpr uint32_t kAmd = 0x1022, kPhoenix = 0x1502, kStrix = 0x17F0;

// A number as sysfs writes it: "0x1022".
std::optional<uint32_t> number_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string text;
  if (!(in >> text) || text.size() > 10) return std::nullopt;
  char* end = nullptr;
  const unsigned long value = std::strtoul(text.c_str(), &end, 16);
  if (end == text.c_str() || *end != '\0') return std::nullopt;
  return static_cast<uint32_t>(value);
}

// The driver tells NPUs apart by both.
std::optional<arch::Generation> generation_of_pci(uint32_t device, uint32_t revision) {
  if (device == kPhoenix && revision == 0) return arch::Generation::kNpu1;
  const bool known = revision == 0x10 || revision == 0x11 || revision == 0x20;
  if (device == kStrix && known) return arch::Generation::kNpu2;
  return std::nullopt;
}

// AIE4, whose instructions are others.
bool is_newer(uint32_t device) {
  return (device >= 0x17F1 && device <= 0x17F3) || (device >= 0x1B0A && device <= 0x1B0C);
}

// The rules of python/npu/hardware/known_npus.py.
std::optional<arch::Generation> generation_of_name(const std::string& name) {
  const auto has = [&](const char* pattern) {
    return std::regex_search(name, std::regex(pattern, std::regex::icase));
  };
  if (has(R"(npu1(?!\d)|\bphoenix\b|\bhawk)")) return arch::Generation::kNpu1;
  if (has(R"(npu[456](?!\d)|\bstrix\b|\bkrackan\b|\bgorgon\b)")) return arch::Generation::kNpu2;
  return std::nullopt;
}

}  // namespace

Identity identify(const std::string& name, const std::string& bdf,
                  const std::filesystem::path& sysfs) {
  constexpr const char* kEmulated = "the emulated NPUs are \"emu:npu2\" and \"emu:npu1\"";
  const std::filesystem::path folder = sysfs / "bus/pci/devices" / bdf;
  const auto read = [&](const char* file) { return number_in(folder / file); };
  const std::optional<uint32_t> vendor = read("vendor"), device = read("device"),
                                revision = read("revision");
  Identity found{arch::Generation::kNpu2, name, bdf, ""};
  if (device && vendor == kAmd) {
    found.pci_id = strf("%04x:%04x rev %02x", kAmd, *device, revision.value_or(0));
    if (const auto generation = generation_of_pci(*device, revision.value_or(0))) {
      found.generation = *generation;
      return found;
    }
    if (is_newer(*device)) {
      fail(ErrorKind::kGeneration,
           "[device] xrt: %s (%s) is of a generation after npu2, for which nothing can be built; "
           "%s",
           npu::quoted(name).c_str(), found.pci_id.c_str(), kEmulated);
    }
  }
  const bool half_read = vendor == kAmd && !revision && (device == kPhoenix || device == kStrix);
  if (!device || half_read) {
    if (const auto generation = generation_of_name(name)) {
      found.generation = *generation;
      return found;
    }
  }
  std::string id = found.pci_id;
  if (id.empty() && device) id = strf("%04x:%04x", vendor.value_or(0), *device);
  fail(ErrorKind::kGeneration,
       "[device] xrt: %s at %s (%s) is not an NPU that this version knows; %s",
       npu::quoted(name).c_str(), bdf.c_str(), id.empty() ? "PCI id not readable" : id.c_str(),
       kEmulated);
}

}  // namespace npu::xrt
