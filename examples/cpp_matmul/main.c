/* The same in C, on integers, whose products are exact. */
#include <npu/npu.h>
#include <stdio.h>

enum { M = 40, K = 60, N = 50 };

int main(void) {
  static int8_t a[M][K], b[K][N];
  static int32_t c[M][N];
  for (int i = 0; i < M; ++i)
    for (int x = 0; x < K; ++x) a[i][x] = (int8_t)(i * 7 + x * 3);
  for (int x = 0; x < K; ++x)
    for (int j = 0; j < N; ++j) b[x][j] = (int8_t)(x * 5 - j);

  npu_device* device = NULL;
  if (npu_device_open("emu:npu1", NULL, &device) != NPU_OK) {
    fprintf(stderr, "%s\n", npu_last_error());
    return 1;
  }
  const npu_matrix left = {a, NPU_INT8, M, K, 0, 0}, right = {b, NPU_INT8, K, N, 0, 0};
  const npu_matrix result = {c, NPU_INT32, M, N, 0, 0};
  npu_run run = NPU_RUN_INIT;
  const npu_status status = npu_matmul(device, &left, &right, &result, NULL, &run);
  npu_device_close(device);
  if (status != NPU_OK) {
    fprintf(stderr, "%s: %s\n", npu_status_name(status), npu_last_error());
    return 1;
  }
  int wrong = 0;
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < N; ++j) {
      int32_t sum = 0;
      for (int x = 0; x < K; ++x) sum += a[i][x] * b[x][j];
      wrong += c[i][j] != sum;
    }
  }
  printf("ran %s: %d of %d results differ\n", run.configuration, wrong, M * N);
  return wrong != 0;
}
