"""Where simulated cycles of kernels come from: the table of generated schedules agrees with
the generator, both methods charge it, results and files say which profile it was, and a wrong name
is a typed error in every simulation.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import npu
from npu import _npu
from npu.cli import main
from npu.errors import ArgumentError
from npu.ops.registry import operation
from npu.perf import kernel_profile
from npu.perf.operation_simulation import simulate_operation
from npu.vliw import cycles

SCRIPT = Path(__file__).parents[3] / "aie_kernels" / "counting" / "kernel_schedules.py"
LINES = _npu.perf.schedules()
CALL = next(c["value"] for c in _npu.perf.constants() if c["name"] == "schedule_call")
TYPES = {"i8": "int8", "i16": "int16", "i32": "int32", "f32": "float32", "bf16": "bfloat16"}


def _line(device: str, kernel: str, k: int) -> dict[str, Any]:
    return next(x for x in LINES if (x["device"], x["kernel"], x["k"]) == (device, kernel, k))


# The table and the generator


def test_every_pipelined_kernel_has_a_line_for_every_k() -> None:
    found = {(x["device"], x["kernel"], x["k"]) for x in LINES}
    for (device, kernel), variant in (cycles.VARIANTS | cycles.PROMPTS).items():
        assert {(device, kernel, steps * variant.tile[1]) for steps in variant.steps} <= found


def _agrees(device: str, kernel: str, steps: int) -> None:
    made = cycles.of(device, kernel, steps)
    rows, k, columns = made.variant.tile
    line = _line(device, kernel, steps * k)
    block = made.variant.block[0] * rows, made.variant.block[1] * columns
    assert tuple(line["block"]) == block
    assert (line["interval"], line["outside"]) == (made.interval, made.outside)
    assert line["code_bytes"] == made.code_bytes


def test_a_line_agrees_with_its_schedule() -> None:
    """The smallest kernel; the others below."""
    _agrees("npu2", "matmul_i8_i8_pipelined", 2)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "kernel"), list(enumerate(sorted(cycles.VARIANTS))))
def test_lines_agree_with_their_schedules(number: int, kernel: tuple[str, str]) -> None:
    """One k of each kernel, another one for each."""
    steps = cycles.VARIANTS[kernel].steps
    _agrees(*kernel, steps[number % len(steps)])


@pytest.mark.parametrize("kernel", ["convert_bf16_bfp16_b_bcol", "convert_f32_bfp16_c"])
def test_lines_of_conversions_agree_with_their_schedules(kernel: str) -> None:
    """In order; of a row-major B below."""
    found = [x for x in LINES if x["kernel"] == kernel]
    made = cycles.conversion(kernel)
    assert [(x["k"], *x["block"], x["interval"], x["outside"], x["code_bytes"]) for x in found] == [
        (1, 1, 64 * m.tiles, m.interval, m.outside, m.code_bytes) for m in made
    ]


def test_a_line_of_a_row_major_b_agrees_with_its_schedule() -> None:
    line = _line("npu2", "convert_bf16_bfp16_b", 16)
    (made,) = cycles.conversion("convert_bf16_bfp16_b", 2)
    assert tuple(line["block"]) == (1, 64 * made.tiles)
    assert (line["interval"], line["outside"]) == (made.interval, made.outside)
    assert line["code_bytes"] == made.code_bytes


def test_the_script_reads_and_writes_the_file_as_it_is(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("kernel_schedules", SCRIPT)
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script
    spec.loader.exec_module(script)
    before, lines = script.TABLE.read_text(), script.read()
    assert len(lines) == len(LINES)
    script.TABLE = tmp_path / "table.inc"
    script.write(list(reversed(lines)))
    assert script.TABLE.read_text() == before


# Who is charged


@pytest.mark.parametrize("method", ["emulator", "closed-form"])
@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize(("out", "k"), [("i8", 16), ("i8", 32), ("i16", 32), ("i32", 64)])
def test_pipelined_designs_are_charged_their_schedules(
    out: str, k: int, layout: str, method: str
) -> None:
    """By default, and when asked for; "published" charges the constants."""
    m, n = 64, 96
    kernel = f"matmul_i8_{out}_pipelined" + ("_bcol" if layout == "col" else "")
    line = _line("npu2", kernel, k)
    blocks = m * n // 256
    total = blocks * line["interval"] + line["outside"] + CALL
    design = {"tile": (m, k, n), "k_mt": k, "b_layout": layout, "kernel": "pipelined"}
    run = [
        npu.simulate_gemm(
            "npu2", 256, k, 768, dtype_out=TYPES[out], model=method, kernels=kernels, **design
        )
        for kernels in (None, "scheduled", "published")
    ]
    assert run[0].macs_per_cycle == pytest.approx(m * k * n / total)
    assert run[1].macs_per_cycle == run[0].macs_per_cycle
    assert run[2].macs_per_cycle < run[0].macs_per_cycle or out != "i8"
    assert run[2].macs_per_cycle != run[0].macs_per_cycle
    zero = "zero_*" if method == "closed-form" else f"zero_{out}"
    assert run[0].kernels == run[1].kernels == f"scheduled ({zero}: counted)"
    assert run[2].kernels == "published"


@pytest.mark.parametrize("method", ["emulator", "closed-form"])
def test_npu1_bf16_has_a_schedule_that_published_designs_take_when_asked(method: str) -> None:
    """With columns left over: 72 = 4 blocks of 16, and half a one in a loop of its own."""
    m, k, n = 64, 56, 72
    wide, narrow = (x for x in LINES if (x["kernel"], x["k"]) == ("matmul_bf16_f32", k))
    total = 8 * 4 * wide["interval"] + 8 * narrow["interval"] + CALL
    total += wide["outside"] + narrow["outside"]
    design = {"dtype_in": "bfloat16", "dtype_out": "float32", "tile": (m, k, n), "k_mt": k,
              "b_layout": "row", "model": method}  # fmt: skip
    sizes = ("npu1", 256, k, 288)
    asked = npu.simulate_gemm(*sizes, kernels="scheduled", **design)
    assert asked.macs_per_cycle == pytest.approx(m * k * n / total)
    assert asked.kernels.startswith("scheduled (zero_")
    usual = npu.simulate_gemm(*sizes, **design)
    assert usual == npu.simulate_gemm(*sizes, kernels="published", **design)
    assert usual.kernels == "published"
    assert usual.macs_per_cycle != asked.macs_per_cycle


@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize(("device", "tile"), [("npu1", (64, 88, 64)), ("npu2", (64, 52, 48))])
def test_int16_has_a_schedule_that_published_designs_take_when_asked(
    device: str, tile: tuple[int, int, int], layout: str
) -> None:
    """The closed form and the emulator charge the same; by default both charge the constants."""
    m, k, n = tile
    line = _line(device, "matmul_i16_i32" + ("_bcol" if layout == "col" else ""), k)
    rows, columns = line["block"]
    total = m * n // (rows * columns) * line["interval"] + line["outside"] + CALL
    sizes = (device, 4 * m, 2 * k, n * (8 if device == "npu2" else 4))
    for model in ("emulator", "closed-form"):
        design = {"dtype_in": "int16", "tile": tile, "k_mt": 2 * k, "b_layout": layout,
                  "model": model}  # fmt: skip
        asked = npu.simulate_gemm(*sizes, kernels="scheduled", **design)
        assert asked.macs_per_cycle == pytest.approx(m * k * n / total)
        assert asked.kernels.startswith("scheduled (zero_")
        usual = npu.simulate_gemm(*sizes, **design)
        assert usual.macs_per_cycle < 0.92 * asked.macs_per_cycle
        assert usual.kernels == "published"


def test_a_kernel_without_a_schedule_costs_what_it_did_and_the_result_says_so() -> None:
    for method in ("emulator", "closed-form"):
        runs = [
            npu.simulate_gemm(
                "npu2", 512, 512, 512, dtype_in="int8", dtype_out="int32", model=method,
                kernels=kernels,
            )
            for kernels in ("published", "scheduled")
        ]  # fmt: skip
        assert runs[0].seconds == runs[1].seconds
        zero = "zero_*" if method == "closed-form" else "zero_i32"
        assert runs[1].kernels == f"scheduled (matmul_i8_i32_bcol: published; {zero}: counted)"


def test_descriptions() -> None:
    sources = {"a": "scheduled", "b": "counted", "c": "counted", "d": "published"}
    assert kernel_profile.described({}, sources) == "scheduled (b, c: counted; d: published)"
    assert kernel_profile.described({}, {"a": "scheduled"}) == "scheduled"
    part = {"a": "scheduled in part", "b": "counted"}
    assert kernel_profile.described({}, part) == "scheduled (a: in part; b: counted)"
    assert kernel_profile.described({}, {"b": "counted"}) == "published"
    many = {str(i): "counted" for i in range(9)}
    assert kernel_profile.described({"kernels": 2.0}, many) == "scheduled (9 kernels: counted)"


# Who says so

GEMV = next(iter(operation("gemv").examples))
SIMULATIONS: dict[str, Callable[..., Any]] = {
    "simulate_gemm": lambda **kw: npu.simulate_gemm("npu2", 512, 512, 512, **kw),
    "simulate_gemv": lambda **kw: npu.simulate_gemv("npu2", 1024, 1024, **kw),
    "simulate_dequantize": lambda **kw: npu.simulate_dequantize("npu2", 256, 256, **kw),
    "simulate_operation": lambda **kw: simulate_operation(
        "gemv", "npu2", operation("gemv").examples[GEMV], **kw
    ),
    "simulate_decode": lambda **kw: npu.simulate_decode("npu2", "gemma3-270m", 16, **kw),
    "simulate_prefill": lambda **kw: npu.simulate_prefill("npu2", "gemma3-1b", 64, **kw),
    "simulate_batch": lambda **kw: npu.simulate_batch("npu2", "gemma3-1b", 64, 2, **kw),
    "trace_gemm": lambda **kw: npu.trace_gemm("npu2", 512, 512, 512, **kw),
    "trace_token": lambda **kw: npu.trace_token("npu2", "gemma3-270m", 16, **kw),
    "trace_prefill": lambda **kw: npu.trace_prefill("npu2", "gemma3-1b", 64, **kw),
}


@pytest.mark.parametrize("name", SIMULATIONS)
@pytest.mark.parametrize("kernels", ["schedule", 2, ""])
def test_an_unknown_profile_is_an_error(name: str, kernels: Any) -> None:
    with pytest.raises(ArgumentError, match=rf'\[{name}\] kernels is .*"published" or "scheduled"'):
        SIMULATIONS[name](kernels=kernels)


STAMPS = {
    "simulate_gemv": "scheduled (gemv_block: in part; gemv_setup: counted)",
    "simulate_dequantize": "scheduled",
    "simulate_operation": "scheduled (gemv_block: in part; gemv_setup: counted)",
}


@pytest.mark.parametrize("name", STAMPS)
def test_loops_over_lanes_are_scheduled_by_default(name: str) -> None:
    """npu2's; the results name what is counted."""
    usual, asked, counted = (SIMULATIONS[name](kernels=k) for k in (None, "scheduled", "published"))
    assert usual == asked
    assert usual.kernels == STAMPS[name]
    assert counted.kernels == "published"


