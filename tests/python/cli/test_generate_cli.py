"""`npu generate`: llama.cpp's spellings mean what ours do, what would be ignored is refused, wrong
values fail before the weights are read, sampling settings come from the file, many prompts in one
run keep each other's answers, and a long prefill is not silent."""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gemma3_files import Shape, write_model

from npu import cli
from npu.cli import build_parser, common, progress, prompts
from npu.models.convert import convert
from npu.models.sampling_settings import DEFAULTS, from_generation_config, resolve
from npu.models.sources import open_source

DEMO = Path(__file__).parents[3] / "examples/demo_model/demo-gemma3.gguf"
SHAPE = Shape(layers=1, width=32, heads=2, kv_heads=1, head_dim=8, ffn_width=32, context=64)
SAMPLING: dict[str, Any] = {
    "general.sampling.temp": 0.5,
    "general.sampling.top_k": 12,
    "general.sampling.penalty_repeat": 1.25,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model") / "m.gguf", SHAPE))


def parsed(*words: str) -> dict[str, Any]:
    return vars(build_parser().parse_args(["generate", *words]))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(["generate", *words])
    out, err = capsys.readouterr()
    return code, out, err


# Spellings


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (["--n-predict", "7"], ["--max-tokens", "7"]),
        (["--predict", "7"], ["-n", "7"]),
        (["--ctx-size", "9"], ["--context", "9"]),
        (["-c", "9"], ["--context", "9"]),
        (["-c", "0"], []),
        (["--temp", "0.3"], ["--temperature", "0.3"]),
        (["-s", "4"], ["--seed", "4"]),
        (["-sys", "x"], ["--system", "x"]),
        (["--system-prompt", "x"], ["--system", "x"]),
        (["-no-cnv"], ["--raw"]),
        (["--no-conversation"], ["--raw"]),
        (["-t", "2"], ["--threads", "2"]),
        (["-f", "a"], ["--file", "a"]),
        (["-st", "--no-display-prompt", "--jinja", "--no-escape", "--no-warmup"], []),
    ],
)
def test_spellings_of_llama_cpp_are_those_of_ours(theirs: list[str], ours: list[str]) -> None:
    assert parsed(*theirs) == parsed(*ours)


@pytest.mark.parametrize(
    "option",
    ["-ngl", "-cnv", "-r", "-b", "-fa", "--samplers", "--grammar", "--mirostat", "--chat-template",
     "-hf", "--no-mmap", "--display-prompt", "--lora", "-tb", "--ignore-eos", "--keep", "-co"],
)  # fmt: skip
@pytest.mark.parametrize("value", [[], ["1"]])
def test_what_has_no_meaning_here_is_refused(
    capsys: pytest.CaptureFixture[str], option: str, value: list[str]
) -> None:
    code, out, err = run(capsys, "-p", "x", option, *value)
    assert (code, out) == (2, "")
    assert err.startswith(f"npu: error: {option} of llama.cpp does not apply: ")
    assert err.count("\n") == 1 and "leave it out" in err


# What fails before the weights are read


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["-p", "x", "--stop", ""], 1, "empty stop string"),
        (["-p", "x", "-n", "0"], 2, "'0' is not a positive whole number"),
        (["-p", "x", "-n", "-3"], 2, "'-3' is not a positive whole number"),
        (["-p", "x", "-t", "0"], 2, "'0' is not a positive whole number"),
        (["-p", "x", "-t", "257"], 2, "at most 256 threads"),
        (["-p", "x", "-c", "65"], 1, "a context of 65 was asked for, the model allows 1 to 64"),
        (["-p", "hello", "-c", "3"], 1, "do not fit the context of 3"),
        (["-p", 80 * "hello ", "--raw"], 1, "do not fit the context of 64"),
        (["-p", "x", "--top-p", "2"], 1, "top-p is 2.0"),
        (["-p", "x", "--repeat-penalty", "0"], 1, "repeat-penalty is 0.0"),
        (["-p", "x", "--seed", "-2"], 1, "seed is -2"),
        (["-f", "/nowhere/prompt"], 1, "--file: cannot read /nowhere/prompt: No such file"),
        (["--prompts", "/"], 1, "--prompts: cannot read /: Is a directory"),
        (["-sysf", "/nowhere", "-p", "x"], 1, "--system-prompt-file: cannot read /nowhere"),
        (["-p", "x", "-f", "y"], 2, "not allowed with argument"),
        (["-p", "x", "--prompts", "y"], 2, "not allowed with argument"),
        (["-p", "x", "--weights", "q3"], 2, "invalid choice: 'q3'"),
    ],
)
def test_wrong_values_fail_before_the_model_is_loaded(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    words: list[str], code: int, message: str,
) -> None:  # fmt: skip
    def loaded(*_: object) -> None:
        raise AssertionError("the weights were read")

    monkeypatch.setattr(common, "load_model", loaded)
    found, out, err = run(capsys, "-m", model, *words)
    assert (found, out) == (code, "") and message in err and err.count("\n") == 1


