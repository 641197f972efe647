"""Array.configure with a CDO, PDI or xclbin, as bytes and as a path: the golden programs, whose
configuration this test writes in these formats, replay as they do from their TXN streams; only
cores that a CDO enables take programs; files that do not fit are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_files import golden
from test_golden import PROGRAMS, arguments, check, inputs, insts, kernels, moved
from xclbin_files import (
    CommandTuple,
    encode_axlf,
    encode_cdo,
    encode_partition,
    encode_pdi,
    encode_transformed_pdi,
)

import npu
from npu.errors import ArgumentError, DeadlockError, EmulatorError, FormatError


def commands(txn: bytes) -> list[CommandTuple]:
    """A configuration stream as the commands of a CDO."""
    found: list[CommandTuple] = []
    for op in npu.stream.operations(txn):
        match op["opcode"]:
            case "WRITE":
                found.append(("write", op["address"], op["value"]))
            case "MASKWRITE":
                found.append(("mask_write", op["address"], op["mask"], op["value"]))
            case "BLOCKWRITE":
                found.append(("block", op["address"], op["data"]))
            case other:
                raise AssertionError(other)
    return found


def with_programs(name: str) -> list[CommandTuple]:
    """The golden configuration with program memory before it, as core binaries would be there."""
    cores = [(core["col"], core["row"]) for core in cores_of(name)]
    at = npu.stream.tile_address
    programs = [("block", at(c, r, 0x20000), [c, r, 0x15]) for c, r in cores]
    return [*programs, ("nop", 1), *commands(golden(name, "config.bin"))]


def without_enables(found: list[CommandTuple], address: int | None = None) -> list[CommandTuple]:
    """Without the last writes of Core_Control's enable bit, of one core or of all."""
    kept = [
        one
        for one in found
        if one[0] != "mask_write"
        or one[1] & 0xFFFFF != 0x32000
        or one[2] != 1
        or (address is not None and one[1] != address)
    ]
    assert len(kept) < len(found)
    return kept


def cores_of(name: str) -> list[dict[str, Any]]:
    cores: list[dict[str, Any]] = json.loads(golden(name, "cores.json"))["cores"]
    return cores


def in_partition(pdi: bytes) -> bytes:
    return encode_axlf([(32, "partition", encode_partition([pdi]))])


FORMS: dict[str, Callable[[list[CommandTuple]], bytes]] = {
    "cdo": encode_cdo,
    "cdo of 64-bit addresses": lambda found: encode_cdo(found, wide=True),
    "pdi": lambda found: encode_pdi([encode_cdo(found)]),
    "pdi of two": lambda found: encode_pdi([encode_cdo(found[:9]), encode_cdo(found[9:])]),
    "transformed": encode_transformed_pdi,
    "xclbin": lambda found: in_partition(encode_pdi([encode_cdo(found)])),
}


def attach(array: npu.emulator.Array, name: str) -> None:
    for core in cores_of(name):
        array.attach(core["col"], core["row"], core["ops"], kernels(name))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_replay(name: str, form: str) -> None:
    """The results of test_golden.py, twice in a row; program memory holds what was written."""
    device = arguments(name)["device"]
    array, rng = npu.emulator.Array(device), np.random.default_rng(6)
    report = array.configure(FORMS[form](with_programs(name)))
    assert report.undecoded_writes == 0
    attach(array, name)
    for core in cores_of(name):
        col, row = core["col"], core["row"]
        at = npu.stream.tile_address(col, row, 0x20000)
        assert [array.read_register(at + 4 * i) for i in range(4)] == [col, row, 0x15, 0]
    for _ in range(2):
        arrays = inputs(name, rng)
        assert array.submit(insts(name), arrays).bytes_moved == moved(name)
        check(name, arrays)


def test_paths(tmp_path: Path) -> None:
    """A path and its text are the same as the bytes; TXN streams too."""
    name = "relay_npu1"
    (tmp_path / "a.pdi").write_bytes(FORMS["pdi"](with_programs(name)))
    (tmp_path / "config.bin").write_bytes(golden(name, "config.bin"))
    for config in (tmp_path / "a.pdi", str(tmp_path / "config.bin")):
        array, arrays = npu.emulator.Array("npu1"), inputs(name, np.random.default_rng(7))
        array.configure(config)
        array.submit(insts(name), arrays)
        check(name, arrays)


