"""The emulated NPU as a standalone tool: replays any configuration and runtime streams.

Kernels are given as Python callables, so a program built by any compiler for npu1 or npu2 can be
executed without its core binaries. The streams are the TXN bytes of
docs/reference/command_stream.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from npu import _npu
from npu.emulator_configure import (
    Cores,
    check_enabled,
    configuration_stream,
)
from npu.emulator_cores import MAX_CYCLES, Core, Fifo, Program
from npu.emulator_timing import ArrayTrace, Timing, timing_of, trace_of
from npu.errors import ArgumentError, FormatError
from npu.perf.machines import constants_of
from npu.perf.problem import checked_constants

__all__ = ["Array", "ArrayTrace", "Core", "Fifo", "Report", "Timing"]

_TRACED_EVENTS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Report:
    """What one stream did.

    ``operations`` stream operations executed; ``bytes_moved`` bytes through the DMA channels of
    each level (``shim_read`` is DRAM -> array); ``undecoded_writes`` register writes since the
    configuration that have no modelled effect; ``kernel_calls`` calls of core functions;
    ``unwaited`` operations that changed a BD or a full queue which a transfer needed until the
    array advanced: on hardware a race between the array and the command processor; ``dropped`` the
    shim channels of tasks that no data source leads to, one name for each: the run ended and left
    their buffers as they were; ``timing`` and ``trace`` of a run of ``simulate``.
    """

    operations: int
    bytes_moved: dict[str, int]
    undecoded_writes: int
    kernel_calls: int
    unwaited: int = 0
    dropped: tuple[str, ...] = ()
    timing: Timing | None = None
    trace: ArrayTrace | None = dataclasses.field(default=None, repr=False)


def _program_text(ops: Iterable[Sequence[Any]], names: dict[str, str]) -> str:
    """Golden-form operations -> the text form of a worker program that repeats them forever.

    Without operations: a program that does nothing.
    """
    lines = ["loop forever"]
    for index, op in enumerate(ops):
        try:
            lines.append(_instruction(op, names))
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise FormatError(
                f"[attach] operation {index} is {op!r}; expected "
                '["acquire_ge"|"acquire_eq"|"release", lock, n] or ["call", function, [operands]], '
                'an operand being {"buffer": address} or an int'
            ) from error
    lines.append("end")
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def _instruction(op: Sequence[Any], names: dict[str, str]) -> str:
    if op[0] in ("acquire_ge", "acquire_eq", "release"):
        code, lock, count = op
        return f"{code} {operator.index(lock)} {operator.index(count)}"
    if op[0] != "call":
        raise ValueError(op[0])
    _, function, operands = op
    words = [names[function]]
    for operand in operands:
        if isinstance(operand, Mapping):
            words.append(f"@{operator.index(operand['buffer'])}")
        else:
            words.append(f"#{operator.index(operand)}")
    return "call " + " ".join(words)


def _called(ops: Sequence[Any]) -> list[str]:
    """The names of the functions that well-formed calls name, in order of appearance."""
    calls = [op for op in ops if isinstance(op, (list, tuple)) and len(op) > 1 and op[0] == "call"]
    return list(dict.fromkeys(op[1] for op in calls if isinstance(op[1], str)))


def _stream_bytes(function: str, stream: Any) -> bytes:
    """The bytes of a stream given as bytes, bytearray, memoryview or an array of words."""
    try:
        return memoryview(stream).tobytes()
    except (TypeError, ValueError):
        raise ArgumentError(
            f"[{function}] the stream must be bytes (or an array of words), found {type(stream)}; "
            "read it from its file or take it from the builder's finish()"
        ) from None


def _small_int(function: str, name: str, value: Any) -> int:
    """An int that the extension takes; the array checks the range that matters."""
    try:
        number = operator.index(value)
    except TypeError as error:
        raise ArgumentError(f"[{function}] {name} must be an integer, found {value!r}") from error
    if not 0 <= number < 1 << 31:
        raise ArgumentError(f"[{function}] {name} = {number} is out of range; use 0..2^31 - 1")
    return number


def _cycles(name: str, cost: Any) -> float:
    try:
        number = float(cost)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= MAX_CYCLES:
        raise ArgumentError(
            f"[attach] cycles[{name!r}] is {cost!r}; it must be a number of 0..{MAX_CYCLES:.0e}"
        )
    return number


def _argument_view(function: str, index: int, buffer: Any) -> np.ndarray:
    """The bytes of argument ``index`` as a flat view, without a copy."""
    found = None
    if not isinstance(buffer, np.ndarray):
        found = str(type(buffer))
    elif not buffer.flags.c_contiguous:
        found = "a non-contiguous array"
    elif buffer.dtype.hasobject:
        found = f"an array of Python objects ({buffer.dtype})"
    if found:
        raise ArgumentError(
            f"[{function}] argument {index} must be a C-contiguous NumPy array of plain numbers, "
            f"found {found}; use numpy.ascontiguousarray"
        )
    return buffer.view(np.ndarray).reshape(-1).view(np.uint8)


def _arguments(
    function: str, insts: Any, buffers: Any
) -> tuple[bytes, list[np.ndarray], list[bool]]:
    if not isinstance(buffers, Sequence):
        raise ArgumentError(
            f"[{function}] expected a list of NumPy arrays, found {type(buffers).__name__}"
        )
    views = [_argument_view(function, i, buffer) for i, buffer in enumerate(buffers)]
    writable = [bool(view.flags.writeable) for view in views]
    return _stream_bytes(function, insts), views, writable


class Array:
    """An emulated NPU array: ``Array("npu1")`` (4 columns) or ``Array("npu2")`` (8 columns)."""

    _enabled: Cores | None = None  # cores that may have programs; None: all

    def __init__(self, device: str) -> None:
        if not isinstance(device, str):
            raise ArgumentError(f'[Array] expected "npu1" or "npu2", found {device!r}')
        self.device = device
        self._array = _npu.emulator.Array(device)
        # The callables live here, where the garbage collector sees them (they often refer to this
        # object); the C++ side reaches them through a weak reference.
        self._functions: dict[tuple[int, int], dict[str, Callable[..., Any]]] = {}
        self._pdis: dict[int, Callable[[], Any] | None] = {}
        self._kernels: dict[str, str] = {}  # functions by their names in worker programs
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def _alone(self, function: str) -> Iterator[None]:
        """One configuration or run at a time: runs differ in more than the C++ side checks."""
        if not self._lock.acquire(blocking=False):
            raise ArgumentError(
                f"[{function}] called while the array is executing a stream, from a kernel or "
                "another thread; wait until that call returns"
            )
        try:
            yield
        finally:
            self._lock.release()

    def configure(
        self, config: bytes | str | os.PathLike[str], *, pdi: int | None = None
    ) -> Report:
        """Resets the array and executes a configuration: a TXN stream, CDO, PDI or xclbin, as bytes
        or as the path of a file.

        ``pdi`` is the number of the PDI of an xclbin that has several (`npu inspect` lists them).
        Programs attached earlier are detached. Program memory is stored, not executed; if the CDO
        enables cores, programs can be attached to these only. CDOs do not say for which generation
        they are. Raises FormatError for bytes that are not valid, or a stream of the other
        generation, EmulatorError for registers that do not exist.
        """
        txn, enabled = configuration_stream(config, self.device, pdi)
        with self._alone("configure"):
            report = Report(**self._array.configure(txn))
            self._functions.clear()
            self._enabled = enabled
        return report

    def attach(
        self,
        col: int,
        row: int,
        ops: Iterable[Sequence[Any]] | Callable[[Core], Any],
        functions: Mapping[str, Callable[..., Any]] | None = None,
        cycles: Mapping[str, float] | None = None,
    ) -> None:
        """Puts a program on core (col, row), to run from the next submission on.

        ``ops`` is a generator function that gets the core and yields its operations, see
        :class:`Core` and docs/emulator.md, without ``functions``. It runs once, and again from its
        beginning when Core_Control resets the core. What it raises comes out of ``submit``.

        Or ``ops`` is one pass of the core's outermost loop: ``["acquire_ge", lock, n]``,
        ``["acquire_eq", lock, n]``, ``["release", lock, n]`` (the tile's own lock numbers 0-15) and
        ``["call", name, [{"buffer": byte address}, 7, ...]]``. ``functions[name]`` is called with a
        writable uint8 memoryview for each buffer operand, from its address to the end of the core's
        64 KiB, and an int for each constant. Exceptions it raises come out of ``submit``.
        ``cycles[name]`` is what a call takes in a run of ``simulate``.
        """
        col, row = _small_int("attach", "col", col), _small_int("attach", "row", row)
        check_enabled(self._enabled, col, row)
        if callable(ops) and functions is None:
            program = Program(self._array, col, row, ops)
            next_, place = (self._trampoline(col, row, name) for name in ("next", "place"))
            self._array.attach_driver(col, row, next_, place)
            self._functions[col, row] = {"next": program.next, "place": program.place}
            return
        if not isinstance(ops, Iterable) or not isinstance(functions, Mapping):
            raise ArgumentError(
                "[attach] expected a generator function, or a list of operations and a dict of "
                "functions, found "
                f"{type(ops).__name__} and {type(functions).__name__}"
            )
        ops = list(ops)
        names = {
            name: self._kernels.setdefault(name, f"f{len(self._kernels)}") for name in _called(ops)
        }
        text = _program_text(ops, names)
        missing = [name for name in names if name not in functions]
        if missing:
            raise ArgumentError(
                f"[attach] core ({col},{row}) calls {missing[0]!r}; functions has "
                f"{sorted(functions)}: pass a callable under that name"
            )
        for name in names:
            if not callable(functions[name]):
                raise ArgumentError(
                    f"[attach] core ({col},{row}) calls {name!r}, which is {functions[name]!r}; "
                    "pass a callable under that name"
                )
        table = {names[name]: self._trampoline(col, row, name) for name in names}
        costs = {
            names[name]: _cycles(name, cost)
            for name, cost in (cycles or {}).items()
            if name in names
        }
        self._array.attach(col, row, text, table, costs)
        self._functions[col, row] = {name: functions[name] for name in names}

    def add_pdi(
        self,
        pdi: int,
        config: bytes | str | os.PathLike[str],
        attach_programs: Callable[[], Any] | None = None,
        *,
        source_pdi: int | None = None,
    ) -> None:
        """Gives a configuration to the LOADPDI operations that name number ``pdi`` (0..65535).

        ``config`` is what ``configure`` takes, and ``source_pdi`` the number of the PDI of an
        xclbin that has several. Loading it resets the array but for the tiles' memories and
        detaches all programs; then ``attach_programs()`` is called, which may call ``attach``. A
        load of what was loaded last is skipped, as by the firmware: the same address or, where no
        driver has patched one in, the same number. Raises what ``configure`` raises.
        """
        pdi = _small_int("add_pdi", "pdi", pdi)
        if attach_programs is not None and not callable(attach_programs):
            raise ArgumentError(
                f"[add_pdi] attach_programs is {attach_programs!r}; pass a callable or None"
            )
        txn, enabled = configuration_stream(
            config, self.device, source_pdi, function="add_pdi", which="source_pdi"
        )
        reference = weakref.ref(self)

        def loaded() -> None:
            array = reference()
            assert array is not None  # streams run only inside its submit()
            array._functions.clear()
            array._enabled = enabled
            if (attach := array._pdis[pdi]) is not None:
                attach()

        self._array.add_pdi(pdi, txn, loaded)
        self._pdis[pdi] = attach_programs

    def _trampoline(self, col: int, row: int, name: str) -> Callable[..., Any]:
        """Calls a core's function without keeping this object or the function alive."""
        reference = weakref.ref(self)

        def call(*operands: Any) -> Any:
            array = reference()
            assert array is not None  # cores run only inside its submit()
            return array._functions[col, row][name](*operands)

        return call

    def submit(self, insts: bytes, buffers: Sequence[np.ndarray] = ()) -> Report:
        """Executes a runtime stream; argument i of its address patches is ``buffers[i]``.

        ``buffers`` are C-contiguous NumPy arrays of any plain dtype, written in place. May be
        called again without a new ``configure``: locks, memories and core programs keep their
        state. After an error in the run the array must be configured again; Ctrl-C counts as one.
        Only one call at a time: a callback or another thread that comes in meanwhile gets an
        ArgumentError.
        """
        arguments = _arguments("submit", insts, buffers)
        with self._alone("submit"):
            return Report(**self._array.submit(*arguments))

    def simulate(
        self,
        insts: bytes,
        buffers: Sequence[np.ndarray] = (),
        *,
        constants: Mapping[str, float] | None = None,
        machine: str | None = None,
        kernels: str | None = None,
        trace: bool = False,
    ) -> Report:
        """``submit`` in simulated time: the same results, with ``Report.timing``.

        Transfers, locks and the command processor take what docs/timing.md says, cores what their
        programs say (``Core.work``, or ``cycles`` of ``attach``), and a LOADPDI the constant of
        that generation. ``constants`` replace those that `npu validate-model --constants` lists,
        ``machine`` is one of `npu validate-model --machines` (default: that of the generation),
        ``kernels`` as of ``npu.simulate_gemm``.
        With ``trace`` ``Report.trace`` is the timeline, of the first million events.
        """
        arguments = _arguments("simulate", insts, buffers)
        changed = checked_constants("simulate", constants)
        values = constants_of("simulate", self.device, machine, changed, kernels)
        with self._alone("simulate"):
            found = self._array.simulate(*arguments, values, _TRACED_EVENTS if trace else 0)
        timing = timing_of(found.pop("timing"), values)
        recorded = found.pop("trace", None)
        timeline = None
        if recorded is not None:
            names = {worker: name for name, worker in self._kernels.items()}
            moved = found["bytes_moved"]
            timeline = trace_of(self.device, timing, recorded, arguments[0], moved, names)
        return Report(**found, timing=timing, trace=timeline)

    def read_register(self, address: int) -> int:
        """The value of a register, as a MASKPOLL of the command processor would see it."""
        if not 0 <= operator.index(address) < 1 << 32:
            raise ArgumentError(f"[read_register] {address} is not a valid 32-bit address")
        return self._array.read_register(operator.index(address))

    def read_memory(self, col: int, row: int, offset: int, size: int) -> bytes:
        """``size`` bytes of a tile's data memory from byte ``offset``."""
        where = {"col": col, "row": row, "offset": offset, "size": size}
        return self._array.read_memory(
            *(_small_int("read_memory", name, value) for name, value in where.items())
        )

    def write_memory(self, col: int, row: int, offset: int, data: Any) -> None:
        """Writes bytes, or an array's, into a tile's data memory from byte ``offset`` on.

        For the initial values of buffers that a compiler puts into a core's ELF file instead of
        the configuration; not during a submission.
        """
        where = [
            _small_int("write_memory", name, value)
            for name, value in (("col", col), ("row", row), ("offset", offset))
        ]
        try:
            content = data.tobytes() if isinstance(data, np.ndarray) else bytes(memoryview(data))
        except TypeError:
            raise ArgumentError(
                f"[write_memory] expected bytes or a NumPy array, found {type(data)}"
            ) from None
        self._array.write_memory(where[0], where[1], where[2], content)
