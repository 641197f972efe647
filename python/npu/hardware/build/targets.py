"""Which configurations are built: those of the package, by operation or by name."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from npu.designs import gemm
from npu.designs.api import Design
from npu.devices import DEFAULT_BF16
from npu.errors import ArgumentError
from npu.ops.configurations import uses
from npu.ops.gemm_designs import candidates, first_choice, gemm_product_of
from npu.ops.registry import operations

# Element types of A and B, and of C, of npu.matmul without further arguments.
_PLAIN = (
    ("bfloat16", "float32"),  # of float32, too
    ("bfloat16", "bfloat16"),
    ("int8", "int32"),
    ("int16", "int32"),
)


@dataclass(frozen=True)
class Target:
    """One configuration. ``key``: a text that no other has; ``name``: the configuration's."""

    generation: str
    operation: str
    key: str
    design: Callable[[], Design]
    usual: bool

    @functools.cached_property
    def name(self) -> str:
        if self.operation == "gemm":  # GENERATION-NAME-TILE-..., without lowering anything
            return self.key.split("-")[1]
        return self.design().name


@functools.cache
def every(generation: str) -> tuple[Target, ...]:
    """All configurations of a generation that the package uses on an NPU, each once."""
    found: dict[str, Target] = {}
    products = _usual_products(generation)
    for use in uses():
        if use.generation != generation or use.for_emulation:
            continue
        # Other operations: in their default form, products for both sizes of weight blocks.
        plain = not use.about or "small" in dict(use.about)
        usual = use.key in products if use.operation == "gemm" else plain
        if use.key not in found or usual:
            found[use.key] = Target(generation, use.operation, use.key, use.design, usual)
    return tuple(found.values())


def select(generation: str, names: Sequence[str] = (), everything: bool = False) -> list[Target]:
    """The targets of operations and configurations by name; without names the usual ones, or all.

    Raises ArgumentError for a name that is neither.
    """
    there = every(generation)
    if not names:
        return [target for target in there if everything or target.usual]
    chosen: dict[str, Target] = {}
    for name in names:
        if name in operations():
            found = [t for t in there if t.operation == name and (everything or t.usual)]
        else:
            found = [t for t in there if t.key == name] or [t for t in there if t.name == name]
        if not found:
            raise ArgumentError(
                f"[build] {name!r} is no operation and no configuration of {generation}; "
                f"operations are {', '.join(operations())}, and `npu build --all --list` names the "
                "configurations"
            )
        chosen.update((target.key, target) for target in found)
    return list(chosen.values())


def words_for(generation: str, names: Sequence[str]) -> list[str]:
    """What to give `npu build` for configurations by key or name: a key as it is, for a name its
    operation where that builds it, else the name. Those that the package has not are left out."""
    there = every(generation)
    keys, words = {t.key for t in there}, []
    for name in names:
        named = [] if name in keys else [t for t in there if t.name == name]
        if named and all(t.usual for t in named):
            words.append(named[0].operation)
        elif named or name in keys:
            words.append(name)
    return list(dict.fromkeys(words))


def _usual_products(generation: str) -> set[str]:
    """The keys of what runs a plain npu.matmul of any size, `npu selftest`, and `npu compile gemm`,
    whose configuration examples use. B lies row by row."""
    from npu.hardware.selftest import products

    mode = DEFAULT_BF16[generation]
    plain = [gemm_product_of(a, c, "row", "wide", mode) for a, c in _PLAIN]
    found = {gemm.design_point(generation, *_PLAIN[0])}
    for product in plain:
        found.update(candidates(generation, "array", product))
    for one in products.products(generation):
        product = gemm_product_of(one.dtype, one.out_dtype, "row", "wide", one.bf16)
        sized = dataclasses.replace(product, size=products.SIZE)
        found.add(first_choice(generation, "array", sized))
    return {point.key for point in found}
