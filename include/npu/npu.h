/* npu-xdna for C programs: matrix products on an AMD NPU, emulated or, untried so far, a real one.
 *
 * Functions return an npu_status; npu_last_error() says in a sentence what was asked, what was
 * found and what to do. No function throws or exits. Structs that begin with `size` grow in later
 * versions: set it with the macros below. docs/cpp.md has a guide, npu.hpp the same for C++. */
#ifndef NPU_NPU_H
#define NPU_NPU_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define NPU_API __attribute__((visibility("default")))
#else
#define NPU_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The number of this interface; it changes when programs must be compiled again. */
#define NPU_ABI_VERSION 1

typedef int32_t npu_status;
enum {
  NPU_OK = 0,
  NPU_ERROR_ARGUMENT = 1,    /* a value that no operation accepts: a null pointer, a size, a word */
  NPU_ERROR_SHAPE = 2,       /* sizes that do not fit together, or more than can be addressed */
  NPU_ERROR_DTYPE = 3,       /* element types that are not supported together */
  NPU_ERROR_FORMAT = 4,      /* a damaged index or configuration */
  NPU_ERROR_DEVICE = 5,      /* a device that is unknown or cannot do what was asked */
  NPU_ERROR_UNAVAILABLE = 6, /* a device or a file that is not there */
  NPU_ERROR_EXECUTION = 7,   /* the array stopped: a deadlock, an invalid descriptor, ... */
  NPU_ERROR_MEMORY = 8,      /* out of memory */
  NPU_ERROR_INTERNAL = 9     /* anything else; please report it */
};

typedef int32_t npu_dtype;
enum { NPU_FLOAT32 = 0, NPU_BFLOAT16 = 1, NPU_INT8 = 2, NPU_INT16 = 3, NPU_INT32 = 4 };

/* An open device. Its functions may be called from several threads, npu_device_close() by the last
 * one. */
typedef struct npu_device npu_device;

/* A right-hand operand in a device's memory, which it keeps, even after npu_device_close(). */
typedef struct npu_packed npu_packed;

/* Words; NULL takes the default, which is the environment variable named, else what follows. */
typedef struct npu_device_options {
  size_t size;
  const char* arithmetic; /* NPU_ARITHMETIC: "fast" (default) or "silicon", bit-exact and slow */
  const char* bf16;    /* NPU_BF16: "bfp16" (default on npu2) or "native", see docs/fidelity.md */
  const char* designs; /* NPU_DESIGNS: "host" (default if emulated) or "array" */
  const char* kernel;  /* NPU_KERNEL: any (default), "published" or, on npu2, "pipelined" */
  const char* configurations; /* the folder of configurations; NPU_CONFIGURATIONS, else found */
  /* What predictions are of, by which "array" configurations are chosen (docs/timing.md): */
  const char* machine; /* NPU_MACHINE: "krackan-gemm" or, on npu1, "phoenix-gemm" by default */
  const char* kernels; /* NPU_KERNELS: "published" or "scheduled"; default: by design */
} npu_device_options;
#define NPU_DEVICE_OPTIONS_INIT \
  {sizeof(npu_device_options), NULL, NULL, NULL, NULL, NULL, NULL, NULL}

typedef struct npu_device_info {
  size_t size;
  char name[64];       /* "emu:npu2" */
  char generation[16]; /* "npu1", "npu2" */
  char arithmetic[16]; /* "fast", "silicon"; "hardware" of a real NPU */
  char bf16[16];
  char designs[16];
  int32_t columns;
  int32_t emulated;
  double clock_hz;
  uint64_t configuration_loads, submissions; /* so far */
  char configurations[1024];                 /* the folder in use */
} npu_device_info;

/* A matrix in host memory. Strides are in elements, of any sign; both 0: row-major, no gaps. */
typedef struct npu_matrix {
  void* data; /* not written unless it is the result */
  npu_dtype dtype;
  int64_t rows, cols;
  int64_t row_stride, col_stride;
} npu_matrix;

typedef struct npu_matmul_options {
  size_t size;
  int32_t shift;          /* 0 to 31: int16 and int8 results are the sums divided by 2^shift */
  const char* accumulate; /* "wide" (default): sums have 32 bits; "narrow": the type of C */
  const char* bf16;       /* default: that of a packed B, else the device's */
} npu_matmul_options;
#define NPU_MATMUL_OPTIONS_INIT {sizeof(npu_matmul_options), 0, NULL, NULL}

/* What a product ran as. */
typedef struct npu_run {
  size_t size;
  char configuration[128]; /* its file's name without the suffix; empty if nothing had to run */
  char reason[64];         /* why it was chosen */
  int32_t tile_m, tile_k, tile_n, k_mt;
  double predicted_seconds; /* simulated by the closed form; 0: there was no choice to make */
  double load_seconds;      /* of them, for loading the configuration */
  uint64_t array_ns;        /* host time in which the (emulated) array ran */
  uint64_t read_bytes, write_bytes; /* between the array and memory */
  uint64_t kernel_calls;
} npu_run;
#define NPU_RUN_INIT {sizeof(npu_run), {0}, {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

NPU_API const char* npu_version(void);    /* "0.1.0" */
NPU_API int32_t npu_abi_version(void);    /* NPU_ABI_VERSION of the library */
NPU_API const char* npu_last_error(void); /* of this thread's last call that failed, else "" */
NPU_API const char* npu_status_name(npu_status status); /* "shape"; "unknown" for other numbers */

/* Opens "emu:npu1", "emu:npu2" or "xrt", the NPU of this machine ("null:npu1", "null:npu2" compute
 * nothing). name NULL: NPU_DEVICE, else "emu:npu2". options may be NULL. On success *device is to
 * be closed, else it is NULL. */
NPU_API npu_status npu_device_open(const char* name, const npu_device_options* options,
                                   npu_device** device);
NPU_API void npu_device_close(npu_device* device); /* NULL: does nothing */
NPU_API npu_status npu_device_get_info(npu_device* device, npu_device_info* info);

/* C = A B: A (M, K), B (K, N), C (M, N), of any sizes; with K = 0 C is 0.
 *
 * A and B: both float32 or bfloat16 (float32 is rounded to bfloat16, nearest even), both int8, or
 * both int16. C: float32 or bfloat16; int32, int16 or int8 from int8; int32 from int16. Sums of
 * floats are float32; those of integers int32, which wrap around, and are then divided by 2^shift,
 * rounded to nearest even and saturated if C is narrower.
 * C is row-major or column-major, with any distance between rows or columns; the memory from its
 * first to its last element, gaps included, is apart from that of A and of B. options and run may
 * be NULL. */
NPU_API npu_status npu_matmul(npu_device* device, const npu_matrix* a, const npu_matrix* b,
                              const npu_matrix* c, const npu_matmul_options* options, npu_run* run);

/* Converts and packs B (K, N), sizes at least 1, once, for many products. bf16 NULL: the device's;
 * it is the default of products with it. On success *packed is to be freed, else it is NULL. */
NPU_API npu_status npu_pack(npu_device* device, const npu_matrix* b, const char* bf16,
                            npu_packed** packed);
NPU_API void npu_packed_free(npu_packed* packed); /* NULL: does nothing */
/* npu_matmul with a packed B and a row-major C. A B that was packed for one bf16 mode can be used
 * in the other only where a configuration of the folder reads its layout; else pack it again. */
NPU_API npu_status npu_matmul_packed(npu_device* device, const npu_matrix* a, const npu_packed* b,
                                     const npu_matrix* c, const npu_matmul_options* options,
                                     npu_run* run);

#ifdef __cplusplus
}
#endif

#endif
