"""Overlays: programs that streams load into all cores of a design. What the configuration and the
MLIR state, that cores must be alike, what a worker refuses, and how program memory is counted."""

import re

import pytest
from designs_reference import read_configuration, run_txn

from npu.designs import prefill
from npu.designs.api import Design
from npu.designs.lowering import lower, print_mlir, program_memory, serialise
from npu.designs.worker import Word
from npu.errors import DesignError


def two_programs(generation="npu2", *, unlike=False, over=False, second=("zero_f32",)):
    """Two cores with two overlays; what differs between the cores are words of a buffer."""
    design = Design("synthetic", generation, program_over=over)
    cores = design.cores(0, 2)
    for i, core in enumerate(cores):
        fifo = design.fifo(f"out{i}", core, design.tile(i, 0), 1024, "float32", depth=3)
        worker = design.worker(core)
        place = worker.buffer(f"place{i}", "int32", (4,), init=(i, 7))
        block = worker.buffer(f"block{i}", "uint8", (5120,))
        tile = worker.buffer(f"tile{i}", "bfloat16", (8192,))
        count = 512 if unlike and i else 1024
        with worker.overlay("first"), worker.loop(Word(place, 0)):
            worker.call(design.kernel("zero_f32"), worker.acquire(fifo), count)
            worker.release(fifo)
        with worker.overlay("second"), worker.loop(2):
            result = worker.acquire(fifo)
            for name in second:
                operands = (result, 1024) if name == "zero_f32" else (block, tile)
                worker.call(design.kernel(name), *operands)
            worker.release(fifo)
    design.programs("programs", design.tile(2, 0), 0, cores)
    return design


def config_of(design):
    return read_configuration(serialise(lower(design)))


def test_the_configuration_states_each_program_once_and_cores_have_none():
    config = config_of(two_programs())
    assert list(config.overlays) == ["first", "second"]
    assert config.cores == {(0, 2): [], (0, 3): []}
    first, second = config.overlays["first"][2], config.overlays["second"][2]
    assert re.fullmatch(r"loop rtp:\d+", first[0]) and second[0] == "loop 2"
    assert [line.split()[0] for line in first] == [
        "loop", "acquire_ge", "call", "release", "advance", "end",
    ]  # fmt: skip
    assert "advance 0 3" in first and "advance 0 3" in second  # the same place in the rotation


def test_the_configuration_writes_the_words_that_cores_differ_in():
    lowered = lower(two_programs())
    registers = run_txn(read_configuration(serialise(lowered)).txn).tiles
    for i, core in enumerate(lowered.cores):
        written = registers[core.tile.col, core.tile.row]
        place = next(b for b in core.buffers if b.name == f"place{i}")
        assert [written.get(place.address + 4 * n) for n in range(3)] == [i, 7, None]
        assert written[core.slots.address] == 0


def test_cores_must_be_alike():
    with pytest.raises(DesignError, match=r"overlays of core tile \(0, 3\) and .* differ"):
        lower(two_programs(unlike=True))


def test_images_have_the_estimated_size_and_must_fit():
    lowered = lower(two_programs(second=("zero_f32", "dequant_q4nx")))
    core = lowered.cores[0]
    sizes = [
        program_memory.program_bytes(program, core, "npu2") for program in core.overlays.values()
    ]
    assert sizes[1] > sizes[0] and core.program_bytes == sizes[1]
    for overlay, size in zip(lowered.overlays, sizes, strict=True):
        assert size <= overlay.bytes < size + 16 and overlay.bytes % 16 == 0


def test_a_program_beyond_the_limit_is_refused(monkeypatch):
    largest = lower(two_programs()).cores[0].program_bytes
    monkeypatch.setattr(program_memory, "PROGRAM_BYTES", largest)
    lower(two_programs())
    monkeypatch.setattr(program_memory, "PROGRAM_BYTES", largest - 1)
    with pytest.raises(DesignError, match="its program is estimated at"):
        lower(two_programs())
    lower(two_programs(over=True))


