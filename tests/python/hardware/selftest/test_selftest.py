"""The self-test: it passes on the emulated NPUs; a device that returns one wrong bit, a value just
beyond a bound, an error or a run that does not end fails that check and no other; reports are read
as they were written, and anything else is refused with one sentence."""

from __future__ import annotations

import dataclasses
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


@pytest.mark.parametrize("name", ["emu:npu1", "emu:npu2"])
def test_emulated_devices_pass(name):
    with npu.device(name) as device:
        found = selftest.run(device, times=False)
    assert found["passed"] and found["measurements"] == []
    assert found["device"]["emulated"] and found["device"]["generation"] == name[4:]
    operations = {row["operation"] for row in found["checks"]}
    assert operations >= {"copy", "gemm", "gemv", "dequant", "rms_norm", "rope", "geglu"}
    names = [row["name"] for row in found["checks"]]
    assert len(set(names)) >= len(names) - 2  # the attentions differ by their sizes


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_npu_build_builds_what_the_checks_run(generation):
    """On an NPU, whose time counts: every configuration is among those of `npu build`."""
    with npu.device(f"emu:{generation}", designs="array") as device:
        for check in checks.checks(generation):
            check.compute(device=device)
        used = {(name, getattr(key, "key", "")) for name, key in device._operations}
    usual = {(t.operation, t.key) for t in targets.every(generation) if t.usual}
    assert len({key for name, key in used if name == "gemm"}) >= 5
    for name, key in used:
        assert (name, key or f"{generation}-{name}") in usual


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


def test_without_hardware_the_command_says_so(monkeypatch, capsys):
    monkeypatch.delenv("NPU_DEVICE", raising=False)
    assert cli.main(["selftest", "--no-times"]) == 1
    assert "xrt" in capsys.readouterr().err
