/* That npu.h and its macros are plain C; only compiled. */
#include <npu/npu.h>

npu_status use(npu_device* device, const npu_matrix* a, const npu_matrix* b, const npu_matrix* c) {
  npu_device_options device_options = NPU_DEVICE_OPTIONS_INIT;
  npu_matmul_options options = NPU_MATMUL_OPTIONS_INIT;
  npu_run run = NPU_RUN_INIT;
  options.shift = device_options.arithmetic == NULL ? 0 : 1;
  return npu_matmul(device, a, b, c, &options, &run);
}
