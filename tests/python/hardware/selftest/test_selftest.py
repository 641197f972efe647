"""The self-test: it passes on the emulated NPUs; a device that returns one wrong bit, a value just
beyond a bound, an error or a run that does not end fails that check and no other; reports are read
as they were written, and anything else is refused with one sentence."""

from __future__ import annotations

import dataclasses
import importlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npu
from npu import cli
from npu.errors import ArgumentError, DeviceError, FormatError, MissingBuildError
from npu.hardware.build import targets
from npu.hardware.selftest import checks, measure, report, validate
from npu.hardware.selftest import run as selftest
from npu.models.gemma3.prefill import Prefill


@pytest.mark.parametrize("name", ["emu:npu1", "emu:npu2"])
def test_emulated_devices_pass(name):
    with npu.device(name) as device:
        found = selftest.run(device, times=False)
    assert found["passed"] and found["measurements"] == []
    assert found["device"]["emulated"] and found["device"]["generation"] == name[4:]
    operations = {row["operation"] for row in found["checks"]}
    assert operations >= {"copy", "gemm", "gemv", "dequant", "rms_norm", "rope", "geglu", "prefill"}
    names = [row["name"] for row in found["checks"]]
    assert len(set(names)) >= len(names) - 2  # the attentions differ by their sizes


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_npu_build_builds_what_the_checks_run(fresh_devices, generation):
    """On an NPU, whose time counts: every configuration is among those of `npu build`."""
    with npu.device(f"emu:{generation}", designs="array") as device:
        for check in checks.checks(generation):
            check.compute(device=device)
        used = {(name, getattr(key, "key", "")) for name, key in device._operations}
    usual = {(t.operation, t.key) for t in targets.every(generation) if t.usual}
    ran = {key for name, key in used if name == "gemm"}
    assert len(ran) >= 5
    for name, key in used:
        assert (name, key or f"{generation}-{name}") in usual
    for name in ("gemv", "decoder"):  # what a model in Q4_0 runs
        assert (name, f"{generation}-{name}-small") in usual
    # Of pairs that take arguments, nothing else is built.
    narrow = {key for _, key in usual if f"{generation}-gemm_i8_i16" in key or "gemm_i8_i8" in key}
    assert len(narrow) == 2 and narrow < ran


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_npu_build_builds_what_plain_products_run(fresh_devices, generation):
    """npu.matmul without further arguments, of every type, on sizes from a vector up."""
    rng = np.random.default_rng(1)
    sizes = ((1, 64, 64), (16, 2048, 256), (130, 200, 700), (512, 512, 512), (96, 1152, 1536))
    usual = {t.key for t in targets.every(generation) if t.usual}
    used: set[str] = set()
    for dtype in ("float32", "float16", checks.BFLOAT16, "int8", "int16"):
        for m, k, n in sizes:
            a, b = (rng.integers(-9, 9, shape).astype(dtype) for shape in ((m, k), (k, n)))
            fresh_devices()  # what is loaded has an influence
            with npu.device(f"emu:{generation}", designs="array") as device:
                npu.matmul(a, b)
            used |= {key.key for name, key in device._operations if name == "gemm"}
    assert len(used) > 6 and used <= usual


@pytest.mark.parametrize("name", ["emu:npu1", "emu:npu2"])
def test_answers_are_far_from_others(name):
    """What the answers of the demo model are compared by, tokens, no rounding changes: the best one
    is more than a third of the largest logit ahead. One question has another answer."""
    with npu.device(name) as device:
        model, prompts = checks._demo()
        found = checks._answered_together(device=device)
        assert found.shape == (3, 8) and len({row.tobytes() for row in found}) == 3
        np.testing.assert_array_equal(checks._answered(device=device), found[0])
        for prompt, answer in zip(prompts, found, strict=True):
            logits = model.forward([*prompt, *answer.tolist()], model.new_cache(), all_logits=True)
            rows = np.sort(logits[len(prompt) - 1 : -1], axis=1)
            assert np.array_equal(logits.argmax(1)[len(prompt) - 1 : -1], answer)
            assert np.min(rows[:, -1] - rows[:, -2]) > np.abs(logits).max() / 3


