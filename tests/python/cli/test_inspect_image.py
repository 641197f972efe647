"""`npu inspect` of an xclbin, PDI or CDO: every command is one line with the disassembler's words,
containers print what they hold, --json is the same as data, and malformed files end in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from xclbin_files import (
    CommandTuple,
    encode_axlf,
    encode_cdo,
    encode_ips,
    encode_memories,
    encode_partition,
    encode_pdi,
    encode_transformed_pdi,
)

from npu import stream
from npu.cli import main

BD = stream.encode_bd("core", {"length": 200, "base": 0x400, "valid": True})
COMMANDS: list[CommandTuple] = [
    ("nop", 1),
    ("block", 0x220000, [7] * 9),
    ("block", 0x21D020, list(BD)),
    ("write", 0x21F010, 2),
    ("mask_write", 0x232000, 1, 1),
    ("delay", 5),
    ("other", 0x224, [1, 2]),
    ("end",),
]
CDO = encode_cdo(COMMANDS)
XML = b"""<p><kernel name="MLIR_AIE" type="dpu"><extended-data dpu_kernel_id="0x901"/>
<arg name="bo0" addressQualifier="1" id="3" size="0x8" offset="0x14" type="void*"/>
<instance name="MLIRAIE"/></kernel></p>"""
BUILD = b'{"build_metadata": {"xclbin": {"generated_by": {"name": "maker", "version": "2.1"}}}}'


def xclbin(pdi: bytes) -> bytes:
    return encode_axlf(
        [
            (6, "mem", encode_memories([(2, 1, 0x10000, 0x4000000, b"HOST")])),
            (8, "ip", encode_ips([(7, 0x09010001, 0, b"MLIR_AIE:MLIRAIE")])),
            (2, "xml", XML),
            (14, "build", BUILD),
            (32, "part", encode_partition([pdi], 4, [0, 4], [0x901])),
        ]
    )


def inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, *options: str) -> str:
    file = tmp_path / "file.bin"
    file.write_bytes(data)
    assert main(["inspect", str(file), *options]) == 0
    return capsys.readouterr().out


LINES = """\
    0 000014 NOP          1 words
    1 00001c DMA_WRITE    core(0,2).program[0x0] 9 words 00000007 00000007 00000007 00000007 \
00000007 00000007 00000007 00000007 ...
    2 00004c DMA_WRITE    core(0,2).bd[1] length 200 base 0x400 dims *x*x* step 1,1,1
    3 000070 WRITE        core(0,2).lock[1] = 2
    4 00007c MASK_WRITE   core(0,2).0x32000 = 0x00000001 mask 0x00000001
    5 00008c DELAY        5 us
    6 000094 0x224        2 words 00000001 00000002 (the NPU does not execute it)
    7 0000a0 END
"""


def test_a_cdo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = inspect(tmp_path, capsys, CDO)
    assert text.startswith(f"CDO 2.00, 8 commands, {len(CDO)} bytes\n")
    tile = "  core(0,2): enabled; program 36 bytes in 0x0..0x24; bds 1; locks 1=2\n"
    assert text.endswith(tile + LINES)


def test_an_xclbin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = inspect(tmp_path, capsys, xclbin(encode_pdi([CDO])))
    for line in (
        "  section AIE_PARTITION 'part': ",
        "memory HOST: DRAM, 65536 KiB at 0x4000000\n",
        "instance MLIR_AIE:MLIRAIE: PS_KERNEL, kernel id 0x901\n",
        "kernel MLIR_AIE: dpu, id 0x901, instances MLIRAIE, 1 arguments\n",
        "  argument 3 bo0: global void*, 8 bytes\n",
        "built by name maker, version 2.1\n",
        "partition QoS: 4 columns, start column 0, 4; 2048 operations per cycle\n",
        "    CDO group 'DPU': primary, pdi id 0x1, for 0x901\n",
        "PDI file.bin, PDI 0: partial, version 4.0, images aie_image (1)\n",
    ):
        assert line in text
    assert text.endswith(LINES)


def test_a_transformed_pdi_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = inspect(tmp_path, capsys, encode_transformed_pdi(COMMANDS[:3], cut=20))
    assert "the image ends 20 bytes early" in text
    assert "core(0,2).bd[1] length 200" in text


def test_an_xclbin_without_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "configures no NPU" in inspect(tmp_path, capsys, encode_axlf([]))


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(inspect(tmp_path, capsys, xclbin(encode_pdi([CDO])), "--json"))
    assert document["kind"] == "xclbin"
    assert [one["kind"] for one in document["sections"]][-1] == "AIE_PARTITION"
    assert document["kernels"][0]["arguments"][0]["name"] == "bo0"
    assert document["partition"]["start_columns"] == [0, 4]
    (found,) = document["configurations"]
    assert found["commands"][1] == {
        "opcode": "DMA_WRITE", "offset": 28, "address": 0x220000, "data": [7] * 9,
    }  # fmt: skip
    assert [one["opcode"] for one in found["commands"]][-2:] == ["0x224", "END"]


def test_addresses_beyond_the_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = encode_cdo([("write", 5 << 32, 1), ("write", 0xFFFFFFFC, 1)], wide=True)
    text = inspect(tmp_path, capsys, data)
    assert "0x500000000, beyond the array's addresses" in text
    assert "WRITE64      0xfffffffc = 0x00000001" in text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (CDO[:30], "a CDO of"),
        (xclbin(encode_pdi([CDO]))[:-1], "truncated or corrupted"),
        (xclbin(encode_pdi([CDO[:30]])), "PDI 0, partition 0] a CDO of"),
        (encode_pdi([CDO])[:40], "the image header table needs"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    ],
)
def test_malformed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, message: str
) -> None:
    file = tmp_path / "file.bin"
    file.write_bytes(data)
    assert main(["inspect", str(file)]) != 0
    error = capsys.readouterr().err
    assert error.startswith("npu: error: [") and "file.bin" in error and message in error
    assert error.count("\n") == 1
