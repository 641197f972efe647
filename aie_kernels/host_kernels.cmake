# Host builds of the kernels: one source, compiled once per generation, arithmetic mode and
# instruction set; backend/kernels/registry.cpp picks at run time.
option(NPU_BUILD_BENCH "Build npu_bench_kernels, which measures the host kernels" OFF)

target_sources(npu_core PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/backend/kernels/host/core_state.cpp)

# Identity of the kernel sources, part of a configuration's `source` hash.
file(GLOB NPU_KERNEL_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/aie_kernels/*.cc
     ${CMAKE_CURRENT_SOURCE_DIR}/aie_kernels/*.h)
set(NPU_KERNEL_HASHES "")
foreach(source ${NPU_KERNEL_SOURCES})
  file(SHA256 ${source} hash)
  string(APPEND NPU_KERNEL_HASHES ${hash})
endforeach()
string(SHA256 NPU_KERNEL_HASH "${NPU_KERNEL_HASHES}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${NPU_KERNEL_SOURCES})

# All kernel sources, for backend/kernels/host/variant.cpp: a new one needs no list.
set(includes "")
foreach(source ${NPU_KERNEL_SOURCES})
  if(source MATCHES "\\.cc$")
    get_filename_component(name ${source} NAME)
    string(APPEND includes "#include \"${name}\"\n")
  endif()
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/kernel_sources/kernel_sources.inc
     CONTENT "${includes}" @ONLY)

# npu_host_kernels(<generation> <arithmetic> <suffix> <compiler options>...)
function(npu_host_kernels generation arithmetic suffix)
  set(variant ${generation}_${arithmetic}${suffix})
  add_library(npu_kernels_${variant} OBJECT ${CMAKE_CURRENT_SOURCE_DIR}/backend/kernels/host/variant.cpp)
  target_include_directories(npu_kernels_${variant} PRIVATE
    ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/backend
    ${CMAKE_CURRENT_SOURCE_DIR}/backend/kernels/host ${CMAKE_CURRENT_SOURCE_DIR}/aie_kernels
    ${CMAKE_CURRENT_BINARY_DIR}/kernel_sources)
  string(REPLACE npu1 20 arch ${generation})
  string(REPLACE npu2 21 arch ${arch})
  set(silicon 0)
  if("${arithmetic}" STREQUAL "silicon")
    set(silicon 1)
  endif()
  target_compile_definitions(npu_kernels_${variant} PRIVATE
    AIE_HOST_VARIANT=${variant} AIE_HOST_SILICON=${silicon} __AIE_ARCH__=${arch})
  # Kernels are optimised in debug builds too: tests multiply real sizes. Integer accumulators wrap
  # around, as the hardware's do.
  target_compile_options(npu_kernels_${variant} PRIVATE -fwrapv -fno-math-errno
                                                        -fno-trapping-math ${ARGN})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # GCC 12 reports its own AVX-512 headers (GCC bug 105593) and the calling convention of wide
    # vectors, which only functions that are always inlined pass.
    target_compile_options(npu_kernels_${variant} PRIVATE -Wno-maybe-uninitialized
                                                          -Wno-uninitialized -Wno-psabi)
  endif()
  if(NPU_SANITIZE)
    # At -O1, as everything. The unrolled blocks pass thousands of references to locals: checking
    # each takes minutes; ASan still checks what is accessed. Of functions with more than 200
    # accesses it calls its runtime, which takes half as long to compile as checks in place.
    target_compile_options(npu_kernels_${variant} PRIVATE
      -fno-sanitize=null,alignment,object-size,pointer-overflow)
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      target_compile_options(npu_kernels_${variant} PRIVATE
        "SHELL:--param asan-instrumentation-with-call-threshold=200")
    endif()
  else()
    target_compile_options(npu_kernels_${variant} PRIVATE -O3)
  endif()
  target_sources(npu_core PRIVATE $<TARGET_OBJECTS:npu_kernels_${variant}>)
endfunction()

foreach(generation npu1 npu2)
  npu_host_kernels(${generation} silicon "" -march=x86-64-v2 -ffp-contract=off)
  npu_host_kernels(${generation} fast _v2 -march=x86-64-v2)
  npu_host_kernels(${generation} fast _v3 -march=x86-64-v3 -ffp-contract=fast)
  npu_host_kernels(${generation} fast _v4 -march=x86-64-v4 -mprefer-vector-width=512
                   -ffp-contract=fast)
  npu_host_kernels(${generation} fast _v4bf16 -march=x86-64-v4 -mavx512bf16 -mavx512vnni
                   -mavx512vbmi -mprefer-vector-width=512 -ffp-contract=fast)
endforeach()

if(NPU_BUILD_BENCH)
  add_executable(npu_bench_kernels aie_kernels/bench_host.cpp)
  target_link_libraries(npu_bench_kernels PRIVATE npu_core)
endif()