def test_a_file_that_cannot_run_fails_before_its_weights_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "load_model", lambda *_: pytest.fail("the weights were read"))
    for keys, message in (
        ({"general.sampling.top_p": 7.0}, "general.sampling.top_p is 7.0, expected a number from"),
        ({"general.sampling.top_k": "x"}, "general.sampling.top_k is 'x', expected a whole number"),
        ({"general.sampling.penalty_repeat": 0.0}, "penalty_repeat is 0, expected a positive"),
        ({"gemma3.block_count": 0}, "gemma3.block_count is 0"),
    ):
        path = write_model(tmp_path / "m.gguf", SHAPE, keys=keys)
        code, out, err = run(capsys, "-m", str(path), "-p", "x")
        assert (code, out) == (1, "") and message in err and err.count("\n") == 1


# Sampling settings


def test_settings_come_from_the_command_line_the_file_and_llama_cpp(
    tmp_path: Path, model: str
) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, keys=SAMPLING)
    settings = resolve({"top_k": 3, "min_p": None}, open_source(path))
    expected = {**DEFAULTS, "temperature": 0.5, "top_k": 3, "repeat_penalty": 1.25}
    assert settings.values == expected
    assert settings.describe() == (
        "top-k 3 (as asked); temperature 0.5, repeat-penalty 1.25 (the model's); "
        "top-p 0.95, min-p 0.05, repeat-last-n 64 (llama.cpp's defaults)"
    )
    assert resolve({}, open_source(model)).values == DEFAULTS
    # What llama.cpp's users expect.
    named = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n")
    assert [DEFAULTS[name] for name in named] == [0.8, 40, 0.95, 0.05, 1.0, 64]


def test_a_model_s_settings_survive_conversion(tmp_path: Path) -> None:
    path = write_model(
        tmp_path / "m.gguf", SHAPE, keys={**SAMPLING, "general.sampling.mirostat": 2}
    )
    q4nx = convert(path, tmp_path / "m.q4nx")
    one, other = (resolve({}, open_source(file)) for file in (path, q4nx))
    assert one == other and one.values["temperature"] == 0.5
    assert one.ignored == ("general.sampling.mirostat",)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        (
            {"do_sample": True, "top_k": 64, "top_p": 0.95},
            {"temp": 1.0, "top_k": 64, "top_p": 0.95},
        ),
        ({"do_sample": False, "temperature": 0.7}, {"temp": 0.0}),
        ({"temperature": 0.7, "min_p": 0.1}, {"temp": 0.7, "min_p": 0.1}),
        ({"repetition_penalty": 1.1}, {"penalty_repeat": 1.1, "penalty_last_n": -1}),
        ({"eos_token_id": [1, 106], "top_p": None}, {}),
    ],
)
def test_generation_config(config: dict[str, Any], expected: dict[str, Any]) -> None:
    found = from_generation_config("folder", config)
    assert found == {f"general.sampling.{key}": value for key, value in expected.items()}


def test_a_run_states_its_settings_and_a_seed_that_repeats_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_model(tmp_path / "m.gguf", SHAPE, keys={"general.sampling.temp": 3.0}))
    words = ("-m", path, "-p", "hello", "-n", "12", "--top-k", "0", "--min-p", "0")
    code, out, err = run(capsys, *words)
    line = next(line for line in err.splitlines() if line.startswith("sampling: "))
    assert code == 0 and "temperature 3 (the model's)" in line
    seed = line.rpartition("seed ")[2]
    assert run(capsys, *words, "--seed", seed)[1] == out
    assert run(capsys, *words, "--seed", str(int(seed) ^ 1))[1] != out
    assert run(capsys, *words, "-q", "--seed", seed)[2] == ""
    greedy = [run(capsys, *words, "--temp", "0") for _ in range(2)]
    assert greedy[0][1] == greedy[1][1] and "sampling: greedy: temperature 0" in greedy[0][2]


