"""Stack of a core: the deepest chain of calls below each kernel, by what the compiler laid out.

The core's own program is compiled by aiecc without stack sizes; for it the estimate of
designs/lowering/stack.py stands.
"""

from __future__ import annotations

from collections.abc import Iterable

from npu.errors import FormatError
from npu.hardware.build.elf import Elf

# Bytes assumed of a function of the compiler's library, which is in no object of ours.
FOREIGN = 256


def kernel_stacks(elf: Elf, kernels: Iterable[str]) -> dict[str, int]:
    """Bytes of stack of each kernel with all that it calls.

    Raises FormatError for a kernel whose stack size the object does not state, and for recursion.
    """
    sizes, calls = elf.functions(), elf.calls()
    known: dict[str, int] = {}

    def deepest(name: str, path: tuple[str, ...]) -> int:
        if name in path:
            raise FormatError(f"[stack] {' calls '.join((*path, name))}: its stack has no bound")
        if name not in known:
            if name not in sizes:
                return FOREIGN
            below = (deepest(callee, (*path, name)) for callee in sorted(calls.get(name, ())))
            known[name] = sizes[name] + max(below, default=0)
        return known[name]

    found = {}
    for name in kernels:
        if name not in sizes:
            raise FormatError(f"[stack] the object states no stack size of kernel {name}")
        found[name] = deepest(name, ())
    return found
