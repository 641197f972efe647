"""The descriptions of the cores: every entry has a source and a grade, registers overlap as their
views say, bundles have the sizes of the formats, addresses go to their banks. Expected values are
written out from the sources."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from npu.errors import FormatError
from npu.vliw.aie2 import AIE2, BF16_4X8X4, CALLEE_SAVED
from npu.vliw.aie2p import AIE2P, BFP16_8X8X8
from npu.vliw.machine import Grade, Immediate, Machine

both = pytest.mark.parametrize("machine", [AIE2, AIE2P], ids=lambda m: m.name)


@both
def test_every_entry_has_a_source_and_a_grade(machine: Machine) -> None:
    sources = [o.source for o in machine.operations] + [f.source for f in machine.files]
    sources += [machine.slot_source, machine.format_source]
    sources += [machine.banks.source, machine.loop.source, machine.size_source]
    sources += [machine.fifo_source] if machine.fifos else []
    assert all(s and s.text and s.grade in get_args(Grade) for s in sources)


@both
def test_operations_name_slots_and_files_of_the_machine(machine: Machine) -> None:
    kinds = {f.name for f in machine.files} | {"imm", "label", "address", "fifo"}
    for operation in machine.operations:
        assert operation.slot in machine.slot_named, operation.key
        assert {o.kind for o in operation.operands} <= kinds, operation.key
    assert len(machine.operation) == len(machine.operations)


def test_registers_overlap() -> None:
    assert AIE2.atoms("x3") == ("wl3", "wh3")
    assert AIE2.atoms("cm2") == ("amll2", "amlh2", "amhl2", "amhh2")
    assert AIE2.atoms("bmh8") == ("amhl8", "amhh8")
    assert AIE2.atoms("d5") == ("m5", "dn5", "dj5", "dc5")
    assert AIE2P.atoms("dm4") == ("bmll4", "bmlh4", "bmhl4", "bmhh4")
    assert AIE2P.atoms("ex11") == ("wl11", "wh11", "el11", "eh11")
    assert (AIE2P.parts("DM"), AIE2P.parts("EX"), AIE2.parts("BM")) == (4, 4, 2)
    assert (AIE2P.bytes_of("ex0"), AIE2P.bytes_of("dm4"), AIE2P.bytes_of("lf1")) == (72, 256, 128)
    for name in ("x12", "bml9", "p8", "dm0"):
        with pytest.raises(FormatError, match=f"no register '{name}'"):
            AIE2.atoms(name)
    with pytest.raises(FormatError):
        AIE2P.atoms("dm5")
    for machine in (AIE2, AIE2P):
        for file in machine.files:
            for prefix in file.views:
                number = "0" if file.count > 1 else ""
                parts = machine.atoms(f"{prefix}{number}")
                widths = {
                    p: next(f.bits for f in machine.files if f.name == machine.file_of(p))
                    for p in parts
                }
                assert file.bits == sum(widths.values()), f"{machine.name} {prefix}"


@pytest.mark.parametrize(
    ("slots", "size"),
    [
        ("", 2), ("vec", 4), ("lng", 6), ("lda ldb", 6), ("lda vec", 8), ("lda ldb st", 8),
        ("lda ldb vec", 10), ("lda ldb st vec", 12), ("lda ldb lng vec", 14), ("st lda mv vec", 14),
        ("lda ldb st lng vec", 16), ("lda ldb st alu mv vec", 16), ("lda st vec ldb mv", 16),
    ],
)  # fmt: skip
def test_sizes_of_bundles(slots: str, size: int) -> None:
    assert AIE2.bundle_bytes(frozenset(slots.split())) == size


def test_sizes_of_bundles_of_the_second_generation() -> None:
    """As AIE2's, but for alu and mv alone. [LLVM] AIE2PCompositeFormats.td"""
    for slots, size in (("alu mv", 6), ("st mv", 8), ("lda ldb mv", 10), ("lda ldb st vec", 12)):
        assert AIE2P.bundle_bytes(frozenset(slots.split())) == size
    assert AIE2.bundle_bytes(frozenset({"alu", "mv"})) == 8


def test_the_load_files() -> None:
    for unit, port in (("lda", "write lda"), ("ldb", "write ldb")):
        pop, fill = AIE2P.operation[f"v{unit}.pop"], AIE2P.operation[f"v{unit}.fill"]
        assert (pop.mnemonic, fill.mnemonic) == (f"v{unit}.pop.576", f"v{unit}.fill.512")
        assert pop.operands[0].latency == 8 and pop.memory_stage == fill.memory_stage == 5
        assert pop.ports == ((port, 8),)
        assert AIE2P.operation[f"v{unit}.x"].ports == ((port, 7),)


def test_every_set_of_slots_has_a_size() -> None:
    names = {"lda", "ldb", "st", "alu", "mv", "vec", "lng"}
    for count in range(len(names) + 1):
        for slots in itertools.combinations(sorted(names), count):
            if "lng" in slots and {"alu", "mv"} & set(slots):
                with pytest.raises(FormatError, match="no bundle holds"):
                    AIE2.bundle_bytes(frozenset(slots))
                continue
            bits = sum(AIE2.slot_named[s].bits for s in slots)
            assert bits < 8 * AIE2.bundle_bytes(frozenset(slots)) <= 128


def test_banks() -> None:
    assert AIE2.banks.of(0, 32) == {0, 1}
    assert AIE2.banks.of(0x4010, 16) == {3}
    assert AIE2.banks.of(0xFFE0, 32) == {6, 7}
    assert AIE2P.banks.of(0x8020, 32) == {5}
    assert {b for a in range(0, 65536, 16) for b in AIE2.banks.of(a, 16)} == set(range(8))


def test_immediates() -> None:
    near = AIE2.operation["vldb.w"].post
    far = AIE2.operation["vlda.am"].post
    assert near and far
    assert [near.holds(v) for v in (-256, 224, -288, 256, 16)] == [True, True, False, False, False]
    assert [far.holds(v) for v in (-2048, 2016, -2080, 2048)] == [True, True, False, False]
    assert Immediate(10).holds(511) and not Immediate(10).holds(512)


def test_the_multiplication() -> None:
    for machine, stage in ((AIE2, 3), (AIE2P, 4)):
        operands = machine.operation["vmac.f"].operands
        assert operands[0].latency == 6 and operands[1].stage == stage
        assert [o.stage for o in operands[2:]] == [1, 1, 1]
    assert (BF16_4X8X4, BFP16_8X8X8) == (28, 780)
    assert {"p6", "p7", "r16", "r23"} <= CALLEE_SAVED
