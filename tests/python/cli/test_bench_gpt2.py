"""`npu bench gpt2`: the step is the paper's, its split adds up to the simulations of its products,
the measured copies are those that npu.torch's layers make, and every time says which kind it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from npu import cli
from npu.devices import open_device
from npu.perf.gpt2_products import in_order, products
from npu.perf.simulate import simulate_call

SMALL = ("--tokens", "64", "--width", "64", "--layers", "2", "--vocabulary", "300")


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPU_DEVICE", raising=False)


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["bench", "gpt2", "--json", "-", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_step_is_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    """Twelve sizes, in 147 products of which 98 are backward, on both devices."""
    found = bench(capsys, "--no-host")
    assert found["times"] == "simulated" and found["stamp"]["benchmark"] == "gpt2"
    assert [step["device"] for step in found["steps"]] == ["npu1", "npu2"]
    for step in found["steps"]:
        rows = [row for row in found["results"] if row["device"] == step["device"]]
        assert len({(row["M"], row["K"], row["N"]) for row in rows}) == 12
        assert sum(row["calls"] for row in rows) == 147
        assert sum(row["calls"] for row in rows if row["operation"] != "forward") == 98
        split = step["simulated_ms"]
        total = sum(row["calls"] * row["simulated_us"] for row in rows)
        assert split["kernel"] + split["synchronisation"] == pytest.approx(total / 1e3)
        assert step["tops"] == pytest.approx(found["gflop"] / total * 1e3)
        assert step["measured_ms"] is None and "cpu_ms" not in rows[0]
    assert found["gflop"] == pytest.approx(189.8, abs=0.05)


def test_npu1_reaches_its_goal(capsys: pytest.CaptureFixture[str]) -> None:
    """2.5 TFLOP/s over all products in bfloat16, simulated, dispatch included, without a load."""
    (step,) = bench(capsys, "--no-host", "--device", "npu1")["steps"]
    assert step["tops"] >= 2.5
    assert step["loads"] == 0


def test_a_step_goes_forward_and_back() -> None:
    """Each gradient directly after the other of its layer, last layer first."""
    of = list(products(8, 8, 2, 16))
    chain = list(in_order(of))
    assert len(chain) == sum(one.calls for one in of) == 27
    names = [one.layer for one in of if one.kind == "forward"]
    assert [one.layer for one in chain[:9]] == [*names[:4], *names]
    back = [one.layer for one in chain[9:]]
    assert back[::2] == back[1::2] == [one.layer for one in reversed(chain[:9])]


def test_rows_are_the_simulations_of_their_products(capsys: pytest.CaptureFixture[str]) -> None:
    """The two gradients of a layer, whose submission is one, add up to its simulation."""
    found = bench(capsys, "--no-host", "--device", "npu1", "--kernels", "published", *SMALL)
    assert found["machine"] == "phoenix-gemm"
    rows = found["results"]
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        ((text, calls),) = row["designs"].items()
        assert calls == row["calls"]
        designs = [o for o in _designs(row) if o.text == text]
        expected, more = row["simulated_us"], {}
        if row["operation"] == "of weights":
            continue  # seen with the row before
        if row["operation"] == "of inputs":
            assert (
                after and after["operation"] == "of weights" and after["designs"] == row["designs"]
            )
            expected += after["simulated_us"]
            more = {f"then_{name}": after[name.upper()] for name in "mkn"}
            assert row["dispatch_us"] == after["dispatch_us"] == pytest.approx(35)
        size = row["M"], row["K"], row["N"]
        times = [1e6 * simulate_call(o, size, stored=more).seconds for o in designs]
        assert any(expected == pytest.approx(time) for time in times)


def _designs(row: dict[str, Any]) -> Any:
    from npu.designs import gemm_catalogue

    layout = "col" if row["operation"] == "forward" else "row"
    return gemm_catalogue.candidates("npu1", "bfloat16", "bfloat16", layout)


def test_what_an_npu_would_have(capsys: pytest.CaptureFixture[str]) -> None:
    """Operands that stay in memtiles have no form that could be compiled."""
    sizes = ("--tokens", "256", "--width", "768", "--layers", "1", "--vocabulary", "768")
    common = ("--no-host", "--device", "npu1", *sizes)
    (kept,), (square,) = (bench(capsys, *common, *more)["steps"] for more in ((), ("--buildable",)))
    assert [step["configurations"][0].split()[0] for step in (kept, square)] == [
        "gemm_bf16_bf16_kept", "gemm_bf16_bf16_square",
    ]  # fmt: skip
    assert kept["tops"] > 1.1 * square["tops"]


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_measured_copies_are_those_of_a_layer(
    capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    """A forward and a backward pass of npu.torch.Linear copy as many bytes as the three rows of
    that layer say: of multiples of 256 in float32 what is rounded, in bfloat16 none."""
    torch = pytest.importorskip("torch")
    import npu.torch

    sizes = ("--tokens", "512", "--width", "512", "--layers", "1", "--vocabulary", "768")
    found = bench(capsys, "--device", "npu1", "--dtype", dtype, "--repeats", "1", *sizes)
    assert found["times"] == "simulated; host and CPU: measured on this machine"
    rows = [row for row in found["results"] if row["projection"] == "head"]
    kind = {"bf16": torch.bfloat16, "f32": torch.float32}[dtype]
    weight = torch.ones(768, 512, dtype=kind, requires_grad=True)
    x = torch.ones(512, 512, dtype=kind, requires_grad=True)
    null = open_device("null:npu1", designs="array")
    before = npu.stats()
    y = npu.torch.linear(x, weight, device=null)
    y.backward(torch.ones_like(y))
    assert (npu.stats() - before).host_copy_bytes == sum(row["copied_bytes"] for row in rows)
    rounded = 512 * 512 + 768 * 512 + 512 * 768 + 512 * 512  # x and W, dy and x
    assert sum(row["copied_bytes"] for row in rows) == (2 * rounded if dtype == "f32" else 0)
    for row in rows:
        assert row["transposition_ms"]["median"] == 0
        assert (row["input_copy_ms"]["median"] > 0) == (dtype == "f32")
    assert all(row["cpu_ms"]["median"] > 0 and row["call_ms"]["median"] > 0 for row in rows)


def test_torch_is_asked_for_by_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch the measured part is an error that says how to do without it."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "npu.cli.bench_gpt2_host", raising=False)
    assert cli.main(["bench", "gpt2", *SMALL]) == 1
    assert "--no-host" in capsys.readouterr().err
    assert cli.main(["bench", "gpt2", "--no-host", "--device", "npu1", *SMALL]) == 0
    assert "simulated" in capsys.readouterr().out


def test_plot_and_unknown_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "step.svg"
    assert cli.main(["bench", "gpt2", "--no-host", "--plot", str(plot), *SMALL]) == 0
    text = plot.read_text()
    assert "simulated" in text and "measured" not in text
    assert cli.main(["bench", "gpt2", "--no-host", "--device", "npu3"]) == 1
    assert "npu1 or npu2" in capsys.readouterr().err
