"""What several subcommands share: device and model options, sizes, spreads, progress."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import statistics
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from npu.cli import dtypes, progress

if TYPE_CHECKING:
    from npu import Device
    from npu.designs.gemm import DesignPoint
    from npu.hardware.doctor.machine import Npu
    from npu.models.gemma3 import Model
    from npu.models.gemma3.header import Header


_MAX_THREADS = 256
_MAX_SIDE = 1 << 31  # M, K, N that a command stream can be built for
BLOCK_FORMATS = ("q4nx", "q8", "bf16", "q4_0", "q8_0")  # of weights, as npu.bind names them


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m",
        "--model",
        metavar="PATH",
        help="GGUF or Q4NX file, or a folder with a Q4NX file or a safetensors checkpoint "
        "(default: $NPU_MODEL, else the demo model)",
    )
    add_weights_argument(parser)
    add_device_arguments(parser)


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", help="device name, see `npu devices` (default: $NPU_DEVICE, else automatic)"
    )
    parser.add_argument(
        "--arithmetic",
        choices=("fast", "silicon"),
        help="how the emulated cores add bf16 products (default: $NPU_ARITHMETIC, else fast)",
    )


def add_profile_arguments(parser: argparse._ActionsContainer) -> None:
    """--machine and --kernels: what is simulated."""
    from npu.perf.kernel_profile import PROFILES
    from npu.perf.machines import MACHINES

    names = ", ".join(machine.name for machine in MACHINES)
    parser.add_argument(
        "--machine", metavar="NAME",
        help=f"whose memory is simulated: {names}, see `npu validate-model --machines` "
        "(default: that of the generation)",
    )  # fmt: skip
    parser.add_argument(
        "--kernels", choices=(*PROFILES, "both"),
        help="cycles of matrix products: as published kernels have them, or as `npu kernel` "
        "schedules them (default: the latter for pipelined designs); both: one after the other",
    )  # fmt: skip


def machine_label(
    command: str, device: str, machine: str | None, stream_bytes: int | None = None
) -> str:
    """What simulations of these options are stamped with. Raises ArgumentError, DeviceError."""
    from npu.perf.machines import constants_of

    changed = {} if stream_bytes is None else {f"stream_{device}": float(stream_bytes)}
    return constants_of(command, device, machine, changed).label


def add_weights_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--weights",
        choices=("auto", "q8", "q4nx", "bf16"),
        help="blocks of weights on the device: auto (default) keeps the width of the file (4 bits, "
        "8 bits for 5 to 8, bfloat16 for floats), q8 is auto with floats in 8 bits, q4nx and bf16 "
        "make all of one kind",
    )
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="prepare weights in memory, keep no file (default: kept in $NPU_CACHE, else "
        "~/.cache/npu-xdna)",
    )


@contextlib.contextmanager
def use_device(arguments: argparse.Namespace) -> Iterator[Device]:
    """Makes the device of the command line current, else leaves the package's own choice."""
    import npu

    if arguments.device is None and arguments.arithmetic is None:
        yield npu.current_device()
        return
    name = arguments.device or npu.current_device().name
    with npu.device(name, arithmetic=arguments.arithmetic) as device:
        yield device


def operation_names() -> str:
    """The registered operations, for help texts."""
    from npu.ops.registry import operations

    return ", ".join(operations())


def check_options(
    command: str, arguments: argparse.Namespace, forms: Collection[str],
    belongs: Mapping[str, Collection[str]],
) -> None:  # fmt: skip
    """Refuses options that were given (are not None) and that the chosen form does not take.

    ``forms``: what the command line is, the most specific name last; ``belongs``: the forms that
    take an option, by its attribute. Raises ArgumentError, which names them.
    """
    from npu.errors import ArgumentError

    for name, places in belongs.items():
        if getattr(arguments, name) is None or set(places) & set(forms):
            continue
        option = "--" + name.replace("_", "-")
        *others, last = places
        named = f"{', '.join(others)} and {last}" if others else last
        raise ArgumentError(
            f"[{command}] {option} does not apply to {list(forms)[-1]}, only to {named}; leave out "
            f"{option}"
        )


