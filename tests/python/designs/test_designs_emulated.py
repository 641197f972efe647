"""Lowered designs executed on the emulated NPU with Python kernels, against NumPy: split, join,
reordering at both ends of a FIFO, core to core, several depths, shim in one column and out another.
"""

from __future__ import annotations

import numpy as np
import pytest
from designs_reference import read_configuration
from test_designs_golden import relay, unroll

from npu._npu import arch
from npu._npu import stream as txn
from npu.designs.api import Design
from npu.designs.lowering import configuration

emulator = pytest.importorskip("npu.emulator")

OBJECTS = 6  # a multiple of every depth below: one round of the loop ends where it began


def pipeline(generation: str) -> Design:
    """in -> split -> (+1 -> x2 | transpose, +10) -> join -> out, 8 x 16 int32 objects."""
    d = Design("pipeline", generation)
    mem0, mem1 = d.tile(0, 1), d.tile(1, 1)
    low, high, next_door = d.tile(0, 2), d.tile(0, 3), d.tile(1, 2)
    source = d.fifo("source", d.tile(0, 0), mem0, (8, 16), port="in")
    half0 = d.fifo("half0", mem0, low, (4, 16), depth=(2, 3))
    # What arrives row by row is written column by column.
    half1 = d.fifo("half1", mem0, high, (4, 16), from_stream=[(4, 1), (16, 4)])
    d.split(source, [half0, half1])
    between = d.fifo("between", low, next_door, (4, 16), depth=(1, 3))
    done0 = d.fifo("done0", next_door, mem1, (4, 16), depth=2)
    done1 = d.fifo("done1", high, mem1, (4, 16), depth=1)
    out = d.fifo("out_", mem1, d.tile(1, 0), (8, 16), depth=2, port="out", consumer_channel=1)
    d.join([done1, done0], out, [256, 0])
    kernel = d.kernel("affine", [("int32", (4, 16)), ("int32", (4, 16)), "int32", "int32"])
    stages = (
        (low, half0, between, 1, 1), (high, half1, done1, 1, 10), (next_door, between, done0, 2, 0)
    )  # fmt: skip
    for tile, a, b, scale, shift in stages:
        w = d.worker(tile)
        with w.forever(), w.loop(OBJECTS):
            w.call(kernel, w.acquire(a), w.acquire(b), scale, shift)
            w.release(a)
            w.release(b)
    return d


def affine(source: memoryview, sink: memoryview, scale: int, shift: int) -> None:
    x = np.frombuffer(source, np.int32, 64)
    np.frombuffer(sink, np.int32, 64)[:] = x * scale + shift


def linear_stream(generation: str, ports: list[tuple[int, str, int]], words: int) -> bytes:
    """One linear BD per port, argument i for port i; waits for the S2MM ports."""
    out = txn.Builder(generation, {"npu1": 4, "npu2": 8}[generation])
    for argument, (col, direction, channel) in enumerate(ports):
        bd = arch.tile_address(col, 0, 0x1D000 + 0x20 * argument)
        out.block_write(bd, arch.encode_bd("shim", {"length": words}))
        out.address_patch(bd + 4, argument, 0)
        queue = arch.channel_queue("shim", direction, channel)
        token = (direction == "s2mm") << 31
        out.write(arch.tile_address(col, 0, queue), token | argument)
    for col, direction, channel in ports:
        if direction == "s2mm":
            out.sync(col, 0, direction, channel)
    return bytes(out.finish())


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_pipeline(generation: str) -> None:
    config = read_configuration(configuration(pipeline(generation)))
    array = emulator.Array(generation)
    array.configure(config.txn)
    for (col, row), lines in config.cores.items():
        ops = [["call", o[1], operands(lines, o)] if o[0] == "call" else o for o in unroll(lines)]
        array.attach(col, row, ops, {"affine": affine})
    x = np.random.default_rng(0).integers(-1000, 1000, (OBJECTS, 8, 16), dtype=np.int32)
    y = np.zeros_like(x)
    insts = linear_stream(generation, [config.ports["in"], config.ports["out"]], x.size)
    for _ in range(2):  # the second run finds every slot and lock where the first began
        y[:] = 0
        report = array.submit(insts, [x, y])
        assert report.undecoded_writes == 0
        np.testing.assert_array_equal(y[:, :4], (x[:, :4] + 1) * 2)
        turned = x[:, 4:].transpose(0, 2, 1).reshape(OBJECTS, 4, 16)
        np.testing.assert_array_equal(y[:, 4:], turned + 10)


def operands(lines: list[str], op: list) -> list:
    """Golden form: buffers as dicts, numbers as they are."""
    call = next(line.split() for line in lines if line.startswith(f"call {op[1]} "))
    return [
        {"buffer": value} if word[0] == "@" else value
        for word, value in zip(call[2:], op[2], strict=True)
    ]


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_relay(generation: str) -> None:
    config = read_configuration(configuration(relay(generation)))
    array = emulator.Array(generation)
    array.configure(config.txn)
    x = np.arange(1536, dtype=np.int32)
    y, z = np.zeros_like(x), np.zeros_like(x)
    insts = linear_stream(generation, [config.ports["in0"], config.ports["out0"]], 1536)
    array.submit(insts, [x, y])
    expected = x.reshape(8, 4, 6, 8).transpose(2, 0, 1, 3).ravel()
    np.testing.assert_array_equal(y, expected)
    insts = linear_stream(generation, [config.ports["in1"], config.ports["out1"]], 1536)
    array.submit(insts, [x, z])
    np.testing.assert_array_equal(z, x)
