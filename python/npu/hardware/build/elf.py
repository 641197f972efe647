"""Reads the ELF files of cores and kernels: sections, functions, who calls whom, stack sizes.

ELF32, little endian, as lld writes them for AIE2 and AIE2P. Layout: the ELF specification;
``.stack_sizes``: LLVM's "Emitting function stack size information". Everything that a file says is
checked before it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from npu.errors import FormatError

_MAX_BYTES = 256 << 20
_HEADER = struct.Struct("<16sHHIIIIIHHHHHH")
_SECTION = struct.Struct("<10I")
_SYMBOL = struct.Struct("<IIIBBH")
_RELA, _REL = struct.Struct("<IIi"), struct.Struct("<II")
_SYMTAB, _RELA_TYPE, _NOBITS, _REL_TYPE = 2, 4, 8, 9
_ALLOC, _EXEC = 2, 4  # section flags
_FUNCTION, _SECTION_SYMBOL = 2, 3  # symbol types


@dataclass(frozen=True)
class Section:
    """One section. ``data`` is empty for one that the file does not hold (.bss)."""

    name: str
    kind: int
    flags: int
    address: int
    size: int
    link: int
    info: int
    data: bytes

    @property
    def code(self) -> bool:
        """Whether program memory holds it."""
        return bool(self.flags & _ALLOC and self.flags & _EXEC)

    @property
    def in_data_memory(self) -> bool:
        return bool(self.flags & _ALLOC) and not self.flags & _EXEC


@dataclass(frozen=True)
class Symbol:
    """A symbol: ``section`` is an index, 0 if the symbol is defined elsewhere."""

    name: str
    value: int
    size: int
    kind: int
    section: int


class Elf:
    """A parsed file. Raises FormatError for anything but a complete ELF32 file."""

    def __init__(self, data: bytes, name: str) -> None:
        self._data, self._name = data, name
        self.sections = self._read_sections()
        self.symbols = list(self._read_symbols())

    @staticmethod
    def read(path: Path) -> Elf:
        """Raises FormatError, also where the file cannot be read."""
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise FormatError(f"[elf] {path} has more than {_MAX_BYTES} bytes")
            return Elf(path.read_bytes(), str(path))
        except OSError as error:
            raise FormatError(f"[elf] {path}: {error.strerror}") from error

    def code(self) -> list[Section]:
        """The sections of program memory that have bytes, by address."""
        found = [s for s in self.sections if s.code and s.size]
        return sorted(found, key=lambda s: s.address)

    def functions(self) -> dict[str, int]:
        """Stack bytes of each function that ``.stack_sizes`` names."""
        found: dict[str, int] = {}
        for number, section in enumerate(self.sections):
            if section.name.startswith(".stack_sizes"):
                self._stack_sizes(number, section, found)
        return found

    def calls(self) -> dict[str, set[str]]:
        """What each function refers to by relocations of its code: functions of this file, and
        names that it leaves open. For functions in sections of their own (-ffunction-sections)."""
        found: dict[str, set[str]] = {}
        for section, at, symbol, addend in self._relocations():
            if not self.sections[section].code:
                continue
            caller = self._function_at(section, at)
            callee = self._named(symbol, addend)
            if caller and callee and callee != caller:
                found.setdefault(caller, set()).add(callee)
            elif caller and callee == caller and symbol.kind == _FUNCTION:
                found.setdefault(caller, set()).add(caller)
        return found

    def _named(self, symbol: Symbol, addend: int) -> str:
        """The function that a relocation means, or the name of a symbol defined elsewhere."""
        if symbol.section == 0:
            return symbol.name
        if symbol.kind == _FUNCTION:
            return symbol.name
        if symbol.kind == _SECTION_SYMBOL and self._is_code(symbol.section):
            return self._function_at(symbol.section, addend)
        return ""

    def _is_code(self, section: int) -> bool:
        return section < len(self.sections) and self.sections[section].code

    def _function_at(self, section: int, offset: int) -> str:
        """The function of a section whose bytes include an offset, or which begins last before."""
        before = [
            s for s in self._functions_of().get(section, ())
            if s.value <= offset and (not s.size or offset < s.value + s.size)
        ]  # fmt: skip
        return max(before, key=lambda s: s.value).name if before else ""

    def _functions_of(self) -> dict[int, list[Symbol]]:
        if not hasattr(self, "_by_section"):
            self._by_section: dict[int, list[Symbol]] = {}
            for symbol in self.symbols:
                if symbol.kind == _FUNCTION and symbol.section:
                    self._by_section.setdefault(symbol.section, []).append(symbol)
        return self._by_section

    def _stack_sizes(self, number: int, section: Section, found: dict[str, int]) -> None:
        """Entries: an address of 4 bytes, then the size as ULEB128. In objects the address is a
        relocation."""
        targets = {
            at: (symbol, addend)
            for of, at, symbol, addend in self._relocations()
            if of == number
        }  # fmt: skip
        at = 0
        while at < section.size:
            begin, address = at, self._word(section.data, at)
            at, size = _uleb(section.data, at + 4, self._fail)
            if begin in targets:
                symbol, addend = targets[begin]
                name = self._named(symbol, addend)
            else:
                name = next(
                    (s.name for s in self.symbols if s.kind == _FUNCTION and s.value == address), ""
                )
            if name:
                found[name] = max(size, found.get(name, 0))

    def _relocations(self) -> Iterator[tuple[int, int, Symbol, int]]:
        """(section that is changed, offset in it, symbol, addend)."""
        for table in self.sections:
            if table.kind not in (_RELA_TYPE, _REL_TYPE):
                continue
            form = _RELA if table.kind == _RELA_TYPE else _REL
            if table.info >= len(self.sections):
                self._fail(f"{table.name} is for a section that does not exist")
            for at in range(0, len(table.data) - form.size + 1, form.size):
                offset, info, *addend = form.unpack_from(table.data, at)
                if info >> 8 >= len(self.symbols):
                    self._fail(f"{table.name} names a symbol that does not exist")
                yield table.info, offset, self.symbols[info >> 8], addend[0] if addend else 0

    def _read_sections(self) -> list[Section]:
        if len(self._data) < _HEADER.size:
            self._fail("it is too short for an ELF header")
        ident, *_, table, _, _, _, _, size, count, names = _HEADER.unpack_from(self._data)
        if ident[:4] != b"\x7fELF" or ident[4] != 1 or ident[5] != 1:
            self._fail("it is no ELF32 file of little-endian words")
        if not count or size != _SECTION.size or table + count * size > len(self._data):
            self._fail("its section table is missing or cut off")
        heads = [_SECTION.unpack_from(self._data, table + n * size) for n in range(count)]
        if names >= count:
            self._fail("its section names are missing")
        text = self._bytes(heads[names], "the section names")
        return [
            Section(
                self._text(text, h[0]), h[1], h[2], h[3], h[5], h[6], h[7],
                self._bytes(h, f"section {n}"),
            )
            for n, h in enumerate(heads)
        ]  # fmt: skip

    def _bytes(self, head: tuple[int, ...], what: str) -> bytes:
        kind, offset, size = head[1], head[4], head[5]
        if kind in (0, _NOBITS):
            return b""
        if offset + size > len(self._data):
            self._fail(f"{what} is cut off")
        return self._data[offset : offset + size]

    def _read_symbols(self) -> Iterator[Symbol]:
        for table in self.sections:
            if table.kind != _SYMTAB:
                continue
            if table.link >= len(self.sections):
                self._fail("the names of its symbols are missing")
            names = self.sections[table.link].data
            for at in range(0, len(table.data) - _SYMBOL.size + 1, _SYMBOL.size):
                name, value, size, info, _, section = _SYMBOL.unpack_from(table.data, at)
                # Reserved indices (0xff00 on) are no sections: absolute and common symbols.
                inside = section if section < len(self.sections) else 0
                yield Symbol(self._text(names, name), value, size, info & 15, inside)
            return

    def _text(self, names: bytes, at: int) -> str:
        end = names.find(b"\0", at)
        if at >= len(names) or end < 0:
            self._fail("a name lies outside its table")
        return names[at:end].decode(errors="replace")

    def _word(self, data: bytes, at: int) -> int:
        if at + 4 > len(data):
            self._fail(".stack_sizes is cut off")
        return int.from_bytes(data[at : at + 4], "little")

    def _fail(self, problem: str) -> None:
        raise FormatError(f"[elf] {self._name}: {problem}; build with --keep FOLDER and look at it")


def _uleb(data: bytes, at: int, fail: object) -> tuple[int, int]:
    """(offset behind it, value) of a ULEB128 number of at most 32 bits."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            assert callable(fail)
            fail(".stack_sizes is cut off")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return at, value
