# Type stubs of the extension module, npu/_npu/*.pyi, made from its signatures. stubgen imports it as
# npu._npu from a folder that holds nothing else, so that names in the stubs are those of the package.
set(NPU_STUBS ${CMAKE_CURRENT_BINARY_DIR}/stubs/npu)
set(NPU_STUB_IMPORT ${CMAKE_CURRENT_BINARY_DIR}/stubs_import)
add_custom_command(TARGET _npu POST_BUILD
  COMMAND ${CMAKE_COMMAND} -E make_directory ${NPU_STUB_IMPORT}/npu ${NPU_STUBS}
  COMMAND ${CMAKE_COMMAND} -E touch ${NPU_STUB_IMPORT}/npu/__init__.py
  COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:_npu> ${NPU_STUB_IMPORT}/npu/
  VERBATIM)
nanobind_add_stub(npu_stubs MODULE npu._npu RECURSIVE OUTPUT_PATH ${NPU_STUBS}
                  OUTPUT ${NPU_STUBS}/_npu/__init__.pyi PYTHON_PATH ${NPU_STUB_IMPORT} DEPENDS _npu)
install(DIRECTORY ${NPU_STUBS}/_npu DESTINATION . COMPONENT python EXCLUDE_FROM_ALL
        FILES_MATCHING PATTERN "*.pyi")
