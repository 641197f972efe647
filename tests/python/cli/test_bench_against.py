"""`npu bench --against`: llama.cpp by its program and by its Python module, both of them doubles
here, is asked for the same tests as the model, one run after each of ours; ratios are of runs that
follow each other; numpy and torch beside npu.matmul; what is not there or answers nonsense is an
error that says what to do."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gemma3_files import Shape, write_model

from npu import cli

SHAPE = Shape(layers=2, width=32, heads=2, kv_heads=1, head_dim=8, ffn_width=32, context=64)
LOG = "asked.json"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model") / "m.gguf", SHAPE))


def program(folder: Path, body: str) -> Path:
    """A llama-bench that notes its arguments and then does as ``body`` says."""
    path = folder / "llama-bench"
    log = folder / LOG
    path.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"open({str(log)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n{body}\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def asked(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["bench", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def failure(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["bench", "-r", "1", *words]) != 0
    return capsys.readouterr().err


def test_llama_bench_runs_the_same_tests(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path, "print(json.dumps([{'avg_ts': 50.0}]))")
    words = ["-m", model, "-p", "4", "-n", "3", "-d", "0,5", "-t", "1", "-r", "2"]
    found = bench(capsys, *words, "--against", "llama.cpp", str(tmp_path))
    assert found["against"] == {
        "name": f"llama-bench ({tmp_path / 'llama-bench'})", "model": model,
    }  # fmt: skip
    for row in found["results"]:
        assert row["rival_tokens_per_s"]["values"] == [50.0, 50.0]
        ours = row["tokens_per_s"]["values"]
        assert row["ratio"]["values"] == pytest.approx([rate / 50 for rate in ours])
    tests = [
        tuple(int(call[call.index(word) + 1]) for word in ("-p", "-n", "-d"))
        for call in asked(tmp_path)
    ]
    of = [(4, 0, 0), (0, 3, 0), (4, 0, 5), (0, 3, 5)]  # each with its warm-up
    assert tests == [test for test in of for _ in range(3)]
    assert all(call[call.index("-t") + 1] == "1" for call in asked(tmp_path))
    assert all(call[call.index("-ngl") + 1] == "0" for call in asked(tmp_path))
    assert cli.main(["bench", *words, "--against", "llama.cpp", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "each run after one of ours; ratio: ours / theirs" in text and "50.00" in text


def test_the_program_in_the_path_comes_before_the_module(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "print(json.dumps([{'avg_ts': 7}]))")
    monkeypatch.setenv("PATH", str(tmp_path))
    other = tmp_path / "other.gguf"
    other.write_bytes(b"anything")
    words = ["-m", model, "-n", "2", "-p", "0", "-r", "1", "--against", "llama.cpp"]
    found = bench(capsys, *words, "--against-model", str(other))
    assert found["against"]["model"] == str(other)
    assert asked(tmp_path)[0][:2] == ["-m", str(other)]


# A double of the module: notes how many tokens it was given since each reset, and its processes.
MODULE = """
import json, os, signal, sys
__version__ = "1.2"
def note(*what, end=""):
    open(LOG + end, "a").write(json.dumps(what) + "\\n")
