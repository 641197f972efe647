// Words and integers of the line-oriented text forms (runtime/program.h, runtime/configuration.h).
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace npu {

// The words of a line, separated by spaces or tabs.
inline std::vector<std::string_view> split_words(std::string_view line) {
  std::vector<std::string_view> words;
  size_t at = 0;
  while ((at = line.find_first_not_of(" \t", at)) != std::string_view::npos) {
    const size_t end = std::min(line.find_first_of(" \t", at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

// The whole of `word` as a decimal integer; nothing if it is not one or does not fit 64 bits.
inline std::optional<int64_t> parse_integer(std::string_view word) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

// A word for an error message: cut to a length that a line can hold, anything but printable ASCII
// replaced (Python takes messages as UTF-8, which a cut or damaged word need not be).
inline std::string quoted(std::string_view word) {
  constexpr size_t kShown = 40;
  std::string text = "\"";
  for (const char c : word.substr(0, kShown)) {
    text += c < 0x20 || c > 0x7E ? '?' : c;
  }
  return text + (word.size() > kShown ? "...\"" : "\"");
}

}  // namespace npu
