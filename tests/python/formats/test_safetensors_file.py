"""Data of safetensors files that lies at any byte: values are right, and reading rows copies rows.

The format does not align tensors, and some writers do not either.
"""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from npu.formats.safetensors_file import SafetensorsFile

NAMES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64}


def write(path: Path, values: np.ndarray, name: str, shift: int) -> SafetensorsFile:
    """One tensor, ``shift`` bytes past a multiple of 8."""
    size = values.nbytes
    entry = {"dtype": name, "shape": list(values.shape), "data_offsets": [0, size]}
    raw = json.dumps({"t": entry}).encode()
    raw += b" " * ((shift - len(raw)) % 8)
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + values.tobytes())
    return SafetensorsFile(path)


@pytest.mark.parametrize("shift", [0, 1, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_values_at_any_byte(tmp_path: Path, name: str, shift: int) -> None:
    expected = np.random.default_rng(shift).normal(size=(7, 5)).astype(NAMES[name])
    file = write(tmp_path / "a.safetensors", expected, name, shift)
    entry = file.entry("t")
    assert (file.array(entry) == expected).all()
    for rows in (slice(2, 5), slice(6, 99), np.array([3, 0, 3]), 4):
        found = file.array(entry, rows)
        assert found.dtype == expected.dtype and found.flags.c_contiguous
        assert found.shape == expected[rows].shape and (found == expected[rows]).all()
    scalar = write(tmp_path / "s.safetensors", expected[0, 0], name, shift)
    assert scalar.array(scalar.entry("t")).shape == ()
    assert scalar.array(scalar.entry("t")) == expected[0, 0]


@pytest.mark.parametrize("shift", [0, 1])
def test_reading_rows_copies_rows(tmp_path: Path, shift: int) -> None:
    """A conversion reads a few rows at a time; whole copies made it quadratic."""
    values = np.zeros((1024, 1024), np.float32)
    file = write(tmp_path / "a.safetensors", values, "F32", shift)
    tracemalloc.start()
    file.array(file.entry("t"), slice(0, 32))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 32 * 4096
