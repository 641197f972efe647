"""Machine profiles: every simulation takes one, follows its memory and says whose figures it gives;
the defaults are those of the table of constants; what is no machine of the generation is refused,
in Python and on the command line.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from register_script import Script
from test_decode_simulation import SMALL

import npu
from npu import cli
from npu.emulator import Array
from npu.errors import ArgumentError, DeviceError
from npu.perf import machines, tune
from npu.perf.operation_simulation import simulate_operation
from npu.perf.simulate import simulate_call

GEMM = {"dtype_out": "int8", "tile": (64, 64, 64), "k_mt": 64}
SIZE = (512, 512, 512)


# Name -> a simulation whose time depends on the memory.
SIMULATIONS: dict[str, Callable[..., Any]] = {
    "emulator": lambda **k: npu.simulate_gemm("npu2", *SIZE, **GEMM, **k),
    "closed-form": lambda **k: npu.simulate_gemm("npu2", *SIZE, **GEMM, model="closed-form", **k),
    "gemv": lambda **k: npu.simulate_gemv("npu2", 1024, 2048, **k),
    "dequantize": lambda **k: npu.simulate_dequantize("npu2", 4096, 2048, **k),
    "decode": lambda **k: npu.simulate_decode("npu2", SMALL, 64, **k),
    "operation": lambda **k: simulate_operation("gemv", "npu2", {"n": 1024, "k": 2048, "batch": 1},
                                                **k),
    "trace": lambda **k: npu.trace_gemm("npu2", *SIZE, **GEMM, **k),
    "token trace": lambda **k: npu.trace_token("npu2", _one_format(), 64, limit=10, **k),
}  # fmt: skip


def _one_format() -> Any:
    formats = SMALL.layers[0].formats
    layers = tuple(dataclasses.replace(layer, formats=formats) for layer in SMALL.layers)
    return dataclasses.replace(SMALL, layers=layers)


def seconds(result: Any) -> float:
    return float(getattr(result, "simulation", result).seconds)


@pytest.mark.parametrize("name", SIMULATIONS)
def test_every_simulation_follows_the_machine_and_says_so(name: str) -> None:
    simulate = SIMULATIONS[name]
    default, same = simulate(), simulate(machine="krackan-gemm")
    fast, slow = simulate(machine="strix-atb"), simulate(machine="krackan-gemma")
    assert default.machine == same.machine == "krackan-gemm"
    assert seconds(default) == seconds(same)
    assert (fast.machine, slow.machine) == ("strix-atb", "krackan-gemma")
    if name == "dequantize":  # reads and writes together: 65, not 66.6 GB/s
        assert seconds(slow) > seconds(fast) > seconds(default)
    else:
        assert seconds(slow) > seconds(default) > seconds(fast)
    with pytest.raises(ArgumentError, match="krackan-gemm, strix-atb, krackan-gemma"):
        simulate(machine="strix")
    with pytest.raises(ArgumentError, match="phoenix-gemm has an npu1"):
        simulate(machine="phoenix-gemm")


@pytest.mark.parametrize("function", ["simulate_prefill", "simulate_batch", "trace_prefill"])
def test_prompts_and_batches_follow_the_machine(function: str) -> None:
    shape = dataclasses.replace(
        npu.perf.decode_simulation.shape_of("gemma3-270m"),
        layers=npu.perf.decode_simulation.shape_of("gemma3-270m").layers[:1],
    )
    simulate, count = getattr(npu, function), 64
    options = {"limit": 10} if function == "trace_prefill" else {}
    fast, slow = (
        simulate("npu2", shape, count, machine=name, **options)
        for name in ("strix-atb", "krackan-gemma")
    )
    assert (fast.machine, slow.machine) == ("strix-atb", "krackan-gemma")
    assert seconds(slow) > seconds(fast)


@pytest.mark.parametrize("constants", [{}, {"dispatch": 5.0}])
def test_an_array_is_simulated_on_a_machine(constants: dict[str, float]) -> None:
    stream = Script("npu1").lock(0, 2, 0, 1).bytes()
    array = Array("npu1")
    array.configure(Script("npu1").bytes())
    report = array.simulate(stream, constants=constants, machine="phoenix-gemm")
    assert report.timing is not None
    assert report.timing.machine == "phoenix-gemm" + (" with dispatch = 5" if constants else "")
    with pytest.raises(ArgumentError, match="strix-atb has an npu2"):
        array.simulate(stream, machine="strix-atb")


def test_tune_searches_on_the_machine() -> None:
    space = tune.Space("npu2", "int8", "int8", designs="published")
    workload = tune.Workload((SIZE,))
    evaluators = {
        name: tune.Evaluator(space, workload, machine=name)
        for name in (None, "strix-atb", "krackan-gemma")
    }
    point = npu.perf.problem.design_point("npu2", **GEMM)
    closed = {name: e.estimate_point(point)[0] for name, e in evaluators.items()}
    emulated = {name: e.emulate(point)[0] for name, e in evaluators.items()}
    for tops in (closed, emulated):
        assert tops["strix-atb"] > tops[None] > tops["krackan-gemma"]
    assert evaluators[None].values.label == "krackan-gemm"
    one = simulate_call(point, SIZE, machine="strix-atb")
    assert one.machine == "strix-atb" and one.tops == pytest.approx(emulated["strix-atb"], rel=0.01)
    with pytest.raises(ArgumentError, match="machine"):
        tune.Evaluator(space, workload, machine="no")


def test_changes_come_on_top_and_are_named() -> None:
    """``constants`` and what stands for one replace the machine's value; only what differs from it
    is named."""

    def run(**more: Any) -> Any:
        return npu.simulate_gemm("npu2", *SIZE, **GEMM, model="closed-form", **more)

    changed = run(machine="strix-atb", constants={"dram_read_npu2": 40, "dram_total_npu2": 50.6})
    assert changed.machine == "strix-atb with dram_read_npu2 = 40, dram_total_npu2 = 50.6"
    assert changed.seconds == run(machine="krackan-gemma").seconds
    assert run(machine="strix-atb", constants={"dram_read_npu2": 65}).machine == "strix-atb"
    assert run(stream_bytes=8).machine == "krackan-gemm with stream_npu2 = 8"
    assert run(stream_bytes=4).machine == "krackan-gemm"
    decode = npu.simulate_decode("npu2", SMALL, 64, machine="strix-atb", read_gbs=47)
    assert decode.machine == "strix-atb with dram_read_npu2 = 47" and decode.ceiling == 47e9


def test_profiles_are_of_constants() -> None:
    """Names and units are those of the table, values plausible, one default per generation."""
    table = {c["name"]: c for c in npu._npu.perf.constants()}
    for machine in machines.MACHINES:
        for constant in machine.memory():
            assert constant.unit == table[constant.name]["unit"] and constant.source
            assert constant.name.endswith(machine.generation)
            assert constant.grade in ("measured", "documented", "fitted", "assumed")
        read, total = (constant.value for constant in machine.memory())
        assert 0 < read <= total
    assert [m.name for m in machines.MACHINES if m.default] == ["krackan-gemm", "phoenix-gemm"]
    values = {m.name: m.memory()[0].value for m in machines.MACHINES}
    assert values["strix-atb"] == 65 and values["krackan-gemma"] == 40  # the papers' figures
    with pytest.raises(DeviceError, match="npu3"):
        machines.machine_of("f", "npu3", None)


COMMANDS = [
    "bench gemm --method closed-form --sizes 512 --dtype int8 --out-dtype int8 --b-layout col",
    "bench gemm --designs default --method closed-form --sizes 512 --dtype int8 --out-dtype int8",
    "bench gemm --k-mt-curve --method closed-form --sizes 512 --dtype int8 --out-dtype int8",
    "bench gemv --projections gemma3-1b",
    "bench dequant --projections gemma3-1b",
    "bench operations --operation rms_norm",
    "bench --simulated --shape gemma3-270m --context 64",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_print_and_write_the_machine(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "f.json"
    words = [*command.split(), "--machine", "strix-atb"]
    assert cli.main([*words, "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert document["machine"] == document["stamp"]["machine"] == "strix-atb"
    assert "strix-atb" in capsys.readouterr().out
    assert cli.main([*command.split(), "--machine", "nowhere"]) != 0
    assert "krackan-gemm, strix-atb, krackan-gemma" in capsys.readouterr().err


def test_tune_and_trace_take_the_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = "tune gemm --dtype int8 --out-dtype int8 --designs published --objective core --top 1"
    assert cli.main([*words.split(), "--machine", "strix-atb", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"] == "strix-atb"
    path = tmp_path / "t.json"
    words = f"trace 512 512 512 --machine krackan-gemma -o {path}"
    assert cli.main(words.split()) == 0
    assert "krackan-gemma" in capsys.readouterr().err
    assert json.loads(path.read_text())["otherData"]["machine"] == "krackan-gemma"


def test_the_list_of_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate-model", "--machines"]) == 0
    text = capsys.readouterr().out
    assert cli.main(["validate-model", "--machines", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed] == [m.name for m in machines.MACHINES]
    for one in listed:
        assert one["name"] in text and all(c["source"] in text for c in one["constants"])
    assert cli.main(["validate-model", "--machine", "strix-atb"]) != 0
    assert "--report" in capsys.readouterr().err
    for words in (["bench", "gemm"], ["bench", "simulated"], ["tune"], ["trace"]):
        assert cli.main([*words, "--help"]) == 0
        assert "strix-atb" in capsys.readouterr().out
