"""Kernels of overlays leave nothing in data memory: streams load their code only, and `npu build`
refuses an image that comes with tables or variables (overlays.py).

Peano is not here, so the host's compiler tells: it keeps a table where a run-time index or pointer
reads it, and the sources must not leave that to an optimiser. Scalars that x86 has no immediates
for (.rodata.cst4) are immediates of the cores.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from limits import HANG

from npu.designs.lowering.mlir import kernels_of
from npu.hardware.build import kernels, one, targets

ROOT = Path(__file__).resolve().parents[4]
KERNELS = ROOT / "aie_kernels"
ARCH = {"npu1": 20, "npu2": 21}
# No jump tables, as Peano is told, and no vectors of x86, whose constants it keeps in memory.
OPTIONS = (
    "-std=c++20", "-march=x86-64-v4", "-O2", "-w", "-c", "-ffunction-sections", "-fdata-sections",
    "-fno-exceptions", "-fno-asynchronous-unwind-tables", "-fno-tree-vectorize",
    "-fno-tree-slp-vectorize", "-mno-stv", "-fno-jump-tables",
)  # fmt: skip
COMPILER = shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++")
DATA = re.compile(r"\] (\.(?:ro)?data\S*|\.bss\S*)\s+\S+\s+\S+ \S+ ([0-9a-f]+) ")
IMMEDIATE = re.compile(r"\.rodata(\..*)?\.cst[48]")


def data_of(text: str, generation: str, folder: Path) -> list[str]:
    """The sections with data of a translation unit."""
    assert COMPILER is not None
    source, made = folder / "kernels.cc", folder / "kernels.o"
    source.write_text(text)
    words = [COMPILER, *OPTIONS, f"-D__AIE_ARCH__={ARCH[generation]}", f"-I{KERNELS / 'counting'}",
             f"-I{KERNELS}", str(source), "-o", str(made)]  # fmt: skip
    subprocess.run(words, check=True, timeout=HANG)
    listed = subprocess.run(
        ["readelf", "-SW", str(made)], check=True, capture_output=True, text=True, timeout=HANG
    )
    found = DATA.findall(listed.stdout)
    return [name for name, size in found if int(size, 16) and not IMMEDIATE.fullmatch(name)]


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_kernels_of_overlays_have_no_tables(generation: str, tmp_path: Path) -> None:
    lowered = [
        one.prepare(target).lowered
        for target in targets.every(generation)
        if target.operation == "prefill"
    ]
    programs = {one.name: one.program for each in lowered for one in each.overlays}
    assert len(programs) == 6
    for name, program in programs.items():
        text = kernels.recipe(generation, kernels_of([program]), KERNELS).text
        assert (name, data_of(text, generation, tmp_path)) == (name, [])


def test_tables_are_found(tmp_path: Path) -> None:
    """A table that an index reads, a variable, and no scalar."""
    table = "static const float t[] = {1, 2, 3};\nfloat read(int i) {return t[i];}\n"
    variable = "int count(void) {static int n = 0; return ++n;}\n"
    scalar = "float scaled(float x) {return x * 0.3f;}\n"
    assert any(".rodata" in name for name in data_of(table, "npu1", tmp_path))
    assert any(".bss" in name for name in data_of(variable, "npu1", tmp_path))
    assert data_of(scalar, "npu1", tmp_path) == []
