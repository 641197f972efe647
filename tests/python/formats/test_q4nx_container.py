"""Q4NX files: both header dialects written by hand are read, an independent library reads ours, and
every malformed, mislabelled or hostile file is one clear FormatError, never a crash."""

from __future__ import annotations

import errno
import json
import os
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import q4nx_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu.errors import ArgumentError, FileError, FormatError
from npu.formats.q4nx.container import Q4nxFile
from npu.formats.q4nx.writer import Announced, Writer
from npu.models.report import describe, verify
from npu.models.sources import Q4nxSource

SHAPE = (64, 300)
NAME = "model.layers.0.mlp.up_proj.weight"


def entry(matrix: q4nx_files.Matrix, dialect: str = "I8") -> tuple[str, tuple[int, ...], bytes]:
    raw = q4nx_files.pack(matrix)
    shape = (len(raw) // 5120, 5120) if dialect == "I8" else matrix.shape
    return dialect, shape, raw


def one(path: Path, *tensor: object, metadata: dict[str, str] | None = None) -> Path:
    return q4nx_files.write_file(path, {NAME: tensor}, metadata)  # type: ignore[dict-item]


def test_packed_dialect(tmp_path: Path) -> None:
    matrix = q4nx_files.random_matrix(*SHAPE)
    file = Q4nxFile(one(tmp_path / "a.q4nx", *entry(matrix)))
    assert (file.header_dialect, file.dialect, file.own, file.shapes) == (
        "I8",
        "additive",
        False,
        {},
    )
    tensor = file.tensor(NAME, SHAPE)
    assert (tensor.to_numpy(np.float32) == matrix.exact().astype(np.float32)).all()
    with pytest.raises(FormatError, match=r"shape of .* is not in the file; put .*config.json"):
        file.tensor(NAME)
    with pytest.raises(FormatError, match="needs 2 x 3 blocks, the file has 4"):
        file.tensor(NAME, (64, 513))


def test_packed_in_two_dimensions(tmp_path: Path) -> None:
    """The public converter's other form, [N / 32, K / 256, 5120]."""
    matrix = q4nx_files.random_matrix(*SHAPE)
    file = Q4nxFile(one(tmp_path / "a.q4nx", "I8", (2, 2, 5120), q4nx_files.pack(matrix)))
    values = file.tensor(NAME, SHAPE).to_numpy(np.float32)
    assert (values == matrix.exact().astype(np.float32)).all()


def test_zero_point_dialect(tmp_path: Path) -> None:
    matrix = q4nx_files.random_matrix(*SHAPE, low=5, high=10)
    file = Q4nxFile(one(tmp_path / "a.q4nx", *entry(matrix, "Q4NX")))
    assert (file.dialect, file.shapes) == ("zero_point", {NAME: SHAPE})
    values = file.tensor(NAME).to_numpy(np.float32)
    assert np.allclose(values, matrix.exact(zero_point=True), rtol=1e-6)
    with pytest.raises(FormatError, match=r"has shape \(64, 300\), the model needs \(64, 256\)"):
        file.tensor(NAME, (64, 256))


def test_the_tensor_is_the_mapped_file(tmp_path: Path) -> None:
    file = Q4nxFile(one(tmp_path / "a.q4nx", *entry(q4nx_files.random_matrix(*SHAPE))))
    blocks = file.tensor(NAME, SHAPE).blocks
    assert not blocks.flags.writeable and not blocks.flags.owndata
    file.release(NAME)  # dropped pages come back from the file
    matrix = q4nx_files.random_matrix(*SHAPE)
    assert blocks.tobytes() == q4nx_files.pack(matrix)


@pytest.mark.parametrize(("label", "low", "high"), [("I8", 5, 10), ("Q4NX", -0.6, -0.2)])
def test_wrong_dialect_labels(tmp_path: Path, label: str, low: float, high: float) -> None:
    matrix = q4nx_files.random_matrix(*SHAPE, low=low, high=high)
    file = Q4nxFile(one(tmp_path / "a.q4nx", *entry(matrix, label)))
    with pytest.raises(FormatError, match=f"is labelled {label}, but its second plane holds"):
        file.tensor(NAME, SHAPE)


def small_tiles(count: int) -> bytes:
    """1280-byte tiles (32 x 64) of a weight-like matrix: 64 scales, 64 minima, codes."""
    random = np.random.default_rng(0)
    d = random.uniform(0.01, 0.1, (count, 64)).astype(ml_dtypes.bfloat16)
    m = random.uniform(-0.5, 0, (count, 64)).astype(ml_dtypes.bfloat16)
    codes = random.integers(0, 256, (count, 1024), dtype=np.uint8)
    return np.hstack([d.view(np.uint8), m.view(np.uint8), codes]).tobytes()


def test_small_tiles_are_recognised(tmp_path: Path) -> None:
    raw = small_tiles(64)
    labelled = Q4nxFile(one(tmp_path / "a.q4nx", "I8", (64, 1280), raw))
    with pytest.raises(FormatError, match=r"tiles of 1280 bytes .* convert the model from GGUF"):
        labelled.tensor(NAME, (64, 2048))
    hidden = Q4nxFile(one(tmp_path / "b.q4nx", "I8", (16, 5120), raw))
    with pytest.raises(FormatError, match=r"NaN or infinity .* none when read as 1280-byte tiles"):
        hidden.tensor(NAME, (64, 2048))


def test_nan_planes(tmp_path: Path) -> None:
    raw = bytearray(q4nx_files.pack(q4nx_files.random_matrix(*SHAPE)))
    raw[512:514] = b"\xc0\x7f"
    file = Q4nxFile(one(tmp_path / "a.q4nx", "I8", (4, 5120), bytes(raw)))
    with pytest.raises(FormatError, match=r"in 0 scales and 1 minima; it is corrupted or"):
        file.tensor(NAME, SHAPE)


def test_verify_reads_all_blocks(tmp_path: Path) -> None:
    """A NaN in the last of many blocks, where opening does not look."""
    raw = bytearray(q4nx_files.pack(q4nx_files.random_matrix(32, 256)) * 100)
    raw[99 * 5120 : 99 * 5120 + 2] = b"\x80\xff"
    file = Q4nxFile(one(tmp_path / "a.q4nx", "Q4NX", (3200, 256), bytes(raw)))
    file.dialect = "additive"
    file.tensor(NAME)
    problems = verify(file)
    assert any("NaN or infinity in 1 scales and 0 minima" in problem for problem in problems)
    assert any("no config.json" in problem for problem in problems)


def test_verify_of_tensors_beyond_the_model(tmp_path: Path) -> None:
    """Scalars, empty tensors, float64 beyond float32 and element types that nobody here reads."""
    blocks = ("I8", (1, 5120), q4nx_files.pack(q4nx_files.random_matrix(32, 256)))
    tensors = {
        NAME: blocks,
        "scalar": ("F32", (), np.float32(np.nan).tobytes()),
        "one": ("F32", (), np.float32(1).tobytes()),
        "empty": ("F32", (0, 3), b""),
        "large": ("F64", (2,), np.array([1e300, np.inf]).tobytes()),
        "foreign": ("F8_E4M3", (2,), b"ab"),
    }
    problems = verify(Q4nxFile(q4nx_files.write_file(tmp_path / "a.q4nx", tensors)))
    words = "\n".join(problem for problem in problems if "config.json" not in problem)
    assert "'scalar' has NaN or infinity in 1 values" in words
    assert "'large' has NaN or infinity in 1 values" in words
    assert "'foreign' has dtype 'F8_E4M3'" in words
    assert words.count("\n") == 2


def test_verify_finds_bytes_of_no_tensor(tmp_path: Path) -> None:
    path = one(tmp_path / "a.q4nx", *entry(q4nx_files.random_matrix(*SHAPE)))
    assert not any("no tensor" in problem for problem in verify(Q4nxFile(path)))
    path.write_bytes(path.read_bytes() + b"rest")
    assert any("4 data bytes belong to no tensor" in line for line in verify(Q4nxFile(path)))


def own_metadata(**more: str) -> dict[str, str]:
    return {"npu.q4nx.version": "1", "npu.q4nx.shapes": json.dumps({NAME: SHAPE}), **more}


def test_own_metadata(tmp_path: Path) -> None:
    keys = {"gguf.a": "[1,2]", "gguf.b": '["x"]', "gguf.c": "[true]", "gguf.d": "[1.5,2]"}
    keys |= {"gguf.e": '"text"', "gguf.f": "7", "gguf.g": "[]"}
    data = entry(q4nx_files.random_matrix(*SHAPE, low=5, high=10))
    file = Q4nxFile(one(tmp_path / "a.q4nx", *data, metadata=own_metadata(**keys)))
    assert file.own and file.shapes == {NAME: SHAPE}
    assert file.model["a"].dtype == np.int64 and file.model["c"].dtype == bool
    assert file.model["b"] == ["x"] and file.model["d"].tolist() == [1.5, 2]
    assert (file.model["e"], file.model["f"], file.model["g"]) == ("text", 7, [])
    # No guesses about the dialect of a file that says who wrote it.
    assert file.tensor(NAME).shape == SHAPE
    document = describe(file)
    assert document["tensors"][0]["shape"] == [64, 300]
    assert document["bits_per_weight"] == round(4 * 5120 * 8 / (64 * 300), 4)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"npu.q4nx.version": "2"}, "version '2', this reader knows 1"),
        ({"npu.q4nx.shapes": "{"}, "is not JSON"),
        ({"npu.q4nx.shapes": "[]"}, r"has None for .*, expected \[N, K\]"),
        ({"npu.q4nx.shapes": json.dumps({NAME: [64, 0]})}, r"has \[64, 0\]"),
        ({"npu.q4nx.shapes": json.dumps({NAME: [64, True]})}, "has "),
        ({"gguf.x": "["}, "'gguf.x' is not JSON"),
        ({"gguf.x": '["a", 1]'}, "'gguf.x' is a list of mixed kinds"),
        ({"gguf.x": f"[{2**70}]"}, "'gguf.x' is a list of mixed kinds"),
        ({"gguf.x": "[" * 100_000}, "'gguf.x' is not JSON"),
    ],
)
def test_malformed_own_metadata(tmp_path: Path, metadata: dict[str, str], words: str) -> None:
    data = entry(q4nx_files.random_matrix(*SHAPE))
    path = one(tmp_path / "a.q4nx", *data, metadata={**own_metadata(), **metadata})
    with pytest.raises(FormatError, match=words):
        Q4nxFile(path)


