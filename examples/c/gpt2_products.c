/* The matrix products of a training step of GPT-2 124M on 4 x 64 tokens, through the C interface:
 * each linear layer forward, y = x W^T, and backward, dx = dy W and dW = dy^T x. Transposes are
 * strides. These are the twelve sizes of "Unlocking the AMD Neural Processing Unit for ML Training
 * on the Client"; one configuration of the array serves those whose B lies alike.
 *
 *   gpt2_products [DEVICE]
 *
 * Operands are small whole numbers, whose products and sums are exact in bfloat16 and float32; rows
 * of every result are compared with sums of integers. Times are of this host, not of an NPU. */
#include <npu/npu.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROWS = 256, WIDTH = 768, VOCABULARY = 50304, LAYERS = 5, CHECKED = 5 };

typedef struct layer {
  const char* name;
  int64_t inputs, outputs;
} layer;

static const layer kLayers[LAYERS] = {
    {"attention, in", WIDTH, 3 * WIDTH},
    {"attention, out", WIDTH, WIDTH},
    {"feed-forward, in", WIDTH, 4 * WIDTH},
    {"feed-forward, out", 4 * WIDTH, WIDTH},
    {"head", WIDTH, VOCABULARY},
};

static npu_matrix matrix(float* data, int64_t rows, int64_t cols) {
  const npu_matrix found = {data, NPU_FLOAT32, rows, cols, cols, 1};
  return found;
}

static npu_matrix transposed(npu_matrix m) {
  const npu_matrix found = {m.data, m.dtype, m.cols, m.rows, m.col_stride, m.row_stride};
  return found;
}

static float at(npu_matrix m, int64_t i, int64_t j) {
  return ((const float*)m.data)[i * m.row_stride + j * m.col_stride];
}

/* Whole numbers from -4 to 4 from a generator with a seed. */
static float* numbers(int64_t count, uint32_t seed) {
  float* data = malloc((size_t)count * sizeof(float));
  for (int64_t i = 0; data && i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    data[i] = (float)((int)(seed >> 16) % 9 - 4);
  }
  return data;
}

/* Elements of some rows of c that are not those of a b. */
static int64_t wrong(npu_matrix a, npu_matrix b, npu_matrix c) {
  int64_t found = 0;
  for (int row = 0; row < CHECKED; ++row) {
    const int64_t i = row * (c.rows - 1) / (CHECKED - 1);
    for (int64_t j = 0; j < c.cols; j += 1 + c.cols / 97) {
      int64_t sum = 0;
      for (int64_t x = 0; x < a.cols; ++x) sum += (int64_t)at(a, i, x) * (int64_t)at(b, x, j);
      found += (float)sum != at(c, i, j);
    }
  }
  return found;
}

static double seconds(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* One product; the number of results that are wrong, or -1 if it did not run. */
static int64_t product(npu_device* device, const char* name, const char* kind, npu_matrix a,
                       npu_matrix b) {
  float* out = malloc((size_t)(a.rows * b.cols) * sizeof(float));
  if (!out) {
    fprintf(stderr, "out of memory\n");
    return -1;
  }
  const npu_matrix c = matrix(out, a.rows, b.cols);
  npu_run run = NPU_RUN_INIT;
  const double start = seconds();
  const npu_status status = npu_matmul(device, &a, &b, &c, NULL, &run);
  const double taken = seconds() - start;
  int64_t found = -1;
  if (status == NPU_OK) {
    found = wrong(a, b, c);
    printf("%-18s %-10s %5lld x %5lld x %5lld %8.1f ms  %s\n", name, kind, (long long)a.rows,
           (long long)a.cols, (long long)b.cols, 1e3 * taken, run.configuration);
  } else {
    fprintf(stderr, "%s: %s\n", npu_status_name(status), npu_last_error());
  }
  free(out);
  return found;
}

/* The three products of a layer. */
static int64_t products(npu_device* device, layer of) {
  float* inputs = numbers(ROWS * of.inputs, 1);
  float* weights = numbers(of.outputs * of.inputs, 2);
  float* gradient = numbers(ROWS * of.outputs, 3);
  int64_t found = -1;
  if (inputs && weights && gradient) {
    const npu_matrix x = matrix(inputs, ROWS, of.inputs);
    const npu_matrix w = matrix(weights, of.outputs, of.inputs);
    const npu_matrix dy = matrix(gradient, ROWS, of.outputs);
    const int64_t counts[3] = {
        product(device, of.name, "forward", x, transposed(w)),
        product(device, of.name, "of inputs", dy, w),
        product(device, of.name, "of weights", transposed(dy), x),
    };
    found = 0;
    for (int i = 0; i < 3; ++i) found = found < 0 || counts[i] < 0 ? -1 : found + counts[i];
  }
  free(inputs);
  free(weights);
  free(gradient);
  return found;
}

int main(int count, char** words) {
  npu_device* device = NULL;
  if (npu_device_open(count > 1 ? words[1] : "emu:npu1", NULL, &device) != NPU_OK) {
    fprintf(stderr, "%s\n", npu_last_error());
    return 1;
  }
  int64_t total = 0;
  for (int i = 0; i < LAYERS && total >= 0; ++i) {
    const int64_t found = products(device, kLayers[i]);
    total = found < 0 ? -1 : total + found;
  }
  npu_device_info info = {0};
  info.size = sizeof info;
  const npu_status status = npu_device_get_info(device, &info);
  npu_device_close(device);
  if (total < 0 || status != NPU_OK) return 1;
  printf("%lld of the results that were checked differ; %llu configurations loaded\n",
         (long long)total, (unsigned long long)info.configuration_loads);
  return total != 0;
}
