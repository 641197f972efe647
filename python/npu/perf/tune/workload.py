"""The GEMM sizes a search optimises for: about 4K as in the paper, given sizes, or presets."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from npu.errors import ShapeError

Size = tuple[int, int, int]
MAX_SIZE = 1 << 24
# The smallest dimension of "about 4K": all sizes of the paper's tables are the smallest whole
# number of native sizes that is not below it.
_ABOUT = 4000

_SQUARES = [(s, s, s) for s in (512, 1024, 2048, 4096, 8192)]
# (K, N) of the linear layers of Gemma 3 1B and 4B: query, attention output, gate and up, down.
_LAYERS = [
    (1152, 1024), (1024, 1152), (1152, 6912), (6912, 1152),
    (2560, 2048), (2048, 2560), (2560, 10240), (10240, 2560),
]  # fmt: skip
_PREFILL = [(tokens, k, n) for tokens in (512, 2048) for k, n in _LAYERS]
PRESETS: dict[str, list[Size]] = {
    "squares": _SQUARES,
    "gemma3": _PREFILL,
    "mixed": _SQUARES + _PREFILL,
}


@dataclasses.dataclass(frozen=True)
class Workload:
    """Sizes M, K, N; none: about 4K, in whole native sizes of each tile, so nothing is padded."""

    sizes: tuple[Size, ...] = ()

    def __post_init__(self) -> None:
        for size in self.sizes:
            if len(size) != 3 or not all(1 <= value <= MAX_SIZE for value in size):
                text = " x ".join(map(str, size))
                raise ShapeError(
                    f"[tune] size {text}; M, K and N must be whole numbers from 1 to {MAX_SIZE}"
                )

    @property
    def about(self) -> bool:
        return not self.sizes

    def each(self, unit: tuple[Any, Any, Any]) -> list[tuple[Any, Any, Any]]:
        """The sizes of designs whose native sizes are `unit` (numbers or arrays)."""
        if self.about:
            m, k, n = (-(-_ABOUT // u) * u for u in unit)
            return [(m, k, n)]
        return list(self.sizes)

    def describe(self) -> str:
        if self.about:
            return "about 4K: the smallest whole native sizes of each tile from 4000 up"
        if len(self.sizes) == 1:
            return " x ".join(map(str, self.sizes[0]))
        return f"{len(self.sizes)} sizes, geometric mean of their TOPS"


def geometric_mean(values: list[Any]) -> Any:
    """Of numbers or of arrays, element by element."""
    return np.exp(sum(np.log(value) for value in values) / len(values))