def raw_file(path: Path, header: object, body: bytes = b"", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + body)
    return path


def header_of(**changes: object) -> dict[str, object]:
    return {"t": {"dtype": "I8", "shape": [1, 5120], "data_offsets": [0, 5120], **changes}}


BAD_FILES: dict[str, tuple[object, bytes, int | None, str]] = {
    "oversized header": (b"{}", b"", 1 << 40, "claims a header of 1099511627776 bytes, at most"),
    "header beyond the end": (b"{}", b"", 100, "claims a header of 100 bytes and has 2"),
    "not JSON": (b"{nonsense", b"", None, "the header is not JSON"),
    "not UTF-8": (b'{"\xff": 1}', b"", None, "the header is not JSON"),
    "deep nesting": (b"[" * 200_000, b"", None, "the header is not JSON"),
    "not an object": ([1], b"", None, "not a JSON object"),
    "no tensors": ({}, b"", None, "has no Q4NX tensor"),
    "unquantised": (header_of(dtype="BF16", shape=[2560]), bytes(5120), None, "no Q4NX tensor"),
    "truncated data": (header_of(), bytes(5119), None, "it is truncated or corrupted"),
    "twice": (
        b'{"t":{"dtype":"I8","shape":[1,5120],"data_offsets":[0,5120]},"t":1}',
        bytes(5120),
        None,
        "has 't' twice",
    ),
    "metadata of numbers": ({"__metadata__": {"a": 1}, **header_of()}, bytes(5120), None, "map of"),
    "entry is a list": ({"t": []}, b"", None, r"is \[\], not an object"),
    "no dtype": (header_of(dtype=8), bytes(5120), None, "has the dtype 8"),
    "negative size": (header_of(shape=[-1, 5120]), bytes(5120), None, "has the shape"),
    "fraction": (header_of(shape=[1.5, 5120]), bytes(5120), None, "has the shape"),
    "bool": (header_of(shape=[True, 5120]), bytes(5120), None, "has the shape"),
    "offsets reversed": (header_of(data_offsets=[5120, 0]), bytes(5120), None, "data offsets"),
    "one offset": (header_of(data_offsets=[0]), bytes(5120), None, "data offsets"),
    "shape and size": (header_of(shape=[2, 5120]), bytes(5120), None, "needs 10240"),
    "mixed dialects": (
        {**header_of(), "u": {"dtype": "Q4NX", "shape": [32, 256], "data_offsets": [5120, 10240]}},
        bytes(10240),
        None,
        "mixes I8 and Q4NX",
    ),
    "overlap": (
        {**header_of(), "u": {"dtype": "I8", "shape": [1, 5120], "data_offsets": [5119, 10239]}},
        bytes(10240),
        None,
        "'t' and 'u' overlap",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_malformed_files(tmp_path: Path, name: str) -> None:
    header, body, length, words = BAD_FILES[name]
    with pytest.raises(FormatError, match=words) as caught:
        Q4nxFile(raw_file(tmp_path / "bad.q4nx", header, body, length))
    assert str(caught.value).startswith("[q4nx] bad.q4nx: ")


@pytest.mark.parametrize("shape", [[5120], [1, 1, 1, 5120], [5120, 1], [4, 1280], [0, 5120], []])
def test_shapes_that_are_no_blocks(tmp_path: Path, shape: list[int]) -> None:
    size = int(np.prod(shape))
    header = header_of(shape=shape, data_offsets=[0, size])
    file = Q4nxFile(raw_file(tmp_path / "a.q4nx", header, bytes(size)))
    with pytest.raises(FormatError, match="this reader knows blocks of 5120 bytes"):
        file.tensor("t", (32, 256))


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "short").write_bytes(b"1234567")
    (tmp_path / "gguf").write_bytes(b"GGUF" + bytes(100))
    os.mkfifo(tmp_path / "pipe")
    cases = {
        "missing": "No such file",
        "empty": "the file is empty",
        "short": "7 bytes, too few",
        "gguf": "is a GGUF file",
        "pipe": "not a regular file",
        ".": "not a regular file",
    }
    for name, words in cases.items():
        with pytest.raises(FormatError, match=words):
            Q4nxFile(tmp_path / name)


def test_two_names_of_one_tensor(tmp_path: Path) -> None:
    data = entry(q4nx_files.random_matrix(*SHAPE))
    twice = {NAME: data, "language_model." + NAME: data}
    metadata = own_metadata(**{"gguf.general.architecture": '"gemma3"'})
    metadata["npu.q4nx.shapes"] = json.dumps(dict.fromkeys(twice, SHAPE))
    path = q4nx_files.write_file(tmp_path / "a.q4nx", twice, metadata)
    with pytest.raises(FormatError, match="are one tensor"):
        Q4nxSource(Q4nxFile(path))


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_fuzzed_bytes(tmp_path: Path, data: st.DataObject) -> None:
    """A good file with bytes changed, cut out or put in: opens and reads, or raises FormatError."""
    good = tmp_path / "good.q4nx"
    if not good.exists():
        tensors = {
            NAME: entry(q4nx_files.random_matrix(*SHAPE)),
            "model.norm.weight": ("BF16", (8,), bytes(16)),
        }
        q4nx_files.write_file(good, tensors, own_metadata(**{"gguf.gemma3.block_count": "1"}))
    raw = bytearray(good.read_bytes())
    header = 8 + struct.unpack_from("<Q", raw)[0]
    for _ in range(data.draw(st.integers(1, 4))):
        # Mostly in the header: the data has no structure to break.
        at = data.draw(st.integers(0, header + 40) | st.integers(0, len(raw) - 1))
        kind = data.draw(st.sampled_from(("change", "cut", "insert", "end")))
        if kind == "change":
            raw[at % len(raw)] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del raw[at : at + data.draw(st.integers(1, 30))]
        elif kind == "insert":
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        else:
            del raw[at:]
        raw = raw or bytearray(b"x")
    bad = tmp_path / "bad.q4nx"
    bad.write_bytes(raw)
    try:
        file = Q4nxFile(bad)
        describe(file)
        verify(file)
        for name in file.quantised:
            file.tensor(name).to_numpy()
        Q4nxSource(file)
    except FormatError as error:
        assert "\n" not in str(error) and len(str(error)) < 600


# --- the writer ------------------------------------------------------------------------------


def announce(matrix: q4nx_files.Matrix) -> list[Announced]:
    return [Announced(NAME, "I8", (len(q4nx_files.pack(matrix)) // 5120, 5120)),
            Announced("model.norm.weight", "BF16", (7,))]  # fmt: skip


def test_the_safetensors_library_reads_ours(tmp_path: Path) -> None:
    safe_open = pytest.importorskip("safetensors").safe_open
    matrix = q4nx_files.random_matrix(*SHAPE)
    path = tmp_path / "a.q4nx"
    blocks = np.frombuffer(q4nx_files.pack(matrix), np.uint8)
    norm = np.arange(7).astype(ml_dtypes.bfloat16)
    with Writer(path, announce(matrix), {"key": 'va"l\u00fce\n'}) as writer:
        writer.append(blocks[:5120])
        writer.append(blocks[5120:])
        writer.append(norm)
    with safe_open(path, framework="numpy") as file:
        assert set(file.keys()) == {NAME, "model.norm.weight"}
        assert file.metadata()["key"] == 'va"l\u00fce\n'
        read = file.get_tensor(NAME)
        assert read.dtype == np.int8 and read.shape == (4, 5120)
        assert read.tobytes() == blocks.tobytes()
    assert path.stat().st_size == 4096 + len(blocks) + 14  # data starts on a page
    assert sorted(os.listdir(tmp_path)) == ["a.q4nx"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.q4nx"
    path.write_bytes(b"old")
    with pytest.raises(ArgumentError, match="exists; give --force"):
        Writer(path, [])
    with pytest.raises(KeyboardInterrupt), Writer(path, announce_one(), force=True) as writer:
        writer.append(np.zeros(10, np.uint8))
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.q4nx"]


def announce_one() -> list[Announced]:
    return [Announced("t", "U8", (100,))]


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.q4nx"
    with pytest.raises(ArgumentError, match="exists"), Writer(path, announce_one()) as writer:
        writer.append(np.zeros(100, np.uint8))
        path.write_bytes(b"other")
    assert path.read_bytes() == b"other" and os.listdir(tmp_path) == ["a.q4nx"]


def test_no_space_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with (
        pytest.raises(FileError, match=r"the disk is full: .* needs 4196 bytes; nothing was kept"),
        Writer(tmp_path / "a.q4nx", announce_one()) as writer,
    ):
        writer.append(np.zeros(100, np.uint8))
    assert os.listdir(tmp_path) == []


def test_places_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileError, match=r"cannot write .*No such file or directory"):
        Writer(tmp_path / "no" / "a.q4nx", announce_one())
    with pytest.raises(ArgumentError, match="is a folder"):
        Writer(tmp_path, announce_one())
    with pytest.raises(ArgumentError, match="not a regular file"):
        Writer("/dev/null", announce_one(), force=True)
    huge = [Announced("t", "U8", (1 << 60,))]
    with pytest.raises(FileError, match="needs 1152921504606851072 bytes, its disk has"):
        Writer(tmp_path / "a.q4nx", huge)
    assert os.listdir(tmp_path) == []
