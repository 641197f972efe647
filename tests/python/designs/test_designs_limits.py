"""Every limit of the hardware, and every misuse of the API, raises DesignError with the limit, the
value and the tile in its message. A new check belongs here with the smallest design that trips it.
"""

from __future__ import annotations

import re

import pytest

from npu.designs import gemm
from npu.designs.api import Design
from npu.designs.fifo import ObjectFifo
from npu.designs.hardware import Tile
from npu.designs.lowering import lower, stack
from npu.designs.worker import Worker
from npu.errors import DesignError


def raises(text: str) -> pytest.RaisesExc[DesignError]:
    return pytest.raises(DesignError, match=re.escape(text))


def new() -> Design:
    return Design("d", "npu2")


def relay(d: Design, name: str, col: int, size: int = 16, depth: int = 2) -> None:
    source = d.fifo(f"{name}_in", d.tile(col, 0), d.tile(col, 1), size, depth=depth)
    sink = d.fifo(f"{name}_out", d.tile(col, 1), d.tile(col, 0), size, depth=depth)
    d.forward(source, sink)


def use(w: Worker, *fifos: ObjectFifo) -> None:
    with w.forever():
        for fifo in fifos:
            w.acquire(fifo)
            w.release(fifo)


def to_core(d: Design, name: str, tile: Tile, size: int = 16, depth: int = 1) -> ObjectFifo:
    return d.fifo(name, d.tile(tile.col, 0), tile, size, depth=depth)


def test_core_memory() -> None:
    d = new()
    core = d.tile(0, 2)
    use(d.worker(core), to_core(d, "big", core, 8192, depth=2))
    with raises("core tile (0, 2): data memory of 65536 B does not hold 67840 B") as caught:
        lower(d)
    table = str(caught.value)
    assert "big_cons" in table and "stack" in table and "data section" in table


