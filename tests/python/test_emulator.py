"""The public emulator interface (npu.emulator.Array) with streams built here: what callbacks get
and may do, how their exceptions come out, that core memory outlives the array, arguments of every
kind, several threads, and results that do not depend on the number of threads of the emulator.
"""

from __future__ import annotations

import _thread
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import HANG
from register_script import CORE_BUFFER, CORE_RESULT, Script, copy_stream, through_core

import npu
from npu import _npu

OPS: list[list[Any]] = [
    ["acquire_ge", 1, 1],
    ["acquire_ge", 2, 1],
    ["call", "f", [{"buffer": CORE_BUFFER, "type": "16xi32"}, {"buffer": CORE_RESULT}, 16, -5]],
    ["release", 0, 1],
    ["release", 3, 1],
]


def machine(function: Callable[..., Any], device: str = "npu2") -> npu.emulator.Array:
    arr = npu.emulator.Array(device)
    arr.configure(through_core(device))
    arr.attach(0, 2, OPS, {"f": function})
    return arr


def add_one(src: memoryview, dst: memoryview, n: int, _: int) -> None:
    np.frombuffer(dst, np.int32, n)[:] = np.frombuffer(src, np.int32, n) + 1


@pytest.mark.parametrize("device", ["npu1", "npu2"])
def test_callback_arguments_and_report(device: str) -> None:
    seen: list[tuple[Any, ...]] = []

    def f(src: memoryview, dst: memoryview, n: int, constant: int) -> None:
        assert isinstance(src, memoryview) and src.format == "B" and src.ndim == 1
        assert not src.readonly and not dst.readonly
        seen.append((len(src), len(dst), n, constant))
        add_one(src, dst, n, constant)

    arr = machine(f, device)
    a, b = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
    for calls in (1, 2):
        b[:] = 0
        report = arr.submit(copy_stream(device), [a, b])
        np.testing.assert_array_equal(b, a + 1)
        assert seen == [(65536 - CORE_BUFFER, 65536 - CORE_RESULT, 16, -5)] * calls
    assert report.operations == 7
    assert report.kernel_calls == 1
    assert report.undecoded_writes == 0
    assert report.bytes_moved == {
        "shim_read": 64,
        "shim_write": 64,
        "memtile_read": 0,
        "memtile_write": 0,
        "core_read": 64,
        "core_write": 64,
    }
    assert arr.read_memory(0, 2, CORE_RESULT, 64) == b.tobytes()
    assert arr.read_register(_npu.arch.tile_address(0, 2, CORE_RESULT)) == 1


class Custom(Exception):
    pass


@pytest.mark.parametrize("kind", [Custom, KeyError, KeyboardInterrupt, SystemExit, MemoryError])
def test_exceptions_keep_their_type(kind: type[BaseException]) -> None:
    error = kind("from the callback")

    def f(*_: Any) -> None:
        raise error

    arr = machine(f)
    with pytest.raises(kind) as caught:
        arr.submit(copy_stream(), [np.zeros(16, np.int32)] * 2)
    assert caught.value is error
    assert "f" in [frame.name for frame in caught.traceback]
    with pytest.raises(npu.errors.ArgumentError, match="configure it again"):
        arr.submit(copy_stream(), [np.zeros(16, np.int32)] * 2)
    arr.configure(through_core())
    arr.attach(0, 2, OPS, {"f": add_one})
    b = np.zeros(16, np.int32)
    arr.submit(copy_stream(), [np.zeros(16, np.int32), b])
    assert (b == 1).all()


def test_wrong_callback_signature_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        machine(lambda: None).submit(copy_stream(), [np.zeros(16, np.int32)] * 2)


