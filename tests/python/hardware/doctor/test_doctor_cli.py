"""`npu doctor` as a user runs it: exit codes, the JSON document, the record and its replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from machine_records import FOLDER, MACHINES

import npu
from npu import cli
from npu.hardware.doctor.examine import ALL_LAYERS

STATES = {"ok", "broken", "unknown", "not needed"}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(["doctor", *words])
    out, err = capsys.readouterr()
    return code, out, err


def replay(name: str) -> str:
    return str(FOLDER / f"{name}.json")


@pytest.mark.parametrize(
    ("name", "code"),
    [("healthy_npu1_arch", 0), ("no_driver", 1), ("no_xrt_device", 1), ("sysfs_garbage", 1)],
)
def test_exit_codes(name: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """0 only if a command ran."""
    for form in ([], ["--json"], ["--verbose"]):
        assert run(capsys, "--replay", replay(name), *form)[0] == code


def test_wrong_command_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words in (
        ["--json", "--verbose"], ["--record"], ["--what"], ["file"],
        ["--record", "a", "--replay", "b"],
    ):  # fmt: skip
        code, out, err = run(capsys, *words)
        assert (code, out) == (2, "") and err.startswith("npu: error: ")
    code, out, err = run(capsys, "--replay", str(tmp_path / "none"))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "No such file" in err


@pytest.mark.parametrize("name", MACHINES)
def test_the_json_document(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its schema, as docs/hardware.md describes it; every fix is complete."""
    code, out, _ = run(capsys, "--replay", replay(name), "--json")
    document = json.loads(out)
    assert list(document) == [
        "schema", "version", "verdict", "first_broken", "generation", "system", "kernel", "layers",
    ]  # fmt: skip
    assert (document["schema"], document["version"]) == ("npu-doctor/1", npu.__version__)
    assert document["verdict"] in ("ok", "broken", "unknown")
    assert (document["verdict"] == "ok") == (code == 0)
    assert [layer["name"] for layer in document["layers"]] == [layer.name for layer in ALL_LAYERS]
    for layer in document["layers"]:
        assert list(layer) == ["name", "title", "state", "found", "fix", "notes", "values"]
        assert layer["state"] in STATES
        assert (layer["fix"] is not None) == (layer["state"] == "broken")
        if layer["fix"]:
            assert layer["fix"]["text"] and layer["fix"]["commands"]
    broken = [layer["name"] for layer in document["layers"] if layer["state"] == "broken"]
    assert document["first_broken"] == (broken[0] if broken else None)


def test_verbose_shows_every_fix(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--replay", replay("kernel_too_old"), "--verbose")
    assert "amdxdna-dkms" in out and "sudo apt install libxrt2" in out  # of two broken layers


def test_record_and_replay(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of this machine: the replay prints what the examination did, with the same exit code."""
    path = tmp_path / "npu.json"
    code, out, _ = run(capsys, "--record", str(path))
    screen, _, note = out.rpartition("\n\n")
    assert note.startswith(f"Wrote {path}") and "Read it before you attach it" in note
    again, replayed, _ = run(capsys, "--replay", str(path))
    assert (again, replayed) == (code, screen + "\n")
    code, out, _ = run(capsys, "--record", str(path), "--json")
    json.loads(out)  # nothing else is printed


def test_the_layers_and_the_schema_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[4] / "docs/hardware.md").read_text()
    document = json.loads(run(capsys, "--replay", replay("no_driver"), "--json")[1])
    assert [key for key in (*document, *document["layers"][0]) if f"`{key}`" not in page] == []
    assert [layer.name for layer in ALL_LAYERS if f"| `{layer.name}` |" not in page] == []
