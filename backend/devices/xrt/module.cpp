// dlopen of libnpu_xrt.so (module.h).
#include "devices/xrt/module.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "devices/xrt/files.h"
#include "error.h"

namespace npu::xrt {

namespace {

namespace fs = std::filesystem;

constexpr const char* kAdvice =
    "install XRT with its headers and run `npu build --xrt` (docs/cpp.md), or use \"emu:npu2\"";

const npu_xrt_module& open_module(const fs::path& path) {
  // Never closed: XRT's threads and the buffers of callers live in it.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fail(ErrorKind::kMissingXrt,
         "[device] \"xrt\" was requested, but its module does not load: %.300s; install XRT's "
         "packages, or build the module for the XRT that is installed: npu build --xrt",
         dlerror());
  }
  const auto entry =
      reinterpret_cast<npu_xrt_module_function>(dlsym(library, NPU_XRT_MODULE_ENTRY));
  const npu_xrt_module* module = entry != nullptr ? entry() : nullptr;
  if (module == nullptr) {
    fail(ErrorKind::kMissingXrt,
         "[device] \"xrt\" was requested, but %s has no function %s; build it again: npu build "
         "--xrt",
         path.c_str(), NPU_XRT_MODULE_ENTRY);
  }
  if (module->abi != NPU_XRT_MODULE_ABI || module->size < sizeof(npu_xrt_module)) {
    fail(ErrorKind::kMissingXrt,
         "[device] \"xrt\" was requested, but %s has interface %u and this library needs %d; build "
         "it again: npu build --xrt",
         path.c_str(), module->abi, NPU_XRT_MODULE_ABI);
  }
  return *module;
}

}  // namespace

std::vector<fs::path> module_places() {
  const char* chosen = std::getenv("NPU_XRT_MODULE");
  if (chosen != nullptr && *chosen != '\0') return {chosen};
  std::vector<fs::path> places;
  if (const fs::path own = own_folder(); !own.empty()) places.push_back(own / kModuleFile);
  places.push_back(cache_root() / "xrt" / kModuleFile);
  return places;
}

std::optional<fs::path> find_module() {
  for (const fs::path& place : module_places()) {
    std::error_code error;
    if (fs::is_regular_file(place, error)) return place;
  }
  return std::nullopt;
}

const npu_xrt_module& load_module() {
  static std::mutex mutex;
  static std::map<fs::path, const npu_xrt_module*> loaded;
  const std::lock_guard guard(mutex);
  if (const std::optional<fs::path> place = find_module()) {
    const npu_xrt_module*& module = loaded[*place];
    std::error_code error;
    if (module == nullptr) module = &open_module(fs::absolute(*place, error));
    return *module;
  }
  std::string names;
  for (const fs::path& place : module_places()) {
    names += (names.empty() ? "" : ", ") + place.string();
  }
  fail(ErrorKind::kMissingXrt,
       "[device] \"xrt\" was requested, but its module is not there (looked for %s); %s",
       names.c_str(), kAdvice);
}

}  // namespace npu::xrt
