"""What the array does: designs, the API they are written with, and their lowering.

``api``, ``fifo`` and ``worker`` are what a design author writes with; ``lowering`` turns a design
into the serialised configuration (runtime/configuration.h) and into AIE-dialect MLIR; every other
module is one design. docs/adding_a_design.md walks through a small one.
"""
