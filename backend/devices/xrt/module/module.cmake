# npu_xrt_module(<target> <folder of XRT's headers> <XRT's library>): libnpu_xrt.so, the module that
# calls XRT. It needs nothing of the library but this folder.
set(NPU_XRT_MODULE_FOLDER ${CMAKE_CURRENT_LIST_DIR})

function(npu_xrt_module target include library)
  file(GLOB sources CONFIGURE_DEPENDS ${NPU_XRT_MODULE_FOLDER}/*.cpp)
  add_library(${target} MODULE ${sources})
  target_include_directories(${target} PRIVATE ${NPU_XRT_MODULE_FOLDER})
  target_include_directories(${target} SYSTEM PRIVATE ${include})
  target_link_libraries(${target} PRIVATE ${library})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME npu_xrt PREFIX lib
                        CXX_VISIBILITY_PRESET hidden INSTALL_RPATH_USE_LINK_PATH ON)
  target_link_options(${target} PRIVATE -Wl,--no-undefined)
endfunction()

# npu_xrt_find(<include variable> <library variable>): XRT of this machine, or a fatal error.
function(npu_xrt_find include library)
  find_path(NPU_XRT_INCLUDE xrt/xrt_kernel.h HINTS ENV XILINX_XRT PATHS /opt/xilinx/xrt
            PATH_SUFFIXES include DOC "Folder of XRT's headers")
  find_library(NPU_XRT_LIBRARY xrt_coreutil HINTS ENV XILINX_XRT PATHS /opt/xilinx/xrt
               PATH_SUFFIXES lib lib64 DOC "XRT's library")
  if(NOT NPU_XRT_INCLUDE OR NOT NPU_XRT_LIBRARY)
    message(FATAL_ERROR
      "XRT is not here (xrt/xrt_kernel.h: ${NPU_XRT_INCLUDE}, libxrt_coreutil.so: "
      "${NPU_XRT_LIBRARY}): install its development package (Ubuntu: apt install libxrt-dev) or "
      "pass -DNPU_XRT_INCLUDE=FOLDER -DNPU_XRT_LIBRARY=FILE")
  endif()
  set(${include} ${NPU_XRT_INCLUDE} PARENT_SCOPE)
  set(${library} ${NPU_XRT_LIBRARY} PARENT_SCOPE)
endfunction()
