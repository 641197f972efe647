// A folder of configurations as tests make it: files, an index with their checksums, and damage.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "error.h"
#include "gemm_fixture.h"

namespace npu::test {

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  REQUIRE(out.good());
}

// Bit by bit, unlike the one it checks.
inline uint32_t plain_crc32(const std::string& bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool differs = ((crc ^ static_cast<uint8_t>(c) >> bit) & 1) != 0;
      crc = crc >> 1 ^ (differs ? 0xEDB88320 : 0);
    }
  }
  return crc ^ 0xFFFFFFFF;
}

inline const std::string kSmallDesign =
    "a=bfloat16 c=float32 accumulate=wide bf16=native kernel=published tile=4x8x4 k_mt=8 "
    "b_layout=row c_buffers=1 a_parts=1 b_pairs=0 cores=2x2";

// Deleted with its contents at the end.
class StoredConfigurations {
 public:
  StoredConfigurations() {
    std::string name = (std::filesystem::temp_directory_path() / "npu-store-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    folder_ = name;
  }
  ~StoredConfigurations() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  StoredConfigurations(const StoredConfigurations&) = delete;
  StoredConfigurations& operator=(const StoredConfigurations&) = delete;

  // A small GEMM of npu1 as `file`, used as `about` says.
  void add(const std::string& file, const std::string& about) {
    const std::string bytes = small_configuration_file();
    write_file(folder_ / file, bytes);
    lines_.push_back(strf("gemm npu1 %s %s %08x ", file.c_str(), std::string(64, '0').c_str(),
                          plain_crc32(bytes)) +
                     about);
  }
  std::string index() const {
    std::string text = "npu-configurations 1\n";
    for (const std::string& line : lines_) text += line + "\n";
    return text + strf("end %zu\n", lines_.size());
  }
  void write_index() const { write_file(folder_ / "index.txt", index()); }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::vector<std::string> lines_;
};

// The variable has a value (null: none) until the end.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    const char* before = std::getenv(name);
    if (before != nullptr) before_ = before;
    there_ = before != nullptr;
    set(value);
  }
  ~Environment() { set(there_ ? before_.c_str() : nullptr); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  void set(const char* value) {
    if (value != nullptr) {
      setenv(name_, value, 1);
    } else {
      unsetenv(name_);
    }
  }
  const char* name_;
  std::string before_;
  bool there_ = false;
};

}  // namespace npu::test
