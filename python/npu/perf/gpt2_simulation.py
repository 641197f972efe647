"""The products of a training step of GPT-2 on an NPU, simulated: what `npu.torch` would run, with
the configurations that npu.matmul chooses for the array's time."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence

from npu.designs.gemm import DesignPoint
from npu.devices import DEFAULT_BF16
from npu.ops import gemm_designs, gemm_estimate
from npu.ops.gemm_product import LAYER_LEAST
from npu.ops.gemm_product import Product as Gemm
from npu.perf.gpt2_products import KINDS, Product, flops, in_order
from npu.perf.simulate import SimulatedGemm, simulate_call


@dataclasses.dataclass(frozen=True)
class SimulatedProduct:
    """A product of a layer: means over its calls in a step. Seconds of the array, of the dispatch
    that each submission has (host to array and back, which the paper calls synchronisation), and
    the TFLOP/s of both. ``designs``: the configurations, with how many of the calls ran on each."""

    product: Product
    array_seconds: float
    dispatch_seconds: float
    bound: str
    designs: dict[str, int]

    @property
    def seconds(self) -> float:
        return self.array_seconds + self.dispatch_seconds

    @property
    def tops(self) -> float:
        m, k, n = self.product.size
        return 2 * m * k * n / self.seconds / 1e12


@dataclasses.dataclass(frozen=True)
class SimulatedStep:
    """All products of a step, one after the other, configurations as the step before left them.
    ``loads``: of configurations, and what they take."""

    device: str
    machine: str
    kernels: str
    products: list[SimulatedProduct]
    loads: int
    load_seconds: float

    def total(self, part: str) -> float:
        """Seconds of a step: "array_seconds", "dispatch_seconds" or "seconds" of all products."""
        return sum(getattr(one, part) * one.product.calls for one in self.products)

    @property
    def tops(self) -> float:
        """TFLOP/s of all products; dispatch included, loads not."""
        return flops([one.product for one in self.products]) / self.total("seconds") / 1e12

    @property
    def configurations(self) -> list[str]:
        return sorted({name for one in self.products for name in one.designs})


def simulate_step(
    device: str,
    of: Sequence[Product],
    dtype: str,
    machine: str | None = None,
    kernels: str | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> SimulatedStep:
    """A step of a model whose tensors are ``dtype`` ("bfloat16", or "float32": its weights are
    packed). ``advance(1)`` after each product. An A that the configuration cannot read across its
    rows is packed by the host and simulated as if it lay in rows. Raises ArgumentError."""
    chosen = _chosen(device, of, dtype)
    packs = dtype != "bfloat16"

    @functools.cache
    def simulated(design: DesignPoint, size: tuple[int, int, int], kind: str) -> SimulatedGemm:
        stored = {"packed_b": 1} if packs else {}
        if design.square:
            stored = {"a_across": int(kind == KINDS[2]), "b_across": int(kind != KINDS[0])}
        return simulate_call(design, size, None, machine, kernels, stored)

    found, labels = [], set()
    for product in of:
        counted = chosen.calls[product]
        runs = [(simulated(o, product.size, product.kind), count) for o, count in counted.items()]
        labels |= {(run.machine, run.kernels) for run, _ in runs}
        calls = sum(count for _, count in runs)
        dispatch = sum(run.dispatch_seconds * count for run, count in runs) / calls
        found.append(
            SimulatedProduct(
                product,
                sum(run.seconds * count for run, count in runs) / calls - dispatch,
                dispatch,
                max(runs, key=lambda one: one[1])[0].bound,
                {o.text: count for o, count in counted.items()},
            )
        )
        advance(1)
    names = " or ".join(sorted({kernels for _, kernels in labels}))
    load = gemm_estimate.load_seconds(device)
    return SimulatedStep(
        device, next(iter(labels))[0], names, found, chosen.loads, chosen.loads * load
    )


@dataclasses.dataclass
class _Chosen:
    calls: dict[Product, collections.Counter[DesignPoint]]
    loads: int


def _chosen(device: str, of: Sequence[Product], dtype: str) -> _Chosen:
    """What npu.matmul chooses in the second step of a run."""
    designs = gemm_designs.GemmDesigns(device, "array", None)
    bf16, packs = DEFAULT_BF16[device], dtype != "bfloat16"
    weights = {one.layer: one.size[1:] for one in of if one.kind == "of inputs"}
    packed = {
        one: one.size[1:] if one.kind == "forward" else weights[one.layer] for one in of
    }  # fmt: skip
    found = _Chosen({}, 0)
    loads = 0
    for _ in range(2):
        found = _Chosen(collections.defaultdict(collections.Counter), 0)
        for product in in_order(of):
            layout, packed_for = ("col" if product.kind == "forward" else "row"), None
            if packs:  # all of a layer alike (npu.torch.packed_weights)
                layout, packed_for = (
                    "packed",
                    designs.for_packing("bfloat16", packed[product], bf16),
                )
            layer = not packs and min(product.size) >= LAYER_LEAST
            gemm = Gemm(
                "bfloat16", dtype, product.size, layout, "wide", bf16, packed_for, layer
            )  # fmt: skip
            run = designs.choose(gemm, lambda: loads)  # noqa: B023
            loads += run.load_seconds > 0
            found.loads += run.load_seconds > 0
            found.calls[product][run.options] += 1
    return found
