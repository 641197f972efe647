"""npu.emulator.Array.add_pdi: a stream loads configurations, in every form that configure takes,
with the programs that their functions attach; what is loaded again is skipped; wrong arguments and
streams. Report.unwaited counts operations that rely on the speed of the array. The loads
themselves: tests/cpp/emulator/test_foreign_programs.cpp.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_emulator import OPS, Script, add_one, copy_stream, machine, through_core
from test_emulator_configure import FORMS, commands
from xclbin_files import CommandTuple, encode_axlf, encode_cdo, encode_partition, encode_pdi

import npu


def loading(*pdis: int) -> bytes:
    s = Script()
    for pdi in pdis:
        s.raw.load_pdi(pdi, 0, 0)
        s.host_bd(0, 0, 0, length=16).host_bd(0, 1, 1, length=16)
        s.push(0, 0, "mm2s", 0, 0).push(0, 0, "s2mm", 0, 1, token=True)
        s.raw.sync(0, 0, "s2mm", 0)
    return s.bytes()


def test_pdis_bring_their_programs() -> None:
    arr = npu.emulator.Array("npu2")
    arr.configure(Script().bytes())
    attached: list[int] = []

    def program(addend: int) -> Any:
        def add(src: memoryview, dst: memoryview, n: int, _: int) -> None:
            np.frombuffer(dst, np.int32, n)[:] = np.frombuffer(src, np.int32, n) + addend

        def attach_programs() -> None:
            attached.append(addend)
            arr.attach(0, 2, OPS, {"f": add})

        return attach_programs

    for addend in (1, 2):
        arr.add_pdi(addend, through_core(), program(addend))
    a, b = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
    for pdis, result, loads in (((1,), 1, [1]), ((1, 2), 2, [1, 2]), ((2, 1, 1), 1, [1, 2, 1])):
        arr.submit(loading(*pdis), [a, b])
        np.testing.assert_array_equal(b, a + result)
        assert attached == loads


def enabling(txn: bytes, *cores: tuple[int, int]) -> list[CommandTuple]:
    at = npu.stream.tile_address
    control: list[CommandTuple] = [("mask_write", at(*core, 0x32000), 1, 1) for core in cores]
    return [*commands(txn), *control]


@pytest.mark.parametrize("form", FORMS)
def test_configurations_of_every_form(form: str, tmp_path: Path) -> None:
    """As bytes and as files; the cores that the PDI enables, not those of the configuration
    before, take programs."""
    path = tmp_path / "config"
    path.write_bytes(FORMS[form](enabling(through_core(), (0, 2))))
    for config in (path.read_bytes(), path):
        arr = npu.emulator.Array("npu2")
        arr.configure(FORMS["cdo"](enabling(Script().bytes(), (0, 3))))
        with pytest.raises(npu.errors.ArgumentError, match=r"leaves core \(0,2\) disabled"):
            arr.attach(0, 2, OPS, {"f": add_one})

        def attach_programs(arr: npu.emulator.Array = arr) -> None:
            arr.attach(0, 2, OPS, {"f": add_one})
            with pytest.raises(npu.errors.ArgumentError, match=r"leaves core \(0,3\) disabled"):
                arr.attach(0, 3, OPS, {"f": add_one})

        arr.add_pdi(5, config, attach_programs)
        a, b = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
        arr.submit(loading(5), [a, b])
        np.testing.assert_array_equal(b, a + 1)


def test_the_cores_of_a_pdi_without_function() -> None:
    """Programs may be attached after the submission that has loaded it."""
    arr = npu.emulator.Array("npu2")
    arr.configure(FORMS["cdo"](enabling(Script().bytes(), (0, 3))))
    arr.add_pdi(5, FORMS["pdi"](enabling(through_core(), (0, 2))))
    s = Script()
    s.raw.load_pdi(5, 0, 0)
    arr.submit(s.bytes())
    arr.attach(0, 2, OPS, {"f": add_one})
    a, b = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
    arr.submit(copy_stream(), [a, b])
    np.testing.assert_array_equal(b, a + 1)


def test_one_pdi_of_an_xclbin() -> None:
    pdis = [encode_pdi([encode_cdo(found)]) for found in ([], commands(through_core()))]
    file = encode_axlf([(32, "partition", encode_partition(pdis))])
    arr = npu.emulator.Array("npu2")
    arr.configure(Script().bytes())
    with pytest.raises(npu.errors.ArgumentError, match=r"\[add_pdi\].*2 PDIs.* by source_pdi, 0"):
        arr.add_pdi(1, file)
    with pytest.raises(npu.errors.ArgumentError, match=r"\[add_pdi\] source_pdi = 2; .* 0\.\.1"):
        arr.add_pdi(1, file, source_pdi=2)
    with pytest.raises(npu.errors.ArgumentError, match=r"\[add_pdi\] source_pdi = 0 was given"):
        arr.add_pdi(1, through_core(), source_pdi=0)
    arr.add_pdi(1, file, lambda: arr.attach(0, 2, OPS, {"f": add_one}), source_pdi=1)
    a, b = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
    arr.submit(loading(1), [a, b])
    np.testing.assert_array_equal(b, a + 1)


def test_exceptions_of_the_function_come_out_of_submit() -> None:
    arr = npu.emulator.Array("npu2")
    arr.configure(Script().bytes())

    def fails() -> None:
        raise RuntimeError("no program today")

    arr.add_pdi(3, through_core(), fails)
    with pytest.raises(RuntimeError, match="no program today"):
        arr.submit(loading(3), [np.zeros(16, np.int32)] * 2)


def test_the_function_does_not_keep_the_array_alive() -> None:
    def unused() -> weakref.ref[npu.emulator.Array]:
        arr = npu.emulator.Array("npu2")
        arr.add_pdi(1, through_core(), lambda: arr.attach(0, 2, OPS, {"f": add_one}))
        return weakref.ref(arr)

    reference = unused()
    gc.collect()
    assert reference() is None


def test_wrong_arguments() -> None:
    arr = npu.emulator.Array("npu2")
    arr.configure(Script().bytes())
    bad: Any
    for bad in ("1", -1, 1.5, 1 << 16, 1 << 40):
        with pytest.raises(npu.errors.ArgumentError, match=r"\[add_pdi\]"):
            arr.add_pdi(bad, through_core())
    for bad in (through_core()[:-4], b"", b"abc", through_core("npu1")):
        with pytest.raises(npu.errors.FormatError):
            arr.add_pdi(1, bad)
    bad = 7
    with pytest.raises(npu.errors.ArgumentError, match="attach_programs is 7"):
        arr.add_pdi(1, through_core(), bad)
    with pytest.raises(npu.errors.ArgumentError, match="must be bytes"):
        arr.add_pdi(1, bad)
    with pytest.raises(npu.errors.EmulatorError, match="loads PDI 9"):
        arr.submit(loading(9), [np.zeros(16, np.int32)] * 2)


def test_unwaited_operations_are_counted() -> None:
    a, b = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
    arr = machine(add_one)
    assert arr.submit(copy_stream(), [a, b]).unwaited == 0
    s = Script().host_bd(0, 0, 0, length=8).push(0, 0, "mm2s", 0, 0)
    s.host_bd(0, 0, 0, 32, length=8).push(0, 0, "mm2s", 0, 0)
    s.host_bd(0, 1, 1, length=16).push(0, 0, "s2mm", 0, 1, token=True)
    s.raw.sync(0, 0, "s2mm", 0)
    assert arr.submit(s.bytes(), [a, b]).unwaited == 1
    np.testing.assert_array_equal(b, a + 1)
