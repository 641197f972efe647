"""Overlays: programs that streams load into all cores of a design, one after the other.

A command stream sends their images as control packets to all cores at once
(backend/runtime/overlay.h), so that they are the same to the word: addresses, locks and constants.
What a core is, it finds in words of its data memory that the configuration writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from npu.errors import DesignError

from ..fifo import ProgramPort
from .lowered import Core, Lowered, Overlay
from .program_memory import PROGRAM_BYTES, program_bytes
from .serialise import program_lines

_ROUND = 16  # a control packet has four words of program memory
_UNKNOWN = PROGRAM_BYTES  # of an image with kernels that have no estimate


def collect(out: Lowered, ports: Sequence[ProgramPort]) -> list[Overlay]:
    """The overlays of a design's cores; raises DesignError where cores differ or where no port
    brings them to all cores."""
    with_overlays = [core for core in out.cores if core.overlays]
    reached = sorted(tile for port in ports for tile in port.cores)
    if reached != sorted(core.tile for core in with_overlays) or len(ports) > 1:
        raise DesignError(
            f"[lower {out.name}] {len(with_overlays)} cores have overlays, {len(ports)} ports "
            f"bring programs to {len(reached)}; give the design one that reaches each core once"
        )
    if not with_overlays:
        return []
    first = with_overlays[0]
    for core in out.cores:
        if _text(core) != _text(first):
            raise DesignError(
                f"[lower {out.name}] the overlays of {core.tile} and {first.tile} differ; streams "
                "load one image into all cores: give all of them the same buffers, FIFOs and "
                "constants, and what differs as initial words of a buffer"
            )
    assert first.slots is not None
    return [
        Overlay(name, program, _image_bytes(first, name, out.generation), first.slots.address)
        for name, program in first.overlays.items()
    ]


def _image_bytes(core: Core, name: str, generation: str) -> int:
    """Of what is loaded: as much as the program is estimated to have."""
    estimate = program_bytes(core.overlays[name], core, generation)
    used = _UNKNOWN if estimate is None else min(estimate, PROGRAM_BYTES)
    return -(-used // _ROUND) * _ROUND


def _text(core: Core) -> list[tuple[str, list[str]]]:
    at = -1 if core.slots is None else core.slots.address
    return [(f"{name} {at}", program_lines(program)) for name, program in core.overlays.items()]