def test_core_memory_is_used_to_the_last_byte() -> None:
    d = new()
    core = d.tile(0, 2)
    # With 2 KiB of stack and a data section of 256 B, which the linker has at the end.
    fifo = to_core(d, "a", core, (65536 - 2048 - 256) // 4)
    use(d.worker(core), fifo)
    lowered = lower(d)
    assert lowered.memories[core][0].address == 0x800
    assert stack.data_section(lowered, lowered.cores[0]) == (65536 - 256, 256)
    d = new()
    use(d.worker(core), to_core(d, "a", core, (65536 - 2048 - 256) // 4 + 1))
    with raises("data memory of 65536 B does not hold 65540 B"):
        lower(d)


def test_memtile_memory() -> None:
    d = new()
    relay(d, "big", 3, 200_000)  # no single buffer fits a memtile
    with raises("memtile (3, 1): data memory of 524288 B does not hold 1600000 B"):
        lower(d)


def test_locks() -> None:
    d = new()
    core = d.tile(0, 2)
    w = d.worker(core)
    w.rtp("x")
    w.wait_rtps()
    fifos = [to_core(d, "a", core)]
    for i in range(8):  # more ends than a core has locks; the channels come after the locks
        fifos.append(d.fifo(f"b{i}", core, d.tile(0, 1), 16, depth=1))
    whole = d.fifo("whole", d.tile(0, 1), d.tile(0, 0), 8 * 16)
    d.join(fifos[1:], whole)
    use(w, *fifos)
    with raises('core tile (0, 2): lock "b7_prod_lock_0" does not fit, all 16 locks are used'):
        lower(d)


def test_lock_value() -> None:
    d = new()
    relay(d, "deep", 0, 4, depth=64)
    with raises("starts at 64, a lock holds at most 63"):
        lower(d)


def test_core_bds() -> None:
    d = new()
    core = d.tile(1, 3)
    use(d.worker(core), to_core(d, "deep", core, 4, depth=17))
    with raises('core tile (1, 3): fifo "deep" needs 17 BDs on S2MM channel 0, 16 of the 16'):
        lower(d)


def test_memtile_bds_of_one_parity() -> None:
    d = new()
    relay(d, "x", 0, 4, depth=13)
    with raises("needs 13 BDs on MM2S channel 0, 11 of the 24"):
        lower(d)


def test_channels() -> None:
    d = new()
    core = d.tile(0, 2)
    fifos = [d.fifo(f"f{i}", d.tile(i, 0), core, 16) for i in range(3)]
    use(d.worker(core), *fifos)
    with raises('core tile (0, 2): no S2MM channel left for fifo "f2"; all 2 are used by f0, f1'):
        lower(d)


def test_fixed_channels() -> None:
    d = new()
    for name in ("a", "b"):
        sink = d.fifo(f"{name}2", d.tile(0, 1), d.tile(0, 0), 16)
        d.forward(d.fifo(name, d.tile(0, 0), d.tile(0, 1), 16, producer_channel=1), sink)
    with raises('shim tile (0, 0): MM2S channel 1 is asked for by "a" and "b"'):
        lower(d)
    d = new()
    fifo = d.fifo("a", d.tile(0, 0), d.tile(0, 1), 16, consumer_channel=6)
    d.forward(fifo, d.fifo("b", d.tile(0, 1), d.tile(0, 0), 16))
    with raises("asks for S2MM channel 6, channels 0..5 exist"):
        lower(d)


def test_unroutable() -> None:
    """Four lanes lead down into each memtile: 16 on npu1, while 24 streams from cores want to."""
    d = Design("d", "npu1")
    for col in range(4):
        mem, parts = d.tile(col, 1), []
        for row in (2, 3, 4):
            core = d.tile(col, row)
            pair = [d.fifo(f"f{col}_{row}_{i}", core, mem, 4, depth=1) for i in range(2)]
            use(d.worker(core), *pair)
            parts += pair
        d.join(parts, d.fifo(f"w{col}", mem, d.tile(col, 0), 24, depth=1))
    with raises("no free lanes from core tile") as caught:
        lower(d)
    for col in range(4):
        assert f"core tile ({col}, 2) south (4 lanes)" in str(caught.value)


def test_wrap_limit_names_tile_and_fifo() -> None:
    d = new()
    source = d.fifo("a", d.tile(0, 0), d.tile(0, 1), 2 * 1031)
    dims = [(2, 1), (1031, 2)]
    d.forward(source, d.fifo("b", d.tile(0, 1), d.tile(0, 0), 2 * 1031, to_stream=dims))
    with raises('memtile (0, 1): fifo "b" MM2S') as caught:
        lower(d)
    assert "wrap of 1031" in str(caught.value)


def test_unlinked_memtile_end() -> None:
    d = new()
    d.fifo("a", d.tile(0, 0), d.tile(0, 1), 16)
    with raises('fifo "a" ends at memtile (0, 1) without a forward, join or split there'):
        lower(d)


def test_unused_core_end() -> None:
    d = new()
    to_core(d, "a", d.tile(0, 2))
    with raises('fifo "a": no worker on core tile (0, 2) acquires it'):
        lower(d)


def test_port_names() -> None:
    d = new()
    for name in ("a", "b"):
        source = d.fifo(name, d.tile(0, 0), d.tile(0, 1), 16, port="p")
        d.forward(source, d.fifo(f"{name}2", d.tile(0, 1), d.tile(0, 0), 16))
    with raises('the port name "p" is used twice'):
        lower(d)


def test_api_misuse() -> None:
    with raises('"a b" is not a name'):
        Design("a b", "npu2")
    with raises('generation is "npu3"'):
        Design("d", "npu3")
    with raises("tile (4, 0) is outside npu1: columns 0..3"):
        Design("d", "npu1").tile(4, 0)
    d = new()
    shim, mem, core = d.tile(0, 0), d.tile(0, 1), d.tile(0, 2)
    d.fifo("a", shim, mem, 16)
    with raises('the name "a" is used twice'):
        d.fifo("a", shim, mem, 16)
    with raises("shim to shim"):
        d.fifo("b", shim, d.tile(1, 0), 16)
    with raises("distinct consumer tiles"):
        d.fifo("c", mem, [], 16)
    with raises("distinct consumer tiles"):
        d.fifo("c2", mem, [core, core], 16)
    with raises('dtype "float64"'):
        d.fifo("e", shim, mem, 16, "float64")
    with raises("sizes must be at least 1"):
        d.fifo("f", shim, mem, (4, 0))
    with raises("depth 0"):
        d.fifo("g", shim, mem, 16, depth=0)
    with raises("objects of 6 B; DMAs move multiples of 4 B"):
        d.fifo("h", shim, mem, 3, "int16")
    with raises("only core tiles run programs"):
        d.worker(mem)
    d.worker(core)
    with raises("has a worker already"):
        d.worker(core)


def test_link_misuse() -> None:
    d = new()
    shim, mem, core = d.tile(0, 0), d.tile(0, 1), d.tile(0, 2)
    a = d.fifo("a", shim, mem, 16)
    b = d.fifo("b", mem, core, 16)
    with raises("or the first a multiple of the second"):
        d.forward(a, d.fifo("small", mem, core, 12))
    with raises("element types differ"):
        d.forward(a, d.fifo("bytes", mem, core, 64, "int8"))
    with raises("must end and outputs begin at the same memtile"):
        d.forward(a, d.fifo("other", d.tile(1, 1), core, 16))
    d.forward(a, b)
    with raises('"a" is linked at memtile (0, 1) already'):
        d.forward(a, d.fifo("again", mem, core, 16))
    p, q = d.fifo("p", core, mem, 16), d.fifo("q", core, mem, 16)
    whole = d.fifo("whole", mem, shim, 32)
    with raises("parts must tile the object"):
        d.join([p, q], whole, [0, 60])
    with raises("the parts have 128 B, the object 160 B"):
        d.join([p, q], d.fifo("wide", mem, shim, 40))
    with raises("1 offsets for 2 parts"):
        d.join([p, q], whole, [0])


def test_worker_misuse() -> None:
    d = new()
    core = d.tile(0, 2)
    a = to_core(d, "a", core, 16, depth=2)
    far = to_core(d, "far", d.tile(1, 2))
    kernel = d.kernel("k", [("int32", (16,)), "int32"])
    w = d.worker(core)
    with raises('fifo "far" has no end on this tile'):
        w.acquire(far)
    with raises("a loop of 0 rounds"), w.loop(0):
        pass
    with raises("declare the RTPs first"):
        w.wait_rtps()
    with raises("was not acquired in this loop"):
        w.release(a)
    x = w.acquire(a)
    with raises("1 operands, it takes 2"):
        w.call(kernel, x)
    with raises("operand 1 is a buffer, the kernel takes a number"):
        w.call(kernel, x, x)
    with raises("operand 0 is a number, the kernel takes a buffer"):
        w.call(kernel, 3, 3)
    w.acquire(a)
    with raises("2 objects are held and its depth is 2"):
        w.acquire(a)
    with raises("was not acquired in this loop"), w.loop(2):
        w.release(a)
    w.release(a)
    with raises('object of "a" released before'):
        w.call(kernel, x, 1)
    with raises("ends while holding objects of"), w.loop(2):
        w.acquire(a)
    short = d.kernel("short", [("int32", (8,))])
    with raises("is int32[16], the kernel takes int32[8]"):
        w.call(short, w.acquire(a))


def test_worker_left_open() -> None:
    d = new()
    core = d.tile(0, 2)
    a = to_core(d, "a", core)
    d.worker(core).acquire(a)
    with raises("the program ends while holding objects of"):
        lower(d)
    d = new()
    a = to_core(d, "a", core)
    w = d.worker(core)
    w.rtp("n")
    use(w, a)
    with raises("has RTPs but never calls wait_rtps"):
        lower(d)


def test_fixed_buffer_address() -> None:
    for address, text in ((0, "overlaps another buffer, the stack"), (65530, "is fixed at")):
        d = new()
        core = d.tile(0, 2)
        w = d.worker(core)
        w.buffer("table", "int32", (16,), address=address)
        use(w, to_core(d, "a", core))
        with raises(text):
            lower(d)
    d = new()
    w = d.worker(d.tile(0, 2))
    w.buffer("table", "int32", (16,), address=4096)
    use(w, to_core(d, "a", d.tile(0, 2)))
    assert 4096 in {m.address for m in lower(d).memories[d.tile(0, 2)]}


def test_gemm_tiles() -> None:
    with raises("float32 -> float32 on npu2: no such design"):
        gemm.design("npu2", "float32", "float32")
    with raises("tile m = 24: on npu2 with bfloat16 it must be a multiple of 16"):
        gemm.design("npu2", "bfloat16", "float32", tile=(24, 64, 64))
    with raises("tile k = 4"):
        gemm.design("npu1", "int8", "int32", tile=(64, 4, 64))
    with raises("tile n = 0"):
        gemm.design("npu1", "bfloat16", "float32", tile=(64, 64, 0))
    with raises("needs 86016 bytes of L1; a core has 64512: use m <= 48, or k <= 32, or n <= 48"):
        gemm.configuration("npu2", "bfloat16", "float32", tile=(96, 64, 96))
    narrowed = {"tile": (192, 32, 128), "k_mt": 352, "a_parts": 6, "accumulate": "bfloat16"}
    narrowed |= {"kernel": "pipelined", "b_layout": "col"}
    with raises("needs 88320 bytes of L1; a core has 64512: use m <= 96, or n <= 80, or c_buffers"):
        gemm.configuration("npu2", "bfp16", "bfp16", **narrowed)
    gemm.configuration("npu2", "bfp16", "bfp16", **narrowed, c_buffers=0)


def test_cross() -> None:
    """Bands of rows that become bands of columns: shapes, and one wait and one report per BD."""
    d = new()
    mem, shim = d.tile(1, 1), d.tile(1, 0)
    upper, lower_half = (d.fifo(f"r{i}", shim, mem, (2, 12), "int32") for i in range(2))
    left, right = (
        d.fifo(f"c{i}", mem, d.tile(1, 2), (4, width), "int32", to_stream=[(2, 12), (width, 1)])
        for i, width in enumerate((8, 4))
    )
    w = d.worker(d.tile(1, 2))
    use(w, left, right)
    with raises("sources must have 8 columns"):
        d.cross([upper, lower_half], [left])
    with raises("sinks 2 rows"):
        d.cross([upper], [left, right])
    d.cross([upper, lower_half], [left, right])
    chains = {c.fifo: c.descriptors for c in lower(d).channels if c.tile == mem}
    for band, name in enumerate(("r0", "r1")):
        pieces = chains[name][:3]  # of the first slot: 8 words, all between, the last 4 words
        start = 96 * band
        assert [(p.offset, p.bytes) for p in pieces] == [
            (start, 32), (start + 32, 48), (start + 80, 16)
        ]  # fmt: skip
        assert [bool(p.acquire) for p in pieces] == [True, True, False]
        assert [bool(p.release) for p in pieces] == [False, True, True]
        # What the two sinks wait for is reported when their last row is there, in this order.
        assert pieces[1].release is chains["c0"][band].acquire
        assert pieces[2].release is chains["c1"][band].acquire
        assert pieces[0].acquire is chains["c0"][band].release
        assert pieces[1].acquire is chains["c1"][band].release