def test_prompts_run_on_the_array_of_the_device_under_test(monkeypatch):
    """Where another device is current and products were chosen, too."""
    monkeypatch.setenv("NPU_BF16", "native")
    ran, run = [], Prefill.run
    monkeypatch.setattr(
        Prefill, "run", lambda *given: ran.append(npu.current_device().name) or run(*given)
    )
    under_test = npu.Device("emu:npu2", "fast", "native")  # one that no name leads to
    with npu.device("emu:npu1"):
        checks._answered(device=under_test)
        assert npu.current_device().name == "emu:npu1"
    assert ran == ["emu:npu2"] and under_test.counters()["submissions"] > 0
    assert under_test.bf16_chosen == "native"


def test_a_configuration_that_is_not_built_is_no_verdict(monkeypatch, capsys, tmp_path):
    def fails(*, device: npu.Device) -> np.ndarray:
        raise MissingBuildError("[submit] nothing at /home/somebody/x; run npu build")

    some = [checks.Check("a", "gemm", "", fails)]
    monkeypatch.setattr(selftest, "checks", lambda generation: iter(some))
    path = tmp_path / "report.json"
    assert cli.main(["selftest", "--device", "emu:npu2", "--no-times", "-o", str(path)]) == 1
    assert "no verdict: configurations are missing; `npu build" in capsys.readouterr().out
    assert report.load(path)["checks"][0]["error"].startswith("[submit] nothing at /home/USER/x")


@dataclasses.dataclass
class _Altered:
    """A check whose result on the device under test is changed."""

    change: Any

    def __call__(self, check: checks.Check, device: npu.Device) -> checks.Check:
        def compute(*, device: npu.Device, under_test: npu.Device = device) -> np.ndarray:
            result = check.compute(device=device).copy()
            return self.change(result) if device is under_test else result

        return dataclasses.replace(check, compute=compute)


