// Finding and reading the folder of configurations (configuration_store.h).
#include "runtime/configuration_store.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <system_error>

#include "error.h"
#include "text.h"

namespace npu {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "npu-configurations 1";
constexpr const char* kIndex = "index.txt";
constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr size_t kMaxLine = 4096, kMaxUses = 1 << 16;

[[noreturn]] void bad(int line, const std::string& cause) {
  fail(ErrorKind::kFormat, "[configurations] index line %d: %s; write the folder again", line,
       cause.c_str());
}

// A name that stays inside the folder.
bool plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 128 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || c == '.';
         });
}

ConfigurationUse parse_use(const std::vector<std::string_view>& words, int line) {
  if (words.size() < 5) bad(line, "expected OPERATION GENERATION FILE SOURCE CRC32 key=value ...");
  ConfigurationUse use;
  use.operation = words[0];
  if (words[1] != "npu1" && words[1] != "npu2") {
    bad(line, strf("generation %s; use npu1 or npu2", quoted(words[1]).c_str()));
  }
  use.generation = arch::device_geometry(words[1]).generation;
  if (!plain_name(words[2])) bad(line, strf("%s is not a file name", quoted(words[2]).c_str()));
  use.file = words[2];
  use.source = words[3];
  const std::string_view crc = words[4];
  const auto [end, error] = std::from_chars(crc.data(), crc.data() + crc.size(), use.crc32, 16);
  if (error != std::errc() || end != crc.data() + crc.size()) {
    bad(line, strf("%s is not a CRC-32 in hexadecimal", quoted(crc).c_str()));
  }
  for (size_t i = 5; i < words.size(); ++i) {
    const size_t at = words[i].find('=');
    if (at == 0 || at == std::string_view::npos) {
      bad(line, strf("%s is not key=value", quoted(words[i]).c_str()));
    }
    if (!use.about.emplace(words[i].substr(0, at), words[i].substr(at + 1)).second) {
      bad(line, strf("%s is given twice", quoted(words[i].substr(0, at)).c_str()));
    }
  }
  return use;
}

// As zlib has it.
uint32_t crc32(std::string_view bytes) {
  static constexpr auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
      table[i] = value;
    }
    return table;
  }();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return ~crc;
}

// Nothing if there is no such file. Throws Error(kUnavailable) if it cannot be read.
std::optional<std::string> contents(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  std::string out;
  const uintmax_t size = fs::file_size(path, error);
  if (!error && size <= kMaxBytes) {
    out.resize(static_cast<size_t>(size));
    in.read(out.data(), static_cast<std::streamsize>(size));
  }
  if (!in || error || size > kMaxBytes) {
    fail(ErrorKind::kUnavailable, "[configurations] %s cannot be read; check its permissions",
         path.c_str());
  }
  return out;
}

constexpr const char* kAdvice =
    "set NPU_CONFIGURATIONS to a folder that was installed or that `npu compile --all FOLDER` "
    "wrote";

}  // namespace

std::string ConfigurationUse::key() const { return file.substr(0, file.rfind('.')); }

std::vector<ConfigurationUse> parse_index(std::string_view text) {
  std::vector<ConfigurationUse> uses;
  for (int line = 1;; ++line) {
    const size_t end = text.substr(0, kMaxLine + 1).find('\n');
    if (end == std::string_view::npos) {
      bad(line, text.size() > kMaxLine ? strf("longer than %zu bytes", kMaxLine)
                                       : "the index ends before \"end COUNT\"");
    }
    const std::string_view content = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (line == 1) {
      if (content == kMagic) continue;
      bad(line, "this is not an index of configurations, or of another version");
    }
    const auto words = split_words(content);
    if (words.size() == 2 && words[0] == "end") {
      if (parse_integer(words[1]) != static_cast<int64_t>(uses.size()) || !text.empty()) {
        bad(line, strf("%s uses are announced, %zu were found and %zu bytes follow",
                       quoted(words[1]).c_str(), uses.size(), text.size()));
      }
      return uses;
    }
    if (uses.size() >= kMaxUses) bad(line, strf("more than %zu uses", kMaxUses));
    uses.push_back(parse_use(words, line));
  }
}

std::vector<fs::path> ConfigurationStore::default_folders() {
  std::vector<fs::path> folders;
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&parse_index), &info) != 0 && info.dli_fname != nullptr) {
    std::error_code error;
    fs::path own = fs::canonical(info.dli_fname, error).parent_path();
    if (error) own = fs::canonical("/proc/self/exe", error).parent_path();  // found through PATH
    if (!error) {
      folders.push_back(own / "configurations");  // a wheel, or a build folder
      folders.push_back((own / NPU_RELATIVE_CONFIGURATIONS).lexically_normal());  // an installation
    }
  }
  folders.emplace_back(NPU_INSTALLED_CONFIGURATIONS);
  return folders;
}

std::shared_ptr<const ConfigurationStore> ConfigurationStore::open(const std::string& folder) {
  std::vector<fs::path> looked;
  const char* variable = std::getenv("NPU_CONFIGURATIONS");
  if (!folder.empty()) {
    looked.emplace_back(folder);
  } else if (variable != nullptr && *variable != '\0') {
    looked.emplace_back(variable);
  } else {
    looked = default_folders();
  }
  std::string names;
  for (const fs::path& path : looked) {
    names += (names.empty() ? "" : ", ") + path.string();
    const std::optional<std::string> index = contents(path / kIndex);
    if (!index) continue;
    auto store = std::make_shared<ConfigurationStore>();
    store->folder_ = path;
    store->uses_ = parse_index(*index);
    return store;
  }
  fail(ErrorKind::kUnavailable, "[configurations] no %s in %s; %s", kIndex, names.c_str(), kAdvice);
}

Configuration ConfigurationStore::load(const ConfigurationUse& use) const {
  const fs::path path = folder_ / use.file;
  const std::optional<std::string> bytes = contents(path);
  if (!bytes) {
    fail(ErrorKind::kUnavailable, "[configurations] %s is missing; %s", path.c_str(), kAdvice);
  }
  if (crc32(*bytes) != use.crc32) {
    fail(ErrorKind::kFormat,
         "[configurations] %s is damaged, or not the file that the index beside it is about; %s",
         path.c_str(), kAdvice);
  }
  return Configuration::parse(std::as_bytes(std::span(bytes->data(), bytes->size())));
}

}  // namespace npu
