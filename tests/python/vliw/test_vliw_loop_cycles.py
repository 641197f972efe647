"""What loops of generated kernels cost in simulated time: lines of the table agree with the
generator, and turns times interval and the ends are the cycles of code for other sizes than those
that the line was measured by, up to the ends.
"""

from __future__ import annotations

import numpy as np
import pytest

from npu import _npu
from npu.errors import ArgumentError
from npu.vliw import generate, loop_cycles, rope, vector_kernels
from npu.vliw.loop_cycles import LOOPS, NAMES, Loop
from npu.vliw.machines import MACHINES
from npu.vliw.simulator import Core

FAST = {"rms_norm_squares", "rms_norm_root", "rms_norm_scaling", "rope", "softmax_weighing"}
LINES = {(x["device"], x["kernel"]): x for x in _npu.perf.schedules()}


def _marked(loops: list[Loop]) -> list[object]:
    return [
        pytest.param(
            loop, id=f"{loop.name}-{loop.device}",
            marks=() if loop.name in FAST else pytest.mark.slow,
        )
        for loop in loops
    ]  # fmt: skip


@pytest.mark.parametrize("loop", _marked(list(LOOPS)))
def test_lines_agree_with_the_generator(loop: Loop) -> None:
    made, line = loop_cycles.of(loop.device, loop.name), LINES[loop.device, loop.name]
    assert (line["k"], *line["block"]) == (1, 1, loop.step)
    assert (line["interval"], line["outside"]) == (made.interval, made.outside)
    assert line["code_bytes"] == made.code_bytes


OTHER = {"rms_norm": 16, "softmax": 4, "rope": 3, "geglu": 3}


@pytest.mark.parametrize(
    "loop", _marked([loop for loop in LOOPS if loop.size and loop.kernel in OTHER])
)
def test_other_sizes_take_as_many_cycles(loop: Loop) -> None:
    """Nearly: code before and after the loop differs with what is left over. Fewer cycles by less
    than two turns, more by a few, as orders are random."""
    blocks = OTHER[loop.kernel]
    turn = LINES[loop.device, loop.name]["interval"]
    found = loop_cycles.simulated(loop, blocks)
    expected = loop_cycles.of(loop.device, loop.name).total(blocks * loop.size)
    assert found - 4 <= expected < found + 2 * turn


@pytest.mark.parametrize(("device", "root"), [("npu1", range(1, 4)), ("npu2", 1)])
def test_regions_are_all_of_a_function(device: str, root: int | range) -> None:
    """Squares, root and scaling of a row of two chunks."""
    regions = [loop for loop in LOOPS if (loop.device, loop.kernel) == (device, "rms_norm")]
    whole = vector_kernels.schedule(device, "rms_norm", 2).simulated()
    assert [loop.region for loop in regions] == [0, root, 4 if device == "npu1" else 2]
    assert sum(loop_cycles.simulated(loop, 2) for loop in regions) == whole.bundles


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize("width", [64, 128])
def test_an_object_of_narrower_vectors_takes_as_long(device: str, width: int) -> None:
    """A call of rope_rotate turns 256 elements, of one vector or several; and turns them right."""
    machine = MACHINES[device]
    vectors = rope.WIDTH // width
    program = generate.generate("rope", rope.regions(machine, vectors, width), machine, 4)
    rng = np.random.default_rng(width)
    x = (rng.integers(-8, 8, rope.WIDTH).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    table = rng.integers(-8, 8, rope.WIDTH).astype(np.float32)
    memory = bytearray(machine.memory_bytes)
    memory[: x.nbytes], memory[0x4000 : 0x4000 + table.nbytes] = x.tobytes(), table.tobytes()
    run = Core(memory, {"p0": 0, "p1": 0x4000, "p2": 0x8000}).run(program)
    expected = loop_cycles.of(device, "rope").total(rope.WIDTH)
    assert run.cycles <= expected < run.cycles + 2 * LINES[device, "rope"]["interval"]
    result = np.frombuffer(bytes(memory), np.uint16, rope.WIDTH, 0x8000).astype(np.uint32) << 16
    low, high = (
        (x.astype(np.uint32) << 16).view(np.float32).reshape(-1, 2, width // 2).swapaxes(0, 1)
    )
    cosine, sine = table.reshape(-1, 2, width // 2).swapaxes(0, 1)
    turned = np.stack([low * cosine - high * sine, high * cosine + low * sine], 1)
    np.testing.assert_array_equal(result.view(np.float32), turned.reshape(-1))


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="no loop geglu on npu3; there is"):
        loop_cycles.of("npu3", "geglu")
    with pytest.raises(ArgumentError, match="100 elements of rope: give a multiple of 64"):
        loop_cycles.of("npu2", "rope").total(100)
    assert ("npu2", "rope") in NAMES
