"""GGUF reading: every tensor type against the published block formulas, and every malformed file
as one clear FormatError.

Blocks are packed here from chosen integers by the layout in ggml-common.h; the expected values come
from the integers, not from a dequantiser.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import compare
import gguf
import ml_dtypes
import numpy as np
import pytest
from call_count import count_calls
from gemma3_files import Shape, write_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu import gemma3
from npu.errors import FormatError, NpuError
from npu.formats.gguf_file import TENSOR_TYPES, GgufFile, dequantize

TYPES = {name: number for number, (name, _, _) in TENSOR_TYPES.items()}
TINY = Shape(layers=1, width=32, heads=2, kv_heads=1, head_dim=8, ffn_width=32, window=4)


def halves(random: np.random.Generator, count: int) -> np.ndarray:
    return random.uniform(0.01, 2, count).astype(np.float16)


def pack_q8_0(random: np.random.Generator) -> tuple[bytes, np.ndarray]:
    (d,) = halves(random, 1)
    q = random.integers(-128, 128, 32)
    return d.tobytes() + q.astype(np.int8).tobytes(), float(d) * q


def pack_q4_0(random: np.random.Generator) -> tuple[bytes, np.ndarray]:
    (d,) = halves(random, 1)
    q = random.integers(0, 16, 32)
    nibbles = (q[:16] | q[16:] << 4).astype(np.uint8)
    return d.tobytes() + nibbles.tobytes(), float(d) * (q - 8)


def pack_q4_1(random: np.random.Generator) -> tuple[bytes, np.ndarray]:
    d, m = halves(random, 2)
    q = random.integers(0, 16, 32)
    nibbles = (q[:16] | q[16:] << 4).astype(np.uint8)
    return d.tobytes() + m.tobytes() + nibbles.tobytes(), float(d) * q + float(m)


def pack_q4_k(random: np.random.Generator) -> tuple[bytes, np.ndarray]:
    """8 sub-blocks of 32 with 6-bit scale and minimum: x = d * scale * q - dmin * minimum."""
    d, dmin = halves(random, 2)
    scale, low = random.integers(0, 64, (2, 8))
    q = random.integers(0, 16, (8, 32))
    packed = np.zeros(12, int)
    packed[0:4] = scale[:4] | (scale[4:] >> 4) << 6
    packed[4:8] = low[:4] | (low[4:] >> 4) << 6
    packed[8:12] = (scale[4:] & 15) | (low[4:] & 15) << 4
    nibbles = np.concatenate([q[2 * i] | q[2 * i + 1] << 4 for i in range(4)])
    raw = d.tobytes() + dmin.tobytes()
    raw += packed.astype(np.uint8).tobytes() + nibbles.astype(np.uint8).tobytes()
    return raw, (float(d) * scale[:, None] * q - float(dmin) * low[:, None]).ravel()


def pack_q6_k(random: np.random.Generator) -> tuple[bytes, np.ndarray]:
    """16 sub-blocks of 16 with int8 scales: x = d * scale * (q - 32), q split in 4 + 2 bits."""
    (d,) = halves(random, 1)
    scale = random.integers(-128, 128, 16)
    q = random.integers(0, 64, 256)
    low, high = [], []
    for half in q.reshape(2, 4, 32):
        low += [half[0] & 15 | (half[2] & 15) << 4, half[1] & 15 | (half[3] & 15) << 4]
        high.append(sum((half[part] >> 4) << 2 * part for part in range(4)))
    raw = np.concatenate(low).astype(np.uint8).tobytes()
    raw += np.concatenate(high).astype(np.uint8).tobytes()
    raw += scale.astype(np.int8).tobytes() + d.tobytes()
    return raw, float(d) * np.repeat(scale, 16) * (q - 32)


def pack_plain(dtype: type) -> object:
    def pack(random: np.random.Generator) -> tuple[bytes, np.ndarray]:
        values = random.normal(0, 1, 32).astype(dtype)
        return values.tobytes(), values.astype(np.float64)

    return pack


PACKERS = {
    "F32": pack_plain(np.float32),
    "F16": pack_plain(np.float16),
    "BF16": pack_plain(ml_dtypes.bfloat16),
    "Q8_0": pack_q8_0,
    "Q4_0": pack_q4_0,
    "Q4_1": pack_q4_1,
    "Q4_K": pack_q4_k,
    "Q6_K": pack_q6_k,
}


def packed_rows(name: str, rows: int, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Random rows of a type: stored bytes (rows, bytes) and exact values (rows, columns)."""
    random = np.random.default_rng(rows)
    pairs = [[PACKERS[name](random) for _ in range(blocks)] for _ in range(rows)]
    raw = [b"".join(pair[0] for pair in row) for row in pairs]
    values = [np.concatenate([pair[1] for pair in row]) for row in pairs]
    return np.array([np.frombuffer(row, np.uint8) for row in raw]), np.array(values)


