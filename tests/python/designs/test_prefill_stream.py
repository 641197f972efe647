"""Streams of prompts load the program of each of their steps, in order; they end on the emulated
array, which refuses to reload a core that has not ended. npu1's programs come by the channel of
stream B of column 0, a BD per packet."""

from __future__ import annotations

import re

import numpy as np
import pytest

from npu._npu import arch
from npu.errors import FormatError
from npu.ops.registry import operation
from npu.perf.execution import execute, zeros_but
from npu.stream import operations

LAYER = ["norm", "products", "rotation", "attention", "products", "norm", "products", "geglu",
         "products"]  # fmt: skip
REQUEST = {
    "tokens": 40, "position": 96, "sliding": 1, "global": 1, "width": 320, "heads": 4,
    "kv_heads": 2, "head_dim": 64, "ffn": 512, "window": 32,
}  # fmt: skip
BATCH = REQUEST | {"tokens": 2, "sequences": 3, "vocabulary": 1000}
Q8, Q4_0, Q8_0 = 1, 3, 4  # formats of weight blocks
SMALL = {"format": Q4_0}
LITTLE = ["small_products" if name == "products" else name for name in LAYER]


def loaded(config: bytes, submission) -> list[str]:
    """The programs that a stream loads, by the numbers in their images; every word of them."""
    text = config.split(b"\ntxn ")[0].decode()
    names = re.findall(r"^overlay (\S+)", text, re.M)
    headers = next(a for a in submission.arguments if a["name"] == "headers")
    words = np.frombuffer(zeros_but(headers["contents"], headers["bytes"]), np.uint32)
    sent = [words[task] for task in tasks_of(text, submission.stream)]
    if "port programs 1 mm2s 0\n" in text:  # npu2: all in one task; the packets have headers
        packets = [task[0].reshape(-1)[:-3] for task in sent]
        assert all(len(p) % 6 == 3 and list(p[2:3]) == [2] for p in packets)
        return [names[p[3 + 3]] for p in packets]
    assert "port programs 0 mm2s 1 2\n" in text
    found, image = [], []
    for task in sent:
        if task.shape == (1, 2):  # core control
            assert task[0, 0] & 0xFFFFF == 0x32000 and task[0, 1] in (1, 2)
            if task[0, 1] == 1:
                size = int(re.search(rf"^overlay {found[-1]} (\d+)", text, re.M)[1])
                assert 4 * len(image) == size
            image = []
            continue
        assert task.shape[1] == 5 and task.shape[0] <= 64
        for control, *four in task.tolist():
            assert control & 0x7FFFFFFF == 3 << 20 | 0x20000 + 4 * len(image)
            if not image:
                found.append(names[four[1]])
            image += four
    return found


