"""Run one's own design on the emulated NPU, its cores written in Python.

Two cores work on 64 words in objects of 16: core (0,2) scales them by a runtime parameter and
leaves them in its memory, core (0,3) reads them there, its southern neighbour's memory, adds a
table and sends the sums home. Both end when their data end.

A design of one's own comes from mlir-aie as two files, `config` and `insts` (docs/emulator.md says
how to make them); here the same register writes are made by hand, so that the example needs no
compiler. From `array = ...` on everything is as it would be with a compiled design.
"""

import numpy as np

from npu import emulator, stream

OBJECT, OBJECTS = 16, 4
X, SCALED, FACTOR, SUM, TABLE = 0x400, 0x500, 0x600, 0x400, 0x800  # byte addresses of buffers


def at(col: int, row: int, offset: int) -> int:
    return stream.tile_address(col, row, offset)


def connect(config: stream.Builder, row: int, slave: int, master: int) -> None:
    base = stream.tile_geometry({0: "shim", 1: "mem"}.get(row, "core"))["switch_base"]
    config.write(at(0, row, base + 0x100 + 4 * slave), 1 << 31)
    config.write(at(0, row, base + 4 * master), 1 << 31 | slave)


config = stream.Builder("npu2", 8)
# Routes: shim MM2S 0 -> core (0,2) S2MM 0; core (0,3) MM2S 0 -> shim S2MM 0.
for row, slave, master in [(0, 5, 12), (1, 7, 11), (2, 5, 1),
                           (3, 1, 5), (2, 15, 5), (1, 13, 7), (0, 14, 4)]:  # fmt: skip
    connect(config, row, slave, master)
config.write(at(0, 0, 0x1F000), 1 << 10)
config.write(at(0, 0, 0x1F004), 1 << 4)
# Core DMAs: one buffer each, which they receive into or send for ever. Locks of (0,2): 0 room for
# x, 1 x is there, 2 room for a scaled object, 3 it is there; of (0,3): 0 room for sums, 1 sums.
chain = {"length": OBJECT, "use_next": True, "acquire_enable": True, "acquire_value": -1,
         "release_value": 1}  # fmt: skip
receive = {"base": X // 4, "acquire_id": 0, "release_id": 1, **chain}
send = {"base": SUM // 4, "acquire_id": 1, "release_id": 0, **chain}
for row, fields, queue in [(2, receive, "s2mm"), (3, send, "mm2s")]:
    config.block_write(at(0, row, 0x1D000), stream.encode_bd("core", fields))
    config.write(at(0, row, stream.channel_queue("core", queue, 0)), 0)
for row, lock in [(2, 0), (2, 2), (3, 0)]:
    config.write(at(0, row, 0x1F000 + 0x10 * lock), 1)

insts = stream.Builder("npu2", 8)
insts.write(at(0, 2, FACTOR), 3)  # a runtime parameter
for number, argument in [(0, 0), (1, 1)]:
    words = stream.encode_bd("shim", {"length": OBJECT * OBJECTS})
    insts.block_write(at(0, 0, 0x1D000 + 0x20 * number), words)
    insts.address_patch(at(0, 0, 0x1D004 + 0x20 * number), argument, 0)
insts.write(at(0, 0, stream.channel_queue("shim", "mm2s", 0)), 0)
insts.write(at(0, 0, stream.channel_queue("shim", "s2mm", 0)), 1 | 1 << 31)  # with a token
insts.sync(0, 0, "s2mm", 0)


# The cores: what their compiled programs would do, with the same locks and buffers.
def scale(core: emulator.Core):
    x, scaled = core.buffer(X, OBJECT, np.int32), core.buffer(SCALED, OBJECT, np.int32)
    for _ in range(OBJECTS):
        yield core.acquire(1)
        yield core.acquire(2)
        scaled[:] = x * core.parameter(FACTOR)
        yield core.release(0)
        yield core.release(3)


def add_table(core: emulator.Core):
    scaled = core.buffer(SCALED, OBJECT, np.int32, side="south")
    table, sums = core.buffer(TABLE, OBJECT, np.int32), core.buffer(SUM, OBJECT, np.int32)
    for _ in range(OBJECTS):
        yield core.acquire(3, side="south")
        yield core.acquire(0)
        sums[:] = scaled + table
        yield core.release(2, side="south")
        yield core.release(1)


array = emulator.Array("npu2")
array.configure(config.finish())
array.write_memory(0, 3, TABLE, np.arange(OBJECT, dtype=np.int32))  # a buffer's initial value
array.attach(0, 2, scale)
array.attach(0, 3, add_table)
x, y = np.arange(OBJECT * OBJECTS, dtype=np.int32), np.zeros(OBJECT * OBJECTS, np.int32)
report = array.submit(insts.finish(), [x, y])
print("received:", y[:6], "...", y[-3:])
print(report)
assert (y == 3 * x + np.tile(np.arange(OBJECT), OBJECTS)).all()