def test_core_memory_outlives_the_array() -> None:
    views: list[memoryview] = []
    arr = machine(lambda src, dst, n, _: views.extend([src, dst]))
    arr.submit(copy_stream(), [np.arange(16, dtype=np.int32), np.zeros(16, np.int32)])
    del arr
    gc.collect()
    blocks = [bytearray(1 << 16) for _ in range(100)]  # would reuse freed memory
    src, dst = (np.frombuffer(view, np.int32, 16) for view in views)
    np.testing.assert_array_equal(src, np.arange(16))
    dst[:] = 7
    assert (src == np.arange(16)).all() and len(blocks) == 100


def test_callbacks_are_released_with_the_array_or_the_next_configure() -> None:
    class Function:
        def __call__(self, *args: Any) -> None:
            add_one(*args)

        def __del__(self) -> None:
            alive.discard(id(self))

    alive: set[int] = set()
    for end in ("configure", "attach", "delete", "cycle"):
        function = Function()
        alive.add(id(function))
        arr = machine(function)
        arr.submit(copy_stream(), [np.zeros(16, np.int32)] * 2)
        del function
        assert alive
        if end == "configure":
            arr.configure(through_core())
        elif end == "attach":
            arr.attach(0, 2, [], {})
        else:
            if end == "cycle":
                function_of_array = next(iter(arr._functions[0, 2].values()))
                function_of_array.array = arr  # as a closure that uses the array has it
                del function_of_array
            del arr
        gc.collect()
        assert not alive


def test_an_array_is_not_reentrant() -> None:
    errors: list[str] = []

    def f(*args: Any) -> None:
        for call in (
            lambda: arr.submit(copy_stream(), []),
            lambda: arr.configure(through_core()),
            lambda: arr.attach(0, 3, [], {}),
        ):
            with pytest.raises(npu.errors.ArgumentError, match="executing a stream") as caught:
                call()
            errors.append(str(caught.value))
        inner = machine(add_one)  # another array is fine
        inner.submit(copy_stream(), [np.zeros(16, np.int32)] * 2)
        add_one(*args)

    arr = machine(f)
    b = np.zeros(16, np.int32)
    arr.submit(copy_stream(), [np.zeros(16, np.int32), b])
    assert (b == 1).all()
    assert [e[: e.index("]") + 1] for e in errors] == ["[submit]", "[configure]", "[attach]"]


def test_two_threads_two_arrays_and_one_array() -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(*args: Any) -> None:
        entered.set()
        assert leave.wait(HANG)
        add_one(*args)

    arr, other = machine(slow), machine(add_one)
    a, b = np.zeros(16, np.int32), np.zeros(16, np.int32)
    thread = threading.Thread(target=lambda: arr.submit(copy_stream(), [a, b]))
    thread.start()
    assert entered.wait(HANG)
    with pytest.raises(npu.errors.ArgumentError, match="another thread"):
        arr.submit(copy_stream(), [a, b])
    c = np.zeros(16, np.int32)
    other.submit(copy_stream(), [a, c])  # its callback gets the GIL meanwhile
    leave.set()
    thread.join()
    assert (b == 1).all() and (c == 1).all()


def test_ctrl_c_ends_an_endless_run() -> None:
    c = Script().connect(0, 2, 1, 1)
    for i, direction in enumerate(("mm2s", "s2mm")):
        c.bd(0, 2, i, length=64, base=1000 * i, use_next=True, next_bd=i)
        c.push(0, 2, direction, 0, i)
    arr = npu.emulator.Array("npu2")
    arr.configure(c.bytes())
    timer = threading.Timer(0.3, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        arr.submit(Script().bytes(), [])
    timer.join()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(16, dtype=np.float32),
        np.arange(32, dtype=np.int16).reshape(2, 2, 8),
        np.arange(8, dtype=np.complex64),
        np.arange(32).astype(ml_dtypes.bfloat16),
        np.zeros(64, np.bool_),
        np.zeros(16, [("x", np.uint16), ("y", np.uint16)]),
    ],
    ids=lambda a: str(a.dtype),
)
def test_arguments_of_any_plain_dtype(array: np.ndarray) -> None:
    arr = machine(lambda src, dst, n, _: dst.__setitem__(slice(0, 64), src[:64]))
    out = np.zeros_like(array)
    arr.submit(copy_stream(), [array, out])
    assert out.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((16, 2), np.int32)[:, 0], "a non-contiguous array"),
        ([0] * 16, "class 'list'"),
        (np.array([None] * 16), "Python objects"),
        (None, "NoneType"),
    ],
)
def test_arguments_that_are_refused(bad: Any, message: str) -> None:
    arr = machine(add_one)
    with pytest.raises(npu.errors.ArgumentError, match=f"argument 1 must be .*{message}"):
        arr.submit(copy_stream(), [np.zeros(16, np.int32), bad])
    b = np.zeros(16, np.int32)
    arr.submit(copy_stream(), [np.zeros(16, np.int32), b])  # refused before anything ran
    assert (b == 1).all()


