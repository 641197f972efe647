"""`npu kernel`: schedules of generated kernels, and programs of bundles on the core simulator."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu.cli import common
from npu.errors import ArgumentError, FileError

if TYPE_CHECKING:
    import numpy as np

    from npu.vliw.kernels import Schedule
    from npu.vliw.simulator import Run as SimulatedRun
    from npu.vliw.vector_kernels import LoopSchedule

HELP = "generate a kernel's VLIW code, count its cycles on a simulated core, run it"
_SLOTS = ("vec", "lda", "ldb", "st", "alu", "mv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    schedule = actions.add_parser("schedule", help="the schedule: cycles, slots, assembly")
    _add_kernel(schedule)
    schedule.add_argument("--asm", metavar="FILE", help="write the assembly; - is stdout")
    schedule.add_argument("--plot", metavar="FILE", help="draw the slots (.png, .svg, .pdf)")
    schedule.set_defaults(command=_schedule)
    run = actions.add_parser("run", help="run it, or a program in a file, on the simulator")
    _add_kernel(run)
    run.add_argument("--seed", type=int, default=0, help="of the random operands (default: 0)")
    run.add_argument("--program", metavar="FILE.s", help="bundles to run instead of a kernel")
    run.add_argument(
        "--pointer", action="append", default=[], type=_pointer, metavar="P=BYTES",
        help="what a pointer register holds when the program starts, as p0=1024",
    )  # fmt: skip
    run.set_defaults(command=_run)


def _add_kernel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("npu1", "npu2"), default="npu1", help="default: npu1")
    parser.add_argument("--kernel", default="matmul_bf16", metavar="NAME",
        help="npu1: matmul_bf16 (default), matmul_bf16_square; npu2: "
        "matmul_bfp16, matmul_bfp16_tiles, matmul_bf16_converting, prefill_multiply; both: "
        "matmul_i8, matmul_i16, dequant_q4nx, gemv_q4nx, rms_norm, ...; a wrong name lists all",
    )  # fmt: skip
    parser.add_argument("--out", metavar="DTYPE", help="of C, for kernels that have several")
    parser.add_argument("--b-layout", metavar="LAYOUT", help="of B's tiles: row, col (integers)")
    for name, of in (("m1", "rows of A"), ("k1", "columns of A"), ("n1", "columns of B")):
        parser.add_argument(f"--{name}", type=common.positive, metavar="TILES", help=of)
    parser.add_argument("--blocks", type=common.positive, metavar="N",
        help="of operands, for kernels that are no matrix products: tiles for convert_*, columns "
        "of --k1 tiles for convert_bf16_bfp16_b; default: 1",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def _pointer(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not (name in {f"p{i}" for i in range(8)} and value.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form p0=1024")
    return name, int(value)


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.command(arguments)
    return code


def _scheduled(arguments: argparse.Namespace) -> Schedule | LoopSchedule:
    from npu.vliw import kernels, vector_kernels

    known = {*kernels.KERNELS, *vector_kernels.KERNELS}
    if (arguments.device, arguments.kernel) not in known:
        raise ArgumentError(_unknown(arguments, known))
    if arguments.kernel in vector_kernels.NAMES:
        _refuse(arguments, "m1", "n1", "out", "b_layout")
        return vector_kernels.schedule(
            arguments.device, arguments.kernel, arguments.blocks or 1, arguments.k1
        )
    _refuse(arguments, "blocks")
    shape = (arguments.m1, arguments.k1, arguments.n1)
    if None in shape:
        raise ArgumentError(
            f"[kernel {arguments.action}] the numbers of tiles are missing: give --m1, --k1, --n1"
        )
    return kernels.schedule(
        arguments.device, arguments.kernel, *shape, out=arguments.out, b_layout=arguments.b_layout
    )


def _unknown(arguments: argparse.Namespace, known: set[tuple[str, str]]) -> str:
    """Where there is such a kernel, or which there are."""
    elsewhere = [on for on, name in sorted(known) if name == arguments.kernel]
    here = ", ".join(sorted(name for on, name in known if on == arguments.device))
    hint = f"; --device {elsewhere[0]} has it" if elsewhere else ""
    return (
        f"[kernel {arguments.action}] no kernel {arguments.kernel} on {arguments.device}{hint}; "
        f"there is {here}"
    )


def _refuse(arguments: argparse.Namespace, *names: str) -> None:
    """Options that mean nothing for the kernel."""
    given = [f"--{n.replace('_', '-')}" for n in names if getattr(arguments, n) is not None]
    if given:
        sizes = "--m1, --k1 and --n1" if names == ("blocks",) else "--blocks"
        raise ArgumentError(
            f"[kernel {arguments.action}] {arguments.kernel} takes no {', '.join(given)}; its size "
            f"is {sizes}"
        )


def _schedule(arguments: argparse.Namespace) -> int:
    from npu.vliw import assembly

    found = _scheduled(arguments)
    if arguments.plot:
        from npu.perf.plots import kernel

        kernel.save(found, arguments.plot)
    if arguments.asm:
        _write(arguments.asm, assembly.write(found.program, found.prototype))
    if arguments.json:
        print(json.dumps(found.document(), indent=1))
    elif arguments.asm != "-":
        _print_schedule(found.document())
    return 0


def _write(path: str, text: str) -> None:
    if path == "-":
        print(text, end="")
        return
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise FileError(f"[kernel schedule] --asm {path!r}: {error.strerror}") from error


def _print_schedule(figures: dict[str, Any]) -> None:
    """Figures and the table of slots; loops are marked at the bundle's number."""
    if "blocks" in figures:
        slots = ", ".join(f"{name} {share:.0%}" for name, share in figures["busy"].items() if share)
        what = f"{figures['kernel']}, blocks: {figures['blocks']}, on "
        work = f"slots in the loop: {slots}"
    else:
        what = (
            f"{figures['kernel']} {figures['m1']} x {figures['k1']} x {figures['n1']}, C "
            f"{figures['out']}, B by {figures['b_layout']}, on "
        )
        work = (
            f"{figures['multiplication_bundles']} with a multiplication "
            f"({figures['utilisation']:.1%})"
        )
    print(
        f"{what}{figures['device']}: {figures['cycles']} cycles simulated, {figures['bundles']} "
        f"bundles, {work}, {figures['stalls']} bank stalls"
    )
    print(f"code: {figures['code_bundles']} bundles, {figures['code_bytes']} bytes")
    rows = [
        [slots.get(slot, slots.get("lng", "") if slot == "mv" else "") for slot in _SLOTS]
        for slots in figures["slots"]
    ]
    widths = [
        max(len(text) for text in (slot, *(r[i] for r in rows))) for i, slot in enumerate(_SLOTS)
    ]
    inside = {i for loop in figures["loops"] for i in range(loop["first"], loop["last"] + 1)}
    print(
        "  ".join(
            ["      ", *(slot.ljust(w) for slot, w in zip(_SLOTS, widths, strict=True))]
        ).rstrip()
    )
    for number, row in enumerate(rows):
        mark = "|" if number in inside else " "
        cells = (text.ljust(w) for text, w in zip(row, widths, strict=True))
        print("  ".join([f"{number:5d}{mark}", *cells]).rstrip())