@pytest.mark.parametrize("name", PACKERS)
def test_dequantised_values(name: str) -> None:
    raw, expected = packed_rows(name, 5, 3)
    actual = dequantize(raw, TYPES[name])
    assert actual.dtype == np.float32
    # Relative to the terms of x = d * s * q - m, which may cancel: at most 2 * 127 * 128 here.
    scale = np.abs(expected) + (4096 if name.startswith("Q4_K") else 0)
    assert (np.abs(actual - expected) <= compare.DEQUANTISED * scale).all()


def test_every_type_in_a_file(tmp_path: Path) -> None:
    """Offsets, alignment, row selection and bfloat16 conversion, all types in one file."""
    writer = gguf.GGUFWriter(tmp_path / "all.gguf", "gemma3")
    tables = {name: packed_rows(name, 7, 2) for name in PACKERS}
    for name, (raw, _) in tables.items():
        kind = gguf.GGMLQuantizationType(TYPES[name])
        plain = {"F32": np.float32, "F16": np.float16}.get(name)
        if plain:
            writer.add_tensor(name, raw.view(plain))
        else:
            writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "all.gguf")
    for name, (raw, _) in tables.items():
        info = file.tensor(name)
        assert info.type_name == name
        values = dequantize(raw, TYPES[name])
        np.testing.assert_array_equal(file.float32(info), values)
        rows = np.array([6, 0, 6])
        np.testing.assert_array_equal(file.float32(info, rows), values[rows])


def test_a_vocabulary_of_65536_takes_few_calls_per_token(tmp_path: Path) -> None:
    """What makes loading fast: three calls into C per token, none into Python."""
    path = tmp_path / "large.gguf"
    count = 65536
    tokens = [b"token%d" % index for index in range(count)]
    lengths = b"".join(struct.pack("<Q", len(token)) + token for token in tokens)
    path.write_bytes(header(keys=1) + key("tokens", 9) + struct.pack("<IQ", 8, count) + lengths)
    calls, file = count_calls(lambda: GgufFile(path))
    assert count < calls < 3 * count + 1000
    assert file.metadata["tokens"][count - 1] == "token65535"


def test_metadata_values(tmp_path: Path) -> None:
    """All value types, arrays and nested arrays, written by hand."""
    body = key("u8", 0) + b"\xff" + key("i8", 1) + b"\xff"
    body += key("u16", 2) + b"\xff\xff" + key("i16", 3) + b"\xfe\xff"
    body += key("u32", 4) + struct.pack("<I", 2**32 - 1) + key("i32", 5) + struct.pack("<i", -5)
    body += key("f32", 6) + struct.pack("<f", 1.5) + key("bool", 7) + b"\x01"
    body += key("text", 8) + string("héllo") + key("u64", 10) + struct.pack("<Q", 2**63)
    body += key("i64", 11) + struct.pack("<q", -1) + key("f64", 12) + struct.pack("<d", 2.5)
    body += key("list", 9) + struct.pack("<IQ3i", 5, 3, 1, -2, 3)
    inner = struct.pack("<IQ2B", 0, 2, 7, 8)
    body += key("nested", 9) + struct.pack("<IQ", 9, 2) + inner + inner
    path = tmp_path / "values.gguf"
    path.write_bytes(header(keys=14) + body)
    values = GgufFile(path).metadata
    assert [values[name] for name in ("u8", "i8", "u16", "i16")] == [255, -1, 65535, -2]
    assert [values[name] for name in ("u32", "i32", "u64", "i64")] == [2**32 - 1, -5, 2**63, -1]
    assert (values["f32"], values["f64"], values["bool"]) == (1.5, 2.5, True)
    assert values["text"] == "héllo"
    assert values["list"].tolist() == [1, -2, 3]
    assert [part.tolist() for part in values["nested"]] == [[7, 8], [7, 8]]


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int) -> bytes:
    return string(name) + struct.pack("<I", kind)


