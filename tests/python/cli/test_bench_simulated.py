"""`npu bench --simulated`: rows and their split, of tokens and prompts, the published figures,
formats of a model's own matrices, the plot, and options that do not belong together; `npu trace
--token` and `--prefill`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from gemma3_files import Shape, small_types, write_model

import npu
from npu import cli

SHAPE = Shape(layers=2, width=512, heads=4, kv_heads=2, head_dim=64, ffn_width=1024)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model") / "m.gguf", SHAPE))


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPU_DEVICE", raising=False)


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["bench", "--simulated", "--json", "-", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_rows_of_a_shape(capsys: pytest.CaptureFixture[str]) -> None:
    document = bench(capsys, "--shape", "gemma3-1b", "--context", "1k,2000")
    assert document["ttft_note"] is None
    assert document["times"] == "simulated" and document["device"] == "npu2"
    assert document["stamp"]
    rows = document["results"]
    assert [row["context"] for row in rows] == [1024, 2000]
    for row in rows:
        prompt = npu.simulate_prefill("npu2", "gemma3-1b", row["context"])
        assert row["ttft_seconds"] == prompt.seconds and row["ttft_bound"] == prompt.bound
        assert sum(row["ttft_split_seconds"].values()) == pytest.approx(prompt.seconds)
        assert row["ttft_chunks"] == prompt.chunks == -(-row["context"] // 2048)
        assert row["ttft_configuration_loads"] == 2 and row["ttft_bytes"]["weights"] > 0
        found = npu.simulate_decode("npu2", "gemma3-1b", row["context"])
        assert row["decode_tokens_per_second"] == found.tokens_per_second
        assert sum(row["split_seconds"].values()) == pytest.approx(row["seconds_per_token"])
    first = {one["source"]: one for one in rows[0]["published"]}
    assert first["arXiv 2602.06063"]["tokens_per_second"] == 34.3
    ratio = rows[0]["decode_tokens_per_second"] / 41.1
    assert first["FastFlowLM 0.9.31"]["ratio"] == pytest.approx(ratio)
    assert rows[1]["published"] == [] and rows[1]["ttft_published"] == []
    first = {one["source"]: one for one in rows[0]["ttft_published"]}
    assert first["arXiv 2602.06063"]["seconds"] == 1.02
    assert first["arXiv 2602.06063"]["ratio"] == pytest.approx(rows[0]["ttft_seconds"] / 1.02)


def test_other_devices_ceilings_and_formats(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--shape", "gemma3-270m", "--context", "256")
    plain, *others = (
        bench(capsys, *words, *more)["results"][0]
        for more in ((), ("--device", "npu1"), ("--read-gbs", "30"), ("--format", "q8"))
    )
    assert all(o["seconds_per_token"] > plain["seconds_per_token"] for o in others)
    assert all(o["ttft_seconds"] > plain["ttft_seconds"] for o in others)
    assert others[0]["published"] == [] and others[2]["weight_bytes"] > plain["weight_bytes"]


@pytest.mark.parametrize(("large", "small"), [("q4nx", "q4_0"), ("q8", "q8_0")])
def test_small_blocks_are_faster(
    large: str, small: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--shape", "gemma3-1b", "--context", "512", "--batch", "4")
    before, after = (bench(capsys, *words, "--format", f)["results"][0] for f in (large, small))
    assert after["weight_bytes"] == pytest.approx(0.9 * before["weight_bytes"], rel=5e-3)
    assert after["decode_tokens_per_second"] > 1.07 * before["decode_tokens_per_second"]
    found = npu.simulate_decode("npu2", "gemma3-1b", 512, format=small)
    assert after["decode_tokens_per_second"] == found.tokens_per_second
    prompt = npu.simulate_prefill("npu2", "gemma3-1b", 512, format=small)
    assert after["ttft_seconds"] == prompt.seconds
    batch = npu.simulate_batch("npu2", "gemma3-1b", 512, 4, format=small)
    assert after["batch"]["seconds_per_step"] == batch.seconds
    # Prompts and batches read as much of memory for a small block as for a large one.
    assert after["ttft_seconds"] < 1.02 * before["ttft_seconds"]
    assert batch.bytes["weights"] == before["batch"]["bytes"]["weights"]


def test_the_table_fits_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "--shape", "gemma3-1b", "--context", "1k,128k", "--batch", "8"]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100 and "Batches of 8 sequences" in out
    assert "simulated" in out and "FastFlowLM 0.9.31: 41.1 tok/s" in out
    assert "arXiv 2602.06063: 1.02 s" in out and "binds most of the time" in out


def test_batches(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--shape", "gemma3-1b", "--context", "256,1k", "--batch", "3")
    rows = bench(capsys, *words)["results"]
    for row in rows:
        batch, found = row["batch"], npu.simulate_batch("npu2", "gemma3-1b", row["context"], 3)
        assert batch["sequences"] == 3 and batch["seconds_per_step"] == found.seconds
        assert batch["tokens_per_second"] == pytest.approx(3 / found.seconds)
        assert sum(batch["split_seconds"].values()) == pytest.approx(found.seconds)
        assert batch["bytes"] == found.bytes and batch["bound"] == found.bound
    assert "batch" not in bench(capsys, *words[:4])["results"][0]
    assert cli.main(["bench", "--simulated", "--shape", "gemma3-1b", "--batch", "9"]) == 1
    assert "[simulate_batch] sequences" in capsys.readouterr().err


def test_a_model_has_its_own_formats(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    auto, q4nx = (
        bench(capsys, "-m", model, "--context", "16", *more) for more in ((), ("--weights", "q4nx"))
    )
    assert auto["shape"] == q4nx["shape"] and auto["shape"].endswith("m.gguf")
    assert auto["results"][0]["weight_bytes"] > q4nx["results"][0]["weight_bytes"]
    assert q4nx["results"][0]["ttft_seconds"] > 0 and q4nx["ttft_note"] is None


def test_a_model_whose_blocks_are_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Q4_0, Q8_0 and Q5_0; the same matrices in large blocks where the head is not of these."""
    types = small_types(SHAPE.layers)
    small = str(write_model(tmp_path / "small.gguf", SHAPE, types=types))
    del types["token_embd.weight"]
    large = str(write_model(tmp_path / "large.gguf", SHAPE, types=types))
    found = [bench(capsys, "-m", path, "--context", "16")["results"][0] for path in (small, large)]
    assert found[0]["weight_bytes"] < 0.9 * found[1]["weight_bytes"]
    assert found[0]["ttft_seconds"] > 0