def generation(command: str, name: str | None) -> str:
    """ "npu1" or "npu2" of a device name, $NPU_DEVICE or the default. No device is opened: names of
    the NPU say it, else this machine's PCI bus. Raises DeviceError."""
    from npu.devices import DEFAULT_DEVICE, is_xrt, named_generation
    from npu.errors import DeviceError

    chosen = name or os.environ.get("NPU_DEVICE") or DEFAULT_DEVICE
    if is_xrt(chosen):
        if named := named_generation(chosen):
            return named
        own, found = own_npu()
        if own is None:
            raise DeviceError(
                f"[{command}] device is {chosen}, and this machine's NPU cannot be told ({found}); "
                "name npu1 or npu2 with --device"
            )
        return own.generation
    short = chosen.removeprefix("emu:").removeprefix("null:")
    if short not in ("npu1", "npu2"):
        raise DeviceError(f"[{command}] device is {chosen!r}; name npu1 or npu2 with --device")
    return short


def own_npu() -> tuple[Npu | None, str]:
    """The NPU of this machine by its PCI ids, whatever runs it, and what was found."""
    from npu.hardware.doctor.live import LiveSystem
    from npu.hardware.doctor.machine import Machine
    from npu.hardware.doctor.pci import probe_npu

    machine = Machine(LiveSystem())
    found = probe_npu(machine).found
    return machine.npu, found


def result_dtype(arguments: argparse.Namespace) -> str:
    """--out-dtype, else what the multiplier accumulates --dtype in."""
    from npu.designs.gemm_point import wide_dtype

    return arguments.out_dtype or wide_dtype(arguments.dtype or dtypes.OPERANDS[0])


def chosen_gemm(
    command: str, arguments: argparse.Namespace, size: tuple[int, int, int],
    *, designs: str | None, kernel: str | None = None,
) -> tuple[DesignPoint, str]:  # fmt: skip
    """The configuration npu.matmul runs a product of --dtype, --out-dtype, --b-layout, --accumulate
    and --bf16 with on --device, when nothing is loaded, and what the device prefers; None: as the
    environment says. Raises ArgumentError, DesignError, DeviceError."""
    from npu.designs import gemm
    from npu.devices import open_device
    from npu.errors import ArgumentError
    from npu.ops.gemm_designs import first_choice, gemm_product_of

    dtype, out_dtype = arguments.dtype or dtypes.OPERANDS[0], result_dtype(arguments)
    b_dtype = getattr(arguments, "dtype_b", None) or dtype
    if arguments.bf16 is not None and dtype != "bfloat16":
        raise ArgumentError(
            f"[{command}] --bf16 does not apply to {dtype}, only to bfloat16; leave out --bf16"
        )
    device = open_device(
        f"emu:{generation(command, arguments.device)}",
        bf16=arguments.bf16, kernel=kernel, designs=designs,
    )  # fmt: skip
    gemm.design_point(device.generation, dtype, out_dtype, b_dtype=b_dtype)  # refuses others
    layout = "blocks" if b_dtype == gemm.BFP16 else arguments.b_layout or "row"
    any_size = gemm_product_of(
        dtype, out_dtype, layout, arguments.accumulate or "wide", device.bf16_of(dtype)
    )
    product = dataclasses.replace(any_size, size=size)
    found = first_choice(device.generation, device.prefers, product, device.kernel_chosen)
    return found, device.prefers


def computes(device: Device) -> bool:
    """False for a device that accepts streams and runs nothing, such as null:npu2."""
    return bool(device.handle.info()["computes"])


def check_computes(device: Device, command: str) -> None:
    """Refuses a device whose results and times say nothing. Raises DeviceError."""
    from npu.errors import DeviceError

    if not computes(device):
        raise DeviceError(
            f"[{command}] {device.name} computes nothing; choose a device of `npu devices` with "
            "--device or NPU_DEVICE"
        )


