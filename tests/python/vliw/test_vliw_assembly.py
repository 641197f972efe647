"""Assembly: what is written is a function that C can call, labels and alignment are those of the
loop, and text that is no program names its line."""

from __future__ import annotations

import re

import pytest

from npu.errors import FormatError
from npu.vliw import assembly, kernels
from npu.vliw.aie2 import AIE2


def test_a_function_that_c_can_call() -> None:
    schedule = kernels.schedule("npu1", "matmul_bf16", 4, 2, 8)
    text = assembly.write(schedule.program, schedule.prototype)
    name = "matmul_bf16_4x2x8"
    assert f"// void {name}(const bfloat16 *a, const bfloat16 *b, float *c);" in text
    for line in (f"  .globl {name}", f"  .type {name},@function", f"{name}:", "  .p2align 4"):
        assert line in text.splitlines()
    start, end = (text.index(f"{label}:") for label in (".l_start0", ".l_end0"))
    assert "movxm ls, #.l_start0" in text[:start] and start < end
    last = text[end:].splitlines()[1]
    assert last.count(";") in (4, 5)  # a bundle of 16 bytes names all its slots
    assert len(re.findall(r"\bret lr\b", text)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "vlda wl0, [p0], #2048",  # out of range
        "vldb wl0, [p0], #256",
        "vldb wl0, [p0], #16",  # no multiple of 32
        "vldb amll0, [p0], #32",  # unit B writes no accumulators
        "vmac.f bml0, bml0, wl0, x1, r0",
        "vlda.2d wl0, [p0], m1",
        "vlda wl0, [p0], d1",
        "vlda wl0, [p0]",
        "mova r0, #1024",
        "mov r0, #512",
        "vmax_lt.s16 x0, r0, x1, x2",  # not described
        "ret",
    ],
)
def test_text_that_is_no_program(line: str) -> None:
    with pytest.raises(FormatError, match=r"\[assembly\] line 2: "):
        assembly.read(f"nop\n{line}", AIE2)
