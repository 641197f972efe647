// A folder of configurations for tests that do not include the backend.
#include <string>

#include "stored_configurations.h"

namespace npu_api_test {

std::string small_folder() {
  static npu::test::StoredConfigurations folder;
  if (!std::filesystem::exists(folder.folder() / "index.txt")) {
    folder.add("rows.config", "prefers=host layout=row " + npu::test::kSmallDesign);
    folder.add("packed.config", "prefers=host layout=packed " + npu::test::kSmallDesign);
    folder.write_index();
  }
  return folder.folder().string();
}

}  // namespace npu_api_test
