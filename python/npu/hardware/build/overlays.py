"""Images of overlays: what a stream writes into program memory, taken from the cores' ELF files.

A stream sends one image to all cores, and it sends code only. So the cores of an overlay must have
the same code to the byte, it must fit what the configuration announces, and it must come without
data: nothing would load that.
"""

from __future__ import annotations

from collections.abc import Mapping

from npu.designs.lowering.lowered import Overlay
from npu.errors import BuildError
from npu.hardware.build.elf import Elf, Section


def image(overlay: Overlay, cores: Mapping[tuple[int, int], Elf]) -> bytes:
    """The image, as many bytes as the configuration announces. Raises BuildError."""
    if not cores:
        raise BuildError(f"[build] overlay {overlay.name}: aiecc linked no core")
    images = {place: _code(overlay, place, elf) for place, elf in sorted(cores.items())}
    (first, code), *others = images.items()
    for place, other in others:
        if other != code:
            raise BuildError(
                f"[build] overlay {overlay.name}: the code of core {place} is not that of core "
                f"{first}, and a stream loads one image into all cores"
            )
    if len(code) > overlay.bytes:
        raise BuildError(
            f"[build] overlay {overlay.name}: its code takes {len(code)} bytes, streams of this "
            f"configuration load {overlay.bytes}; its kernels need a smaller build or the design a "
            "larger estimate (designs/kernel_bytes.txt)"
        )
    return code.ljust(overlay.bytes, b"\0")


def _code(overlay: Overlay, place: tuple[int, int], elf: Elf) -> bytes:
    """Program memory from address 0 on."""
    if data := [s for s in elf.sections if s.in_data_memory and s.size]:
        raise BuildError(
            f"[build] overlay {overlay.name}, core {place}: section {data[0].name} puts "
            f"{data[0].size} bytes into data memory, which streams do not load; its kernels must "
            "not have tables or static variables"
        )
    return b"".join(_at(overlay, place, elf.code()))


def _at(overlay: Overlay, place: tuple[int, int], code: list[Section]) -> list[bytes]:
    parts: list[bytes] = []
    end = 0
    for section in code:
        if section.address < end or section.address > 1 << 20:
            raise BuildError(
                f"[build] overlay {overlay.name}, core {place}: section {section.name} lies at "
                f"{section.address:#x}, which is no place in program memory"
            )
        parts += [bytes(section.address - end), section.data]
        end = section.address + len(section.data)
    return parts
