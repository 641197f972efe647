"""`npu models` finds models in every place, names them as their place does, once each; says why one
does not run, whatever is broken; and its rate is that of the simulated token."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import gguf
import pytest
from gemma3_files import Shape, config_of, small_vocabulary, write_model

from npu import DecodeLayer, DecodeShape, cli, simulate_decode
from npu.models import discovery
from npu.models.convert import convert
from npu.models.gemma3 import products
from npu.models.gemma3.config import read_config
from npu.models.gemma3.names import tensor_shapes
from npu.models.sources import open_source

SHAPE = Shape(layers=2, width=64, heads=4, kv_heads=2, head_dim=32, ffn_width=96)
_SIZES = tensor_shapes(config_of(SHAPE, len(small_vocabulary().pieces)))
MATRICES = [name for name, size in _SIZES.items() if len(size) == 2]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without models, and no variable that names another place."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    names = ("NPU_MODELS", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME",
             "OLLAMA_MODELS", "NPU_DEVICE")  # fmt: skip
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        discovery, "_SERVICE", folder / "service"
    )  # an Ollama service of the machine that runs the tests
    return folder


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["models", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def names(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    return [(model["place"], model["name"]) for model in listed(capsys)["models"]]


def put(path: Path, content: str | bytes = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_npu_models_is_a_list_of_folders_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    put(one / "deep/er/a.gguf")
    put(one / "b.Q4NX")
    put(one / "notes.txt")
    put(one / ".hidden/c.gguf")
    put(one / "folder/config.json", "{}")
    put(one / "folder/model.safetensors")
    (one / "again.gguf").symlink_to(one / "deep/er/a.gguf")
    file = put(two / "only.gguf")
    put(two / "other.gguf")
    blob = put(two / "blobs/sha256-0123")  # named itself, it need not have a known suffix
    named = [str(one), "", str(file), str(blob), "/nowhere"]
    monkeypatch.setenv("NPU_MODELS", os.pathsep.join(named))
    expected = ("again.gguf", "b.Q4NX", "folder", "only.gguf", "sha256-0123")
    assert names(capsys) == [("NPU_MODELS", name) for name in expected]
    assert cli.main(["models"]) == 0
    assert capsys.readouterr().err == "NPU_MODELS names /nowhere, which does not exist\n"


def test_the_hugging_face_cache(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = home / ".cache/huggingface/hub"
    blob = put(hub / "models--org--gemma-gguf/blobs/abc")
    snapshot = hub / "models--org--gemma-gguf/snapshots/123"
    snapshot.mkdir(parents=True)
    (snapshot / "m.gguf").symlink_to(blob)
    put(hub / "models--org--checkpoint/snapshots/1/config.json", "{}")
    put(hub / "models--org--checkpoint/snapshots/1/model.safetensors.index.json", "{}")
    put(hub / "datasets--org--data/snapshots/1/x.gguf")
    expected = [("Hugging Face", "org/checkpoint"), ("Hugging Face", "org/gemma-gguf/m.gguf")]
    assert names(capsys) == expected
    # Another download of the same files: that of the commit main names is listed.
    newer = put(hub / "models--org--gemma-gguf/snapshots/456/m.gguf", "y")
    for commit, path in (("123\n", snapshot / "m.gguf"), ("456", newer)):
        put(hub / "models--org--gemma-gguf/refs/main", commit)
        found = listed(capsys)["models"]
        assert [model["path"] for model in found][1:] == [str(path)]
    # The variables of huggingface_hub, the stronger one last.
    for variable, place in (
        ("XDG_CACHE_HOME", "xdg/huggingface/hub"), ("HF_HOME", "hf/hub"), ("HF_HUB_CACHE", "hub"),
    ):  # fmt: skip
        put(tmp_path / place / "models--a--b/snapshots/1/x.gguf")
        root = place.removesuffix("/huggingface/hub") if variable[0] == "X" else place
        monkeypatch.setenv(variable, str(tmp_path / root.removesuffix("/hub")))
        assert discovery.hub_cache() == tmp_path / place
        assert names(capsys) == [("Hugging Face", "a/b/x.gguf")]


def test_lm_studio(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(home / ".lmstudio/models/publisher/model/a.gguf")
    put(home / ".cache/lm-studio/models/publisher/model/b.gguf")
    put(home / "elsewhere/models/p/m/c.gguf")
    put(home / ".lmstudio-home-pointer", f"{home}/elsewhere\n")
    put(home / "downloads/p/m/d.gguf")
    put(home / ".lmstudio/settings.json", json.dumps({"downloadsFolder": f"{home}/downloads"}))
    assert names(capsys) == [
        ("LM Studio", name)
        for name in ("p/m/c.gguf", "publisher/model/a.gguf", "publisher/model/b.gguf", "p/m/d.gguf")
    ]
    put(home / ".lmstudio/settings.json", "[]")  # not what is expected: passed over
    assert len(names(capsys)) == 3


def test_ollama_names_models_by_their_manifests(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "m", SHAPE).read_bytes()
    digest = f"sha256:{hashlib.sha256(model).hexdigest()}"

    def store(folder: Path) -> None:
        put(folder / "blobs" / digest.replace(":", "-"), model)
        layers = [
            {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:00"},
            {"mediaType": "application/vnd.ollama.image.model", "digest": digest},
        ]
        registry = folder / "manifests/registry.ollama.ai"
        put(registry / "library/gemma3/1b", json.dumps({"layers": layers}))
        put(
            registry / "user/tiny/latest",
            json.dumps({"layers": [{**layers[1], "digest": "sha256:1"}]}),
        )
        for name, text in (("bad", "{"), ("none", "{}"), ("odd", '{"layers": [1]}')):
            put(registry / f"library/{name}/latest", text)
        escape = {"layers": [{**layers[1], "digest": "sha256:../../../etc/passwd"}]}
        put(registry / "library/escape/latest", json.dumps(escape))

    store(home / ".ollama/models")
    found = listed(capsys)["models"]
    assert [model["name"] for model in found] == ["gemma3:1b", "user/tiny:latest"]
    assert found[0]["runs"] and found[0]["architecture"] == "gemma3"
    assert not found[1]["runs"] and "blobs/sha256-1: No such file" in found[1]["reason"]
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "store"))
    assert names(capsys) == []
    store(tmp_path / "store")
    assert len(names(capsys)) == 2


def test_broken_files_have_the_reader_s_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "m"
    place.mkdir()
    good = write_model(place / "good.gguf", SHAPE).read_bytes()
    put(place / "cut.gguf", good[: len(good) // 2])
    put(place / "empty.gguf", b"")
    put(place / "noise.q4nx", os.urandom(200))
    write_model(place / "llama.gguf", SHAPE, architecture="llama")
    put(place / "bert/config.json", '{"model_type": "bert"}')
    put(place / "bert/model.safetensors")
    (place / "dangling.gguf").symlink_to(place / "gone")
    (place / "folder.gguf").mkdir()
    os.mkfifo(place / "pipe.gguf")
    monkeypatch.setenv("NPU_MODELS", str(place))
    found = {model["name"]: model for model in listed(capsys)["models"]}
    assert {name for name, model in found.items() if model["runs"]} == {"good.gguf"}
    for name, words in (
        ("cut.gguf", "[gguf] cut.gguf: "),
        ("empty.gguf", "empty.gguf"),
        ("noise.q4nx", "noise.q4nx"),
        ("llama.gguf", "the architecture is 'llama', only 'gemma3' models can be run"),
        ("bert", "the model type 'bert'"),
        ("dangling.gguf", "No such file"),
        ("pipe.gguf", "not a regular file"),
    ):
        assert words in found[name]["reason"] and "\n" not in found[name]["reason"]
    assert found["llama.gguf"]["architecture"] == "llama"
    assert cli.main(["models"]) == 0
    out = capsys.readouterr().out
    assert "does not run: llama: [gguf] llama.gguf: the architecture is" in out
    assert str(place / "cut.gguf") in out


def test_a_failure_that_nobody_expects_does_not_end_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.gguf", "b.gguf"):
        write_model(tmp_path / name, SHAPE)
    monkeypatch.setenv("NPU_MODELS", str(tmp_path))

    def fail(*_: object) -> None:
        raise MemoryError("out of\nmemory")

    monkeypatch.setattr(products, "weight_types", fail)
    reasons = [model["reason"] for model in listed(capsys)["models"]]
    assert reasons == ["MemoryError: out of memory"] * 2


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize("kind", ["Q4NX", "Q4_1", "Q4_0", "Q8_0", "BF16"])
def test_the_rate_is_that_of_the_simulated_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    device: str, kind: str,
) -> None:  # fmt: skip
    types = dict.fromkeys(MATRICES, gguf.GGMLQuantizationType["F32" if kind == "Q4NX" else kind])
    path = write_model(tmp_path / "m.gguf", SHAPE, types=types)
    path = convert(path, tmp_path / "m.q4nx") if kind == "Q4NX" else path
    formats = {"Q4NX": "q4nx", "Q4_1": "q4nx", "Q4_0": "q4_0", "Q8_0": "q8_0", "BF16": "bf16"}
    format = formats[kind]
    monkeypatch.setenv("NPU_MODELS", str(path))
    (model,) = listed(capsys, "--device", device)["models"]
    vocabulary = len(small_vocabulary().pieces)
    shape = DecodeShape(
        "m", SHAPE.width, SHAPE.heads, SHAPE.kv_heads, SHAPE.head_dim, SHAPE.ffn_width, vocabulary,
        tuple(DecodeLayer(SHAPE.window, (format,) * 4) for _ in range(2)), format,
    )  # fmt: skip
    seconds = simulate_decode(device, shape, 1024).seconds
    assert model["simulated_context"] == 1024
    assert model["simulated_seconds_per_token"] == pytest.approx(seconds)
    assert model["simulated_tokens_per_s"] == pytest.approx(1 / seconds)
    assert model["products_per_token"] == {format: 9}
    assert model["weights"] == {"attention": [kind], "ffn": [kind], "head": [kind]}
    monkeypatch.setenv("NPU_DEVICE", device)
    assert cli.main(["models"]) == 0
    out = capsys.readouterr().out
    assert f"decodes {1 / seconds:.1f} tok/s (simulated)" in out
    assert f"simulated on {device}, no hardware involved" in out and "not" in out


def test_types_and_parameters_of_a_mixed_file(tmp_path: Path) -> None:
    kinds = gguf.GGMLQuantizationType
    shape = Shape(layers=2, width=256, heads=4, kv_heads=2, head_dim=64, ffn_width=256)
    types = {f"blk.{i}.ffn_{part}.weight": kinds.Q4_0 for i in (0, 1) for part in ("up", "gate")}
    types |= {"blk.0.ffn_down.weight": kinds.Q4_0, "blk.1.ffn_down.weight": kinds.Q8_0}
    types |= {"token_embd.weight": kinds.Q8_0, "blk.1.attn_v.weight": kinds.Q8_0}
    source = open_source(write_model(tmp_path / "m.gguf", shape, types=types))
    config = read_config(source)
    found = products.weight_types(source, config)
    assert found == {"attention": ["F32", "Q8_0"], "ffn": ["Q4_0", "Q8_0"], "head": ["Q8_0"]}
    assert products.describe_types(found) == "attention F32, Q8_0; ffn Q4_0, Q8_0; head Q8_0"
    step = [(p.n, p.k, p.format) for p in products.products(source, config)]
    assert step[:4] == [
        (512, 256, "bf16"), (256, 256, "bf16"), (512, 256, "q4nx"), (256, 256, "q4nx"),
    ]  # fmt: skip
    # v differs from q and k: a product of its own.
    assert step[4:6] == [(384, 256, "bf16"), (128, 256, "q8")]
    assert step[-2:] == [(256, 256, "q8"), (len(small_vocabulary().pieces), 256, "q8")]
    d, layer = 256, 256 * (256 + 128 + 128 + 256) + 3 * 256 * 256 + 4 * 256 + 2 * 64
    assert products.parameters(source, config) == 2 * layer + d + d * len(small_vocabulary().pieces)


def test_without_models_the_places_are_listed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["models"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("no models found; looked in:\n")
    for place in (".cache/huggingface/hub", ".lmstudio/models", ".ollama/models"):
        assert f"{home}/{place}" in out
    assert cli.main(["models", "--device", "gpu"]) == 1