class Llama:
    def __init__(self, **options):
        print("the module prints", flush=True)
        if options["model_path"].endswith("bad.gguf"):
            raise ValueError("Failed to load model from file")
        assert options["n_gpu_layers"] == 0 and os.environ["CUDA_VISIBLE_DEVICES"] == "-1"
        note(os.getpid(), options["n_threads"], end=".processes")
        self.context = options["n_ctx"]
    def n_vocab(self):
        return 5
    def reset(self):
        note("reset", self.context)
    def eval(self, tokens):
        assert all(0 <= token < 5 for token in tokens)
        print(os.environ.get("LLAMA_SAYS", ""), file=sys.stderr, flush=True)
        if os.environ.get("LLAMA_CRASHES"):
            print("about to crash", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        note(len(tokens), self.context)
    model = "the model"
# What several sequences take.
from types import SimpleNamespace
def llama_context_default_params():
    return SimpleNamespace()
def llama_init_from_model(model, parameters):
    assert model == Llama.model
    note("context", parameters.n_ctx, parameters.n_seq_max, parameters.n_threads)
    return None if os.environ.get("LLAMA_REFUSES") else "a context"
def llama_batch_init(tokens, embedding, sequences):
    assert (embedding, sequences) == (0, 1)
    zeros = [0] * tokens
    return SimpleNamespace(n_tokens=0, token=[*zeros], pos=[*zeros], logits=[*zeros],
                           n_seq_id=[*zeros], seq_id=[[0] for _ in zeros])
def llama_get_memory(context):
    return "memory of " + context
def llama_memory_clear(memory, data):
    note("clear", memory, data)
def llama_decode(context, batch):
    n = batch.n_tokens
    assert context == "a context" and batch.n_seq_id[:n] == n * [1]
    assert all(0 <= token < 5 for token in batch.token[:n])
    ids = [one[0] for one in batch.seq_id[:n]]
    note(batch.pos[:n], ids, [bool(wanted) for wanted in batch.logits[:n]])
    return int(os.environ.get("LLAMA_STATUS", 0))
def llama_get_logits_ith(context, row):
    note("logits", row)
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No llama-bench, but the module; where it notes."""
    folder, log = tmp_path / "modules", tmp_path / LOG
    folder.mkdir()
    (folder / "llama_cpp.py").write_text(f"LOG = {str(log)!r}\n{MODULE}")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))
    return log


def test_the_module_runs_the_same_tests(
    model: str, capsys: pytest.CaptureFixture[str], module: Path
) -> None:
    words = ["-m", model, "-p", "4", "-n", "2", "-d", "3", "-t", "1", "-r", "1"]
    found = bench(capsys, *words, "--against", "llama.cpp")
    assert found["against"]["name"] == "llama_cpp 1.2"
    noted = [json.loads(line) for line in module.read_text().splitlines()]
    runs = 2 * ["reset", 3, 4] + 2 * ["reset", 3, 1, 1]
    assert noted == [[what, 7] for what in runs]
    assert all(row["rival_tokens_per_s"]["median"] > 0 for row in found["results"])


def test_the_module_runs_several_sequences(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], module: Path
) -> None:
    """Also where llama-bench is there, which cannot; one sequence then runs in the module, too."""
    program(tmp_path, "print(json.dumps([{'avg_ts': 7}]))")
    words = ["-m", model, "-p", "0", "-n", "2", "-d", "3", "-s", "1,2", "-t", "1", "-r", "1"]
    one, two = bench(capsys, *words, "--against", "llama.cpp")["results"]
    assert (one["test"], one["sequences"]) == ("tg2 @ d3", 1)
    assert (two["test"], two["sequences"]) == ("tg2 x 2 @ d3", 2)
    noted = [json.loads(line) for line in module.read_text().splitlines()]
    run = [
        ["clear", "memory of a context", True],
        [[0, 1, 2], [0, 0, 0], [False] * 3],
        [[0, 1, 2], [1, 1, 1], [False] * 3],
    ]
    for at in (3, 4):
        run += [[[at, at], [0, 1], [True, True]], ["logits", 0], ["logits", 1]]
    assert noted == [["context", 10, 2, 1], *[["reset", 5], [3, 5], [1, 5], [1, 5]] * 2, *run * 2]
    for row in (one, two):
        assert row["ratio"]["median"] == pytest.approx(
            row["tokens_per_s"]["median"] / row["rival_tokens_per_s"]["median"]
        )


def test_several_sequences_that_the_module_refuses(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], module: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    words = ["-m", model, "-p", "0", "-n", "2", "-s", "8", "--against", "llama.cpp"]
    monkeypatch.setenv("LLAMA_STATUS", "1")
    assert "llama_decode ended with 1" in failure(capsys, *words)
    monkeypatch.setenv("LLAMA_REFUSES", "1")
    assert "no context for 8 sequences of 2 tokens" in failure(capsys, *words)
    said = failure(capsys, *words, str(program(tmp_path, "")))
    assert "llama-bench runs one sequence at a time, 8 were asked for" in said


def test_the_module_has_a_process_per_number_of_threads(
    model: str, capsys: pytest.CaptureFixture[str], module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[list[int]] = []  # when each was started

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            alive.append([process.pid for process in started if process.poll() is None])
            super().__init__(*arguments, **options)
            started.append(self)

    started: list[Popen] = []
    monkeypatch.setattr(subprocess, "Popen", Popen)
    words = ["-m", model, "-p", "4", "-n", "0", "-t", "1,2", "-r", "1"]
    bench(capsys, *words, "--against", "llama.cpp")
    noted = Path(f"{module}.processes").read_text().splitlines()
    assert [json.loads(line) for line in noted] == [[started[0].pid, 1], [started[1].pid, 2]]
    assert alive == [[], []]
    assert [process.returncode for process in started] == [0, 0]


def test_a_module_that_says_more_than_a_pipe_holds(
    model: str, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_SAYS", 10_000 * "a log ")
    command = [
        sys.executable,
        "-m",
        "npu.cli",
        "bench",
        "-m",
        model,
        "-p",
        "4",
        "-n",
        "3",
        "-t",
        "1",
    ]
    subprocess.run([*command, "--against", "llama.cpp"], check=True, timeout=300)


def test_a_module_that_crashes(
    model: str, capsys: pytest.CaptureFixture[str], module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CRASHES", "1")
    said = failure(capsys, "-m", model, "-n", "2", "-p", "0", "-t", "1", "--against", "llama.cpp")
    assert "llama_cpp ended with SIGSEGV: about to crash" in said


def test_what_is_not_there(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    against = ["-m", model, "-n", "2", "-p", "0", "--against", "llama.cpp"]
    (tmp_path / "llama_cpp.py").write_text("raise ImportError('broken here')")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    said = failure(capsys, *against)
    assert "broken here" in said
    assert "neither llama-bench nor the Python module llama_cpp" in said and "pip install" in said
    assert "is no program" in failure(capsys, *against, str(tmp_path / "nothing"))
    assert "is no program" in failure(capsys, *against, str(tmp_path))
    said = failure(capsys, *against, "--against-model", str(tmp_path))
    assert "reads a GGUF file" in said and "--against-model" in said


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit('no such model')", "ended with 1: no such model"),
        ("print('Hello')", "did not print one row of JSON"),
        ("print('[]')", "did not print one row of JSON"),
        ("print('[{}]')", "did not print one row of JSON"),
        ("print('[{\"avg_ts\": null}]')", "did not print one row of JSON"),
    ],
)
def test_a_program_that_fails(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, message: str
) -> None:
    path = program(tmp_path, body)
    words = ["-m", model, "-n", "2", "-p", "0", "--against", "llama.cpp", str(path)]
    assert message in failure(capsys, *words)


def test_a_model_that_the_module_does_not_load(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], module: Path
) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    words = ["-m", model, "-n", "2", "-p", "0", "--against", "llama.cpp", "--against-model"]
    assert "llama_cpp: ValueError: Failed to load" in failure(capsys, *words, str(bad), "-t", "1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "ollama"], "is compared with llama.cpp"),
        (["--against", "numpy,blis"], "is compared with llama.cpp"),
        (["--against", "llama.cpp", "a", "b"], "is compared with llama.cpp"),
        (["--against-model", "a.gguf", "-n", "2"], "--against-model needs"),
        (["--against", "llama.cpp", "--context", "4"], "--against does not apply to --context"),
    ],
)
def test_options_that_do_not_fit(
    model: str, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in failure(capsys, "-m", model, *words)


def test_libraries_for_products(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ["--sizes", "20x30x40", "--repeats", "1"]
    (row,) = bench(capsys, "--against", "numpy", *sizes)["results"]
    assert "ratio" in row and "ratio_torch" not in row
    monkeypatch.setitem(sys.modules, "torch", None)
    (row,) = bench(capsys, "gemm", "--host", "--against=numpy", *sizes)["results"]
    assert row["size"] == [20, 30, 40]
    for both in (["numpy,torch"], ["numpy", "torch"]):
        assert cli.main(["bench", "--against", *both, *sizes]) == 1
        assert "torch is not there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gemm --host --against blis", "'blis' is not one of numpy, torch"),
        ("--against numpy blis", "'blis' is not one of numpy, torch"),
        ("--against numpy llama.cpp", "'llama.cpp' is not one of numpy, torch"),
        ("gemv --host --against torch", "not what this command measures (see `npu bench gemv"),
        ("gemv --against=numpy,torch", "not what this command measures (see `npu bench gemv"),
        ("gemm --against llama.cpp", "not what this command measures (see `npu bench gemm"),
        ("--simulated --against llama.cpp", "measures (see `npu bench simulated"),
    ],
)
def test_what_is_not_compared(capsys: pytest.CaptureFixture[str], words: str, message: str) -> None:
    assert cli.main(["bench", *words.split()]) == 2
    assert message in capsys.readouterr().err
