"""Devices written in Python that break the contract: what each method may return is checked, the
error says which device, method and field, and a run that is given up is cancelled."""

from __future__ import annotations

from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest
import python_relay

from npu import _npu
from npu.device_contract import DeviceBackend, DeviceBuffer
from npu.errors import DeadlockError, DeviceError, StreamError
from npu.ops.registry import operation

BF16 = np.dtype(ml_dtypes.bfloat16)


class Returning(python_relay.Relay):
    """`allocate` and `wrap` return what they are told."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def allocate(self, size: int) -> Any:
        return self.value

    def wrap(self, array: np.ndarray, writable: bool) -> Any:
        return self.value


class Buffer(DeviceBuffer):
    def __init__(self, memory: Any) -> None:
        self.memory = memory


def _read_only() -> np.ndarray:
    return np.frombuffer(bytes(64), np.uint8)


BAD_BUFFERS = {
    "object": object(),
    "number": 7,
    "no memory": Buffer(None),
    "float32": Buffer(np.zeros(64, np.float32)),
    "int8": Buffer(np.zeros(64, np.int8)),
    "strided": Buffer(np.zeros(128, np.uint8)[::2]),
    "matrix": Buffer(np.zeros((8, 8), np.uint8)),
    "short": Buffer(np.zeros(63, np.uint8)),
    "read-only": Buffer(_read_only()),
}


@pytest.mark.parametrize("name", BAD_BUFFERS)
def test_buffers_are_checked(name):
    handle = _npu.device.open_python(Returning(BAD_BUFFERS[name]))
    with pytest.raises(DeviceError, match=r"^\[device\] python:relay: allocate\(\).*; return a"):
        handle.allocate(64)
    with pytest.raises(DeviceError, match=r"^\[device\] python:relay: wrap\(\).*; return a"):
        handle.wrap(np.zeros(64, np.uint8), "readwrite")


def test_no_buffer_is_a_buffer_only_where_memory_is_copied_instead():
    handle = _npu.device.open_python(Returning(None))
    assert handle.wrap(np.zeros(64, np.uint8), "read") is None
    with pytest.raises(DeviceError, match=r"allocate\(\) is None"):
        handle.allocate(64)


def test_read_only_memory_is_a_buffer_that_is_only_read():
    handle = _npu.device.open_python(Returning(Buffer(_read_only())))
    assert handle.wrap(np.zeros(64, np.uint8), "read").nbytes == 64


def test_memory_outlives_a_property_that_makes_it():
    class Fresh(DeviceBuffer):
        @property
        def memory(self) -> np.ndarray:  # type: ignore[override]
            array = np.zeros(1 << 20, np.uint8).view(Counted)
            return array

    class Counted(np.ndarray):
        alive = 0

        def __array_finalize__(self, parent: Any) -> None:
            Counted.alive += 1

        def __del__(self) -> None:
            Counted.alive -= 1

    handle = _npu.device.open_python(Returning(Fresh()))
    buffer = handle.allocate(1 << 20)
    assert Counted.alive > 0
    buffer.array[:] = 3
    assert np.all(buffer.array == 3)
    del buffer
    assert Counted.alive == 0


class Logged(python_relay.RelayRun):
    """A run whose wait() raises an `error`; calls are logged."""

    def __init__(self, run: Any, error: Any) -> None:
        super().__init__(run)
        self.error = error
        self.calls: list[str] = []

    def wait(self, timeout: float | None) -> Any:
        self.calls.append("wait")
        raise self.error("from wait()")

    def cancel(self) -> None:
        self.calls.append("cancel")
        super().cancel()


class Logging(python_relay.Relay):
    """Its first run waits as `error` says, later ones as usual."""

    def __init__(self, error: Any) -> None:
        super().__init__()
        self.error = error
        self.first: Logged | None = None

    def submit(self, prepared: Any, arguments: Any) -> Any:
        run = super().submit(prepared, arguments)
        if self.first is not None:
            return run
        self.first = Logged(run._run, self.error)
        return self.first


def _rms_norm(handle: Any) -> np.ndarray:
    """64 rows of ones, normalised."""
    x, weight, y = np.ones((64, 1152), BF16), np.ones(1152, np.float32), np.zeros((64, 1152), BF16)
    chosen = operation("rms_norm")
    opened = chosen.open(handle, chosen.configuration("npu2"))
    request = {"rows": 64, "width": 1152}
    opened.run(request, [array.reshape(-1).view(np.uint8) for array in (x, weight, y)])
    return y


@pytest.mark.parametrize(
    "error, calls",
    [
        (KeyboardInterrupt, ["wait", "cancel"]),
        (ValueError, ["wait", "cancel"]),
        (DeadlockError, ["wait"]),
    ],
)
def test_a_run_whose_wait_raises_is_cancelled_unless_the_error_is_the_runs(error, calls):
    backend = Logging(error)
    handle = _npu.device.open_python(backend)
    with pytest.raises(error, match=r"^from wait\(\)$"):
        _rms_norm(handle)
    assert backend.first is not None and backend.first.calls == calls
    np.testing.assert_allclose(_rms_norm(handle).astype(np.float64), 1, rtol=2**-7)


GOOD_INFO = {"name": "python:odd", "generation": "npu2", "emulated": True, "arithmetic": "fast"}


class Odd(python_relay.Relay):
    """Methods return what `answers` says for them."""

    answers: ClassVar[dict[str, Any]] = {}

    def info(self) -> Any:
        return self.answers.get("info", GOOD_INFO)

    def submit(self, prepared: Any, arguments: Any) -> Any:
        run: Any = super().submit(prepared, arguments)
        for name in {"wait", "report"} & self.answers.keys():
            setattr(run, name, lambda *_, name=name: self.answers[name])
        return self.answers.get("submit", run)


def _odd(answers: dict[str, Any]) -> Any:
    return _npu.device.open_python(type("Odd", (Odd,), {"answers": answers})())


@pytest.mark.parametrize("key", GOOD_INFO)
def test_information_that_is_missing_is_named(key):
    with pytest.raises(DeviceError, match=rf'^\[device\] .*: info\(\) is .*a dict with "{key}"'):
        _odd({"info": {name: value for name, value in GOOD_INFO.items() if name != key}})


@pytest.mark.parametrize(
    "key, value",
    [
        ("name", 7), ("name", None), ("generation", "npu9"), ("generation", 2),
        ("emulated", "yes"), ("computes", 1), ("arithmetic", None),
        ("max_arguments", -1), ("max_arguments", "16"), ("max_arguments", 2.5),
        ("max_arguments", 1 << 64),
    ],
)  # fmt: skip
def test_information_of_other_types_is_named(key, value):
    with pytest.raises(DeviceError, match=rf'^\[device\] .*: info\(\)\["{key}"\] is .*; return'):
        _odd({"info": {**GOOD_INFO, key: value}})


@pytest.mark.parametrize("value", [None, "npu2", 7])
def test_information_is_a_dict(value):
    with pytest.raises(DeviceError, match=r"^\[device\] .*Odd: info\(\) is .*; return a dict"):
        _odd({"info": value})


@pytest.mark.parametrize(
    "method, value, words",
    [
        ("submit", None, r"submit\(\) is None; return a DeviceRun"),
        ("submit", 7, r"submit\(\) is 7; return a DeviceRun"),
        ("wait", "yes", r"wait\(\) is 'yes'; return True or False"),
        ("wait", None, r"wait\(\) is None; return True or False"),
        ("report", None, r"report\(\) is None; return a dict"),
        ("report", {"operations": -1}, r'report\(\)\["operations"\] is -1; return an integer'),
        ("report", {"array_ns": 0.5}, r'report\(\)\["array_ns"\] is 0\.5; return an integer'),
        ("report", {"shim_read": "4"}, r'report\(\)\["shim_read"\] is \'4\'; return an integer'),
    ],
)
def test_what_runs_return_is_checked(method, value, words):
    with pytest.raises(DeviceError, match=rf"^\[device\] python:odd: {words}"):
        _rms_norm(_odd({method: value}))


class Patched(python_relay.Relay):
    """`patch` returns what it is told; what it was given is kept."""

    answer: Any = None
    given: Any = None

    def patch(self, prepared: Any, patches: np.ndarray) -> Any:
        self.given = patches
        return self.answer


def _copy_stream(handle: Any) -> tuple[Any, int]:
    """A prepared copy, and a word of it that may be patched."""
    copy = operation("copy")
    data = copy.configuration("npu2")
    old, new = (copy.submissions(data, {"bytes": size})[0].stream for size in (1 << 16, 2 << 16))
    handle.load(_npu.device.Configuration.parse(data))
    differ = np.frombuffer(old, np.uint32) != np.frombuffer(new, np.uint32)
    return handle.prepare(old), int(np.flatnonzero(differ)[0])


def test_patches_are_pairs_of_words():
    backend = Patched()
    handle = _npu.device.open_python(backend)
    stream, word = _copy_stream(handle)
    for answer in (True, False):
        backend.answer = answer
        assert handle.patch(stream, [(word, 0xFFFFFFFF), (word, 3)]) is answer
    assert backend.given.dtype == np.uint32
    assert backend.given.tolist() == [[word, 0xFFFFFFFF], [word, 3]]
    backend.given = None
    with pytest.raises(StreamError, match=r"word 2 of"):
        handle.patch(stream, [(word, 1), (2, 1)])
    assert backend.given is None  # the device is not asked
    for answer in (None, 1, "yes"):
        backend.answer = answer
        with pytest.raises(
            DeviceError, match=r"python:relay: patch\(\) is .*; return True or False"
        ):
            handle.patch(stream, [(word, 1)])


def test_devices_that_patch_nothing_get_new_streams():
    class Plain(python_relay.Relay):
        patch = DeviceBackend.patch
        overlay_image = DeviceBackend.overlay_image

    handle = _npu.device.open_python(Plain())
    stream, word = _copy_stream(handle)
    assert handle.patch(stream, [(word, 1)]) is False
    configuration = _npu.device.Configuration.parse(operation("prefill").configuration("npu2"))
    emulated = _npu.device.open("emu:npu2", "fast")
    for name, *_ in configuration.as_dict()["overlays"]:
        image = handle.overlay_image(configuration, name)
        assert image == emulated.overlay_image(configuration, name)  # the stand-in


@pytest.mark.parametrize("method", ["patch", "overlay_image", "prepare"])
def test_a_device_without_a_method_is_refused(method):
    class Lacking:
        def __getattr__(self, name: str) -> Any:
            if name == method:
                raise AttributeError(name)
            return lambda *_: None

    with pytest.raises(DeviceError, match=rf"no method {method}\(\); derive it from"):
        _npu.device.open_python(Lacking())


def test_counts_of_numpy_are_counts():
    handle = _odd({"info": {**GOOD_INFO, "max_arguments": np.int32(5)}})
    assert handle.info()["max_arguments"] == 5
    np.testing.assert_allclose(_rms_norm(handle).astype(np.float64), 1, rtol=2**-7)
