"""`npu bench -m MODEL` as llama-bench: which tests run, what of a test is timed and what is not, a
sweep of threads, the model's weight formats, and signs of life."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gemma3_files import Shape, write_model

import npu
from npu import cli
from npu.cli import bench_runs, common, progress
from npu.models.gemma3.model import Model

SHAPE = Shape(layers=2, width=32, heads=2, kv_heads=1, head_dim=8, ffn_width=32, context=64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model") / "m.gguf", SHAPE))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Tokens given to the model, the position they began at, and the first of them, per call."""
    found: list[tuple[int, int, int]] = []
    top = Model.top

    def watched(self: Model, tokens: Any, cache: Any, *rest: Any) -> Any:
        found.append((len(tokens), cache.length, tokens[0]))
        return top(self, tokens, cache, *rest)

    monkeypatch.setattr(Model, "top", watched)
    return found


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["bench", "-r", "1", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def names(document: dict[str, Any]) -> list[str]:
    return [row["test"] for row in document["results"]]


def test_the_tests_are_those_of_llama_bench(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = bench(capsys, "-m", model, "-p", "3,4", "-n", "2", "-d", "0,5")
    assert names(found) == ["pp3", "pp4", "tg2", "pp3 @ d5", "pp4 @ d5", "tg2 @ d5"]
    row = found["results"][-1]
    assert (row["prompt_tokens"], row["generated_tokens"], row["depth"]) == (0, 2, 5)
    assert row["tokens_per_s"]["median"] == pytest.approx(2 / row["seconds"]["median"])
    assert names(bench(capsys, "-m", model, "-p", "3", "-n", "0")) == ["pp3"]
    assert names(bench(capsys, "-m", model, "-p", "0", "-n", "3,2")) == ["tg3", "tg2"]
    # Defaults are llama-bench's, here too long for the model.
    for words, needed in ((["-n", "2"], 512), (["-p", "2"], 128), (["-d", "5", "-p", "0"], 133)):
        assert cli.main(["bench", "-m", model, *words]) == 1
        assert f"a context of {needed} was asked for" in capsys.readouterr().err


def test_generation_alone_begins_with_one_token(
    model: str, capsys: pytest.CaptureFixture[str], calls: list[tuple[int, int, int]]
) -> None:
    bench(capsys, "-m", model, "-p", "0", "-n", "3")
    # Warm-up and one run: BOS at position 0, then what the model chose. No prompt.
    assert [(count, start) for count, start, _ in calls] == 2 * [(1, 0), (1, 1), (1, 2)]
    assert [first for _, start, first in calls if start == 0] == [2, 2]


def test_several_sequences_generate_at_once(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token of each per step, all from the depth on; rates count the tokens of all."""
    steps: list[tuple[list[int], list[int]]] = []
    decode_batch = Model.decode_batch

    def watched(self: Model, tokens: Any, caches: Any) -> Any:
        steps.append((list(tokens), [cache.length for cache in caches]))
        return decode_batch(self, tokens, caches)

    monkeypatch.setattr(Model, "decode_batch", watched)
    found = bench(capsys, "-m", model, "-p", "3", "-n", "2", "-d", "5", "-s", "1,3", "--roof")
    assert names(found) == ["pp3 @ d5", "tg2 @ d5", "tg2 x 3 @ d5"]
    assert [lengths for _, lengths in steps] == 2 * [[5, 5, 5], [6, 6, 6]]
    assert steps[0][0] == [2, 2, 2] and len(set(steps[1][0])) == 1  # BOS, then the likeliest
    row = found["results"][-1]
    assert row["sequences"] == 3 and row["generated_tokens"] == 2
    rate = row["tokens_per_s"]["median"]
    assert rate == pytest.approx(6 / row["seconds"]["median"])
    read = row["weights_gb_per_s"]["median"] * 1e9  # once for all of them
    assert read == pytest.approx(row["weight_bytes"] * rate / 3)


def test_the_depth_is_filled_once_and_every_run_begins_there(
    model: str, capsys: pytest.CaptureFixture[str], calls: list[tuple[int, int, int]]
) -> None:
    bench(capsys, "-m", model, "-p", "4", "-n", "2", "-d", "20")
    assert [(count, start) for count, start, _ in calls] == [
        (20, 0), (4, 20), (4, 20), (1, 20), (1, 21), (1, 20), (1, 21),
    ]  # fmt: skip


def test_the_depth_is_not_timed(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that counts the tokens that were run."""
    run = [0.0]
    top = Model.top

    def counted(self: Model, tokens: Any, *rest: Any) -> Any:
        run[0] += len(tokens)
        return top(self, tokens, *rest)

    monkeypatch.setattr(Model, "top", counted)
    monkeypatch.setattr(bench_runs.time, "perf_counter", lambda: run[0])
    found = bench(capsys, "-m", model, "-p", "7", "-n", "3", "-d", "0,11")
    seconds = {row["test"]: row["seconds"]["median"] for row in found["results"]}
    assert seconds == {"pp7": 7, "tg3": 3, "pp7 @ d11": 7, "tg3 @ d11": 3}
    assert {row["tokens_per_s"]["median"] for row in found["results"]} == {1.0}
    found = bench(capsys, "-m", model, "--context", "5", "-n", "4")
    assert found["results"][0]["ttft_ms"]["median"] == 5000
    assert found["results"][0]["decode_tokens_per_s"]["median"] == 1


def test_a_sweep_of_threads(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    top = Model.top

    def watched(*arguments: Any) -> Any:
        used.append(npu.threads())
        return top(*arguments)

    monkeypatch.setattr(Model, "top", watched)
    monkeypatch.setenv("NPU_THREADS", "2")  # restored afterwards
    try:
        found = bench(capsys, "-m", model, "-p", "3", "-n", "1", "-t", "1,3")
        assert [row["threads"] for row in found["results"]] == [1, 1, 3, 3]
        assert used == [1] * 4 + [3] * 4
        found = bench(capsys, "-m", model, "--context", "3", "-n", "1", "-t", "2")
        assert [row["threads"] for row in found["results"]] == [2]
    finally:
        npu.set_threads(None)


def test_the_table_names_tests_threads_and_weight_formats(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "-m", model, "-p", "3", "-n", "2", "-d", "0,4", "-r", "2"]) == 0
    out = capsys.readouterr().out
    assert "weights: " in out and "F32" in out
    assert "median [min, max] of 2 runs after one warm-up; tokens of the depth are not timed" in out
    rows = [line.split("  ")[0:] for line in out.splitlines()]
    tests = [[cell.strip() for cell in row if cell.strip()] for row in rows][-4:]
    assert [row[0] for row in tests] == ["pp3", "tg2", "pp3 @ d4", "tg2 @ d4"]
    assert all(row[1] == str(npu.threads()) for row in tests)
    found = bench(capsys, "-m", model, "-p", "3", "-n", "0")
    stored = found["weights"]["stored"]
    assert stored == {"attention": ["F32"], "ffn": ["F32"], "head": ["F32"]}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["-p", "0", "-n", "0"], 1, "-p and -n are 0: nothing is measured"),
        (["--context", "4", "-p", "3"], 1, "-p does not apply to --context"),
        (["--context", "4", "-d", "3"], 1, "-d does not apply to --context"),
        (["--context", "4", "-s", "2"], 1, "-s does not apply to --context"),
        (["-p", "3", "-n", "0", "-s", "2"], 1, "--sequences is about generation; give -n"),
        (["-s", "9"], 2, "9 is more than 8"),
        (["--context", "4", "-n", "1,2"], 1, "-n with --context is one number"),
        (["--context", "4", "-n", "0"], 1, "-n with --context is one number"),
        (["-p", "-1"], 2, "'-1' is not a positive whole number"),
        (["-p", "3,x"], 2, "'x' is not a positive whole number"),
        (["-t", "0"], 2, "'0' is not a positive whole number"),
        (["-t", "1,300"], 2, "at most 256 threads"),
        (["-p", "60", "-n", "0", "-d", "0,5"], 1, "a context of 65 was asked for"),
    ],
)
def test_wrong_options_fail_before_the_model_is_loaded(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    words: list[str], code: int, message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(common, "load_model", lambda *_: pytest.fail("the weights were read"))
    assert cli.main(["bench", "-m", model, *words]) == code
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1


def test_nothing_is_silent(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_EVERY", 0.001)
    assert cli.main(["bench", "-r", "8", "-m", model, "-p", "60", "-n", "4"]) == 0
    err = capsys.readouterr().err
    assert "pp60: " in err and "tg4: " in err and " of 36 tokens, warm-up included, " in err
    shown: list[str] = []
    watched = progress.shown
    positions: list[tuple[float, float]] = []

    def remember(what: str, unit: str, position: progress.Position, **options: Any) -> Any:
        shown.append(what)
        positions.append(position())
        return watched(what, unit, position, **options)

    monkeypatch.setattr(progress, "shown", remember)
    bench(capsys, "-m", model, "-p", "6", "-n", "3", "-d", "8")
    assert shown == ["filling d8", "pp6 @ d8", "tg3 @ d8"]
    assert positions == [(0, 8), (0, 12), (0, 6)]  # runs and their warm-up
    bench(capsys, "-m", model, "--context", "6", "-n", "3")
    assert shown[3:] == ["context 6"] and positions[3:] == [(0, 18)]


def test_the_roof_of_generation(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes of all weights over the seconds of a token, beside plain reads; prompts have none."""
    found = bench(capsys, "-m", model, "-p", "2", "-n", "3", "--roof")
    prompt, row = found["results"]
    assert "weight_bytes" not in prompt
    loaded, _ = npu.gemma3.load(model)
    blocks = loaded.weight_blocks
    assert row["weight_bytes"] == sum(array.nbytes for array in blocks) > 0
    rate = row["weights_gb_per_s"]["median"] * 1e9
    assert rate == pytest.approx(row["weight_bytes"] * row["tokens_per_s"]["median"])
    share = row["weights_gb_per_s"]["median"] / row["plain_gb_per_s"]["median"]
    assert row["share_of_roof"]["median"] == pytest.approx(share)
    assert cli.main(["bench", "-m", model, "-p", "0", "-n", "2", "-r", "1", "--roof"]) == 0
    text = capsys.readouterr().out
    assert "MB of weights per token" in text and "plain read GB/s" in text
    for words in (["-n", "0", "-p", "2"], ["--context", "2"]):
        assert cli.main(["bench", "-m", model, "--roof", *words]) == 1
        assert "--roof" in capsys.readouterr().err
