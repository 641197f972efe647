"""What both generations have in common: scalar, pointer, modifier and loop registers, and moves
and pointer operations on them. Sources and widths that differ are the machine's."""

from __future__ import annotations

from npu.vliw.machine import Immediate, Operand, Operation, RegisterFile, Source

NAMES = ("R", "P", "M", "DN", "DJ", "DC")  # of the files that moves reach
# What conversions obey.
MODES = ("crsat", "crrnd", "crupsmode", "crsrsmode", "crunpacksign", "crunpacksize")
ADDRESS = Operand("address")


def files(source: Source, walk: Source) -> tuple[RegisterFile, ...]:
    """``walk``: of the registers of a walk in two dimensions."""
    return (
        RegisterFile("R", {"r": ()}, 32, 32, source),
        *(RegisterFile(name, {name.lower(): ()}, 8, 20, source) for name in NAMES[1:]),
        RegisterFile("LR", {"lr": ()}, 1, 20, source),
        RegisterFile("S", {"s": ()}, 4, 32, source),  # shifts of conversions
        RegisterFile("CR", {name: () for name in MODES}, 1, 32, source),
        RegisterFile("LOOP", {"ls": (), "le": (), "lc": ()}, 1, 32, source),
        # d3: modifier, size, step and count.
        RegisterFile("D", {"d": ("m", "dn", "dj", "dc")}, 8, 80, walk),
    )


def move(key: str, slot: str, file: str, bits: int, source: Source) -> Operation:
    """Of an immediate, or of the address of a label (``key`` ends in it), into a register."""
    mnemonic, _, of = key.partition(".")
    operands = (Operand(file, 0, 1), Operand("label" if of == "label" else "imm"))
    return Operation(key, mnemonic, slot, operands, "move", source, immediate=Immediate(bits))


def moves(source: Source) -> tuple[Operation, ...]:
    """Those of the slots alu, mv and lng."""
    return (
        move("movx.R", "alu", "R", 11, source),
        *(move(f"mov.{f}", "mv", f, 10, source) for f in NAMES),
        *(move(f"movxm.{f}", "lng", f, 32, source) for f in (*NAMES, "LOOP")),
        move("movxm.label", "lng", "LOOP", 32, source),
        *(_copy(to, of, source) for to in NAMES for of in NAMES),
        _copy("S", "R", source),
        move("movx.CR", "alu", "CR", 5, source),
        move("mov.CR", "mv", "CR", 10, source),
    )


def _copy(to: str, of: str, source: Source) -> Operation:
    operands = (Operand(to, 0, 1), Operand(of))
    return Operation(f"mov.{to}.{of}", "mov", "mv", operands, "copy", source)


def padd(slot: str, letter: str, bits: int, source: Source) -> Operation:
    """Adds to a pointer, in steps of 4 bytes."""
    key = f"padd{letter}"
    return Operation(key, key, slot, (ADDRESS,), "pointer", source, post=Immediate(bits, 4))
