# The extension module _npu, and the install component "python", which scikit-build-core puts into the
# package.

# Development.Module is enough: no embedding, no link against libpython.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT nanobind_DIR)
  execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir ERROR_QUIET
                  OUTPUT_VARIABLE nanobind_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
find_package(nanobind CONFIG)
if(NOT nanobind_FOUND)
  message(FATAL_ERROR
    "nanobind is not installed for ${Python_EXECUTABLE}. The configurations of the NPU are written "
    "by Python at build time: create a virtual environment (python3 -m venv .venv), .venv/bin/pip "
    "install nanobind and pass -DPython_EXECUTABLE=$PWD/.venv/bin/python; or pass "
    "-DNPU_CONFIGURATIONS=FOLDER with configurations that were written elsewhere")
endif()
file(GLOB NPU_PYTHON_SOURCES CONFIGURE_DEPENDS python/src/*.cpp)
nanobind_add_module(_npu NB_STATIC ${NPU_PYTHON_SOURCES})
target_compile_options(_npu PRIVATE ${NPU_BASELINE})
target_precompile_headers(_npu PRIVATE ${NPU_COMMON_HEADERS} <nanobind/nanobind.h>
                          <nanobind/ndarray.h>)
target_link_libraries(_npu PRIVATE npu_core)
set_source_files_properties(python/src/kernels.cpp PROPERTIES
  COMPILE_DEFINITIONS NPU_KERNEL_HASH="${NPU_KERNEL_HASH}")
set_source_files_properties(python/src/module.cpp PROPERTIES COMPILE_DEFINITIONS
                            NPU_VERSION="${PROJECT_VERSION}")
# The package is a component of its own, which scikit-build-core installs.
if(NPU_BUILD_PYTHON)
  install(TARGETS _npu LIBRARY DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)
  include(python/src/stubs.cmake)
  # The demo model, so that `npu generate` answers without a download.
  install(FILES examples/demo_model/demo-gemma3.gguf DESTINATION models OPTIONAL
          COMPONENT python EXCLUDE_FROM_ALL)
endif()