def tasks_of(text: str, stream: bytes) -> list[np.ndarray]:
    """What the tasks that send programs read of the headers: a row of word numbers per packet."""
    [port] = re.findall(r"^port programs (\d+) mm2s (\d+) ?(\d*)$", text, re.M)
    col, channel = int(port[0]), int(port[1])
    queue = arch.tile_address(col, 0, arch.channel_queue("shim", "mm2s", channel))
    written, patched, found = {}, {}, []
    for op in operations(stream):
        if op["opcode"] == "ADDRESS_PATCH":
            patched[op["address"]] = op["argument"], op["argument_offset"]
        elif op["opcode"] == "BLOCKWRITE":
            written[op["address"]] = op["data"]
        elif op["opcode"] == "WRITE" and op["address"] == queue:
            base = arch.tile_geometry("shim")["bd_base"] + 0x20 * (op["value"] & 15)
            address = arch.tile_address(col, 0, base)
            bd = arch.decode_bd("shim", written[address])
            assert bd["packet_enable"] == bool(port[2])
            if port[2] and bd["packet_id"] != int(port[2]):
                assert bd["packet_id"] == 1  # stream B
                continue
            argument, offset = patched[address + 4]
            assert argument == 2  # headers
            repeats = 1 + (op["value"] >> 16 & 0xFF)
            assert bd["iteration_wrap"] == repeats
            begins = offset // 4 + bd["iteration_step"] * np.arange(repeats)[:, None]
            found.append(begins + np.arange(bd["length"]))
    return found


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
@pytest.mark.parametrize(
    "request_, steps",
    [
        (REQUEST, [*LAYER, *LAYER, "norm"]),
        (BATCH, [*LAYER, *LAYER, "norm", "products"]),
        (REQUEST | SMALL, [*LITTLE, *LITTLE, "norm"]),
        (BATCH | SMALL, [*LITTLE, *LITTLE, "norm", "small_products"]),
        # Each step has the program for its matrix.
        (BATCH | SMALL | {"format_head": Q8}, [*LITTLE, *LITTLE, "norm", "products"]),
        (
            BATCH | {"format_output": Q8_0, "format_down": Q4_0, "format_head": Q8_0},
            2 * [*LAYER[:4], *LITTLE[4:6], *LAYER[6:8], LITTLE[8]] + ["norm", "small_products"],
        ),
    ],
    ids=["chunk", "batch", "small chunk", "small batch", "large head", "both"],
)
def test_every_step_has_its_program(
    request_: dict[str, int], steps: list[str], generation: str
) -> None:
    config = operation("prefill").configuration(generation)
    [one] = operation("prefill").submissions(config, request_)
    assert loaded(config, one) == steps
    data = [zeros_but(a["contents"], a["bytes"]) for a in one.arguments]
    execute(config, one.stream, data=data)


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_every_submission_begins_with_a_load(generation: str) -> None:
    config = operation("prefill").configuration(generation)
    for format, products in ((0, "products"), (Q8_0, "small_products")):
        for first, names in ((6, [products]), (8, [products, "norm", products])):
            steps = {"first_step": first, "steps": len(names), "format": format}
            [one] = operation("prefill").submissions(config, REQUEST | steps)
            assert loaded(config, one) == names


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
@pytest.mark.parametrize(("format", "columns"), [(0, 256), (Q8, 128), (Q4_0, 256), (Q8_0, 128)])
def test_weights_are_read_in_objects_of_large_blocks(
    format: int, columns: int, generation: str
) -> None:
    """Small blocks 512 bytes further than they are: the last one of a matrix, too."""
    config = operation("prefill").configuration(generation)
    request = REQUEST | {"format": format, "steps": 1, "first_step": 1, "tokens": 1}
    [one] = operation("prefill").submissions(config, request)
    size = 4608 if format in (Q4_0, Q8_0) else 5120
    sizes = [(512, 320), (320, 256), (1024, 320), (320, 512)]
    blocks = 2 * sum(-(-n // 32) * -(-k // columns) for n, k in sizes) + 2 * -(-320 // columns)
    [weights] = [a["bytes"] for a in one.arguments if a["name"] == "weights"]
    assert weights == blocks * size + 5120 - size


@pytest.mark.parametrize(
    "generation, found, other, message",
    [
        ("npu1", b"overlay geglu", b"overlay gelu", 'a program "gelu", for no kind of job'),
        ("npu1", b"overlay geglu", b"overlay norm2", 'a program "norm2", for no kind of job'),
        ("npu2", b"overlay small_p", b"overlay small-p", 'a program "small-products", for no'),
        ("npu2", b"programs 1 mm2s 0", b"programs 1 mm2s 0 7", "a channel that is not B0's"),
        ("npu1", b"port B0 0 mm2s 1 1", b"port Z0 0 mm2s 1 1", 'no port "B0"'),
    ],
)
def test_configurations_that_streams_cannot_load(
    generation: str, found: bytes, other: bytes, message: str
) -> None:
    config = operation("prefill").configuration(generation)
    assert config.count(found) == 1
    with pytest.raises(FormatError, match=message):
        operation("prefill").submissions(config.replace(found, other), REQUEST)


@pytest.mark.parametrize("name", ["geglu", "small_products"])
def test_every_kind_of_job_needs_a_program(name: str) -> None:
    config = operation("prefill").configuration("npu1")
    pattern = rb"\noverlay %s .*?\nendoverlay" % name.encode()
    without = re.sub(pattern, b"", config, flags=re.S)
    assert len(without) < len(config)
    with pytest.raises(FormatError, match=f"no program for {name}"):
        operation("prefill").submissions(without, REQUEST)
