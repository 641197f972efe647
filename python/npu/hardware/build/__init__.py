"""Builds configurations for the NPU: kernels by Peano, the array by mlir-aie's aiecc, then checks.

`npu build` is this package's command (docs/building.md). ``cache`` is what devices use: the xclbin
of a configuration's artefact, and the command that makes it. None of this has run against the real
tools or on hardware yet.
"""