@pytest.mark.parametrize("device", ["npu1", "npu2"])
def test_products_of_bfloat16_with_a_vector_are_counted(device: str) -> None:
    usual, asked = (
        npu.simulate_gemv(device, 512, 1024, format="bf16", kernels=kernels)
        for kernels in (None, "scheduled")
    )
    assert usual.kernels == "published"
    assert asked.kernels == "scheduled (gemv_block, gemv_setup: counted)"
    assert usual.seconds == asked.seconds


@pytest.mark.parametrize("format", ["q4nx", "q8"])
def test_products_of_codes_with_a_vector_are_scheduled_on_npu1(format: str) -> None:
    usual, counted = (
        npu.simulate_gemv("npu1", 512, 1024, format=format, kernels=kernels)
        for kernels in (None, "published")
    )
    assert usual.kernels == STAMPS["simulate_gemv"]
    assert usual.seconds < counted.seconds


def test_tokens_and_prompts_say_what_is_scheduled() -> None:
    token = SIMULATIONS["trace_token"](limit=1)
    prompt = SIMULATIONS["trace_prefill"](limit=1, layers=1)
    for run, kernels in (
        (token, "attention_scores, gemv_kept, vector_input: in part"),
        (prompt, "prefill_geglu_piece, prefill_multiply: in part"),
    ):
        assert run.simulation.kernels.startswith("scheduled (")
        assert kernels in run.simulation.kernels
    one = SIMULATIONS["simulate_decode"]()
    assert one.kernels == token.simulation.kernels
    assert SIMULATIONS["simulate_decode"](kernels="published").kernels == "published"


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(list(words)) == 0
    return json.loads(capsys.readouterr().out)


def test_commands_say_it(capsys: pytest.CaptureFixture[str]) -> None:
    gemm = ("bench", "gemm", "--device", "npu2", "--dtype", "int8", "--out-dtype", "int8",
            "--b-layout", "col", "--method", "closed-form", "--sizes", "1024")  # fmt: skip
    found = _json(capsys, *gemm, "--kernels", "scheduled", "--json", "-")
    assert found["kernels"] == found["stamp"]["kernels"] == "scheduled"
    assert main([*gemm]) == 0
    assert "kernels: scheduled, of published designs published" in capsys.readouterr().out
    assert main([*gemm, "--kernels", "guessed"]) == 2
    assert "guessed" in capsys.readouterr().err


def test_traces_carry_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    assert main(["trace", "512", "256", "1024", "--device", "npu2", "--out-dtype", "int8",
                 "--tile", "64,32,64", "--k-mt", "64", "--kernel", "pipelined", "--no-locks",
                 "-o", str(path)]) == 0  # fmt: skip
    assert "kernels: scheduled (zero_i8: counted)" in capsys.readouterr().err
    assert json.loads(path.read_text())["otherData"]["kernels"] == "scheduled (zero_i8: counted)"