def _one_bit(result: np.ndarray) -> np.ndarray:
    result.view(f"u{result.dtype.itemsize}").flat[result.size // 2] ^= 1
    return result


@pytest.mark.parametrize("name", ["gemm int8 to int32", "dequantize q4nx", "copy"])
def test_one_wrong_bit_fails(name):
    with npu.device("emu:npu2") as device:
        check = next(c for c in checks.checks("npu2") if c.name == name)
        wrong = _Altered(_one_bit)(check, device)
        expected = check.compute(device=npu.current_device("emu:npu2"))
        difference = checks.compare(check, wrong.compute(device=device), expected)
    assert not difference.passed and difference.worst == 1
    assert difference.where == np.unravel_index(expected.size // 2, expected.shape)


def test_bounds_are_sharp_to_a_factor():
    """Each bound refuses a relative error of 2^-5 in the largest element; that of attention, whose
    results are means of values that cancel, 2^-3."""
    with npu.device("emu:npu2") as device:
        for check in checks.checks("npu2"):
            if check.bound is None:
                continue
            exact = check.compute(device=device)
            off = exact.astype(np.float64)
            place = np.unravel_index(int(np.abs(off).argmax()), off.shape)
            off[place] *= 1 + 2.0 ** (-3 if check.operation == "attention" else -5)
            found = checks.compare(check, off.astype(exact.dtype), exact)
            assert not found.passed and found.where == place, check.name


def test_not_a_number_and_other_shapes_fail():
    check = checks.Check("x", "x", "", lambda *, device: np.zeros(1), checks.Bound(1.0))
    ones = np.ones(4, np.float32)
    broken = np.array([1, np.nan, 1, 1], np.float32)
    assert not checks.compare(check, broken, ones).passed
    assert checks.compare(check, broken, broken).passed
    assert not checks.compare(check, ones[:3], ones).passed
    assert not checks.compare(check, ones.astype(np.float64), ones).passed


def test_an_error_of_one_check_leaves_the_others(monkeypatch):
    def fails(*, device: npu.Device) -> np.ndarray:
        raise DeviceError("[submit] it timed out")

    some = [checks.Check("a", "gemm", "", fails), *list(checks.checks("npu2"))[:2]]
    monkeypatch.setattr(selftest, "checks", lambda generation: iter(some))
    with npu.device("emu:npu2") as device:
        found = selftest.run(device, times=False)
    assert [row["passed"] for row in found["checks"]] == [False, True, True]
    assert found["checks"][0]["error"] == "[submit] it timed out" and not found["passed"]


@pytest.mark.parametrize(
    "error, words, text",
    [
        (RuntimeError, ("IOCTL failed (err=-5)",), "RuntimeError: IOCTL failed (err=-5)"),
        (MemoryError, (), "MemoryError"), (AssertionError, ("x",), "AssertionError: x"),
        (UnicodeDecodeError, ("utf-8", b"", 0, 1, "bad"), "UnicodeDecodeError: 'utf-8'"),
    ],
)  # fmt: skip
def test_an_error_of_any_class_ends_one_check(monkeypatch, tmp_path, error, words, text):
    """In a check, in the comparison, in a measurement, in the simulated time of one."""

    def fails(*_: Any, **__: Any) -> Any:
        raise error(*words)

    some = [checks.Check("a", "gemm", "", fails), *list(checks.checks("npu2"))[:2]]
    monkeypatch.setattr(selftest, "checks", lambda generation: iter(some))
    case = measure.Case("geglu", "1B, a token", {"elements": 8192})
    broken = measure.Case("geglu", "not so", {"elements": -1})
    monkeypatch.setattr(selftest, "cases", lambda: iter([broken, case]))
    monkeypatch.setattr(selftest, "simulated_seconds", lambda _, one: 1.0 if one is case else fails)
    with npu.device("emu:npu2") as device:
        found = selftest.run(device, runs=1)
    assert [row["passed"] for row in found["checks"]] == [False, True, True]
    assert found["checks"][0]["error"].startswith(text) and not found["passed"]
    assert found["checks"][0]["kind"] == "untyped"
    assert "error" in found["measurements"][0] and "error" not in found["measurements"][1]
    report.save(tmp_path / "report.json", found)
    assert report.load(tmp_path / "report.json")["checks"][0] == found["checks"][0]
    monkeypatch.setattr(selftest, "compare", fails)
    monkeypatch.setattr(selftest, "simulated_seconds", fails)
    with npu.device("emu:npu2") as device:
        found = selftest.run(device, runs=1)
    assert [row["error"].startswith(text) for row in found["checks"]] == [True] * 3
    assert found["measurements"][1]["error"].startswith(text)


def test_checks_that_cannot_be_made_leave_the_report(monkeypatch):
    def some(generation: str) -> Any:
        yield next(iter(checks.checks(generation)))
        raise MemoryError("no room for the next one")

    monkeypatch.setattr(selftest, "checks", some)
    with npu.device("emu:npu2") as device:
        found = selftest.run(device, times=False)
    assert [row["passed"] for row in found["checks"]] == [True, False]
    assert found["checks"][1]["name"] == "further checks" and not found["passed"]
    assert found["checks"][1]["error"] == "MemoryError: no room for the next one"


def test_an_npu_is_warm_when_it_is_measured(monkeypatch):
    """Its clock takes up to 3.5 s to rise; an emulated one has none."""
    seen = []

    def measured(device: Any, case: Any, runs: int, warm_up: float) -> measure.Measurement:
        seen.append(warm_up)
        return measure.Measurement(1.0, 1.0, 1.0, runs)

    case = measure.Case("geglu", "1B, a token", {"elements": 8192})
    monkeypatch.setattr(selftest, "checks", lambda generation: iter([]))
    monkeypatch.setattr(selftest, "cases", lambda: iter([case]))
    monkeypatch.setattr(selftest, "measure", measured)
    with npu.device("emu:npu2") as device:
        assert selftest.run(device)["warm_up_seconds"] == 0
        monkeypatch.setattr(device, "emulated", False)
        assert selftest.run(device)["warm_up_seconds"] == 4
    assert seen == [0, 4]


def test_the_first_run_is_cold_and_no_other(monkeypatch):
    case = measure.Case("geglu", "1B, a token", {"elements": 8192})
    now = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])

    runs = []

    def seconds(*_: Any) -> float:
        """Seven for the first run, one until the clock is up, then less."""
        took = 7.0 if not runs else 1.0 if now[0] < 7 + 3.5 else 0.25
        runs.append(took)
        now[0] += took
        return took

    monkeypatch.setattr(measure, "_seconds", seconds)
    with npu.device("emu:npu2") as device:
        took = measure.measure(device, case, 3, warm_up=4.0)
        assert (took.first, took.median, took.fastest) == (7.0, 0.25, 0.25)
        assert len(runs) == 1 + 4 + 3
        measure.measure(device, case, 3)
        assert len(runs) == 1 + 4 + 3 + 1 + 3


