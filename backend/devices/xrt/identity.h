// Which NPU a device of XRT is. The generation is read from the PCI device, else from the name that
// XRT gives, and never guessed: a build of the other generation gives zeros or hangs the NPU.
#pragma once

#include <filesystem>
#include <string>

#include "arch/geometry.h"

namespace npu::xrt {

struct Identity {
  arch::Generation generation;
  std::string name, bdf;  // as XRT says them
  std::string pci_id;     // "1022:17f0 rev 10", empty where the system does not say
};

// Throws Error(kGeneration) for what is no NPU that this library knows.
Identity identify(const std::string& name, const std::string& bdf,
                  const std::filesystem::path& sysfs = "/sys");

}  // namespace npu::xrt
