"""Write a configuration and a runtime stream by hand and run them on the emulated NPU.

A shim tile reads 64 words, its memtile hands them back with the halves swapped, and the shim writes
them out: every register write is explicit, nothing comes from the design layer.
"""

import numpy as np

from npu import emulator, stream

WORDS = 64


def bd_address(kind: str, col: int, row: int, bd: int) -> int:
    return stream.tile_address(col, row, stream.tile_geometry(kind)["bd_base"] + 0x20 * bd)


config = stream.Builder("npu2", 8)
# Memtile (0,1): BD 0 receives into own memory, BD 1 sends it back, second half first. Lock 64 (the
# first of the tile's own) counts room, lock 65 data.
room, data = 64, 65
own_memory = 0x80000 // 4
receive = {"base": own_memory, "length": WORDS, "acquire_enable": True, "acquire_value": -1,
           "acquire_id": room, "release_value": 1, "release_id": data}  # fmt: skip
send = {"base": own_memory + WORDS // 2, "length": WORDS // 2, "acquire_enable": True,
        "acquire_value": -1, "acquire_id": data, "use_next": True, "next_bd": 2}  # fmt: skip
send_rest = {"base": own_memory, "length": WORDS // 2, "release_value": 1, "release_id": room}
for number, fields in enumerate([receive, send, send_rest]):
    config.block_write(bd_address("mem", 0, 1, number), stream.encode_bd("mem", fields))
config.write(stream.tile_address(0, 1, 0xC0000), 1)  # lock 0 of the tile: room for one object
config.write(stream.tile_address(0, 1, stream.channel_queue("mem", "s2mm", 0)), 0)
config.write(stream.tile_address(0, 1, stream.channel_queue("mem", "mm2s", 0)), 1)
# Switches: shim South 3 -> North 0 -> memtile DMA 0, and memtile DMA 0 -> South 0 -> shim South 2.
shim, mem = 0x3F000, 0xB0000
for tile_row, offset, value in [
    (0, shim + 4 * 12, 1 << 31 | 5), (0, shim + 0x100 + 4 * 5, 1 << 31),
    (1, mem + 4 * 0, 1 << 31 | 7), (1, mem + 0x100 + 4 * 7, 1 << 31),
    (1, mem + 4 * 7, 1 << 31 | 0), (1, mem + 0x100 + 4 * 0, 1 << 31),
    (0, shim + 4 * 4, 1 << 31 | 14), (0, shim + 0x100 + 4 * 14, 1 << 31),
    (0, 0x1F000, 1 << 10), (0, 0x1F004, 1 << 4),
]:  # fmt: skip
    config.write(stream.tile_address(0, tile_row, offset), value)

run = stream.Builder("npu2", 8)
for number, argument in [(0, 0), (1, 1)]:
    address = bd_address("shim", 0, 0, number)
    run.block_write(address, stream.encode_bd("shim", {"length": WORDS}))
    run.address_patch(address + 4, argument, 0)
run.write(stream.tile_address(0, 0, stream.channel_queue("shim", "mm2s", 0)), 0)
run.write(stream.tile_address(0, 0, stream.channel_queue("shim", "s2mm", 0)), 1 | 1 << 31)  # token
run.sync(0, 0, "s2mm", 0)

array = emulator.Array("npu2")
array.configure(config.finish())
source, target = np.arange(WORDS, dtype=np.int32), np.zeros(WORDS, np.int32)
report = array.submit(run.finish(), [source, target])
print(stream.disassemble(run.finish()))
print("received:", target[:4], "...", target[WORDS // 2 :][:4], "...")
print(report)
assert (target == np.roll(source, WORDS // 2)).all()
