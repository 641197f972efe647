"""Lowering: a Design becomes a Lowered design, bytes, or MLIR.

Order of decisions: pools and locks (dataflow), worker memory and RTPs (program), programs
(program), room for their stacks (stack), DMA channels (dataflow), addresses (memory), BD chains
(dataflow, dims), routes (routing).
Every limit of the hardware raises DesignError with the limit, the value and the tile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec

from ..api import Design
from . import overlays, program, program_memory, stack
from .dataflow import Dataflow
from .lowered import Lowered
from .mlir import print_mlir
from .routing import Router
from .serialise import serialise

__all__ = ["Lowered", "configuration", "forms", "lower", "mlir", "print_mlir", "serialise"]

P = ParamSpec("P")


def lower(design: Design) -> Lowered:
    """Decides everything a design leaves open; raises DesignError when it does not fit."""
    out = Lowered(
        design.name, design.generation, design.columns, dict(design.params), design.object_file,
        design.least_stack or stack.LEAST_BYTES,
    )  # fmt: skip
    program.check_ends(design)
    flow = Dataflow(design, out)
    flow.build_pools()
    reserved = [(w, *program.reserve(w, flow)) for w in design.workers]
    rooms = {}
    for worker, core, buffers in reserved:
        program.build(worker, core, buffers, flow)
        core.program_bytes = program_memory.core_bytes(core, out.generation)
        rooms[core.tile] = stack.reserve(core, worker.stack_bytes, out, design.room_over)
        core.stack = rooms[core.tile].stack
        out.cores.append(core)
    flow.assign_channels()
    flow.place(rooms)
    flow.build_ports_and_flows()
    out.shim_bds, out.token_ports = list(design.shim_bds), design.token_ports
    flow.build_chains()
    out.connections = Router(design.columns, f"[lower {design.name}]").route(out.flows)
    out.overlays = overlays.collect(out, design.program_ports)
    program_memory.check(out, design.program_over)
    ends = {t for f in design.fifos for t in (f.producer, *f.consumers)}
    ends |= {t for p in design.program_ports for t in (p.tile, *p.cores)}
    ends |= {c.tile for c in out.connections} | {w.tile for w in design.workers}
    out.tiles = sorted(ends)
    return out


def configuration(design: Design) -> bytes:
    """The serialised configuration of a design (backend/runtime/configuration.h)."""
    return serialise(lower(design))


def mlir(design: Design) -> str:
    """A design as AIE-dialect MLIR for mlir-aie's aiecc. Raises DesignError for one that leaves a
    compiled program no room (Design.room_over)."""
    out = lower(design)
    stack.check(out)
    return print_mlir(out)


def forms(design: Callable[P, Design]) -> tuple[Callable[P, bytes], Callable[P, str]]:
    """`configuration` and `mlir` of a module whose `design` function describes its design; both
    take its arguments. Configurations are kept."""
    kept = cache(lambda key: configuration(design(*key[0], **dict(key[1]))))

    @wraps(design)
    def to_bytes(*args: P.args, **kwargs: P.kwargs) -> bytes:
        try:
            return kept((args, tuple(kwargs.items())))
        except TypeError:  # an argument that cannot be a key: `design` says what is wrong with it
            return configuration(design(*args, **kwargs))

    @wraps(design)
    def to_mlir(*args: P.args, **kwargs: P.kwargs) -> str:
        return mlir(design(*args, **kwargs))

    return to_bytes, to_mlir
