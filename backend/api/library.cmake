# The library for C and C++ programs: libnpu, its headers, the configurations and what find_package
# needs, as the install component "library".
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

option(BUILD_SHARED_LIBS "Build libnpu as a shared library" ON)
add_library(npu $<TARGET_OBJECTS:npu_api>)
add_library(npu::npu ALIAS npu)
target_include_directories(npu INTERFACE $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
                                         $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(npu PRIVATE npu_core)
set_target_properties(npu PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${NPU_ABI_VERSION}
                                     LINKER_LANGUAGE CXX)
set(NPU_TARGETS npu)
if(BUILD_SHARED_LIBS)
  # Only the functions of npu.h, not what the C++ library instantiates.
  set(NPU_EXPORTS ${CMAKE_CURRENT_SOURCE_DIR}/backend/api/exports.map)
  target_link_options(npu PRIVATE -Wl,--version-script=${NPU_EXPORTS} -Wl,--no-undefined)
  set_target_properties(npu PROPERTIES LINK_DEPENDS ${NPU_EXPORTS})
else()
  list(APPEND NPU_TARGETS npu_core)
endif()

install(TARGETS ${NPU_TARGETS} EXPORT npuTargets COMPONENT library
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/npu/npu.h include/npu/npu.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/npu COMPONENT library)
set(NPU_PACKAGE ${CMAKE_INSTALL_LIBDIR}/cmake/npu)
install(EXPORT npuTargets NAMESPACE npu:: DESTINATION ${NPU_PACKAGE} COMPONENT library)
configure_package_config_file(backend/api/npuConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/npuConfig.cmake
                              INSTALL_DESTINATION ${NPU_PACKAGE}
                              PATH_VARS CMAKE_INSTALL_DATADIR)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/npuConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/npuConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/npuConfigVersion.cmake
        DESTINATION ${NPU_PACKAGE} COMPONENT library)
if(NPU_CONFIGURATIONS_FOLDER)
  install(DIRECTORY ${NPU_CONFIGURATIONS_FOLDER}/
          DESTINATION ${CMAKE_INSTALL_DATADIR}/npu/configurations COMPONENT library)
endif()
