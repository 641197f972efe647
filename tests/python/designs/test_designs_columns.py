"""Design.scatter and gather: what a port takes is split in the order of the cores, and comes back
so; the cores must be of one column. `forms`: a configuration is made once per choice of arguments,
and arguments that cannot be remembered reach the design's own checks."""

from __future__ import annotations

import numpy as np
import pytest
from designs_reference import read_configuration
from test_designs_emulated import linear_stream, operands
from test_designs_golden import unroll

from npu import emulator
from npu.designs.api import Design
from npu.designs.lowering import configuration, forms
from npu.errors import DesignError

OBJECTS = 4  # a multiple of the depths


def _marks(generation: str) -> Design:
    """Each of three cores of column 1 adds a number of its own to the four it gets."""
    design = Design("marks", generation)
    cores = design.cores(1, 3, 1)
    add = design.kernel("add", [("int32", (4,)), ("int32", (4,)), "int32"])
    x, y = design.scatter("in", cores, 4, "int32"), design.gather("out", cores, 4, "int32")
    for number, (core, source, sink) in enumerate(zip(cores, x, y, strict=True)):
        worker = design.worker(core)
        with worker.forever(), worker.loop(OBJECTS):
            worker.call(add, worker.acquire(source), worker.acquire(sink), 100 * number)
            worker.release(source)
            worker.release(sink)
    return design


def _add(source: memoryview, sink: memoryview, value: int) -> None:
    np.frombuffer(sink, np.int32, 4)[:] = np.frombuffer(source, np.int32, 4) + value


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_parts_are_in_the_order_of_the_cores(generation):
    config = read_configuration(configuration(_marks(generation)))
    assert sorted(config.cores) == [(1, 3), (1, 4), (1, 5)]
    array = emulator.Array(generation)
    array.configure(config.txn)
    for (col, row), lines in config.cores.items():
        ops = [["call", o[1], operands(lines, o)] if o[0] == "call" else o for o in unroll(lines)]
        array.attach(col, row, ops, {"add": _add})
    x = np.arange(OBJECTS * 12, dtype=np.int32)
    y = np.zeros_like(x)
    array.submit(
        linear_stream(generation, [config.ports["in"], config.ports["out"]], x.size), [x, y]
    )
    parts = x.reshape(OBJECTS, 3, 4) + np.array([0, 100, 200], np.int32)[:, None]
    np.testing.assert_array_equal(y, parts.reshape(-1))


def test_cores_of_two_columns_are_refused():
    design = Design("two", "npu2")
    cores = [design.tile(0, 2), design.tile(1, 2)]
    for method in (design.scatter, design.gather):
        with pytest.raises(DesignError, match=r'of "p" needs cores of one column, has \[\(0, 2\)'):
            method("p", cores, 4, "int32")
    with pytest.raises(DesignError, match="of one column"):
        design.scatter("p", [], 4, "int32")


def test_forms_are_made_once_per_choice():
    made = []

    def design(generation: str, option: object = None) -> Design:
        made.append((generation, option))
        if option is not None and option != 1:
            raise DesignError(f"[test] option is {option!r}")
        return _marks(generation)

    to_bytes, to_mlir = forms(design)
    assert to_bytes("npu2") is to_bytes("npu2") and len(made) == 1
    assert to_bytes("npu2", option=1) == to_bytes("npu2") and len(made) == 2
    assert "aie.device(npu2" in to_mlir("npu2") and len(made) == 3
    for _ in range(2):
        with pytest.raises(DesignError, match=r"option is \[\]"):
            to_bytes("npu2", [])
