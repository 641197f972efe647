"""A product as the choice of a configuration sees it, and what it ran as."""

from __future__ import annotations

import dataclasses

from npu.designs.gemm import DesignPoint

Size = tuple[int, int, int]  # M, K, N
LAYER_LEAST = 256  # M, K and N from which Product.layer pays: the native size of its configuration


@dataclasses.dataclass(frozen=True)
class Product:
    """What is multiplied, as far as the choice depends on it."""

    a_dtype: str
    c_dtype: str
    size: Size
    layout: str = "row"  # of B: "row", "col", "packed", or "blocks" of BFP16
    accumulate: str = "wide"
    bf16: str = "native"
    packed_for: DesignPoint | None = None  # the configuration whose layout a packed B has
    layer: bool = False  # one of the three of a layer, which read each other's operands turned


@dataclasses.dataclass(frozen=True)
class GemmRun:
    """What a product ran as: ``npu.last_gemm()``.

    ``options`` is the configuration (its ``tile``, ``k_mt``, ``kernel``, ``c_buffers``);
    ``predicted_seconds`` what the closed form expects of the NPU or, with ``prefers`` "host", what
    this machine is roughly expected to take, ``load_seconds`` of it for loading the configuration,
    0 when it was loaded; ``reason`` why it was chosen. Where there is one candidate nothing is
    predicted: both are 0.
    """

    product: Product
    options: DesignPoint
    prefers: str
    reason: str
    predicted_seconds: float
    load_seconds: float

    def __str__(self) -> str:
        o = self.options
        return f"{o.text} ({o.kernel} kernels, {self.prefers} design: {self.reason})"
