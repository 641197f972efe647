"""The command line: output and exit codes, one-line errors, Ctrl-C, a reader that leaves, and that
importing it is light."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from gemma3_files import Shape, write_model
from limits import HANG

import npu
from npu import cli
from npu.cli import common
from npu.formats.gguf_file import GgufFile
from npu.models import demo
from npu.models.tokenizer import Tokenizer

SHAPE = Shape(layers=1, width=32, heads=2, kv_heads=1, head_dim=8, ffn_width=32, context=100_000)
EXAMPLE = Path(__file__).parents[3] / "examples/02_generate.py"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model") / "m.gguf", SHAPE))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "npu.cli", *arguments]


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_closed_output_is_like_none(closed: str) -> None:
    line = f'"$@" {closed}'
    words = command("validate-model", "--constants")
    done = subprocess.run(["sh", "-c", line, "sh", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_generate_writes_text_to_stdout_and_figures_to_stderr(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", "-m", model, "-p", "hello", "-n", "8", "--temp", "0"]
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    assert out.endswith("\n") and len(out) > 1
    tokenizer = Tokenizer(GgufFile(model))
    chat = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": "hello"}]))
    assert f"{len(chat)} prompt tokens, 8 generated (--max-tokens reached)" in err
    for part in (
        "device: ",
        "arithmetic: ",
        "TTFT ",
        "prefill ",
        "decode ",
        "(7 steps)",
        "host time",
    ):
        assert part in err


def test_raw_quiet_and_seed(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["generate", "-m", model, "-p", "hello", "-n", "12", "--raw"]
    assert cli.main(base) == 0
    assert "\n2 prompt tokens" in capsys.readouterr().err  # BOS and one piece
    texts = []
    for seed in ("1", "1", "2"):
        assert cli.main([*base, "-q", "--temperature", "2", "--seed", seed]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        texts.append(out)
    assert texts[0] == texts[1] != texts[2]


def test_stop_string_and_prompt_from_stdin(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ["generate", "-m", model, "--raw", "-q", "-n", "20", "--temp", "0"]
    assert cli.main([*base, "-p", "hello"]) == 0
    full = capsys.readouterr().out
    stdin = SimpleNamespace(buffer=io.BytesIO(b"hello\n"), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", stdin)
    assert cli.main([*base, "--stop", full[4:6]]) == 0
    assert capsys.readouterr().out == full.split(full[4:6])[0] + "\n"


def test_bench_reports_every_length(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "-m", model, "--context", "4,9", "-n", "3", "--repeats", "2"]
    assert cli.main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["repeats"] == 2 and document["warm_up_runs"] == 1
    assert [row["prompt_tokens"] for row in document["results"]] == [4, 9]
    loading = document["loading"]
    assert loading["seconds"] > 0 and loading["private_bytes_before"] > 1 << 20
    assert loading["peak_resident_bytes"] >= loading["private_bytes"] > 1 << 20
    for row in document["results"]:
        for name in ("ttft_ms", "prefill_tokens_per_s", "decode_tokens_per_s"):
            figures = row[name]
            assert len(figures["values"]) == 2
            assert 0 < figures["min"] <= figures["median"] <= figures["max"]
    row = document["results"][1]
    # Rate and time are two views of one measurement.
    assert row["prefill_tokens_per_s"]["values"][0] == pytest.approx(
        9e3 / row["ttft_ms"]["values"][0]
    )
    assert cli.main(arguments) == 0
    table = capsys.readouterr().out
    assert (
        "device: " in table
        and "\nloading: " in table
        and "median [min, max] of 2 runs after one warm-up" in table
    )


def test_devices_lists_what_the_package_offers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        npu.DeviceDescription("emu:npu2", True, "emulated NPU"),
        npu.DeviceDescription("xrt", False, "AMD NPU", "no driver"),
    ]
    monkeypatch.setattr(npu, "devices", lambda: found)
    monkeypatch.setenv("NPU_DEVICE", "emu:npu2")
    assert cli.main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["emu:npu2", "xrt", "default"]
    assert lines[0].endswith("emulated NPU; available")
    assert lines[1].endswith("AMD NPU; not available: no driver")
    assert lines[2].endswith(" emu:npu2: NPU_DEVICE names it")
    assert cli.main(["devices", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert entries[1]["reason"] == "no driver"
    assert [entry["default"] for entry in entries] == [True, False]
    assert entries[0]["default_reason"] == "NPU_DEVICE names it"
    monkeypatch.setenv("NPU_DEVICE", "xrt:npu2+module")
    assert cli.main(["devices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[1]["default"]


def test_devices_says_that_a_default_is_unknown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npu, "devices", lambda: [])
    monkeypatch.setenv("NPU_DEVICE", "bogus")
    assert cli.main(["devices"]) == 0
    assert "bogus      unknown device; not available: [device]" in capsys.readouterr().out
    monkeypatch.setenv("NPU_DEVICE", "emu:npu1+reload")
    assert cli.main(["devices"]) == 0
    assert "emu:npu1+reload emulated NPU; available" in capsys.readouterr().out


def test_the_device_of_the_command_line_is_used(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["generate", "-m", model, "-p", "x", "-n", "1", "--device"]
    assert cli.main([*run, "emu:npu1", "--arithmetic", "fast"]) == 0
    err = capsys.readouterr().err
    assert "device: emu:npu1 (emulated), bf16 arithmetic: fast" in err
    assert "host time, the NPU is emulated" in err
    assert cli.main([*run, "npu9"]) == 1
    assert "npu9" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["generate", "-p", "x", "-n", "1"], ["bench", "--context", "4"]])
def test_a_device_that_computes_nothing_is_refused(
    model: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    for variable, option in (("null:npu2", []), ("", ["--device", "null:npu2"])):
        monkeypatch.setenv("NPU_DEVICE", variable)
        assert cli.main([*words, "-m", model, *option]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        assert f"[{words[0]}] null:npu2 computes nothing" in err


def test_a_device_that_computes_nothing_is_not_called_emulated() -> None:
    with npu.device("null:npu2") as device:
        words = common.device_line(device) + common.time_label(device)
    assert "null:npu2" in words and "emulated" not in words


def test_default_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = tmp_path / "checkout/python/npu/models/demo.py"
    monkeypatch.setattr(demo, "__file__", str(module))
    monkeypatch.delenv("NPU_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)
    assert common.default_model() is None
    assert cli.main(["generate", "-p", "x"]) == 1
    assert "no model given and no demo model found" in capsys.readouterr().err
    file = tmp_path / "checkout/examples/demo_model/demo.gguf"
    file.parent.mkdir(parents=True)
    file.touch()
    assert common.default_model() == str(file)
    monkeypatch.setenv("NPU_MODEL", "named.gguf")
    assert common.default_model() == "named.gguf"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "the following arguments are required: COMMAND"),
        (["frobnicate"], 2, "invalid choice: 'frobnicate'"),
        (["generate", "-n", "many"], 2, "'many' is not a positive whole number"),
        (["bench", "--context", "4,x"], 2, "'x' is not a positive whole number"),
        (["bench", "--repeats", "0"], 2, "'0' is not a positive whole number"),
        (["generate", "-m", "absent.gguf", "-p", "x"], 1, "cannot open absent.gguf: No such file"),
        (["generate", "-m", "/", "-p", "x"], 1, "/ is a folder without a .q4nx file"),
        (["generate", "-m", "/dev/null", "-p", "x"], 1, "/dev/null is not a regular file"),
        (["convert", "MODEL"], 2, "the following arguments are required: output"),
        (["convert", "absent.gguf", "x.q4nx"], 1, "cannot open absent.gguf: No such file"),
        (["convert", "MODEL", "MODEL"], 1, "is the input; name another file"),
        (["convert", "MODEL", "/nowhere/x.q4nx"], 1, "cannot write /nowhere/x.q4nx: No such file"),
        (["q4nx"], 2, "the following arguments are required: ACTION"),
        (["q4nx", "info", "MODEL"], 1, "is a GGUF file, not a safetensors file"),
        (["q4nx", "verify", "absent.q4nx"], 1, "cannot open absent.q4nx"),
        (["generate", "-m", "MODEL", "-p", "x", "--temperature", "-1"], 1, "temperature is -1.0"),
        (["generate", "-n", "0"], 2, "'0' is not a positive whole number"),
        (["generate", "-m", "MODEL", "-p", "hello", "--context", "3"], 1, "do not fit the context"),
        (["generate", "-m", "MODEL", "-p", "x", "--stop", ""], 1, "empty stop string"),
        (["bench", "-m", "MODEL", "--context", "100000"], 1, "a context of 100016 was asked for"),
    ],
)
def test_errors_are_one_line(
    model: str,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    assert cli.main([model if word == "MODEL" else word for word in arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    errors = [line for line in err.splitlines() if line.startswith("npu: error: ")]
    assert len(errors) == 1 and message in errors[0] and err.endswith(errors[0] + "\n")
    assert "Traceback" not in err


def test_an_unexpected_failure_is_one_line_too(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("broken\nin two lines")

    monkeypatch.delenv("NPU_TRACEBACK", raising=False)
    monkeypatch.setattr(common, "load_model", fail)
    assert cli.main(["generate", "-m", model, "-p", "x"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("npu: error: RuntimeError: broken in two lines") and err.count("\n") == 1
    monkeypatch.setenv("NPU_TRACEBACK", "1")
    with pytest.raises(RuntimeError):
        cli.main(["generate", "-m", model, "-p", "x"])


def test_help_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["generate", "--help"], ["bench", "-h"], ["devices", "-h"]):
        assert cli.main(arguments) == 0
        assert "usage: npu" in capsys.readouterr().out


def test_help_of_a_benchmark_names_its_modes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "gemm", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(mode in text for mode in ("--designs", "--k-mt-curve", "--host"))
    assert cli.main(["bench", "gemm", "--designs", "--help"]) == 0
    assert "--accumulate" in capsys.readouterr().out


def test_interrupt_ends_with_130_and_no_traceback(model: str) -> None:
    with subprocess.Popen(
        command(
            "generate", "-m", model, "-p", "x", "-n", "90000", "--temperature", "3", "--seed", "1"
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert err.decode().splitlines()[-1] == "npu: error: interrupted"
    assert b"Traceback" not in err


def test_a_reader_that_leaves_is_no_error(model: str) -> None:
    with subprocess.Popen(
        command(
            "generate",
            "-q",
            "-m",
            model,
            "-p",
            "x",
            "-n",
            "90000",
            "--temperature",
            "3",
            "--seed",
            "1",
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=HANG)
    assert (process.returncode, err) == (141, b"")


def test_importing_the_command_line_is_light() -> None:
    code = (
        "import sys, npu.cli; npu.cli.build_parser();"
        "heavy = {'gguf', 'sentencepiece', 'jinja2', 'tqdm', 'torch'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert result.stdout.decode().strip() == "[]"


def test_the_example_runs(model: str) -> None:
    result = subprocess.run(
        [sys.executable, EXAMPLE, model, "hello"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert result.returncode == 0, result.stderr.decode()
    assert len(result.stdout) > 1 and b"prompt tokens in" in result.stderr
