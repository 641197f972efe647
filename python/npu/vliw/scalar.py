"""What both generations have in common: scalar, pointer, modifier and loop registers, and moves,
pointer operations and the return on them. Sources and widths that differ are the machine's."""

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


def operations(source: Source, pointer_bits: tuple[int, int, int]) -> tuple[Operation, ...]:
    """``pointer_bits``: of what pointers add in the slots lda, ldb and st."""
    pointers = zip(("lda", "ldb", "st"), "abs", pointer_bits, strict=True)
    return (
        *(_move(f"mova.{f}", "lda", f, 11, source) for f in NAMES),
        *_moves(source),
        *(_add_to_pointer(slot, letter, bits, source) for slot, letter, bits in pointers),
        Operation("ret", "ret", "alu", (Operand("LR"),), "return", source, delay_slots=5),
    )


def _move(key: str, slot: str, file: str, bits: int, source: Source) -> Operation:
    """Of an immediate, or of the address of a label (``key`` ends in it), into a register."""
    mnemonic, _, of = key.partition(".")
    operands = (Operand(file, 0, 1), Operand("label" if of == "label" else "imm"))
    return Operation(key, mnemonic, slot, operands, "move", source, immediate=Immediate(bits))


def _moves(source: Source) -> tuple[Operation, ...]:
    """Those of the slots alu, mv and lng."""
    return (
        _move("movx.R", "alu", "R", 11, source),
        *(_move(f"mov.{f}", "mv", f, 10, source) for f in NAMES),
        *(_move(f"movxm.{f}", "lng", f, 32, source) for f in (*NAMES, "LOOP")),
        _move("movxm.label", "lng", "LOOP", 32, source),
        *(_copy(to, of, source) for to in NAMES for of in NAMES),
        _copy("S", "R", source),
        _move("movx.CR", "alu", "CR", 5, source),
        _move("mov.CR", "mv", "CR", 10, source),
    )


def _copy(to: str, of: str, source: Source) -> Operation:
    operands = (Operand(to, 0, 1), Operand(of))
    return Operation(f"mov.{to}.{of}", "mov", "mv", operands, "copy", source)


def _add_to_pointer(slot: str, letter: str, bits: int, source: Source) -> Operation:
    """Adds to a pointer, in steps of 4 bytes."""
    key = f"padd{letter}"
    return Operation(key, key, slot, (ADDRESS,), "pointer", source, post=Immediate(bits, 4))
