// The cache and the xclbins in it (files.h).
#include "devices/xrt/files.h"

#include <dlfcn.h>
#include <pwd.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "error.h"
#include "text.h"

namespace npu::xrt {

namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// The home of a user; of this one if no name is given. Nothing if there is none.
std::optional<std::string> home_of(const std::string& user) {
  if (const char* home = std::getenv("HOME"); user.empty() && home != nullptr) return home;
  const passwd* entry = user.empty() ? getpwuid(getuid()) : getpwnam(user.c_str());
  if (entry == nullptr || entry->pw_dir == nullptr) return std::nullopt;
  return entry->pw_dir;
}

// "~" and "~user" at the beginning as shells take them; a user without a home stays as written.
std::string expanded(const std::string& path) {
  if (path.empty() || path[0] != '~') return path;
  const size_t end = std::min(path.find('/'), path.size());
  const std::optional<std::string> home = home_of(path.substr(1, end - 1));
  return home ? *home + path.substr(end) : path;
}

fs::path absolute(const fs::path& path) {
  std::error_code error;
  fs::path whole = fs::absolute(path, error);  // fails in a folder that is gone
  return error ? path : whole;
}

// NPU_CACHE=off: prepared weights are not kept.
bool is_off(const std::string& word) { return strcasecmp(word.c_str(), "off") == 0; }

// One component of a path.
bool plain_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos;
}

[[noreturn]] void refuse_overlay(const Configuration& configuration,
                                 const Configuration::Overlay& overlay, const fs::path& path,
                                 const std::string& found) {
  fail(ErrorKind::kMissingBuild,
       "[overlay_image] program \"%s\" of configuration \"%s\" should be %u bytes in %s: %s; build "
       "the configuration again: %s --force",
       overlay.name.c_str(), configuration.name.c_str(), overlay.bytes, path.c_str(), found.c_str(),
       build_command(configuration).c_str());
}

// The file of an overlay, which has its size.
fs::path overlay_file(const Configuration& configuration, const Configuration::Overlay& overlay) {
  if (!plain_name(overlay.name)) {
    fail(ErrorKind::kFormat,
         "[overlay_image] configuration \"%s\" has a program %s, which is no file name; lower it "
         "again",
         configuration.name.c_str(), npu::quoted(overlay.name).c_str());
  }
  fs::path path = find_xclbin(configuration).parent_path() / (overlay.name + ".overlay.bin");
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) refuse_overlay(configuration, overlay, path, error.message());
  if (bytes != overlay.bytes) {
    refuse_overlay(configuration, overlay, path, strf("it has %ju bytes", bytes));
  }
  return path;
}

}  // namespace

fs::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) {
    return {};
  }
  std::error_code error;
  fs::path own = fs::canonical(info.dli_fname, error).parent_path();
  if (error) own = fs::canonical("/proc/self/exe", error).parent_path();  // found through PATH
  return error ? fs::path() : own;
}

fs::path cache_root() {
  const std::string chosen = variable("NPU_CACHE");
  if (!chosen.empty() && !is_off(chosen)) return absolute(expanded(chosen));
  const std::string caches = variable("XDG_CACHE_HOME");
  return absolute(expanded(caches.empty() ? "~/.cache" : caches)) / "npu-xdna";
}

fs::path xclbin_folder() {
  const std::string chosen = variable("NPU_XCLBINS");
  return chosen.empty() ? cache_root() / "xclbins" : absolute(expanded(chosen));
}

std::string build_command(const Configuration& configuration) {
  return strf("npu build --device %s %s", arch::device_geometry(configuration.generation).name,
              configuration.name.c_str());
}

fs::path find_xclbin(const Configuration& configuration) {
  const std::string artefact = configuration.artefact();
  if (!plain_name(artefact)) {
    fail(ErrorKind::kFormat,
         "[load] configuration %s has a name that is no file name; lower it "
         "again",
         npu::quoted(configuration.name).c_str());
  }
  const char* generation = arch::device_geometry(configuration.generation).name;
  const fs::path path = xclbin_folder() / generation / artefact / "design.xclbin";
  std::error_code error;
  if (fs::is_regular_file(path, error)) return path;
  fail(ErrorKind::kMissingBuild,
       "[load] configuration \"%s\" has not been built for this NPU (no %s); build it: %s",
       configuration.name.c_str(), path.c_str(), build_command(configuration).c_str());
}

void check_overlays(const Configuration& configuration) {
  for (const Configuration::Overlay& overlay : configuration.overlays) {
    overlay_file(configuration, overlay);
  }
}

std::vector<uint32_t> read_overlay(const Configuration& configuration, size_t overlay) {
  const Configuration::Overlay& about = configuration.overlays[overlay];
  const fs::path path = overlay_file(configuration, about);
  std::vector<uint32_t> image(about.bytes / 4);
  std::ifstream in(path, std::ios::binary);
  if (!in.read(reinterpret_cast<char*>(image.data()), static_cast<std::streamsize>(about.bytes))) {
    refuse_overlay(configuration, about, path, "it cannot be read");
  }
  return image;
}

}  // namespace npu::xrt
