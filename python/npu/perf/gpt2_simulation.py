"""The products of a training step of GPT-2 on an NPU, simulated: what `npu.torch` would run, with
the configurations that npu.matmul chooses for the array's time."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

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
    buildable: bool = False,
) -> SimulatedStep:
    """A step of a model whose tensors are ``dtype``, "bfloat16" or "float32". ``advance(1)`` after
    each product. Both gradients of a layer are one submission where one configuration computes
    them: then each has half of its dispatch, and that of the weight what is left of the array's
    time beside that of the input. An A that the configuration cannot read across its rows is packed
    by the host and simulated as if it lay in rows. buildable: with configurations that `npu build`
    compiles for an NPU. Raises ArgumentError."""
    chosen = _chosen(device, of, dtype, buildable)

    @functools.cache
    def simulated(submission: _Submission) -> SimulatedGemm:
        fields: dict[str, int] = {}
        for prefix, run in zip(("", "then_"), submission, strict=False):
            fields |= {prefix + name: value for name, value in _stored(run).items()}
            if prefix:
                fields |= {prefix + x: y for x, y in zip("mkn", run.product.size, strict=True)}
        first = submission[0]
        return simulate_call(first.design, first.product.size, None, machine, kernels, fields)

    def part(submission: _Submission, index: int) -> _Part:
        whole, count = simulated(submission), len(submission)
        taken = [simulated(submission[:i]).array_seconds if i else 0.0 for i in range(count)]
        taken.append(whole.array_seconds)
        bound = simulated((submission[index],)).bound
        return _Part(
            submission[index],
            taken[index + 1] - taken[index],
            whole.dispatch_seconds / count,
            bound,
        )

    parts: dict[Product, list[tuple[_Part, int]]] = {one: [] for one in of}
    for submission, count in chosen.submissions.items():
        for index, run in enumerate(submission):
            parts[run.product].append((part(submission, index), count))
    found = []
    for product in of:
        runs = parts[product]
        calls = sum(count for _, count in runs)
        designs: collections.Counter[str] = collections.Counter()
        for one, count in runs:
            designs[one.run.design.text] += count
        found.append(
            SimulatedProduct(
                product,
                sum(one.array_seconds * count for one, count in runs) / calls,
                sum(one.dispatch_seconds * count for one, count in runs) / calls,
                max(runs, key=lambda one: one[1])[0].bound,
                dict(designs),
            )
        )
        advance(1)
    labels = {(one.machine, one.kernels) for one in map(simulated, chosen.submissions)}
    names = " or ".join(sorted({kernels for _, kernels in labels}))
    load = gemm_estimate.load_seconds(device)
    return SimulatedStep(
        device, next(iter(labels))[0], names, found, chosen.loads, chosen.loads * load
    )


class _Run(NamedTuple):
    """``packed``: B was packed by the host."""

    product: Product
    design: DesignPoint
    packed: bool


_Submission = tuple[_Run, ...]


class _Part(NamedTuple):
    run: _Run
    array_seconds: float
    dispatch_seconds: float
    bound: str


def _stored(run: _Run) -> dict[str, int]:
    """Fields of a request: how A and B lie."""
    if run.packed:
        return {"packed_b": 1}
    if not run.design.square:
        return {}
    kind = run.product.kind
    return {"a_across": int(kind == KINDS[2]), "b_across": int(kind != KINDS[0])}


@dataclasses.dataclass
class _Chosen:
    submissions: collections.Counter[_Submission]
    loads: int


def _chosen(device: str, of: Sequence[Product], dtype: str, buildable: bool) -> _Chosen:
    """What npu.torch submits in the second step of a run."""
    designs = gemm_designs.GemmDesigns(device, "array", None, simulated=not buildable)
    weights = {one.layer: one.size[1:] for one in of if one.kind == KINDS[1]}
    found, loads = _Chosen(collections.Counter(), 0), 0
    for _ in range(2):
        found = _Chosen(collections.Counter(), 0)
        before: _Run | None = None  # the gradient of an input, which waits for that of its weight
        for product in in_order(of):
            gemm = _product(designs, product, weights[product.layer], dtype)
            offered = designs.offered(gemm)
            number, load = designs.choose(offered, loads)
            loads += load > 0
            found.loads += load > 0
            run = _Run(product, offered.designs[number], gemm.layout == "packed")
            if product.kind == KINDS[1]:
                before = run
            elif before and before.design == run.design:
                found.submissions[before, run] += 1
                before = None
            else:
                found.submissions.update([(one,) for one in (before, run) if one])
                before = None
    return found


def _product(
    designs: gemm_designs.GemmDesigns, product: Product, weight: tuple[int, int], dtype: str
) -> Gemm:
    """As npu.torch.products asks for it. ``weight``: its sizes as the gradient of inputs has it."""
    bf16 = DEFAULT_BF16[designs.generation]
    layer = min(product.size) >= LAYER_LEAST and gemm_designs.serves_layers(
        designs.generation, "wide"
    )
    layout, packed_for = "col" if product.kind == KINDS[0] else "row", None
    if dtype != "bfloat16" and not layer:  # all of a layer alike (npu.torch.packed_weights)
        shape = product.size[1:] if product.kind == KINDS[0] else weight
        layout, packed_for = "packed", designs.for_packing("bfloat16", shape, bf16)
    return Gemm("bfloat16", dtype, product.size, layout, "wide", bf16, packed_for, layer)
