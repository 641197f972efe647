"""Command lines of aiecc, mlir-aie's compiler driver, in both forms its options have had, and where
its results are.

The older form (mlir-aie until 2026-07) has --aie-generate-*, the newer --get-*. Peano is always
named: without it aiecc falls back to the host's LLVM.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from npu.errors import BuildError
from npu.hardware.build.tools import Tools

MLIR, XCLBIN = "design.mlir", "design.xclbin"
_OUTPUT, _WORK, _ADDRESSES = "out", "aiecc", "input_with_addresses.mlir"
_CORE = re.compile(r"(?:^|_)core_(\d+)_(\d+)(?:\.elf)?$")
_MAGIC = b"\x7fELF"


@dataclass(frozen=True)
class Job:
    """One run of aiecc: a device of the module in ``folder``. cores_only: no xclbin."""

    folder: Path
    device: str
    threads: int
    cores_only: bool = False

    @property
    def output(self) -> Path:
        return self.folder / f"{_OUTPUT}-{self.device}"

    @property
    def work(self) -> Path:
        return self.folder / f"{_WORK}-{self.device}"


def command(tools: Tools, job: Job) -> list[str]:
    """The command line, to be run in the job's folder, whose output folder exists."""
    words = [
        str(tools.aiecc.path), f"--peano={tools.peano}", "--alloc-scheme=basic-sequential",
        f"--tmpdir={job.work}", f"--device-name={job.device}", f"-j{job.threads}",
    ]  # fmt: skip
    return [*words, *(_new if tools.new_options else _old)(tools, job), str(job.folder / MLIR)]


def environment(tools: Tools) -> dict[str, str]:
    """For a driver without --xclbinutil-path: it looks on PATH."""
    path = f"{tools.xclbinutil.path.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {"AIE_XCLBINUTIL": str(tools.xclbinutil.path), "PATH": path}


def _new(tools: Tools, job: Job) -> list[str]:
    words = [f"--output-dir={job.output}", "--get-core-elfs", "--get-input-with-addresses"]
    if not job.cores_only:
        words += ["--get-xclbin", f"--xclbin-name={job.output / XCLBIN}"]
        words += ["--get-npu-insts", f"--npu-insts-name={job.output}/insts_{{0}}.bin"]
        if tools.takes("xclbinutil-path"):
            words.append(f"--xclbinutil-path={tools.xclbinutil.path}")
    return words


def _old(tools: Tools, job: Job) -> list[str]:
    words = ["--no-xchesscc", "--no-xbridge"]
    if not job.cores_only:
        words += ["--aie-generate-xclbin", f"--xclbin-name={job.output / XCLBIN}"]
        words += [
            "--aie-generate-npu-insts",
            f"--npu-insts-name={job.output}/insts_{{0}}_{{1}}.bin",
        ]
    return words


def addresses(job: Job) -> str:
    """The module after allocation, with all addresses. Raises BuildError where there is none."""
    for folder in (job.output, job.work):
        for path in sorted(folder.rglob(_ADDRESSES)):
            return path.read_text(errors="replace")
    raise BuildError(f"[build] aiecc left no {_ADDRESSES}; its addresses cannot be checked")


def sequences(job: Job) -> dict[str, Path]:
    """The instruction words of each runtime sequence, by its name."""
    head = f"insts_{job.device}_"
    found = sorted(job.output.glob(f"{head}*.bin"))
    return {path.stem.removeprefix(head): path for path in found}


def core_elfs(job: Job) -> dict[tuple[int, int], Path]:
    """The linked program of each core, by (column, row): files, or folders that hold the file."""
    found: dict[tuple[int, int], Path] = {}
    for root in (job.work, job.output):  # of both, what was asked for counts
        for path in sorted(root.rglob("*core_*")):
            named = _CORE.search(path.name) or _CORE.search(path.parent.name)
            if named and path.is_file() and path.suffix in ("", ".elf") and _is_elf(path):
                found[int(named[1]), int(named[2])] = path
    return found


def _is_elf(path: Path) -> bool:
    """Whether it is a linked program: objects lie beside it."""
    with path.open("rb") as file:
        head = file.read(18)
    return head[:4] == _MAGIC and head[16:18] == b"\x02\x00"  # ET_EXEC
