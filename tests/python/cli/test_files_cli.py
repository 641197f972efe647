"""What commands accept, and how they refuse: one list of rules for convert, verify and generate.

A Q4NX file that cannot generate is not verified; one that cannot generate is not written. Files are
opened by what they are. A full standard output is one sentence. Piped commands show progress.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import q4nx_files
from gemma3_files import Shape, small_vocabulary, write_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import HANG

from npu import cli
from npu.cli import progress
from npu.errors import NpuError
from npu.formats.q4nx.container import Q4nxFile
from npu.models import gemma3
from npu.models.convert import convert
from npu.models.report import verify

SHAPE = Shape(layers=1, width=64, heads=2, kv_heads=1, head_dim=32, ffn_width=96)
TOKENS = len(small_vocabulary().pieces)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A GGUF model and the Q4NX file made of it."""
    folder = tmp_path_factory.mktemp("files")
    source = write_model(folder / "m.gguf", SHAPE)
    return source, convert(source, folder / "m.q4nx")


def with_keys(original: Path, target: Path, **changes: Any) -> Path:
    """A Q4NX file with other metadata of the model, without checksums; None removes a key."""
    file = Q4nxFile(original)
    tensors = {
        name: (entry.dtype, entry.shape, file._file.raw(entry).tobytes())
        for name, entry in file.entries.items()
    }
    metadata = {k: v for k, v in file.metadata.items() if "checksum" not in k}
    for name, value in changes.items():
        key = f"gguf.{name.replace('__', '.')}"
        metadata.pop(key, None)
        if value is not None:
            metadata[key] = json.dumps(value)
    return q4nx_files.write_file(target, tensors, metadata)


