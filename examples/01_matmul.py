"""Multiply two matrices on the emulated NPU and look at the counters."""

import numpy as np

import npu

rng = np.random.default_rng(0)
a = rng.standard_normal((300, 500)).astype(np.float32)
b = rng.standard_normal((500, 700)).astype(np.float32)

c = npu.matmul(a, b)  # inputs rounded to bfloat16 (on npu2 to BFP16 blocks), float32 sums
print("device:", npu.current_device())
print("largest difference from NumPy:", np.abs(c - a @ b).max())

d = npu.matmul(np.ones((4, 64), np.int8), np.ones((64, 8), np.int8))
print("int8 -> ", d.dtype, "all 64:", bool((d == 64).all()))

with npu.device("emu:npu1") as device:  # the first generation, 4 columns
    print("on", device.name, np.abs(npu.matmul(a, b) - c).max())

# Another size builds another stream; the array keeps its configuration.
npu.matmul(a, b)
before = npu.stats()
npu.matmul(a[:100], b)
npu.matmul(a, b[:, :50])
print("two more sizes:", npu.stats() - before)
