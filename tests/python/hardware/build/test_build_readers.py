"""The readers of aiecc's module and of xclbins.

Asserts every printed form that is read, and that text and bytes of any kind are an answer or
FormatError.
"""

from __future__ import annotations

import contextlib

import doubles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu.errors import FormatError
from npu.hardware.build import checks, compiled_mlir

MODULE = """
module {
  aie.device(npu2) {
    %shim_noc_tile_3_0 = aie.tile(3, 0)
    %0 = aie.tile(1, 2) {controller_id = #aie.packet_info<pkt_type = 0, pkt_id = 27>}
    %b = aie.buffer(%0) {address = 64 : i32, mem_bank = 0 : i32, sym_name = "first"} : memref<4xi8>
    %c = aie.buffer(%0) {sym_name = "second", address = 0 : i32} : memref<2xi32> = dense<[1, 2]>
    %third = aie.buffer(%0) {mem_bank = 1 : i32} : memref<4xi32>
    aie.shim_dma_allocation @A0_shim_alloc(%shim_noc_tile_3_0, MM2S, 1)
    aie.shim_dma_allocation @old_shim_alloc(S2MM, 1, 5)
  }
  aie.device(npu2) @norm {
    %0 = aie.tile(4, 5)
    %b = aie.buffer(%0) {address = 64 : i32, sym_name = "first"} : memref<4xi32>
  }
}
"""


def test_addresses_and_ports_by_device():
    found = compiled_mlir.read(MODULE)
    assert list(found) == ["main", "norm"]
    assert found["main"].buffers == {
        (1, 2, "first"): 64,
        (1, 2, "second"): 0,
        (1, 2, "third"): None,
    }
    assert found["main"].ports == {
        "A0_shim_alloc": (3, "mm2s", 1),
        "old_shim_alloc": (5, "s2mm", 1),
    }
    assert found["norm"].buffers == {(4, 5, "first"): 64} and not found["norm"].ports


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_text_is_read(data):
    at = data.draw(st.integers(0, len(MODULE)))
    end = data.draw(st.integers(at, len(MODULE)))
    compiled_mlir.read(MODULE[:at] + data.draw(st.text(max_size=20)) + MODULE[end:])


def test_arguments_of_kernels(tmp_path):
    path = tmp_path / "a.xclbin"
    path.write_bytes(doubles.xclbin({"MLIR_AIE": 8, "other": 11}))
    assert checks.declared(path) == {"MLIR_AIE": 8, "other": 11}


XCLBIN = doubles.xclbin({"MLIR_AIE": 8})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "truncated"),
        (b"xclbin3\0" + bytes(600), "no xclbin"),
        (XCLBIN[:-1], "truncated"),
        (XCLBIN.replace(b"</project>", b"</proyect>"), "no valid XML"),
        (XCLBIN.replace(b"<project>", b"<!ENTITY>"), "declares a document type"),
        (XCLBIN[:496] + b"\3" + XCLBIN[497:], "no section EMBEDDED_METADATA"),
        (XCLBIN[:304] + (470).to_bytes(8, "little") + XCLBIN[312:470], "truncated"),
        (XCLBIN[:520] + b"\xff" * 8 + XCLBIN[528:], "truncated"),
    ],
)
def test_damaged_xclbins_are_named(data, said, tmp_path):
    path = tmp_path / "a.xclbin"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=said) as caught:
        checks.declared(path)
    assert path.name in str(caught.value)


def test_comments_of_metadata_are_no_part_of_it(tmp_path):
    """XRT's tools write none; a packager may."""
    path = tmp_path / "a.xclbin"
    comment = b"<!-- of a packager -->".ljust(38)
    path.write_bytes(XCLBIN.replace(b'<?xml version="1.0" encoding="utf-8"?>', comment))
    assert checks.declared(path) == {"MLIR_AIE": 8}


def test_a_missing_xclbin(tmp_path):
    with pytest.raises(FormatError, match="No such file"):
        checks.declared(tmp_path / "none")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_fuzz(data, tmp_path_factory):
    damaged = bytearray(XCLBIN)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1) | st.integers(300, 540))
        damaged[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "fuzz.xclbin"
    path.write_bytes(damaged)
    with contextlib.suppress(FormatError):
        checks.declared(path)