def test_repeat_penalty_reaches_the_sampler(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("-m", model, "-p", "hello", "-n", "30", "--temp", "0", "--raw", "-q")
    plain = run(capsys, *words)[1]
    penalised = run(capsys, *words, "--repeat-penalty", "2", "--repeat-last-n", "-1")[1]
    assert plain != penalised
    assert run(capsys, *words, "--repeat-penalty", "2", "--repeat-last-n", "0")[1] == plain


# Prompts


def of(**options: Any) -> argparse.Namespace:
    names = ("prompt", "file", "prompts", "system", "system_file")
    return argparse.Namespace(**{**dict.fromkeys(names), "escape": False, **options})


def test_a_file_holds_one_prompt(tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text("first\nsecond \\n é\n\n", encoding="utf-8")
    assert prompts.read(of(file=str(file))) == [prompts.Prompt("first\nsecond \\n é\n")]
    system = tmp_path / "s.txt"
    system.write_text("be\\tbrief\n")
    found = prompts.read(of(file=str(file), system_file=str(system), escape=True))
    assert found == [prompts.Prompt("first\nsecond \n é\n", "be\tbrief")]


def test_escapes() -> None:
    assert prompts.unescaped(r"a\nb\t\"\'\\n\q\xC3\xa9\x4") == "a\nb\t\"'\\n\\qé\\x4"
    assert prompts.unescaped("\\") == "\\"


def test_a_file_of_prompts(tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text('one \\n\n\n  two\n"th\\nree"\n{"prompt": "four", "system": "s"}\n')
    found = prompts.read(of(prompts=str(file), system="all"))
    assert [(p.text, p.system) for p in found] == [
        ("one \\n", "all"), ("two", "all"), ("th\nree", "all"), ("four", "s"),
    ]  # fmt: skip
    for line in ('{"prompt"', "{}", '{"prompt": 3}', '{"prompt": "x", "seed": 1}', '"open'):
        file.write_text(f"good\n{line}\n")
        with pytest.raises(ValueError, match="line 2 starts like JSON"):
            prompts.read(of(prompts=str(file)))
    file.write_text("\n \n")
    with pytest.raises(ValueError, match="no line has a prompt"):
        prompts.read(of(prompts=str(file)))


def test_answers_of_many_prompts_are_those_of_each_alone(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ["-m", model, "-n", "9", "--seed", "5", "--temp", "2"]
    alone = [run(capsys, *base, "-q", "-p", text)[1] for text in ("hello", "world user")]
    stdin = SimpleNamespace(buffer=io.BytesIO(b"hello\nworld user\n"), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", stdin)
    code, out, err = run(capsys, *base, "--prompts", "-")
    assert code == 0 and out == alone[0] + "\n" + alone[1]
    assert "prompt 1: " in err and "prompt 2: TTFT" in err
    stdin.buffer = io.BytesIO(b"hello\nworld user\n")
    code, out, _ = run(capsys, *base, "--prompts", "-", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["answer"] + "\n" for one in found] == alone
    for index, one in enumerate(found, 1):
        assert (one["index"], one["generated_tokens"], one["finish_reason"]) == (index, 9, "length")
        assert one["prompt_tokens"] > 3 and one["ttft_ms"] > 0 and one["decode_tokens_per_s"] > 0
        assert one["seed"] == 5 and one["sampling"]["temperature"] == 2
        assert one["times"] == "host time, the NPU is emulated"


def test_a_prompt_that_fails_does_not_lose_the_others(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.txt"
    file.write_text("hello\n" + 40 * "hello world " + "\nworld\n")
    base = ("-m", model, "-n", "4", "--temp", "0", "--prompts", str(file))
    code, out, _ = run(capsys, *base, "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 1 and [sorted(one)[0] for one in found] == ["answer", "error", "answer"]
    assert "do not fit the context of 64" in found[1]["error"] and found[1]["index"] == 2
    code, out, err = run(capsys, *base, "-q")
    assert code == 1 and out == found[0]["answer"] + "\n\n" + found[2]["answer"] + "\n"
    assert err.count("\n") == 1 and err.startswith("npu: error: prompt 2: [generate] ")


@pytest.mark.parametrize("on_array", [False, True])
def test_batches_of_prompts_have_the_answers_of_each(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str], on_array: bool
) -> None:
    """In order, though others end earlier; a prompt that is too long among them."""
    file = tmp_path / "p.txt"
    lines = ["How many days are in 2 weeks?", "What is 12 minus 5?", 400 * "12 "]
    lines += ["What is 3 plus 4?", "What is 9 plus 6?"]
    file.write_text("\n".join(lines))
    path = str(DEMO) if on_array else model
    base = ("-m", path, "-n", "9", "--temp", "0", "-c", "60", "--prompts", str(file))
    code, expected, _ = run(capsys, *base, "-q")
    assert code == 1 and len(expected) > 30
    for size in ("2", "8"):
        code, out, err = run(capsys, *base, "--batch", size)
        assert code == 1 and out == expected
        assert ("tokens are computed one by one" in err) is not on_array
        assert "prompt 3: [generate]" in err and "prompt 4: TTFT" in err
    code, out, _ = run(capsys, *base, "--batch", "3", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["index"] for one in found] == [1, 2, 3, 4, 5] and "error" in found[2]
    answers = [one["answer"] for one in found if "answer" in one]
    assert "\n\n".join(answers) + "\n" == expected


def test_batches_are_refused_where_they_have_no_meaning(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "-m", model, "-p", "x", "--batch", "2")
    assert code == 1 and "--batch applies to --prompts" in err
    code, _, err = run(capsys, "-m", model, "--prompts", "x", "--batch", "9")
    assert code == 1 and "a batch of 9 was asked for, it has 1 to 8" in err


def test_nothing_is_loaded_when_every_prompt_fails(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "load_model", lambda *_: pytest.fail("the weights were read"))
    file = tmp_path / "p.txt"
    file.write_text("hello\nworld\n")
    code, out, _ = run(capsys, "-m", model, "-c", "3", "--json", "--prompts", str(file))
    assert code == 1 and [sorted(json.loads(line)) for line in out.splitlines()] == 2 * [
        ["error", "index", "prompt"]
    ]


def test_no_limit_ends_with_the_context(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "-m", model, "-p", "hello", "--raw", "--temp", "0", "-n", "-1")
    assert code == 0 and ("(context full)" in err or "(the model ended its turn)" in err)
    code, _, err = run(capsys, "-m", model, "-p", "hello", "--raw", "-n", "-1", "-c", "5",
                       "--temp", "4", "--seed", "2")  # fmt: skip
    assert code == 0 and "2 prompt tokens, 4 generated (context full)" in err


# Progress


def test_progress_prints_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_EVERY", 0.05)
    with progress.shown("prefill", "tokens", lambda: (512.7, 3609)):
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 4 and lines[0] == "prefill: 512 of 3609 tokens, 0 s"
    with progress.shown("prefill", "tokens", lambda: (1, 2), quiet=True):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    stderr.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "_BAR_DELAY", 0.0)
    monkeypatch.setattr(progress, "_BAR_EVERY", 0.02)
    with progress.shown("prefill", "tokens", lambda: (30, 120)):
        time.sleep(0.3)
    text = stderr.getvalue()
    assert "prefill" in text and "25%" in text and "30/120" in text
    assert text.endswith("\r")  # the bar is gone before the answer


def test_the_interval_is_short_enough() -> None:
    assert progress._BAR_EVERY < 10 and progress._LINE_EVERY < 10


def test_a_prefill_tells_how_far_it_is(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position that is shown moves during one pass, layer by layer."""
    positions: list[float] = []

    def watched(what: str, unit: str, position: progress.Position, **_: object) -> Any:
        from contextlib import contextmanager

        from npu.models.kv_cache import Cache

        @contextmanager
        def watching() -> Any:
            put = Cache.put

            def counted(*arguments: Any) -> Any:
                found = put(*arguments)
                positions.append(position()[0])
                return found

            with monkeypatch.context() as patch:
                patch.setattr(Cache, "put", counted)
                yield
            positions.append(position()[1])

        assert (what, unit) == ("prefill", "tokens")
        return watching()

    monkeypatch.setattr(progress, "shown", watched)
    code, _, err = run(capsys, "-m", model, "-p", "hello", "-n", "2", "--temp", "0")
    assert code == 0
    count = int(err.splitlines()[-2].split()[0])
    assert positions == [count, count]  # one layer: all of it, then the prompt's length


def test_the_threads_of_the_command_line_are_used(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import npu

    monkeypatch.setenv("NPU_THREADS", "2")
    try:
        base = ("-m", model, "-p", "hello", "-n", "4", "--temp", "0", "-q")
        texts = []
        for count in ("1", "3"):
            texts.append(run(capsys, *base, "-t", count)[1])
            assert npu.threads() == int(count)
        assert texts[0] == texts[1]
    finally:
        npu.set_threads(None)


def test_steps_are_counted_from_any_thread(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    monkeypatch.setattr(progress, "_LINE_EVERY", 0.05)
    with progress.counted("simulating", "GEMMs", 50, 10) as advance:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(advance, [1] * 20))
        time.sleep(0.2)
    assert "simulating: 30 of 50 GEMMs, 0 s\n" in capsys.readouterr().err
    with progress.counted("emulating", "designs") as advance:
        advance(3)
        time.sleep(0.2)
    assert capsys.readouterr().err.startswith("emulating: 3 designs, 0 s\n")