def _run(arguments: argparse.Namespace) -> int:
    if arguments.program:
        return _run_program(arguments)
    found = _scheduled(arguments)
    found.places()  # whether it fits, before the operands are made
    result, expected, run = _compared(found, arguments.seed)
    wrong = int((result != expected).sum())
    figures = {
        "kernel": found.kernel, "device": found.device, "simulated": True, "cycles": run.cycles,
        "stalls": run.stalls, "values": result.size, "wrong": wrong,
    }  # fmt: skip
    if arguments.json:
        print(json.dumps(figures, indent=1))
    else:
        print(
            f"{found.program.name}: {run.cycles} cycles simulated, {run.stalls} bank stalls; "
            f"{wrong} of {result.size} values differ from the C++ kernel's in silicon arithmetic"
        )
    return 1 if wrong else 0


def _compared(
    found: Schedule | LoopSchedule, seed: int
) -> tuple[np.ndarray, np.ndarray, SimulatedRun]:
    """The bits of the generated kernel's results, those of the C++ kernel's, and the run."""
    from npu.vliw import reference
    from npu.vliw.vector_kernels import LoopSchedule

    if isinstance(found, LoopSchedule):
        return found.compared(seed)
    given = reference.operands(found, seed)
    result, run = found.run(given.a, given.b, given.c, given.shift)
    bits = f"uint{8 * result.itemsize}"
    return result.view(bits), given.after.view(bits), run


def _run_program(arguments: argparse.Namespace) -> int:
    """A program from a file on a core whose memory is zero."""
    from npu.vliw import assembly
    from npu.vliw.machines import MACHINES
    from npu.vliw.simulator import Core

    try:
        text = Path(arguments.program).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"[kernel run] --program {arguments.program!r}: {error}") from error
    machine = MACHINES[arguments.device]
    core = Core(bytearray(machine.memory_bytes), dict(arguments.pointer))
    run = core.run(assembly.read(text, machine))
    scalars = {name: value for name, value in core.registers.items() if isinstance(value, int)}
    figures = {
        "cycles": run.cycles, "stalls": run.stalls, "registers": scalars,
        "early_reads": [{"read": read, "before": writer} for read, writer in run.early.items()],
    }  # fmt: skip
    if arguments.json:
        print(json.dumps(figures | {"simulated": True}, indent=1))
    else:
        held = ", ".join(f"{name} {value}" for name, value in sorted(scalars.items()))
        print(f"{run.cycles} cycles simulated, {run.stalls} bank stalls; registers: {held}")
        if run.early:
            print(f"{len(run.early)} reads of a register before a result under way to it lands:")
        for read, writer in run.early.items():
            print(f"  {read}, before {writer}")
    return 0