def test_prompts_of_models_that_the_array_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = dataclasses.replace(SHAPE, head_dim=48)  # no multiple of 32
    model = str(write_model(tmp_path / "m.gguf", shape))
    document = bench(capsys, "-m", model, "--context", "16")
    assert document["results"][0]["decode_tokens_per_second"] > 0
    assert document["results"][0]["ttft_seconds"] is None
    assert document["ttft_note"].startswith("null: ") and "a head" in document["ttft_note"]
    assert cli.main(["bench", "--simulated", "-m", model, "--context", "16"]) == 0
    out = capsys.readouterr().out
    assert "ttft_seconds is null" in out and "binds" not in out


def test_the_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "p.svg"
    words = ["--shape", "gemma3-1b", "--simulated", "--context", "256,1k", "--plot", str(file)]
    assert cli.main(["bench", *words]) == 0
    text = file.read_text()
    assert "simulated, npu2" in text and "published, measured: FastFlowLM 0.9.31" in text
    assert "tokens per second" in text and "seconds to the first token" in text


@pytest.mark.parametrize(
    ("words", "telling"),
    [
        (("--simulated", "--format", "q8"), "--shape"),
        (("--shape", "gemma3-1b", "--weights", "q8"), "-m MODEL"),
        (("--shape", "gemma3-1b", "-m", "x"), "not allowed"),
        (("--shape", "gemma3-9b"), "gemma3-9b"),
        (("--shape", "gemma3-1b", "--context", "k"), "positive"),
        (("--shape", "gemma3-1b", "--context", "0"), "positive"),
        (("--shape", "gemma3-1b", "--context", "4096k"), "context"),
        (("--shape", "gemma3-1b", "--read-gbs", "-1"), "read ceiling"),
        (("--shape", "gemma3-1b", "--device", "npu9"), "npu9"),
        (("--shape", "gemma3-1b", "--plot", "x.bmp"), ".png"),
    ],
)
def test_errors(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], telling: str) -> None:
    try:
        code = cli.main(["bench", *words])
    except SystemExit as error:
        code = int(error.code or 0)
    err = capsys.readouterr().err
    assert code in (1, 2) and telling in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "telling"),
    [
        (("--token", "--shape", "gemma3-270m", "--dtype", "int8", "4", "4", "4"), "M is of a GEMM"),
        (("--token", "--tile", "4,4,4"), "--tile is of a GEMM"),
        (("4", "4", "4", "--context", "1k"), "--context is of a token"),
        (("--token", "--context", "1k,2k"), "one number"),
        (("--prefill", "--tokens", "1k,2k"), "one number"),
        (("--prefill", "--tokens", "2k"), "tokens"),
        (("--prefill", "--context", "1k"), "--context is of a token"),
        (("--token", "--layers", "1"), "--layers is of a prompt"),
        (("--prefill", "--tile", "4,4,4"), "leave it out with --prefill"),
        (("4", "4", "4", "--position", "16"), "--position is of a prompt"),
    ],
)
def test_trace_errors(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], telling: str
) -> None:
    assert cli.main(["trace", *words, "-o", "/dev/null"]) == 1
    assert telling in capsys.readouterr().err


@pytest.mark.parametrize("format", ["q4nx", "q8_0"])
def test_trace_of_a_token(tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str) -> None:
    file = tmp_path / "t.json"
    words = ["--token", "--shape", "gemma3-270m", "--context", "64", "--to", "300", "--no-locks"]
    words += ["--format", format]
    assert cli.main(["trace", *words, "-o", str(file)]) == 0
    document = json.loads(file.read_text())
    assert "gemma3-270m, context 64" in document["otherData"]["what"]
    assert "tokens per second" in capsys.readouterr().err


def test_trace_of_a_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.json"
    words = ["--prefill", "--shape", "gemma3-270m", "--tokens", "32", "--position", "64"]
    assert cli.main(["trace", *words, "--layers", "1", "--no-locks", "-o", str(file)]) == 0
    document = json.loads(file.read_text())
    assert "gemma3-270m, 32 tokens at position 64" in document["otherData"]["what"]
    assert "ms per layer" in capsys.readouterr().err