def header(tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    raw = string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return raw + struct.pack("<IQ", kind, offset)


HUGE = 2**64 - 1
MALFORMED = {
    "the file is empty": b"",
    "not a GGUF file: it starts with b'PK": b"PK\x03\x04" + bytes(40),
    "not a GGUF file: it starts with b'GG'": b"GG",
    "the version needs 4 bytes": b"GGUF",
    "GGUF version 1, supported are 2 and 3": header(version=1),
    "GGUF version 4,": header(version=4),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "the metadata count needs 8 bytes": header()[:-1],
    f"claims {HUGE} metadata keys": header(keys=HUGE),
    "metadata keys and 18446744073709551615 tensors": header(tensors=HUGE),
    "metadata key 0 needs": header(keys=1) + struct.pack("<Q", HUGE) + bytes(16),
    "unknown value type 13": header(keys=1) + key("a", 13) + bytes(16),
    "'a' occurs twice": header(keys=2) + (key("a", 0) + b"\0") * 2,
    "the metadata key 'a' needs 36893488147419103230": header(keys=1)
    + key("a", 9)
    + struct.pack("<IQ", 3, HUGE),
    "the metadata key 'a': element 1 of 3": header(keys=1)
    + key("a", 9)
    + struct.pack("<IQQQ", 8, 3, 0, 99)
    + bytes(8),
    "unknown value type 9": header(keys=1) + key("a", 9) + struct.pack("<IQ", 9, 1) * 6 + bytes(20),
    "general.alignment is 3": header(keys=1) + key("general.alignment", 4) + struct.pack("<I", 3),
    "'t' has 5 dimensions": header(tensors=1) + tensor("t", [1] * 5),
    "'t' occurs twice": header(tensors=2) + tensor("t", [1]) * 2 + bytes(64),
    "'t' needs bytes": header(tensors=1) + tensor("t", [64]) + bytes(64),
    "'big' needs bytes": header(tensors=1) + tensor("big", [2**63, 2**63]) + bytes(64),
    "offset 4, not a multiple": header(tensors=1) + tensor("t", [1], offset=4) + bytes(64),
    "rows of 33 elements": header(tensors=1) + tensor("t", [33], kind=8) + bytes(64),
    "without elements": header(tensors=1) + tensor("t", [4, 0]) + bytes(64),
}


@pytest.mark.parametrize("message", MALFORMED)
def test_malformed_files(tmp_path: Path, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(MALFORMED[message])
    with pytest.raises(FormatError) as caught:
        GgufFile(path)
    text = str(caught.value)
    assert message in text
    assert text.startswith("[gguf] ") and "bad.gguf" in text and "\n" not in text


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not a regular file"):
        GgufFile(tmp_path)
    with pytest.raises(FormatError, match="No such file"):
        GgufFile(tmp_path / "absent.gguf")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="not a regular file"):
        GgufFile(tmp_path / "pipe")
    with pytest.raises(FormatError, match="null"):
        GgufFile("a\0b")


def test_an_unsupported_tensor_type_is_named(tmp_path: Path) -> None:
    path = tmp_path / "iq2.gguf"
    table = tensor("t", [256], kind=16) + tensor("u", [1], kind=999)
    path.write_bytes(header(tensors=2) + table + bytes(128))
    file = GgufFile(path)
    with pytest.raises(FormatError, match=r"t has type IQ2_XXS, which is not supported .*Q6_K"):
        file.tensor("t")
    with pytest.raises(FormatError, match="type number 999"):
        file.tensor("u")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TINY)


def survives(path: Path, data: bytes) -> None:
    """Loading and running gives a model or one sentence; anything else escapes and fails."""
    path.write_bytes(data)
    try:
        model, tokenizer = gemma3.load(path)
        prompt = tokenizer.encode("hello world")
        list(gemma3.Generation(model, tokenizer, prompt, max_tokens=2))
    except NpuError as error:
        assert "\n" not in str(error)


def test_truncation_anywhere(tmp_path: Path, tiny: Path) -> None:
    """No prefix of a model loads: its last tensor reaches the end of the file."""
    tiny_bytes = tiny.read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [*range(0, 64), *range(64, len(tiny_bytes) - 64, 997), len(tiny_bytes) - 33]:
        path.write_bytes(tiny_bytes[:size])
        with pytest.raises(FormatError):
            gemma3.load(path)


@settings(
    max_examples=150, deadline=20_000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_corrupted_bytes(tmp_path: Path, tiny: Path, data: st.DataObject) -> None:
    """A few bytes changed anywhere, most often in the table of contents."""
    damaged = bytearray(tiny.read_bytes())
    contents = len(damaged) // 3
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, contents) | st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.sampled_from([0, 1, 127, 128, 255]) | st.integers(0, 255))
    survives(tmp_path / "damaged.gguf", bytes(damaged))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tail=st.binary(max_size=400), tensors=st.integers(0, 5), keys=st.integers(0, 5))
def test_random_bytes(tmp_path: Path, tail: bytes, tensors: int, keys: int) -> None:
    survives(tmp_path / "random.gguf", header(tensors, keys) + tail)