def test_measurements_run_the_real_streams(monkeypatch):
    case = measure.Case("geglu", "1B, a token", {"elements": 8192})
    with npu.device("emu:npu2") as device:
        before = device.counters()["submissions"]
        took = measure.measure(device, case, 3)
        assert device.counters()["submissions"] - before == 4
    assert 0 < took.fastest <= took.median and took.runs == 3
    assert measure.simulated_seconds("npu2", case) == pytest.approx(9.2e-5, rel=0.2)


def test_a_run_that_does_not_end_is_an_error():
    case = measure.Case("gemm", "512 cubed", {"m": 512, "k": 512, "n": 512})
    with npu.device("emu:npu2") as device:
        with pytest.raises(DeviceError, match=r"\[selftest\] gemm \(512 cubed\) has not ended"):
            measure.measure(device, case, 1, timeout=0.0)
        assert measure.measure(device, case, 1).median > 0  # the next one works


def _report(**changes: Any) -> dict[str, Any]:
    row = {
        "operation": "geglu", "example": "1B, a token", "request": {"elements": 8192},
        "first_seconds": 2e-4, "median_seconds": 1e-4, "fastest_seconds": 9e-5, "runs": 10,
        "simulated_seconds": 9e-5,
    }  # fmt: skip
    return {
        "format": report.FORMAT, "passed": True, "checks": [], "measurements": [row],
        "device": {"name": "xrt", "generation": "npu2", "emulated": False},
    } | changes  # fmt: skip


def test_reports_of_an_npu_are_compared_with_simulated_times(tmp_path, capsys):
    path = tmp_path / "report.json"
    failed = {"operation": "gemm", "example": "x", "request": {}, "error": "[submit] timed out"}
    report.save(path, _report(measurements=[*_report()["measurements"], failed]))
    found = validate.validate(path)
    simulated = measure.simulated_seconds("npu2", measure.Case("geglu", "", {"elements": 8192}))
    assert found.rows[0].measured == 1e-4 and found.rows[0].simulated == simulated
    assert found.mean_absolute_error == abs(simulated / 1e-4 - 1)
    assert found.skipped == ["gemm x: [submit] timed out"]
    assert cli.main(["validate-model", "--report", str(path)]) == 0
    assert "geglu" in capsys.readouterr().out


def test_reports_are_compared_on_a_machine(tmp_path, capsys):
    path = tmp_path / "report.json"
    (row,) = _report()["measurements"]
    product = {"operation": "gemv", "request": {"n": 1024, "k": 2048, "batch": 1}}
    report.save(path, _report(measurements=[row | product]))
    default, slow = validate.validate(path), validate.validate(path, "krackan-gemma")
    assert (default.machine, slow.machine) == ("krackan-gemm", "krackan-gemma")
    assert slow.rows[0].simulated > default.rows[0].simulated
    words = ["validate-model", "--report", str(path), "--machine"]
    assert cli.main([*words, "krackan-gemma"]) == 0
    assert "machine krackan-gemma" in capsys.readouterr().out
    assert cli.main([*words, "phoenix-gemm"]) != 0


