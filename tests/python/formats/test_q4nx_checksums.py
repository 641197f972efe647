"""Checksums of Q4NX files: every flipped bit of a file is found, whichever part it is in.

The sums are compared with zlib's over the bytes of the file, taken here; files without checksums
are read and reported as such.
"""

from __future__ import annotations

import itertools
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
import q4nx_files
from gemma3_files import Shape, write_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu import cli
from npu.errors import FormatError
from npu.formats.q4nx.container import Q4nxFile
from npu.formats.q4nx.writer import Announced, Writer
from npu.models.convert import convert
from npu.models.report import verify

SHAPE = Shape(layers=1, width=64, heads=2, kv_heads=1, head_dim=32, ffn_width=96)
HEADER_KEY, TENSORS_KEY = "npu.q4nx.header_checksum", "npu.q4nx.checksums"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checksums")
    return convert(write_model(folder / "m.gguf", SHAPE), folder / "m.q4nx")


def problems(path: Path) -> list[str]:
    """What `npu q4nx verify` says, be it that the file cannot be opened."""
    try:
        return verify(Q4nxFile(path))
    except FormatError as error:
        return [str(error)]


def test_the_sums_are_crc32_of_the_bytes(model: Path) -> None:
    raw = model.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    document = json.loads(header["__metadata__"][TENSORS_KEY])
    assert document["algorithm"] == "crc32"
    assert set(document["tensors"]) == set(header) - {"__metadata__"}
    for name, digits in document["tensors"].items():
        begin, stop = header[name]["data_offsets"]
        assert int(digits, 16) == zlib.crc32(raw[end + begin : end + stop])
    digits = header["__metadata__"][HEADER_KEY]
    key = f'"{HEADER_KEY}":"'.encode()
    blank = raw[:end].replace(key + digits.encode(), key + b"0" * 8)
    assert int(digits, 16) == zlib.crc32(blank) and blank != raw[:end]
    assert problems(model) == []


def test_sums_do_not_depend_on_how_bytes_are_appended(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8)
    tensors = [Announced("a", "U8", (1234,)), Announced("none", "U8", (0,)),
               Announced("b", "U8", (3766,))]  # fmt: skip
    for name, cuts in (("one", [0, 5000]), ("many", [0, 1, 1233, 1235, 4999, 5000])):
        with Writer(tmp_path / name, tensors) as writer:
            for begin, end in itertools.pairwise(cuts):
                writer.append(data[begin:end])
    raw = (tmp_path / "one").read_bytes()
    assert raw == (tmp_path / "many").read_bytes()
    assert f"{zlib.crc32(data[:1234]):08x}".encode() in raw
    assert f"{zlib.crc32(data[1234:]):08x}".encode() in raw


def test_a_flipped_bit_anywhere_is_found(model: Path, tmp_path: Path) -> None:
    """60 places over the whole file, 60 in the header, and every bit around the checksums."""
    raw = model.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    random = np.random.default_rng(1)
    bits = [int(bit) for bit in random.integers(0, 8 * len(raw), 60)]
    bits += [int(bit) for bit in random.integers(0, 8 * end, 60)]
    for key in (HEADER_KEY, TENSORS_KEY, "npu.q4nx.version"):
        begin = raw.index(key.encode()) * 8
        bits += range(begin, begin + 8 * (len(key) + 12), 3)
    bits += range(64)
    missed = []
    for bit in bits:
        spoilt = bytearray(raw)
        spoilt[bit // 8] ^= 1 << bit % 8
        path = tmp_path / "flipped.q4nx"
        path.write_bytes(spoilt)
        if not problems(path):
            missed.append(bit)
    assert missed == []


def test_the_command_names_the_tensor(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Q4nxFile(model)
    entry = file.entries["model.norm.weight"]
    spoilt = bytearray(model.read_bytes())
    spoilt[entry.offset] ^= 1  # the lowest bit of a weight: nothing else can notice
    path = tmp_path / "s.q4nx"
    path.write_bytes(spoilt)
    assert cli.main(["q4nx", "verify", str(path)]) == 1
    assert capsys.readouterr().out == (
        "the tensor 'model.norm.weight' does not match its checksum; it is corrupted\n"
    )
    assert cli.main(["q4nx", "verify", str(model)]) == 0
    assert "good (16 tensors, dialect I8, crc32 of all tensors)" in capsys.readouterr().out
    assert cli.main(["q4nx", "verify", "--json", str(model)]) == 0
    assert json.loads(capsys.readouterr().out)["checksums"] == "crc32"


def without(path: Path, target: Path, drop: tuple[str, ...]) -> Path:
    """The same file with some metadata left out."""
    file = Q4nxFile(path)
    tensors = {
        name: (entry.dtype, entry.shape, file._file.raw(entry).tobytes())
        for name, entry in file.entries.items()
    }
    kept = {key: value for key, value in file.metadata.items() if key not in drop}
    return q4nx_files.write_file(target, tensors, kept)


def test_files_without_checksums_are_good_and_say_so(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = without(model, tmp_path / "p.q4nx", (HEADER_KEY, TENSORS_KEY))
    assert cli.main(["q4nx", "verify", str(plain)]) == 0
    assert "no checksums in the file" in capsys.readouterr().out
    assert cli.main(["q4nx", "verify", str(plain), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checksums"] is None
    for dropped in (HEADER_KEY, TENSORS_KEY):
        half = without(model, tmp_path / "h.q4nx", (dropped,))
        assert "has only a part of its checksums" in problems(half)[0]


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    tensors=st.sampled_from(
        ["", "x", "[]", "{}", '{"tensors": 1}', '{"algorithm": "crc32", "tensors": {"a": 1}}',
         '{"algorithm": "md5", "tensors": {}}', '{"algorithm": "crc32", "tensors": {}}', "[" * 9999]
    ),
    header=st.text(max_size=9),
)  # fmt: skip
def test_malformed_checksums_are_problems(
    model: Path, tmp_path: Path, tensors: str, header: str
) -> None:
    path = without(model, tmp_path / "m.q4nx", ())
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    document = json.loads(raw[8:end])
    document["__metadata__"] |= {TENSORS_KEY: tensors, HEADER_KEY: header}
    text = json.dumps(document).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[end:])
    found = problems(path)
    assert found and not any("\n" in line or len(line) > 400 for line in found)
    assert any(re.search("checksum|header", line) for line in found)
