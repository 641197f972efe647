"""Which GEMM configuration a device runs a product with, and what ran last.

A device prefers either "array" designs, the fastest on the NPU (npu.designs.gemm_catalogue, chosen
by the closed form and the policy of backend/ops/gemm/gemm_choice.h), or "host" designs, which the
emulator computes fastest on this machine: the package's default tile per element type on all cores
or, for small products, on one or four, chosen by the same policy with the host's time
(backend/ops/gemm/host_cost.h). Kernels compute the same tiles with both, to the same bits.
Emulated devices prefer "host" unless asked otherwise: nobody who multiplies on them waits for the
NPU. Products of layers in training (Product.layer) have a configuration of their own on either, at
most 1.8 times as slow in the emulator. Programs in C++ choose the same way
(backend/ops/gemm/matmul.cpp), among the configurations that come with the package: for a packed B
that none of them shares, Python lowers one.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from npu import _npu
from npu.designs import gemm, gemm_catalogue
from npu.designs.hardware import DTYPE_BYTES
from npu.errors import DesignError
from npu.ops import gemm_estimate
from npu.ops.gemm_product import GemmRun, Product

PACKED_ROWS = _npu.gemm_choice.PACKED_ROWS  # of A that packed copies are laid out for: a prompt
_SMALL = ((1, 1), (1, 4))  # rows and columns of cores for small products on emulated devices
_SHARED_ROWS = (64, 32, 16)  # tile m, of configurations made for the layout of a packed copy


def candidates(
    generation: str,
    prefers: str,
    product: Product,
    kernel: str | None = None,
    simulated: bool = True,
) -> tuple[gemm.DesignPoint, ...]:
    """The configurations that may run a product. kernel: only those with it, where there are any.
    simulated: those that mlir-aie has no form for, too, and those that only an emulated array
    computes fast.

    Raises DesignError for a product that no design computes.
    """
    if product.layer and _has_square(generation, product):
        return (_square_design(generation, product, simulated),)
    if prefers == "host":
        default = _host_design(generation, product, kernel)
        return _host_designs(product, default, simulated)
    found = gemm_catalogue.candidates(
        generation, product.a_dtype, product.c_dtype, product.layout,
        accumulate=product.accumulate, bf16=product.bf16,
    )  # fmt: skip
    like = product.packed_for
    if like is not None:
        found = tuple(o for o in found if packs_alike(o, like)) or (_sharing(like, product),)
    return tuple(o for o in found if o.kernel == kernel) or found


def serves_layers(generation: str, accumulate: str) -> bool:
    """Whether a configuration reads both operands in bfloat16 by rows and by columns."""
    return (generation, accumulate) == ("npu1", "wide")


def _has_square(generation: str, product: Product) -> bool:
    """Whether that one computes this product."""
    reads = product.a_dtype == "bfloat16" and product.layout in ("row", "col")
    return reads and serves_layers(generation, product.accumulate)


def _square_design(generation: str, product: Product, simulated: bool) -> gemm.DesignPoint:
    """That one, for layers: whichever way a matrix is stored, it is read in place, and the products
    of a step load nothing."""
    narrow = DTYPE_BYTES[product.c_dtype] < 4
    return gemm.design_point(
        generation, product.a_dtype, product.c_dtype, tile=(64, 64, 64), k_mt=256, b_layout="col",
        c_buffers=1 if simulated or not narrow else 0,
        c_l2_buffers=1 if simulated else 2, square=True, keeps=simulated,
    )  # fmt: skip


def gemm_product_of(
    a_dtype: str, c_dtype: str, layout: str, accumulate: str = "wide", bf16: str = "native"
) -> Product:
    """A product of any size, as npu.matmul asks for it: 32-bit results have nothing to narrow and
    integers no compute mode."""
    sums = accumulate if DTYPE_BYTES.get(c_dtype, 1) < 4 else "wide"
    mode = "bfp16" if layout == "blocks" else bf16 if a_dtype == "bfloat16" else "native"
    return Product(a_dtype, c_dtype, (1, 1, 1), layout, sums, mode)


def first_choice(
    generation: str,
    prefers: str,
    product: Product,
    kernel: str | None = None,
    constants: gemm_estimate.Constants = (),
) -> gemm.DesignPoint:
    """What runs a product when nothing is loaded, and stays as long as only it is called."""
    found = candidates(generation, prefers, product, kernel)
    return min(found, key=lambda o: _seconds(o, prefers, product, constants))


def _seconds(
    o: gemm.DesignPoint, prefers: str, product: Product, constants: gemm_estimate.Constants
) -> float:
    """What a product is expected to take of the time that the device prefers."""
    if prefers == "host":
        return gemm_estimate.host_seconds(o, product.size)
    return gemm_estimate.seconds(o, product.size, product.layout == "packed", constants)


def packs_alike(a: gemm.DesignPoint, b: gemm.DesignPoint) -> bool:
    """Whether a packed B of one is one of the other (GemmTile::packs_b_like)."""
    return (a.tile[2], a.k_mt, a.b_layout, a.a_dtype) == (b.tile[2], b.k_mt, b.b_layout, b.a_dtype)


def _host_design(generation: str, product: Product, kernel: str | None) -> gemm.DesignPoint:
    """The default tile of the element type."""
    if product.layout == "blocks":
        return gemm.design_point(
            generation, product.a_dtype, product.c_dtype, b_dtype=gemm.BFP16,
            accumulate=product.accumulate,
        )  # fmt: skip
    there = gemm.kernel_exists(generation, product.a_dtype, kernel or "published", product.bf16)
    return gemm.design_point(
        generation, product.a_dtype, product.c_dtype,
        b_layout="col" if product.layout == "col" else "row", accumulate=product.accumulate,
        bf16=product.bf16, kernel=(kernel or "published") if there else "published",
    )  # fmt: skip


def _host_designs(
    product: Product, default: gemm.DesignPoint, emulated: bool
) -> tuple[gemm.DesignPoint, ...]:
    """That one and, where it is of published kernels, its tile on one core and on a row of four: as
    the only one in an object of a memtile, which pads K the least, and in objects as packed copies
    of B have them, so that rows and packed copies in turn need not change the configuration. Not
    for narrow sums, as steps of padding change these where they saturate."""
    like = product.packed_for
    if like is not None and not packs_alike(default, like):
        return (_sharing(like, product),)
    if not emulated or default.kernel != "published" or product.accumulate != "wide":
        return (default,)
    depths = {"row": (default.tile[1], default.k_mt), "col": (default.tile[1],)}
    same_tile = functools.partial(
        gemm.design_point, default.generation, default.a_dtype, default.c_dtype, tile=default.tile,
        b_layout=default.b_layout, bf16=default.bf16,
    )  # fmt: skip
    small = [
        same_tile(k_mt=depth, cores=cores)
        for depth in depths.get(product.layout, (default.k_mt,))
        for cores in _SMALL
    ]
    return default, *small


def _sharing(like: gemm.DesignPoint, product: Product) -> gemm.DesignPoint:
    """A configuration for a packed B whose layout no candidate has: n and k_mt are given."""
    _, s, _ = gemm.mmul(like.generation, product.a_dtype)
    depths = [k for k in range(s, min(like.k_mt, 128) + 1, s) if like.k_mt % k == 0]
    for m in _SHARED_ROWS:
        for k in reversed(depths):
            try:
                design = gemm.design_point(
                    like.generation, product.a_dtype, product.c_dtype, tile=(m, k, like.tile[2]),
                    k_mt=like.k_mt, accumulate=product.accumulate, bf16=product.bf16,
                )  # fmt: skip
                gemm.configuration_of(design)
                return design
            except DesignError:
                continue
    raise DesignError(
        f"[matmul] no design of {product.a_dtype} -> {product.c_dtype} reads B packed for tiles of "
        f"n = {like.tile[2]}, k_mt = {like.k_mt}; pack it again for this product"
    )


_MOST_OFFERED = 4096  # products whose candidates a device remembers


class Offered:
    """The candidates for a product, what each is expected to take, and those that were opened on
    the device, by their numbers."""

    __slots__ = ("designs", "offer", "opened", "product")

    def __init__(
        self, product: Product, designs: tuple[gemm.DesignPoint, ...], seconds: list[float]
    ) -> None:
        self.product, self.designs = product, designs
        of_keys = dict(zip((o.key for o in designs), seconds, strict=True))
        self.offer = _npu.gemm_choice.Offer(of_keys)  # as the chooser takes it
        self.opened: dict[int, Any] = {}


class GemmDesigns:
    """The choice of one device, with what it remembers between calls. constants: what predictions
    rest on (gemm_estimate.constants_of). simulated: see `candidates`."""

    def __init__(
        self,
        generation: str,
        prefers: str,
        kernel: str | None,
        constants: gemm_estimate.Constants = (),
        simulated: bool = True,
    ) -> None:
        self.generation, self.prefers, self.kernel = generation, prefers, kernel
        self.constants, self.simulated = constants, simulated
        self._last: tuple[Product, gemm.DesignPoint, str, float, float] | None = None
        self._chooser = _npu.gemm_choice.Chooser(
            gemm_estimate.HOST_LOAD_SECONDS
            if prefers == "host"
            else gemm_estimate.load_seconds(generation, constants)
        )
        self._known: dict[Product, tuple[gemm.DesignPoint, ...]] = {}
        self._offered: dict[Product, Offered] = {}

    @property
    def last(self) -> GemmRun | None:
        """What the last product ran as."""
        if self._last is None:
            return None
        product, design, *about = self._last
        return GemmRun(product, design, self.prefers, *about)  # type: ignore[arg-type]

    def offered(self, product: Product) -> Offered:
        """What may run a product, for any number of calls."""
        known = self._offered.get(product)
        if known is not None:
            return known
        family = dataclasses.replace(product, size=(1, 1, 1))
        found = self._known.get(family)
        if found is None:
            found = candidates(self.generation, self.prefers, family, self.kernel, self.simulated)
            self._known[family] = found
        several = len(found) > 1
        seconds = [
            _seconds(o, self.prefers, product, self.constants) if several else 0.0 for o in found
        ]
        if len(self._offered) >= _MOST_OFFERED:
            self._offered.clear()
        return self._offered.setdefault(product, Offered(product, found, seconds))

    def choose(self, offered: Offered, loads: int) -> tuple[int, float]:
        """The number of the configuration for one call, which counts it, and the predicted seconds
        of its load. loads: the device's count of loads."""
        number, reason, predicted, load = self._chooser.choose(offered.offer, loads)
        self._last = (offered.product, offered.designs[number], reason, predicted, load)
        return number, load

    def for_packing(self, a_dtype: str, size: tuple[int, int], bf16: str) -> gemm.DesignPoint:
        """The configuration whose layout a packed B (K, N) gets: the fastest for PACKED_ROWS rows
        of A and 32-bit results, for the host the default one; the choice for a call then is among
        those that share it."""
        c_dtype = "float32" if a_dtype == "bfloat16" else "int32"
        whole = (PACKED_ROWS, *size)
        product = Product(a_dtype, c_dtype, whole, "packed", "wide", bf16)
        if self.prefers == "host":
            return _host_design(self.generation, product, self.kernel)
        return first_choice(self.generation, self.prefers, product, self.kernel, self.constants)