def test_read_only_arguments_may_be_read_only() -> None:
    a, b = np.zeros(16, np.int32), np.zeros(16, np.int32)
    a.flags.writeable = False
    machine(add_one).submit(copy_stream(), [a, b])
    assert (b == 1).all()
    b.flags.writeable = False
    with pytest.raises(npu.errors.ArgumentError, match="read-only"):
        machine(add_one).submit(copy_stream(), [a, b])


def test_streams_of_any_bytes_type() -> None:
    arr = npu.emulator.Array("npu2")
    config = through_core()
    for form in (bytearray(config), memoryview(config), np.frombuffer(config, np.uint32)):
        arr.configure(form)  # type: ignore[arg-type]
    for wrong in (12, "stream", None, [1, 2]):  # text is a path
        with pytest.raises(npu.errors.ArgumentError, match=r"\[configure\] (the|stream: No)"):
            arr.configure(wrong)  # type: ignore[arg-type]
        with pytest.raises(npu.errors.ArgumentError, match=r"\[submit\] the stream must"):
            arr.submit(wrong, [])  # type: ignore[arg-type]
    with pytest.raises(npu.errors.FormatError):
        arr.configure(config[:-4])
    with pytest.raises(npu.errors.DeviceError, match="npu3"):
        npu.emulator.Array("npu3")


@pytest.mark.parametrize(
    "op",
    [
        [],
        "call",
        None,
        ["acquire_ge", 1],
        ["acquire_ge", 1.5, 1],
        ["acquire_gt", 1, 1],
        ["call", "f"],
        ["call", "f", [{"address": 0}]],
        ["call", "f", ["x"]],
        ["call", ["f"], []],
        ["call", "f", 3],
    ],
    ids=str,
)
def test_malformed_operations_name_themselves(op: Any) -> None:
    arr = npu.emulator.Array("npu2")
    arr.configure(through_core())
    with pytest.raises(npu.errors.FormatError, match=r"\[attach\] operation 1 is"):
        arr.attach(0, 2, [["acquire_ge", 0, 1], op], {"f": add_one})


def test_programs_that_do_not_fit_the_core() -> None:
    arr = npu.emulator.Array("npu2")
    with pytest.raises(npu.errors.ArgumentError, match="configure the array before"):
        arr.attach(0, 2, [["acquire_ge", 0, 1]], {})
    arr.configure(through_core())
    acquire = ["acquire_ge", 0, 1]
    with pytest.raises(npu.errors.ArgumentError, match=r"calls 'g'; functions has \['f'\]"):
        arr.attach(0, 2, [acquire, ["call", "g", []]], {"f": add_one})
    for op, message in (
        (["acquire_ge", 16, 1], "lock 16"),
        (["release", 0, 64], "lock value 64"),
        (["call", "f", [{"buffer": 65536}]], "buffer address 65536"),
    ):
        with pytest.raises(npu.errors.FormatError, match=message):
            arr.attach(0, 2, [acquire, op], {"f": add_one})
    with pytest.raises(npu.errors.FormatError, match="never wait"):
        arr.attach(0, 2, [["call", "f", []]], {"f": add_one})  # would call f for ever
    with pytest.raises(npu.errors.ArgumentError, match="has no core"):
        arr.attach(0, 1, [acquire], {})