def test_reports_without_times_of_an_npu_are_refused(tmp_path):
    path = tmp_path / "report.json"
    emulated = {"name": "emu:npu2", "generation": "npu2", "emulated": True}
    for changes, message in (
        ({"device": emulated}, "emulated device"),
        ({"measurements": []}, "no measured times"),
    ):
        report.save(path, _report(**changes))
        with pytest.raises(ArgumentError, match=message):
            validate.validate(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "npu-selftest 2"},
        {"device": {}},
        {"device": {"emulated": False, "generation": "npu3"}},
        {"checks": None},
        {"measurements": [1]},
        {"measurements": [{"operation": "gemm"}]},
        {"measurements": [_report()["measurements"][0] | {"median_seconds": 0}]},
        {"measurements": [_report()["measurements"][0] | {"median_seconds": True}]},
        {"measurements": [_report()["measurements"][0] | {"request": {"elements": 1.5}}]},
    ],
)
def test_documents_that_are_no_report_are_refused(tmp_path, changes):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(_report(**changes)))
    with pytest.raises(FormatError, match="is no report of a self-test"):
        report.load(path)


@settings(deadline=None, max_examples=200)
@given(data=st.binary(max_size=300), cut=st.integers(0, 400), seed=st.integers(0, 2**32))
def test_damaged_reports_never_crash(tmp_path_factory, data, cut, seed):
    path = tmp_path_factory.mktemp("fuzz") / "report.json"
    good = json.dumps(_report()).encode()
    at = seed % len(good)
    for damaged in (data, good[:cut], good[:at] + data[:3] + good[at + 3 :]):
        path.write_bytes(damaged)
        try:
            report.load(path)
        except FormatError as error:
            assert str(error).startswith("[selftest] ")


def test_missing_and_huge_files(tmp_path, monkeypatch):
    with pytest.raises(FormatError, match="No such file"):
        report.load(tmp_path / "none.json")
    with pytest.raises(FormatError):
        report.load(tmp_path)
    monkeypatch.setattr(report, "_LARGEST", 10)
    report.save(tmp_path / "big.json", _report())
    with pytest.raises(FormatError, match="more than"):
        report.load(tmp_path / "big.json")


def test_the_command_writes_a_report_and_says_what_failed(tmp_path, monkeypatch, capsys):
    path = tmp_path / "report.json"
    assert cli.main(["selftest", "--device", "emu:npu1", "--no-times", "-o", str(path)]) == 0
    out = capsys.readouterr().out
    assert "checks passed" in out and "copy" in out
    found = report.load(path)
    assert found["passed"] and found["stamp"]["version"] == npu.__version__

    def wrong(*, device: npu.Device) -> np.ndarray:
        return np.zeros(4, np.int32) + device.arithmetic.startswith("silicon")

    monkeypatch.setattr(
        selftest, "checks", lambda generation: iter([checks.Check("zeros", "gemm", "4", wrong)])
    )
    arguments = ["selftest", "--device", "emu:npu2", "--no-times", "--json"]
    assert cli.main(arguments) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["checks"][0]["worst"] == 4
    assert "failed: zeros" in captured.err


def test_a_report_that_cannot_be_written_is_refused_before_the_work(monkeypatch, capsys):
    devices = importlib.import_module("npu.devices")  # npu.devices is the function
    monkeypatch.setattr(devices, "open_device", lambda name: pytest.fail("opened"))
    assert cli.main(["selftest", "--device", "emu:npu1", "-o", "/no/such/folder/x.json"]) == 1
    assert "[selftest] /no/such/folder/x.json has no folder to be in" in capsys.readouterr().err


def test_without_hardware_the_command_says_so(monkeypatch, capsys):
    monkeypatch.delenv("NPU_DEVICE", raising=False)
    assert cli.main(["selftest", "--no-times"]) == 1
    assert "xrt" in capsys.readouterr().err
