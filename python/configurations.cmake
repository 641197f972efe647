# The configurations that come with the package, in ${NPU_CONFIGURATIONS_FOLDER}: written by the
# designs at build time, or prepared elsewhere.
if(NPU_CONFIGURATIONS STREQUAL "build")
  set(NPU_CONFIGURATIONS_FOLDER ${CMAKE_CURRENT_BINARY_DIR}/configurations)
  file(GLOB_RECURSE NPU_DESIGN_SOURCES CONFIGURE_DEPENDS designs/*.py designs/*.txt)
  file(GLOB NPU_CONFIGURATION_CHOICES CONFIGURE_DEPENDS python/npu/ops/configurations.py
       python/npu/ops/gemm_*.py python/npu/ops/registry.py)
  set(NPU_CONFIGURATIONS_WRITER ${CMAKE_CURRENT_SOURCE_DIR}/python/write_configurations.py)
  add_custom_command(
    OUTPUT ${NPU_CONFIGURATIONS_FOLDER}/index.txt
    COMMAND ${Python_EXECUTABLE} ${NPU_CONFIGURATIONS_WRITER} ${CMAKE_CURRENT_SOURCE_DIR}
            $<TARGET_FILE_DIR:_npu> ${NPU_CONFIGURATIONS_FOLDER}
    DEPENDS _npu ${NPU_DESIGN_SOURCES} ${NPU_CONFIGURATIONS_WRITER}
            ${NPU_CONFIGURATION_CHOICES}
    COMMENT "Writing the configurations" VERBATIM)
  add_custom_target(npu_configurations ALL DEPENDS ${NPU_CONFIGURATIONS_FOLDER}/index.txt)
elseif(NOT NPU_CONFIGURATIONS STREQUAL "none")
  get_filename_component(NPU_CONFIGURATIONS_FOLDER ${NPU_CONFIGURATIONS} ABSOLUTE
                         BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
  if(NOT EXISTS ${NPU_CONFIGURATIONS_FOLDER}/index.txt)
    message(FATAL_ERROR "NPU_CONFIGURATIONS is ${NPU_CONFIGURATIONS}, which has no index.txt: name a "
                        "folder that `npu compile --all FOLDER` wrote, \"build\" or \"none\"")
  endif()
endif()
if(NPU_BUILD_PYTHON AND NPU_CONFIGURATIONS_FOLDER)
  install(DIRECTORY ${NPU_CONFIGURATIONS_FOLDER}/ DESTINATION configurations
          COMPONENT python EXCLUDE_FROM_ALL)
endif()
