"""Products of fp32 lanes on simulated cores: bit for bit the six products of bf16 parts, in their
order, as fp32. Results in bf16, which the kernels give, would hide another order.
"""

from __future__ import annotations

import numpy as np
import pytest
from lane_products import BF16, ORDER, product

from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.float_products import Floats
from npu.vliw.generate import generate
from npu.vliw.machines import MACHINES
from npu.vliw.narrow_float_products import NarrowFloats
from npu.vliw.simulator import Core
from npu.vliw.vector_dataflow import Dataflow

COUNT = 640
PLACES = {"p0": 0, "p1": 0x4000, "p2": 0x8000, "p3": 0xC000}


def computed(device: str, kind: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """By a loop over lanes: a b, or c - a b with a in bf16."""
    machine = MACHINES[device]
    flow = Dataflow(machine)
    floats = NarrowFloats(flow) if device == "npu1" else Floats(flow)
    narrow = floats.narrow("p3", 0, "narrow") if kind == "added" else ""
    first, second = (floats.loaded(array, 0, array) for array in ("p0", "p1"))
    if kind == "added":
        result = floats.add_scaled(first, narrow, floats.parts(second), minus=True)
    elif isinstance(floats, NarrowFloats):
        result = floats.multiplied(floats.three(first), floats.three(second))
    else:
        result = floats.multiplied(floats.parts(first), floats.parts(second))
    form, size = ("vst.am", 32) if device == "npu1" else ("vst.bm", 64)
    for part in range(2):
        flow.store((form,), f"{result}:{part}", Access("p2", size * part), "p2")
    used = ("p0", "p1", "p2") + (("p3",) if kind == "added" else ())
    streams = {
        name: Stream(
            name,
            name,
            [t * floats.COUNT * (2 if name == "p3" else 4) for t in range(COUNT // floats.COUNT)],
        )
        for name in used
    }
    region = Region(
        "lanes", tuple(flow.nodes), flow.values, streams, floats.CONSTANTS,
        preamble=floats.PREAMBLE, partial=frozenset(flow.partial), reserved=floats.RESERVED,
        lanes=True, interval=24,
    )  # fmt: skip
    memory = bytearray(machine.memory_bytes)
    first_array = c if kind == "added" else a
    for name, array in {"p0": first_array, "p1": b, "p3": a.astype(BF16)}.items():
        memory[PLACES[name] : PLACES[name] + array.nbytes] = array.tobytes()
    Core(memory, {name: PLACES[name] for name in used}).run(generate("lanes", [region], machine, 2))
    return np.frombuffer(bytes(memory), np.float32, len(a), PLACES["p2"])


def telling(device: str) -> tuple[np.ndarray, np.ndarray]:
    """Factors whose product shows the order of its parts: one pair in 7,000."""
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal(300_000).astype(np.float32) for _ in range(2))
    other = (*ORDER[:3], ORDER[4], ORDER[3])
    shown = product(a, b, device=device) != product(a, b, device=device, order=other)
    assert 20 < shown.sum() < 100
    return a[shown], b[shown]


@pytest.mark.parametrize("kind", ["product", "added"])
@pytest.mark.parametrize("device", ["npu1", "npu2"])
def test_their_bits(device: str, kind: str) -> None:
    rng = np.random.default_rng(6)
    a, b, c = (np.ldexp(rng.standard_normal(COUNT), rng.integers(-6, 6, COUNT)).astype(np.float32)
               for _ in range(3))  # fmt: skip
    b[::5] = 2 - 2.0**-23 * rng.integers(1, 300, len(b[::5]))  # a first part of 2
    if kind == "added":
        a = a.astype(BF16).astype(np.float32)
        c[::3] = a[::3] * b[::3]
        expected = product(-a, b, c, device)
    else:
        first, second = telling(device)
        a[: len(first)], b[: len(second)] = first, second
        expected = product(a, b, device=device)
    found = computed(device, kind, a, b, c)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
