"""What holds for every generated kernel, each type of C and layout of B: its text reads back as the
same program, bundle for bundle, with its labels and addresses; it writes no register that its
caller expects to keep.
"""

from __future__ import annotations

import pytest

from npu.vliw import assembly, kernels, vector_kernels
from npu.vliw.aie2 import CALLEE_SAVED
from npu.vliw.kernels import Schedule
from npu.vliw.program import Address, Bundle
from npu.vliw.vector_kernels import LoopSchedule

# Small, with a loop: rows, steps and columns of tiles; blocks, and tiles of a column.
TILES = {"matmul_bfp16": (4, 4, 4), "prefill_multiply": (4, 4, 8)}
BLOCKS = {"rms_norm": (2,), "softmax": (2,), "rope": (2,), "convert_bf16_bfp16_b": (6, 2)}
MATRICES = [
    (*key, out, layout)
    for key, kernel in sorted(kernels.KERNELS.items())
    for out in kernel.outs
    for layout in kernel.layouts
]


@pytest.fixture(
    scope="module",
    params=[*MATRICES, *vector_kernels.KERNELS],
    ids=lambda key: "-".join(key),
)
def found(request: pytest.FixtureRequest) -> Schedule | LoopSchedule:
    device, kernel, *kind = request.param
    if kind:
        size = TILES.get(kernel, (4, 1, 8))
        return kernels.schedule(device, kernel, *size, 1, *kind)
    few = 24 if kernel.startswith("convert") else 1
    return vector_kernels.schedule(device, kernel, *BLOCKS.get(kernel, (few,)))


def content(bundle: Bundle) -> tuple[object, ...]:
    """Operations by slot, and explicit nops. Multiplications that share text, as their
    configuration word tells them apart, count as one."""
    ops = sorted(bundle.ops, key=lambda op: op.operation.slot)
    forms = [o.operation.mnemonic if o.operation.word else o.operation for o in ops]
    return forms, [op.operands for op in ops], bundle.nops


def test_its_text_reads_back(found: Schedule | LoopSchedule) -> None:
    program = found.program
    again = assembly.read(assembly.write(program, found.prototype), program.machine)
    for number, (one, other) in enumerate(zip(program.bundles, again.bundles, strict=True)):
        assert content(one) == content(other), f"bundle {number}"
    assert again.addresses == program.addresses
    assert again.labels.items() >= program.labels.items()
    assert len(program.labels) == 2 * len(program.loops)


def test_registers_of_the_caller_are_kept(found: Schedule | LoopSchedule) -> None:
    for bundle in found.program.bundles:
        for op in bundle.ops:
            described = zip(op.operands, op.operation.operands, strict=True)
            written = {str(o) for o, d in described if d.latency}
            written |= {o.pointer for o in op.operands if isinstance(o, Address)}
            assert not written & CALLEE_SAVED
