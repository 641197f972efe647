// The configurations that were built with the package: a folder of files with an index, found
// without Python. python/npu/ops/configurations.py writes it.
//
// index.txt:
//   npu-configurations 1
//   OPERATION npu1|npu2 FILE SOURCE CRC32 key=value ...   one use of a configuration; the keys are
//                                                         for those who choose one
//   end COUNT                                             of the lines between
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arch/geometry.h"
#include "runtime/configuration.h"

namespace npu {

struct ConfigurationUse {
  std::string operation, file, source;
  uint32_t crc32 = 0;  // of the file
  arch::Generation generation = arch::Generation::kNpu2;
  std::map<std::string, std::string> about;

  std::string key() const;  // the file's name without its suffix
};

// Throws Error(kFormat) with the line number and what is wrong.
std::vector<ConfigurationUse> parse_index(std::string_view text);

class ConfigurationStore {
 public:
  // The folder to use: `folder` if it is not empty, else the environment variable
  // NPU_CONFIGURATIONS, else the first of default_folders() that has an index. Throws
  // Error(kUnavailable), which says where was looked, and Error(kFormat).
  static std::shared_ptr<const ConfigurationStore> open(const std::string& folder = "");
  // Beside the library or program that this code is part of, where the library is installed
  // relative to it, and where it was installed when it was built.
  static std::vector<std::filesystem::path> default_folders();

  std::span<const ConfigurationUse> uses() const { return uses_; }
  const std::filesystem::path& folder() const { return folder_; }
  // Throws Error(kUnavailable, kFormat) for a file that is missing, damaged, or not the one that
  // the index is about.
  Configuration load(const ConfigurationUse& use) const;

 private:
  std::filesystem::path folder_;
  std::vector<ConfigurationUse> uses_;
};

}  // namespace npu
