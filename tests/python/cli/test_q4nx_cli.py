"""`npu convert` and `npu q4nx`: what they print, their exit codes, the progress bar's bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gemma3_files import Shape, write_model
from limits import HANG

from npu import cli
from npu.formats.q4nx.container import Q4nxFile
from npu.models.convert import convert

SHAPE = Shape(layers=1, width=64, heads=2, kv_heads=1, head_dim=32, ffn_width=96)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A GGUF model and the Q4NX file made of it."""
    source = write_model(tmp_path / "m.gguf", SHAPE)
    target = tmp_path / "m.q4nx"
    assert cli.main(["convert", str(source), str(target)]) == 0
    return str(source), str(target)


def test_convert(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    source, target = files
    assert cli.main(["convert", source, target, "--force"]) == 0
    out, err = capsys.readouterr()
    assert (
        out == ""
        and err.startswith(f"{target}: {os.stat(target).st_size / 1e6:.1f} MB in ")
        and err.count("\n") == 1
    )
    assert cli.main(["convert", source, target]) == 1
    assert "exists; give --force" in capsys.readouterr().err
    assert cli.main(["convert", source, target, "--force", "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_converted_model_generates(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    texts = []
    for path in (files[1], os.path.dirname(files[1])):
        assert (
            cli.main(["generate", "-q", "-m", path, "-p", "hello", "-n", "5", "--temp", "0"]) == 0
        )
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and len(texts[0]) > 1


def test_info(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.main(["q4nx", "info", files[1]]) == 0
    out = capsys.readouterr().out
    for part in ("written by npu convert", "dialect: I8 (additive, w = m + d * code)",
                 "source: m.gguf", "checksums: crc32", "mlp.up_proj.weight",
                 "[96, 64]"):  # fmt: skip
        assert part in out
    assert cli.main(["q4nx", "info", files[1], "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in document["tensors"]}
    row = rows["model.layers.0.mlp.up_proj.weight"]
    # 96 x 64 in 3 x 1 blocks.
    assert (row["type"], row["shape"], row["bytes"]) == ("Q4NX", [96, 64], 3 * 5120)
    assert row["bits_per_weight"] == 20.0
    assert rows["model.norm.weight"]["type"] == "BF16"
    assert document["header_dialect"] == "I8" and document["architecture"] == "gemma3"


def test_verify(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.main(["q4nx", "verify", files[1]]) == 0
    good = f"{files[1]}: good (16 tensors, dialect I8, crc32 of all tensors)\n"
    assert capsys.readouterr().out == good
    raw = bytearray(Path(files[1]).read_bytes())
    header = 8 + int.from_bytes(raw[:8], "little")
    raw[header + 2 : header + 4] = b"\xc0\x7f"  # a scale of the first block
    Path(files[1]).write_bytes(raw)
    assert cli.main(["q4nx", "verify", files[1]]) == 1
    out = capsys.readouterr().out
    assert "self_attn.q_proj.weight' has NaN or infinity in 1 scales and 0 minima" in out
    assert cli.main(["q4nx", "verify", files[1], "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["good"] is False and len(document["problems"]) == 2
    assert "does not match its checksum" in document["problems"][0]


def test_dirty_padding_is_reported(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """K is 64: groups 2 to 7 of a block are padding. The last row-block of the head, before the
    embedding, is padded too."""
    raw = bytearray(Path(files[1]).read_bytes())
    header = 8 + int.from_bytes(raw[:8], "little")
    raw[header + 2 * 2 * 32 + 1] = 1
    raw[header + 1024 + 64 * 8] = 0x10
    Path(files[1]).write_bytes(raw)
    assert cli.main(["q4nx", "verify", files[1]]) == 1
    assert "has 2 values other than zero in its padding" in capsys.readouterr().out
    head = Q4nxFile(files[1]).entries["lm_head.weight"]
    rows = Q4nxFile(files[1]).shapes["lm_head.weight"][0]
    assert rows % 32
    raw = bytearray(Path(files[1]).read_bytes())
    raw[head.offset + head.size - 5120 + 31 * 2] = 1  # the scale of row 31, group 0
    Path(files[1]).write_bytes(raw)
    assert cli.main(["q4nx", "verify", files[1]]) == 1
    out = capsys.readouterr().out
    assert "'lm_head.weight' has 1 values other than zero in its padding" in out


def test_diff(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.main(["q4nx", "diff", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["tensor", "types", "max", "rms", "relative", "cosine"]
    assert len(lines) == 17 and lines[1].startswith("model.layers.0.self_attn.q_proj.weight")
    assert cli.main(["q4nx", "diff", *files, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tensors"]
    for row in rows:
        # sqrt(64) is a power of two and the norms are bfloat16 numbers: only blocks err.
        assert (row["rms"] > 0) == (row["type"] == "Q4NX")
        assert row["rms"] <= row["max"] and row["relative_rms"] < 0.1
        assert row["cosine"] > 0.995 and row["source_type"] == "F32"


def test_diff_with_nan_is_json(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    """The figures of a spoilt norm are null: JSON has no NaN."""
    raw = bytearray(Path(files[1]).read_bytes())
    raw[-2:] = b"\x81\x7f"  # a signalling NaN, at which NumPy warns
    Path(files[1]).write_bytes(raw)
    capsys.readouterr()
    assert cli.main(["q4nx", "diff", *files, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["tensors"]
    spoilt = [row for row in rows if row["max"] is None]
    assert len(spoilt) == 1 and spoilt[0]["rms"] is None and spoilt[0]["cosine"] is None
    assert not recwarn.list


def test_swapped_and_empty_names(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert cli.main(["q4nx", "diff", files[1], files[0]]) == 1
    assert "`npu convert` makes a Q4NX file of it" in capsys.readouterr().err
    for arguments, words in (((files[0], ""), "output is empty"), (("", "x"), "input is empty")):
        assert cli.main(["convert", *arguments]) == 1
        assert f"[convert] the name of the {words}" in capsys.readouterr().err
    assert not (tmp_path / "model.q4nx").exists()


def test_diff_of_another_model(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_model(tmp_path / "o.gguf", Shape(layers=1, width=96))
    assert cli.main(["q4nx", "diff", str(other), files[1]]) == 1
    assert "the model needs" in capsys.readouterr().err


def test_progress(tmp_path: Path) -> None:
    """Calls grow to exactly the bytes of the tensors, each with a name."""
    source = write_model(tmp_path / "m.gguf", SHAPE)
    calls: list[tuple[int, int, str]] = []
    path = convert(source, tmp_path / "m.q4nx", progress=lambda *call: calls.append(call))
    done = [call[0] for call in calls]
    assert done == sorted(done) and len({call[2] for call in calls}) == 16
    raw = path.read_bytes()
    header = 8 + int.from_bytes(raw[:8], "little")
    assert {call[1] for call in calls} == {done[-1]} == {len(raw) - header}


@pytest.mark.parametrize("how", ["KeyboardInterrupt", "SIGTERM", "SIGHUP"])
def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path, how: str) -> None:
    """Neither a target nor a partial file; the file that was there stays."""
    (tmp_path / "m.q4nx").write_bytes(b"old")
    source = write_model(tmp_path / "m.gguf", SHAPE)
    code = """
import os, signal, sys, time
from npu import cli
from npu.formats.q4nx.container import Q4nxFile
from npu.models import convert
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
def stop(*arguments):
    if sys.argv[3] == "KeyboardInterrupt":
        raise KeyboardInterrupt
    os.kill(os.getpid(), getattr(signal, sys.argv[3]))
    time.sleep(0.5)  # the main thread takes it meanwhile
    raise AssertionError
convert.embedding = stop
sys.exit(cli.main(["convert", sys.argv[1], sys.argv[2], "--force"]))
"""
    arguments = [sys.executable, "-c", code, str(source), str(tmp_path / "m.q4nx"), how]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == {"KeyboardInterrupt": 130, "SIGTERM": 143, "SIGHUP": 129}[how]
    assert done.stderr == ("npu: error: interrupted\n" if how == "KeyboardInterrupt" else "")
    assert sorted(os.listdir(tmp_path)) == ["m.gguf", "m.q4nx"]
    assert (tmp_path / "m.q4nx").read_bytes() == b"old"
