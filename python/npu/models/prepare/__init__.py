"""From the weights of a model file to the blocks that the array multiplies (docs/weights.md).

``plan`` decides the block format of every matrix, ``prepare`` makes the blocks: in place where the
file has them, else converted once and kept in a cache file, or in memory.
"""

from npu.models.prepare.formats import CHOICES, check_choice
from npu.models.prepare.plan import Matrix, Segment, plan
from npu.models.prepare.prepare import Prepared, prepare
from npu.models.prepare.report import WeightsReport, WeightsRow

__all__ = [
    "CHOICES",
    "Matrix",
    "Prepared",
    "Segment",
    "WeightsReport",
    "WeightsRow",
    "check_choice",
    "plan",
    "prepare",
]
