/* The C interface between the library and libnpu_xrt.so, the module that calls XRT. The library
 * finds the module at run time (../module.h), so that one library serves machines with and without
 * XRT; no exception and no C++ type crosses this line. Functions return 0, or NPU_XRT_* and fill
 * `error`: the facts only, the library puts them into words (../failures.h).
 *
 * Calls of one device are not concurrent, but for buffer_free and stream_forget. */
#ifndef NPU_XRT_MODULE_ABI_H
#define NPU_XRT_MODULE_ABI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of this interface; a module of another number is refused. */
#define NPU_XRT_MODULE_ABI 3
/* Name of the one exported function, an npu_xrt_module_function. */
#define NPU_XRT_MODULE_ENTRY "npu_xrt_module_get"

typedef struct npu_xrt_device npu_xrt_device;
typedef struct npu_xrt_buffer npu_xrt_buffer;

/* What failed. */
enum {
  NPU_XRT_OK = 0,
  NPU_XRT_NO_DEVICE = 1, /* XRT opens no NPU */
  NPU_XRT_MEMORY = 2,    /* no memory: usually the memory-lock limit; `asked` 0: of the host */
  NPU_XRT_XCLBIN = 3,    /* the file cannot be read, or has no kernel of ours */
  NPU_XRT_CONTEXT = 4,   /* the driver refuses a hardware context */
  NPU_XRT_HEAP = 5,      /* the instruction heap is full of streams in use, or too small */
  NPU_XRT_ARGUMENTS = 6, /* more arguments than the kernel's metadata declares */
  NPU_XRT_SUBMIT = 7,    /* the driver does not take the command */
  NPU_XRT_SYNC = 8,      /* a range cannot be synchronised */
  NPU_XRT_INTERNAL = 9   /* a call out of order, or an exception of another kind */
};

/* The firmware's status "no hardware context is left", as XRT's messages write it (xdna-driver,
 * aie2_msg_priv.h). */
#define NPU_XRT_NO_CONTEXT_LEFT "0x2000003"

typedef struct npu_xrt_error {
  int32_t what;   /* NPU_XRT_* */
  int32_t code;   /* errno of XRT's exception, 0 if it has none */
  uint64_t asked; /* bytes, arguments or contexts, whichever `what` is about */
  uint64_t limit; /* of the same; 0 if unknown */
  char text[512]; /* XRT's message */
} npu_xrt_error;

typedef struct npu_xrt_info {
  char name[128]; /* "NPU Strix", "RyzenAI-npu4", ... */
  char bdf[32];   /* PCI address, "0000:66:00.1" */
} npu_xrt_info;

/* A buffer from `offset` on; buffer null: the stream leaves it alone. */
typedef struct npu_xrt_argument {
  npu_xrt_buffer* buffer;
  uint64_t offset;
} npu_xrt_argument;

/* A part of a stream, which the next one follows without a gap. */
typedef struct npu_xrt_words {
  const uint32_t* words;
  uint64_t count;
} npu_xrt_words;

typedef struct npu_xrt_patch {
  uint64_t word;
  uint32_t value;
} npu_xrt_patch;

/* Values of npu_xrt_outcome::state; others are XRT's ert_cmd_state. */
enum { NPU_XRT_RUNNING = 0, NPU_XRT_COMPLETED = 4, NPU_XRT_UNKNOWN_OPERATION = -1 };

typedef struct npu_xrt_outcome {
  int32_t state;
  int32_t operation;    /* index of the stream operation reached, or NPU_XRT_UNKNOWN_OPERATION */
  uint32_t pc;          /* of the firmware's context, 0 if unknown */
  uint32_t fatal_error; /* the firmware's number, 0 if there is none */
  uint64_t completed;   /* runs of this context that ended well before */
} npu_xrt_outcome;

typedef struct npu_xrt_module {
  uint32_t abi; /* NPU_XRT_MODULE_ABI */
  uint32_t size;

  /* *devices: how many XRT has, NPUs or not. */
  int (*count)(uint32_t* devices, npu_xrt_error* error);
  int (*open)(uint32_t index, npu_xrt_device** device, npu_xrt_error* error);
  void (*close)(npu_xrt_device* device);
  int (*info)(npu_xrt_device* device, npu_xrt_info* info, npu_xrt_error* error);

  /* Makes the file's context the one that submissions go to; *arguments: of its kernel. */
  int (*load)(npu_xrt_device* device, const char* xclbin, uint32_t* arguments,
              npu_xrt_error* error);
  /* Destroys the current context with whatever runs in it: the next load makes another one. */
  void (*drop)(npu_xrt_device* device);
  /* Destroys all contexts. */
  void (*drop_all)(npu_xrt_device* device);

  int (*allocate)(npu_xrt_device* device, uint64_t bytes, npu_xrt_buffer** buffer,
                  npu_xrt_error* error);
  /* *buffer is null if the memory must be copied. It must outlive the buffer. */
  int (*wrap)(npu_xrt_device* device, void* memory, uint64_t bytes, int32_t read_only,
              npu_xrt_buffer** buffer, npu_xrt_error* error);
  void (*buffer_free)(npu_xrt_buffer* buffer);
  void* (*buffer_host)(npu_xrt_buffer* buffer);
  int (*buffer_sync)(npu_xrt_buffer* buffer, int32_t to_device, uint64_t offset, uint64_t bytes,
                     npu_xrt_error* error);

  /* Streams are known by a number that is never used again; their words, in `parts`, stay the
   * caller's, who has changed them when it calls the next submit. A patch counts words from the
   * first part's beginning. */
  int (*stream_patch)(npu_xrt_device* device, uint64_t stream, const npu_xrt_patch* patches,
                      uint64_t count, npu_xrt_error* error);
  void (*stream_forget)(npu_xrt_device* device, uint64_t stream);
  int (*submit)(npu_xrt_device* device, uint64_t stream, const npu_xrt_words* parts,
                uint64_t part_count, const npu_xrt_argument* arguments, uint64_t argument_count,
                npu_xrt_error* error);
  /* Waits for the submitted run; milliseconds 0 asks without waiting. */
  int (*wait)(npu_xrt_device* device, uint32_t milliseconds, npu_xrt_outcome* outcome,
              npu_xrt_error* error);
} npu_xrt_module;

/* The module's table, which lives as long as the process. */
typedef const npu_xrt_module* (*npu_xrt_module_function)(void);

#ifdef __cplusplus
}
#endif

#endif
