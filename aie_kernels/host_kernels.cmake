# Host builds of the kernels: one source, compiled once per generation, arithmetic mode and
# instruction set, each with its own symbol suffix; backend/kernel.h picks at run time.