def test_mlir_has_a_device_per_program():
    text = print_mlir(lower(two_programs()))
    devices = re.split(r"\n  aie\.device\(npu2\)", text)[1:]
    assert [d.split("{")[0].strip() for d in devices] == ["", "@first", "@second"]
    assert "aie.core(" not in devices[0]
    assert devices[0].count("TileControl : 0)") == 2  # flows to two cores
    for device in devices[1:]:
        assert device.count("aie.core(") == 2 and "aie.flow" not in device
        # The place in the rotation is loaded at the start and stored at the end.
        assert device.count("memref.store") == 2
    assert devices[1].count("dense<[0, 7, 0, 0]>") == devices[1].count("dense<[1, 7, 0, 0]>") == 1


def test_workers_refuse_what_overlays_cannot_have():
    design = Design("synthetic", "npu2")
    worker = design.worker(design.tile(0, 2))
    fifo = design.fifo("out", design.tile(0, 2), design.tile(0, 0), 64)
    with worker.overlay("a"):
        worker.acquire(fifo)
        worker.release(fifo)
    with pytest.raises(DesignError, match='overlay "a": a worker has either'), worker.overlay("a"):
        pass
    with pytest.raises(DesignError, match="ends while holding"), worker.overlay("b"):
        worker.acquire(fifo)
    with pytest.raises(DesignError, match="cannot begin with"):
        worker.buffer("words", "int32", (1,), init=(1, 2))
    with pytest.raises(DesignError, match="cannot begin with"):
        worker.buffer("floats", "float32", (1,), init=(1,))

    with pytest.raises(DesignError, match="letters, digits"), worker.overlay("a b"):
        pass
    nested = design.worker(design.tile(0, 5))
    with (
        nested.overlay("outer"),
        pytest.raises(DesignError, match="none inside another"),
        nested.overlay("inner"),
    ):
        pass
    for init, shape in (((1 << 31,), (1,)), ((1, 2), (2, 2))):
        with pytest.raises(DesignError, match="cannot begin with"):
            worker.buffer(f"words{len(shape)}", "int32", shape, init=init)

    forever = design.worker(design.tile(0, 3))
    with forever.overlay("a"), forever.forever():
        pass
    with pytest.raises(DesignError, match="never ends"):
        forever.finish()
    mixed = design.worker(design.tile(0, 4))
    with mixed.overlay("a"), mixed.loop(1):
        pass
    with mixed.loop(1):
        pass
    with pytest.raises(DesignError, match="either one program or overlays"):
        mixed.finish()


def test_programs_come_by_a_channel_of_their_own():
    design = two_programs()
    with pytest.raises(DesignError, match="has no channel 2"):
        design.programs("more", design.tile(3, 0), 2, design.cores(0, 2))
    with pytest.raises(DesignError, match="go to cores"):
        design.programs("others", design.tile(3, 0), 0, [design.tile(0, 1)])
    design.programs("again", design.tile(3, 0), 0, design.cores(0, 2))
    with pytest.raises(DesignError, match="2 cores have overlays, 2 ports bring programs to 4"):
        lower(design)
    design.program_ports.clear()
    with pytest.raises(DesignError, match="2 cores have overlays, 0 ports"):
        lower(design)
    design = two_programs()
    design.programs("again", design.tile(2, 0), 0, design.cores(0, 2))
    with pytest.raises(DesignError, match='asked for by "programs" and for programs'):
        lower(design)


@pytest.mark.parametrize("generation, cores", [("npu1", 16), ("npu2", 32)])
def test_prefill_has_a_program_per_kind_of_job(generation, cores):
    config = config_of(prefill.design(generation))
    products = ["products", "small_products"]  # one per size of weight blocks
    assert list(config.overlays) == [*products, "norm", "geglu", "rotation", "attention"]
    assert len(config.cores) == cores and not any(config.cores.values())
    for name, (size, _, lines) in config.overlays.items():
        assert 4096 < size <= 16384, name
        assert lines[0].startswith("acquire_ge") and "prefill_begin" in lines[1]
    first, second = (config.overlays[name][2] for name in products)
    # Otherwise alike.
    kernels = ("multiply", "expand", "finish")
    assert [sum(f"prefill_small_{k} " in line for line in second) for k in kernels] == [1, 1, 1]
    assert [line.replace("prefill_small_", "prefill_") for line in second] == first