SCORES = [0.0] * TOKENS
UNSUITABLE: dict[str, dict[str, Any]] = {
    "another kind": {"tokenizer__ggml__model": "gpt2"},
    "no kind": {"tokenizer__ggml__model": None},
    "no tokens": {"tokenizer__ggml__tokens": None},
    "tokens that are no list": {"tokenizer__ggml__tokens": "abc"},
    "tokens that are numbers": {"tokenizer__ggml__tokens": list(range(TOKENS))},
    "an object for tokens": {"tokenizer__ggml__tokens": {"a": 1}},
    "NaN as score": {"tokenizer__ggml__scores": [float("nan"), *SCORES[1:]]},
    "infinity as score": {"tokenizer__ggml__scores": [float("inf"), *SCORES[1:]]},
    "a word as score": {"tokenizer__ggml__scores": ["x"] * TOKENS},
    "too few scores": {"tokenizer__ggml__scores": SCORES[1:]},
    "an unknown type": {"tokenizer__ggml__token_type": [7] * TOKENS},
    "no types": {"tokenizer__ggml__token_type": None},
    "BOS out of range": {"tokenizer__ggml__bos_token_id": 10**9},
    "EOS below 0": {"tokenizer__ggml__eos_token_id": -1},
    "EOT out of range": {"tokenizer__ggml__eot_token_id": TOKENS},
    "no BOS": {"tokenizer__ggml__bos_token_id": None},
    "a word as flag": {"tokenizer__ggml__add_bos_token": "yes"},
    "another flag": {"tokenizer__ggml__remove_extra_whitespaces": 3},
    "more tokens than rows": {
        "tokenizer__ggml__tokens": [*small_vocabulary().pieces, "zz"],
        "tokenizer__ggml__scores": [*SCORES, 0.0],
        "tokenizer__ggml__token_type": [*small_vocabulary().types, 1],
    },
    "a number as template": {"tokenizer__chat_template": 5},
    "no layers": {"gemma3__block_count": None},
    "fewer layers": {"gemma3__block_count": 0},
    "another architecture": {"general__architecture": "llama"},
    "another width": {"gemma3__embedding_length": 96},
    "NaN as base": {"gemma3__rope__freq_base": float("nan")},
    "a scale that makes logits infinite": {"gemma3__attention__scale": 1e300},
    "a scale that is 0 in float32": {"gemma3__attention__scale": 1e-300},
    "a list as soft-capping": {"gemma3__attn_logit_softcapping": [1.0, 2.0]},
    "a list as cap of the logits": {"gemma3__final_logit_softcapping": [1.0, 2.0]},
    "a word as temperature": {"general__sampling__temp": "hot"},
    "top-p above 1": {"general__sampling__top_p": 2.0},
    "half a top-k": {"general__sampling__top_k": 1.5},
    "no repetition penalty": {"general__sampling__penalty_repeat": 0},
}
# Generating from a raw prompt needs no template.
TEMPLATES = {
    "a broken template": {"tokenizer__chat_template": "{% for %}"},
    "an endless template": {
        "tokenizer__chat_template": "{% for i in range(99999) %}{% for j in range(99999) %}"
        "{% endfor %}{% endfor %}"
    },
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "an endless template" else name
        for name in [*UNSUITABLE, *TEMPLATES]
    ],
)
def test_what_cannot_generate_is_neither_verified_nor_written(
    files: tuple[Path, Path], tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = with_keys(files[1], tmp_path / "bad.q4nx", **{**UNSUITABLE, **TEMPLATES}[name])
    assert cli.main(["q4nx", "verify", str(bad)]) == 1
    # A slow machine may print progress beside the sentence.
    (line,) = [x for x in "".join(capsys.readouterr()).splitlines() if not x.startswith("checking")]
    assert len(line) < 500
    assert cli.main(["convert", str(bad), str(tmp_path / "new.q4nx")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["bad.q4nx"]
    arguments = ["generate", "-q", "-m", str(bad), "-p", "hello", "-n", "2"]
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("npu: error: [") and error.count("\n") == 1
    if name in TEMPLATES:
        assert cli.main([*arguments, "--raw"]) == 0


def test_what_is_good_stays_good(files: tuple[Path, Path], tmp_path: Path) -> None:
    assert verify(Q4nxFile(with_keys(files[1], tmp_path / "same.q4nx"))) == []


# What files may have and the small model has not.
OPTIONAL = (
    "gemma3.attention.scale",
    "gemma3.attention.sliding_window_pattern",
    "gemma3.attn_logit_softcapping",
    "gemma3.final_logit_softcapping",
    "gemma3.rope.freq_base_swa",
    "gemma3.rope.scaling.factor",
    "gemma3.rope.scaling.type",
    "general.sampling.penalty_repeat",
    "general.sampling.temp",
    "general.sampling.top_k",
    "tokenizer.chat_template",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.remove_extra_whitespaces",
    "tokenizer.ggml.unknown_token_id",
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@pytest.mark.slow
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_verify_agrees_with_load_for_any_metadata(
    files: tuple[Path, Path], tmp_path: Path, data: st.DataObject
) -> None:
    """Any JSON in the place of a value: no other error than a sentence, and the same verdict."""
    keys = sorted({*Q4nxFile(files[1]).model, *OPTIONAL})
    key = data.draw(st.sampled_from(keys))
    value = data.draw(VALUES | st.lists(VALUES, min_size=TOKENS, max_size=TOKENS))
    bad = with_keys(files[1], tmp_path / "f.q4nx", **{key.replace(".", "__"): value})
    try:
        found = verify(Q4nxFile(bad))
    except NpuError as error:
        found = [str(error)]
    try:
        gemma3.load(bad)
        loads = True
    except NpuError as error:
        loads = False
        assert "\n" not in str(error) and len(str(error)) < 600
    template = [problem for problem in found if "chat template" in problem]
    assert loads == (not found or found == template)


# --- what is opened --------------------------------------------------------------------------


def test_files_are_opened_by_what_they_are(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gguf, q4nx = tmp_path / "a.q4nx", tmp_path / "b.gguf"
    gguf.write_bytes(files[0].read_bytes())
    q4nx.write_bytes(files[1].read_bytes())
    texts = []
    for path in (*files, gguf, q4nx):
        command = ["generate", "-q", "-m", str(path), "-p", "hello", "-n", "3", "--temp", "0"]
        assert cli.main([*command, "--weights", "q4nx"]) == 0
        texts.append(capsys.readouterr().out)
    assert len(set(texts)) == 1
    assert cli.main(["convert", "-q", str(gguf), str(tmp_path / "c")]) == 0
    assert (tmp_path / "c").stat().st_size == files[1].stat().st_size
    folder = tmp_path / "folder"
    folder.mkdir()
    gguf.rename(folder / "a.q4nx")
    assert cli.main(["generate", "-q", "-m", str(folder), "-p", "hello", "-n", "3"]) == 0


def test_a_safetensors_file_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = q4nx_files.write_file(tmp_path / "model.safetensors", {"a": ("F32", (1,), b"1234")})
    for command in (["convert", str(path), str(tmp_path / "x")], ["generate", "-m", str(path)]):
        assert cli.main([*command, *(["-p", "x"] if "-m" in command else [])]) == 1
        error = capsys.readouterr().err
        assert "Name the folder of a checkpoint" in error and "npu convert`" not in error


def test_places_where_nothing_can_be_written(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["convert", str(files[0]), "/proc/b.q4nx"]) == 1
    error = capsys.readouterr().err
    assert "no file can be created in /proc" in error and "free" not in error
    for words in (["convert", str(files[0]), "n" * 300], ["convert", "n" * 300, "x"],
                  ["generate", "-p", "x", "-m", "n" * 300]):  # fmt: skip
        assert cli.main(words) == 1
        error = capsys.readouterr().err
        assert "File name too long" in error and "NPU_TRACEBACK" not in error


def test_the_folder_above_a_link(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``link/..`` is the folder above the one that the link points to, as for every program."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    assert cli.main(["convert", str(files[0]), f"{tmp_path}/link/../m.q4nx"]) == 0
    assert (tmp_path / "a" / "m.q4nx").is_file()
    assert not (tmp_path / "m.q4nx").exists()
    capsys.readouterr()
    assert cli.main(["convert", str(files[0]), f"{tmp_path}/none/.."]) == 1
    assert "No such file or directory" in capsys.readouterr().err


# --- output ----------------------------------------------------------------------------------


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    "command",
    ["devices", "--help", "--version", "q4nx info FILE", "q4nx verify FILE", "q4nx diff GGUF FILE",
     "generate -q -m FILE -p hello -n 8 --temp 0", "inspect --gemm 64x64x64",
     "q4nx info --json FILE"],
)  # fmt: skip
def test_a_full_standard_output(files: tuple[Path, Path], command: str, buffered: bool) -> None:
    names = {"GGUF": str(files[0]), "FILE": str(files[1])}
    arguments = [names.get(word, word) for word in command.split()]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    if not buffered:
        environment["PYTHONUNBUFFERED"] = "1"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "npu.cli", *arguments], stdout=full, stderr=subprocess.PIPE,
            text=True, timeout=HANG, env=environment, check=False,
        )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if not line.startswith("GEMM ")]
    assert done.returncode == 1
    assert lines == ["npu: error: cannot write to standard output: No space left on device"]


def test_piped_progress(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """With no time between lines, every step prints one; the steps end at 100 %."""
    monkeypatch.setattr(progress, "_LINE_EVERY", 0.0)
    for words, what in (
        (["convert", str(files[0]), str(tmp_path / "m.q4nx")], "converting"),
        (["q4nx", "diff", *map(str, files)], "comparing"),
        (["q4nx", "verify", str(files[1])], "checking"),
    ):
        assert cli.main(words) == 0
        lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith(f"{what}: ")]
        shares = [int(line.split()[1].removesuffix("%,")) for line in lines]
        assert len(lines) >= 16 and shares == sorted(shares) and shares[-1] == 100
    assert cli.main(["convert", "-q", "--force", str(files[0]), str(tmp_path / "m.q4nx")]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["convert GGUF NEW", "q4nx verify FILE"])
def test_work_does_not_depend_on_standard_error(
    files: tuple[Path, Path], tmp_path: Path, command: str
) -> None:
    """A full disk under the log of a long conversion does not end it."""
    names = {"GGUF": str(files[0]), "FILE": str(files[1]), "NEW": str(tmp_path / "m.q4nx")}
    arguments = [names.get(word, word) for word in command.split()]
    code = (
        "import sys; from npu import cli; from npu.cli import progress; "
        "progress._LINE_EVERY = 0.0; sys.exit(cli.main(sys.argv[1:]))"
    )
    # Buffered output is written once more at exit.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=full,
            timeout=HANG, check=False, env=environment,
        )  # fmt: skip
    assert done.returncode == 0
    assert (tmp_path / "m.q4nx").exists() == (command == "convert GGUF NEW")


def test_a_signalling_nan_is_found_without_a_warning(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    file = Q4nxFile(files[1])
    raw = bytearray(files[1].read_bytes())
    start = file.entries["model.norm.weight"].offset
    raw[start : start + 2] = b"\x81\x7f"  # bfloat16 0x7f81
    (tmp_path / "bad.q4nx").write_bytes(raw)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problems = verify(Q4nxFile(tmp_path / "bad.q4nx"))
    assert any("NaN or infinity in 1 values" in problem for problem in problems)


def test_lines_come_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.reported("working") as report:
        for now in range(31):
            report(int(now), 30, "part.weight")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"working: {share}%, part" for share in (17, 33, 50, 67, 83, 100)]
