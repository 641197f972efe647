"""Which form of MLIR's text an installation of mlir-aie reads, asked of its aie-opt.

In July 2026 lock values, buffer descriptors and register writes became operands, in three steps,
and aiecc's options changed at another time. So the options do not tell the form; a small module
with all three does, and aie-opt reads it in milliseconds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from npu.designs.lowering.mlir_syntax import Syntax
from npu.errors import BuildError
from npu.hardware.build import places
from npu.hardware.build.process import attempt

_KNOWN = "1.4.0"  # a version of mlir_aie that is read
_UNLOADED = "error while loading shared libraries"  # of the loader, which ends with 127


def reads_operands(aiecc: Path, otherwise: bool) -> bool:
    """Whether mlir-aie's tools read numbers as operands; ``otherwise`` where there is no aie-opt to
    ask. Raises BuildError if aie-opt does not start or reads neither form."""
    beside = [path.parent / "aie-opt" for path in (aiecc, aiecc.resolve())]
    program = next((path for path in beside if path.is_file()), None)
    if program is None:
        return otherwise
    said = ""
    with tempfile.TemporaryDirectory(prefix="npu-build-") as folder:
        for operands in (True, False):
            path = Path(folder) / "example.mlir"
            path.write_text(example(operands))
            done = attempt([program, path])
            if done is None:
                return otherwise
            code, text = done
            if code == 0:
                return operands
            if code == 127 or _UNLOADED in text:
                words = " ".join(text.split())[:200]
                raise BuildError(
                    f"[build] {program} does not run ({words}); install what it lacks, or mlir_aie "
                    f"again: `{_install()}`"
                )
            said = said or next((line for line in text.splitlines() if "error" in line), "")
    raise BuildError(
        f"[build] {program} reads neither of the two forms of MLIR that this version of npu prints "
        f"({said[:200].strip()}); install one that is read: `{_install(_KNOWN)}`"
    )


def _install(version: str = "") -> str:
    return " ".join(places.pip_install("aiecc", places.interpreter(), version))


def example(operands: bool) -> str:
    """A module with everything that the forms write in different ways."""
    memory, sequence = Syntax(operands), Syntax(operands)
    buffer = "%buffer : memref<64xi32>"
    block = [
        memory.use_lock("lock", "AcquireGreaterEqual", 1),
        memory.dma_bd(buffer, 0, 64, [(4, 8), (8, 1)], "{bd_id = 0 : i32, next_bd_id = 0 : i32}"),
        memory.use_lock("lock", "Release", 1),
    ]
    writes = [
        sequence.register("write32", {"address": 0x1D000, "value": 1}, 0, 0),
        sequence.register("maskwrite32", {"address": 0x1D204, "value": 1, "mask": 1}, 0, 0),
    ]
    lines = [
        "%tile = aie.tile(0, 2)",
        '%buffer = aie.buffer(%tile) {address = 4096 : i32, sym_name = "buffer"} : memref<64xi32>',
        '%lock = aie.lock(%tile, 0) {init = 1 : i32, sym_name = "lock"}',
        "%mem = aie.mem(%tile) {",
        *memory.definitions(),
        "%start = aie.dma_start(MM2S, 0, ^bb1, ^bb2)",
        "^bb1:",
        *block,
        "aie.next_bd ^bb1",
        "^bb2:",
        "aie.end",
        "}",
        "aie.runtime_sequence @sequence(%argument: memref<1xi32>) {",
        *sequence.definitions(),
        *writes,
        "}",
    ]
    return "\n".join(["module {", "aie.device(npu2) {", *lines, "}", "}", ""])