def device_line(device: Device) -> str:
    """The words that name device and arithmetic."""
    kind = " (no results)"
    if computes(device):
        kind = " (emulated)" if device.emulated else ""
    return f"device: {device.name}{kind}, bf16 arithmetic: {device.arithmetic}"


def time_label(device: Device) -> str:
    """What the printed times are: never the NPU's own when it is emulated."""
    if not computes(device):
        return "host time, the device computes nothing"
    return "host time, the NPU is emulated" if device.emulated else "host time"


def positive(text: str) -> int:
    """An argparse type: a whole number >= 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return value


def positives(text: str) -> list[int]:
    """An argparse type: whole numbers >= 1, separated by commas."""
    return [positive(part) for part in text.split(",")]


def threads(text: str) -> int:
    """An argparse type: a number of threads."""
    count = positive(text)
    if count > _MAX_THREADS:
        raise argparse.ArgumentTypeError(f"{text!r}: at most {_MAX_THREADS} threads")
    return count


def use_threads(count: int) -> None:
    """Uses so many threads from now on, in processes that this one starts, too."""
    import npu

    os.environ["NPU_THREADS"] = str(count)
    npu.set_threads(count)


def gemm_size(text: str) -> tuple[int, int, int]:
    """An argparse type: "512" or "512x1024x256" (M x K x N)."""
    parts = [positive(part) for part in text.lower().split("x")]
    if max(parts) > _MAX_SIDE:
        raise argparse.ArgumentTypeError(f"{text!r}: sizes go up to {_MAX_SIDE}")
    if len(parts) == 1:
        parts *= 3
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is neither S nor MxKxN")
    return parts[0], parts[1], parts[2]


def gemm_sizes(text: str) -> list[tuple[int, int, int]]:
    """An argparse type: sizes of gemm_size, separated by commas."""
    return [gemm_size(part) for part in text.split(",")]


def request(text: str) -> dict[str, int]:
    """An argparse type: FIELD=N,... of an operation's request."""
    out = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name or name in out or not value.lstrip("-").isdigit():
            raise argparse.ArgumentTypeError(f"{part!r} is not FIELD=N, once per field")
        out[name] = int(value)
        if abs(out[name]) >= 1 << 62:
            raise argparse.ArgumentTypeError(f"{part!r} is too large")
    return out


def sizes_or_preset(text: str) -> list[tuple[int, int, int]]:
    """An argparse type: sizes of gemm_sizes, or the name of a workload of `npu tune gemm`."""
    from npu.perf.tune.workload import PRESETS

    return PRESETS[text] if text in PRESETS else gemm_sizes(text)


def spread(values: list[float]) -> dict[str, Any]:
    """Median, extremes and all values of repeated measurements."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "values": values,
    }


def default_model() -> str | None:
    """Path of the model used without -m: $NPU_MODEL, or the demo model of a checkout."""
    from npu.models.demo import demo_model

    return os.environ.get("NPU_MODEL") or demo_model()


def read_header(path: str | None) -> Header:
    """The header of the named or the default model. Raises ArgumentError, FormatError."""
    from npu.errors import ArgumentError
    from npu.models.gemma3.header import read_header

    path = default_model() if path is None else path
    if not path:
        raise ArgumentError("no model given and no demo model found; name one with -m FILE")
    return read_header(path)


def load_model(
    header: Header,
    weights: str | None = None,
    *,
    cache: bool = True,
    quiet: bool = False,
    report: bool = True,
) -> Model:
    """Loads a model whose header was read. Unless ``quiet``, standard error shows where prepared
    weights are kept and, with ``report``, what was chosen for them."""
    from npu.models import gemma3

    with progress.reported("loading", quiet=quiet) as advance:

        def note(line: str) -> None:
            if not quiet:
                _say(line)

        model, _ = gemma3.load(header, advance, weights or "auto", cache, note)
    if report and not quiet:
        for line in model.weights_report.lines():
            _say(line)
    return model


def _say(line: str) -> None:
    """A line on standard error, above a progress bar if there is one."""
    with progress.aside():
        print(line, file=sys.stderr, flush=True)
