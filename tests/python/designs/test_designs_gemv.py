"""The GEMV design: every configuration lowers within the hardware's limits, computes exactly and
emits MLIR with its kernels; what the array does not have is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from q4nx_blocks import random_integers, random_weights

import npu
from npu import _npu
from npu.designs import gemv
from npu.designs.api import Design
from npu.designs.lowering import lower, print_mlir
from npu.errors import DesignError, NpuError

CONFIGURATIONS = [
    ("npu1", 16, 2), ("npu1", 16, 1), ("npu1", 8, 2), ("npu1", 8, 1), ("npu1", 4, 1),
    ("npu2", 16, 2), ("npu2", 32, 2), ("npu2", 32, 1), ("npu2", 16, 1), ("npu2", 8, 1),
]  # fmt: skip


@pytest.mark.parametrize(("generation", "cores", "channels"), CONFIGURATIONS)
def test_every_configuration_computes_exactly(generation, cores, channels):
    config = gemv.configuration(generation, cores, channels)
    op = _npu.ops.Gemv(npu.current_device(f"emu:{generation}").handle, config)
    rng = np.random.default_rng(cores + channels)
    # Row-blocks below, at and above one round; column blocks beyond a task's repeats.
    for n, k, batch in (
        (20, 100, 1),
        (600, 700, 1),
        (1216, 1152, 4),
        (1100, 256, 8),
        (300, 16900, 1),
    ):
        blocks, w, _, _ = random_weights(n, k, rng, exact=True)
        x = random_integers(batch, k, rng)
        bound = op.bind(blocks.reshape(-1), n, k)
        y = np.full((batch, n), np.nan, np.float32)
        op.run(bound, x.view(np.uint16), "bfloat16", y.reshape(-1).view(np.uint8), "float32")
        expected = x.astype(np.float64) @ w.T
        assert np.array_equal(y, expected), (n, k, batch)
        values, rows = np.empty((batch, 3), np.float32), np.empty((batch, 3), np.int64)
        buffers = (a.reshape(-1).view(np.uint8) for a in (values, rows))
        op.top(bound, x.view(np.uint16), "bfloat16", 3, *buffers)
        assert np.array_equal(rows, np.argsort(-expected, axis=1, kind="stable")[:, :3])


@pytest.mark.parametrize(("generation", "channels"), [("npu1", 2), ("npu2", 1)])
def test_more_rounds_than_x_tasks_in_flight(generation, channels):
    """x is repeated 256 times a task: here more tasks than queue places, hence waits for x."""
    config = gemv.configuration(generation, 8, channels)
    op = _npu.ops.Gemv(npu.current_device(f"emu:{generation}").handle, config)
    n, k = 32 * 8 * 1200 + 5, 32
    rng = np.random.default_rng(0)
    one, w, _, _ = random_weights(32, k, rng, exact=True)
    blocks = np.tile(one.reshape(-1), -(-n // 32))
    x = random_integers(1, k, rng)
    y = np.empty(n, np.float32)
    bound = op.bind(blocks, n, k)
    op.run(bound, x.view(np.uint16), "bfloat16", y.view(np.uint8), "float32")
    expected = np.resize((x.astype(np.float64) @ w.T)[0], n)
    assert np.array_equal(y, expected)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(("generation", "cores", "channels"), CONFIGURATIONS)
def test_resources_and_ports(generation, cores, channels, small):
    config = gemv.configuration(generation, cores, channels, small)
    parsed = _npu.device.parse_configuration(config)
    params = dict(re.findall(rb"^param (\S+) (\d+)$", config, re.M))
    assert int(params[b"block_bytes"]) == (4608 if small else 5120)
    for col, row, kind, used, limit in parsed["resources"]:
        assert used <= limit or kind == "program", (col, row, kind)
    columns = 4 if generation == "npu1" else 8
    ports = {
        name: (col, direction, channel) for name, col, direction, channel, _ in parsed["ports"]
    }
    weights = columns * channels - (channels == 2)
    assert sum(name.startswith("W") for name in ports) == weights
    assert ports["X"] == (columns - 1, "mm2s", 1)
    assert sum(name.startswith("Y") for name in ports) == columns
    assert len(parsed["cores"]) == cores // columns // channels * weights
    assert parsed["rtps"] == []  # loop counts travel with x


@pytest.mark.parametrize(("small", "name", "size"), [(0, "gemv", 5120), (1, "gemv_small", 4608)])
def test_mlir_has_the_kernels_and_the_loop_bounds_of_the_setup(small, name, size):
    text = gemv.mlir("npu2", small=bool(small))
    assert text.count("aie.core(") == 15
    # x stays, or is streamed.
    assert text.count(f"func.call @{name}_block(") == 30 == text.count("_block(") - 1
    assert text.count("func.call @gemv_setup(") == 15
    assert f'link_with = "{name}.o"' in text and f"@{name}_block(memref<{size}xi8>" in text
    core = text[text.index("%core_0_2 = ") :]
    core = core[: core.index("aie.end")]
    loads = [line for line in core.splitlines() if "memref.load %setup_0_2[" in line]
    # The counts of both loop nests, batch and format of their calls, idle; objects and blocks of x
    # are counted by the kernel.
    assert len(loads) == 3 + 2 + 2 * 2 + 1
    assert core.count("memref.load %state_0_2[") == 2


@pytest.mark.parametrize("small", [False, True])
def test_the_configuration_and_the_mlir_write_the_same_shim_registers(small):
    """BDs that streams only address, and token ids; as writes of one word each."""
    data, block = gemv.configuration("npu2", small=small), 4608 if small else 5120
    text = data[data.index(b"\ntxn ") :]
    writes: dict[int, int] = {}
    for op in _npu.stream.operations(text[text.index(b"\n", 1) + 1 :]):
        if op["opcode"] == "BLOCKWRITE" and op["address"] >> 20 & 31 == 0:
            writes |= {op["address"] + 4 * i: word for i, word in enumerate(op["data"])}
    # Two weight channels per column but the last, setup and x, results.
    assert len(writes) == 8 * (15 + 1 + 8)
    for col in range(8):
        cores = 1 if col == 7 else 2
        bds = {12 + c: 6 * block for c in range(cores)} | {15: cores * 512}
        for id, size in (bds | ({14: 8192} if col == 7 else {})).items():
            at = (col << 25) + 0x1D000 + 0x20 * id
            bd = _npu.arch.decode_bd("shim", [writes[at + 4 * i] for i in range(8)])
            assert bd["length"] == size // 4 and bd["valid"]
            assert not any(bd["wrap"]) and bd["iteration_wrap"] <= 1
    mlir = print_mlir(lower(gemv.design("npu2", small=small)), operands=False)
    sequence = mlir[mlir.index("aie.runtime_sequence @setup(") :].splitlines()
    printed = {}
    for line in sequence:
        numbers = {key: int(value) for key, value in re.findall(r"(\w+) = (\d+)", line)}
        if "npu.write32" in line:
            printed[numbers["column"] << 25 | numbers["address"]] = numbers["value"]
    assert printed == writes
    # Every port's tokens: 15 for weights, x, 8 for results.
    assert sum("npu.maskwrite32" in line for line in sequence) == 15 + 1 + 8


@pytest.mark.parametrize(
    "bd", [((0, 1), 12, 64), ((0, 0), 16, 64), ((0, 0), 12, 6), ((0, 0), 3, 4)]
)
def test_shim_bds_that_do_not_fit_are_refused(bd):
    (col, row), number, size = bd
    design = Design("bds", "npu2")
    design.shim_bd(design.tile(0, 0), 3, 4)
    with pytest.raises(DesignError, match=f"shim BD {number}"):
        design.shim_bd(design.tile(col, row), number, size)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("npu3",), "generation is 'npu3'"),
        (("npu2", 12), "can use 16, 32"),
        (("npu2", 8, 2), "can use 16, 32"),
        (("npu1", 32), "can use 8, 16"),
        (("npu2", 16, 3), "channels is 3"),
    ],
)
def test_what_the_array_does_not_have(arguments, message):
    with pytest.raises(DesignError, match=message):
        gemv.design(*arguments)


def test_a_configuration_of_another_design_is_refused():
    from npu.designs import gemm

    device = npu.current_device("emu:npu2").handle
    with pytest.raises(NpuError):
        _npu.ops.Gemv(device, gemm.configuration("npu2", "int8", "int32"))


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
@pytest.mark.parametrize("format", ["q4nx", "q4_0", "q8_0"])
@pytest.mark.parametrize("n, k, batch", [(1536, 1152, 1), (1152, 6912, 4), (100, 300, 8)])
def test_the_setup_tells_every_core_its_rows(generation, n, k, batch, format):
    """The words by the names that the design bounds its loops with: rounds of a core, from its
    first row on, cover W together; blocks of a row-block add up to K."""
    config = gemv.configuration(generation, small=format != "q4nx")
    number = list(gemv.COLUMNS).index(format)
    request = {"n": n, "k": k, "batch": batch, "format": number}
    (submission,) = _npu.operations.submissions("gemv", config, request)
    table = np.frombuffer(submission["arguments"][1]["contents"], np.int32)
    records = table[: len(table) // gemv.SETUP_WORDS * gemv.SETUP_WORDS]
    covered: set[int] = set()
    cores = 0
    for record in records.reshape(-1, gemv.SETUP_WORDS):
        core = dict(zip(gemv.SETUP, map(int, record), strict=False))
        if not core["batch"]:
            continue  # no core has this place
        cores += 1
        assert (core["batch"], core["rows"], core["output"], core["top"]) == (batch, n, 0, 0)
        assert core["format"] == number
        blocks = -(-k // gemv.COLUMNS[format])
        assert core["x_objects"] * core["x_blocks"] + core["x_last"] == blocks
        objects = core["resident_objects"] if core["resident"] else core["y_objects"]
        rounds = objects * core["row_blocks"]
        assert (
            not core["resident"] or core["resident_blocks"] == core["row_blocks"] * core["x_last"]
        )
        assert core["first"] % 32 == 0 and core["step"] % 32 == 0
        covered |= {core["first"] + t * core["step"] for t in range(rounds)}
    assert covered == set(range(0, -(-n // 32) * 32, 32))
    assert cores == {"npu1": 14, "npu2": 15}[generation]
