"""Which configurations are built: those of the package, by operation or by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from npu.designs.api import Design
from npu.errors import ArgumentError
from npu.ops.configurations import Use, uses
from npu.ops.registry import operations

# Element types of A and B, and of C, that npu.matmul is usually called with, or the self-test.
_USUAL = (
    ("bfloat16", "float32"),
    ("bfloat16", "bfloat16"),
    ("int8", "int32"),
    ("int8", "int16"),
    ("int8", "int8"),
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
    """All configurations of a generation that the package uses, each once."""
    found: dict[str, Target] = {}
    default = _default_gemm(generation)
    for use in uses():
        if use.generation != generation:
            continue
        usual = _is_usual(use) or use.key == default
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


def name_for(generation: str, configuration_name: str) -> str:
    """What to give `npu build` for a configuration of this name: its operation where that builds
    it, its name where that does, else --all."""
    named = [t for t in every(generation) if t.name == configuration_name]
    usual = [t.operation for t in named if t.usual]
    if usual and all(t.usual for t in named):
        return usual[0]
    return configuration_name if named else "--all"


def _default_gemm(generation: str) -> str:
    """The key of what `npu compile gemm` lowers."""
    from npu.designs import gemm

    return gemm.design_point(generation, *_USUAL[0]).key


def _is_usual(use: Use) -> bool:
    """Operations other than gemm in their default form, and gemm where the array's time counts."""
    about = dict(use.about)
    if use.operation != "gemm":
        return not about
    return (about["a"], about["c"]) in _USUAL and all(
        about[key] == value
        for key, value in {"prefers": "array", "layout": "row", "accumulate": "wide"}.items()
    )  # fmt: skip
