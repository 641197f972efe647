// The reference files of tests/golden (its README says what they are). A file that is missing fails
// the test that asks for it.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace golden {

inline std::filesystem::path folder() { return std::filesystem::path(NPU_TESTS_DIR) / "golden"; }

inline std::string bytes(const std::string& file) {
  std::ifstream in(folder() / file, std::ios::binary);
  REQUIRE_MESSAGE(in.is_open(), "no reference file " << (folder() / file).string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// "key":[integers...] of a flat JSON file.
inline std::vector<int64_t> integers(const std::string& file, const std::string& key) {
  const std::string text = bytes(file);
  size_t at = text.find("\"" + key + "\"");
  REQUIRE_MESSAGE(at != std::string::npos, file << " has no " << key);
  at = text.find('[', at);
  std::vector<int64_t> out;
  while (at < text.size() && text[at] != ']') {
    char* end = nullptr;
    out.push_back(std::strtoll(text.c_str() + at + 1, &end, 10));
    at = static_cast<size_t>(end - text.c_str());
  }
  return out;
}

}  // namespace golden
