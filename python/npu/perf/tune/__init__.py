"""Tile search for the GEMM designs with simulations in place of an NPU (docs/tuning.md).

``gemm`` is the integer program of Taka et al., arXiv 2512.13282, section 4.5: every legal tile,
exhaustively by the closed form, the best of them again by the timed emulator. Everything it reports
is simulated.
"""

from npu.perf.tune.evaluator import Evaluator
from npu.perf.tune.search import Entry, Result, gemm
from npu.perf.tune.space import C_BUFFERS, DESIGNS, Points, Space, variant_name, what_stops
from npu.perf.tune.workload import PRESETS, Workload

__all__ = [
    "C_BUFFERS", "DESIGNS", "PRESETS", "Entry", "Evaluator", "Points", "Result", "Space",
    "Workload", "gemm", "variant_name", "what_stops",
]  # fmt: skip