def test_reading_outside_is_refused() -> None:
    arr = npu.emulator.Array("npu1")
    assert arr.read_memory(0, 1, 524284, 4) == bytes(4)
    with pytest.raises(npu.errors.EmulatorError, match="it has 524288"):
        arr.read_memory(0, 1, 524284, 8)
    with pytest.raises(npu.errors.ArgumentError, match=r"columns 0\.\.3"):
        arr.read_memory(4, 1, 0, 4)
    with pytest.raises(npu.errors.EmulatorError, match=r"\[read_register\] reads address"):
        arr.read_register(0)


def test_deadlock_has_its_own_class_and_kind() -> None:
    arr = npu.emulator.Array("npu2")
    arr.configure(through_core())  # and no program
    with pytest.raises(npu.errors.DeadlockError, match=r"core \(0,2\).*has no program") as caught:
        arr.submit(copy_stream(), [np.zeros(16, np.int32)] * 2)
    assert caught.value.kind == "deadlock"
    assert isinstance(caught.value, npu.errors.EmulatorError)


THREADS_PROGRAM = """
import hashlib, numpy as np, npu
rng = np.random.default_rng(0)
digest = hashlib.sha256()
for m, k, n, additions in ((512, 256, 1024, ["fast"]), (70, 300, 500, ["fast", "silicon"])):
    a = rng.standard_normal((m, k)).astype(np.float32)
    b = rng.standard_normal((k, n)).astype(np.float32)
    x, y = (rng.integers(-128, 128, s, dtype=np.int8) for s in ((m, k), (k, n)))
    for device, ways in (("npu1", ["native"]), ("npu2", ["native", "bfp16"])):
        for kernel in ("published", "pipelined"):
            for arithmetic in additions:
                if (device, kernel) == ("npu1", "pipelined"):
                    continue
                with npu.device("emu:" + device, arithmetic=arithmetic, kernel=kernel):
                    for right in (b, np.asfortranarray(b)):
                        results = [npu.matmul(a, right, bf16=way) for way in ways]
                        digest.update(b"".join(c.tobytes() for c in results))
                    for right in (y, np.asfortranarray(y)):
                        digest.update(npu.matmul(x, right).tobytes())
                        digest.update(npu.matmul(x, right, out_dtype="int8", shift=7).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_threads() -> None:
    """Whole GEMMs of every kind of kernel, whose cores share tiles and their packed forms."""
    digests = set()
    for threads in ("1", "2"):
        env = os.environ | {"NPU_THREADS": threads}
        command = [sys.executable, "-c", THREADS_PROGRAM]
        run = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        digests.add(run.stdout)
    assert len(digests) == 1 and len(digests.pop()) == 65


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_streams_end(data: st.DataObject) -> None:
    """Any damage ends with success or one of the package's errors."""
    config, insts = bytearray(through_core()), bytearray(copy_stream())
    target = data.draw(st.sampled_from([config, insts]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(target) - 1))
        target[at] = data.draw(st.integers(0, 255))
    arr = npu.emulator.Array("npu2")
    try:
        arr.configure(bytes(config))
        arr.attach(0, 2, OPS, {"f": add_one})
        arr.submit(bytes(insts), [np.zeros(16, np.int32), np.zeros(16, np.int32)])
    except npu.errors.NpuError as error:
        assert str(error).startswith("[")


@pytest.mark.parametrize("threads", ["0", "-1", "abc", "2x", "1000"])
def test_a_senseless_thread_count_is_an_error(threads):
    """Not silently another number: the run would not be what was asked for."""
    code = "import numpy as np, npu; npu.matmul(np.ones((2, 2), np.int8), np.ones((2, 2), np.int8))"
    env = os.environ | {"NPU_THREADS": threads}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "NPU_THREADS" in done.stderr and "1 to 256" in done.stderr
