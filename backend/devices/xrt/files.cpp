// The cache and the xclbins in it (files.h).
#include "devices/xrt/files.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
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

// One component of a path.
bool plain_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos;
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
  if (!chosen.empty() && chosen != "off") return chosen;
  const std::string caches = variable("XDG_CACHE_HOME");
  if (!caches.empty()) return fs::path(caches) / "npu-xdna";
  const std::string home = variable("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "npu-xdna";
}

fs::path xclbin_folder() {
  const std::string chosen = variable("NPU_XCLBINS");
  return chosen.empty() ? cache_root() / "xclbins" : fs::path(chosen);
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
  fail(ErrorKind::kUnavailable,
       "[load] configuration \"%s\" has not been built for this NPU (no %s); build it: npu build "
       "--device %s %s",
       configuration.name.c_str(), path.c_str(), generation, configuration.name.c_str());
}

}  // namespace npu::xrt