def test_without_enables_every_core_runs() -> None:
    """As in configurations that were compiled without core binaries."""
    name = "gemm_npu1_2x2_i16"
    array, arrays = npu.emulator.Array("npu1"), inputs(name, np.random.default_rng(8))
    array.configure(encode_cdo(without_enables(commands(golden(name, "config.bin")))))
    attach(array, name)
    array.submit(insts(name), arrays)
    check(name, arrays)


def test_disabled_cores_take_no_program() -> None:
    name = "gemm_npu1_2x2_i16"
    array = npu.emulator.Array("npu1")
    *others, last = cores_of(name)
    control = npu.stream.tile_address(last["col"], last["row"], 0x32000)
    array.configure(encode_cdo(without_enables(with_programs(name), control)))
    for core in others:
        array.attach(core["col"], core["row"], core["ops"], kernels(name))
    place = rf"\({last['col']},{last['row']}\)"
    with pytest.raises(ArgumentError, match=rf"\[attach\] .* core {place} disabled"):
        array.attach(last["col"], last["row"], last["ops"], kernels(name))
    with pytest.raises(DeadlockError, match="has no program"):
        array.submit(insts(name), inputs(name, np.random.default_rng(9)))
    array.configure(golden(name, "config.bin"))  # a stream sets no such limit
    attach(array, name)


def test_one_pdi_of_several() -> None:
    """npu1's relay is PDI 1; the other one writes nothing that it needs."""
    name = "relay_npu1"
    pdis = [encode_pdi([encode_cdo(found)]) for found in ([], with_programs(name))]
    file = encode_axlf([(32, "partition", encode_partition(pdis))])
    array, arrays = npu.emulator.Array("npu1"), inputs(name, np.random.default_rng(10))
    with pytest.raises(ArgumentError, match=r"has 2 PDIs; name one of them by pdi, 0\.\.1"):
        array.configure(file)
    for wrong in (2, -1, True, "1"):
        with pytest.raises(ArgumentError, match=r"has PDIs 0\.\.1"):
            array.configure(file, pdi=wrong)  # type: ignore[arg-type]
    array.configure(file, pdi=1)
    array.submit(insts(name), arrays)
    check(name, arrays)


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (encode_cdo([("write", 4, 5)])[:-1], FormatError, "needs bytes"),
        (encode_cdo([("other", 0x224, [1])]), FormatError, "is not one that the NPU executes"),
        (encode_cdo([("write", 0x08000000, 5)]), EmulatorError, "columns 0..3"),
        (encode_pdi([bytes(32)], kind=1), FormatError, "holds no CDO"),
        (encode_axlf([]), FormatError, "has no PDI"),
        (encode_axlf([(32, "p", encode_partition([b"x"], columns=5))]), FormatError, "5 columns"),
        (encode_axlf([(32, "p", encode_partition([b""]))]), FormatError, "PDI 0] no PDI: it is em"),
        (b"", FormatError, "these bytes are no configuration: nothing is there; give"),
        (7, ArgumentError, "found <class 'int'>"),
        ("/nonexistent.pdi", ArgumentError, "No such file"),
        ("/", ArgumentError, "not a regular file"),
        ("a\0b", ArgumentError, "null"),
    ],
)
def test_refused(config: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        npu.emulator.Array("npu1").configure(config)
    assert message in str(caught.value)


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("no configuration")
    arr = npu.emulator.Array("npu1")
    with pytest.raises(FormatError, match=r"\[configure\] notes.txt is no configuration: its"):
        arr.configure(file)
    file.write_bytes(b"")
    with pytest.raises(FormatError, match="no configuration: nothing is there; give"):
        arr.configure(file)


def test_a_stream_has_no_pdi() -> None:
    with pytest.raises(ArgumentError, match="pdi = 0 was given with a stream"):
        npu.emulator.Array("npu1").configure(golden("relay_npu1", "config.bin"), pdi=0)
