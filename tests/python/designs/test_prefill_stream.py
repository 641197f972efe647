"""Streams of prompts on npu2 load the program of each of their steps, in order; they end on the
emulated array, which refuses to reload a core that has not ended. npu1 has one program, and streams
load none."""

from __future__ import annotations

import re

import numpy as np
import pytest

from npu._npu import arch
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


def loaded(config: bytes, submission) -> list[str]:
    """The programs that a stream loads, by the numbers in their images."""
    text = config.split(b"\ntxn ")[0].decode()
    names = re.findall(r"^overlay (\S+)", text, re.M)
    [(col, channel)] = re.findall(r"^port programs (\d+) mm2s (\d+)", text, re.M)
    queue = arch.tile_address(int(col), 0, arch.channel_queue("shim", "mm2s", int(channel)))
    headers = next(a for a in submission.arguments if a["name"] == "headers")
    words = np.frombuffer(zeros_but(headers["contents"], headers["bytes"]), np.uint32)
    patched, found = {}, []
    for op in operations(submission.stream):
        if op["opcode"] == "ADDRESS_PATCH":
            patched[op["address"]] = op["argument"], op["argument_offset"]
        elif op["opcode"] == "WRITE" and op["address"] == queue:
            base = arch.tile_geometry("shim")["bd_base"] + 0x20 * (op["value"] & 15)
            argument, offset = patched[arch.tile_address(int(col), 0, base) + 4]
            assert argument == 2  # headers
            # Packets: reset (3 words), then header, control word and 4 words of the image.
            found.append(names[words[offset // 4 + 6]])
    return found


@pytest.mark.parametrize(
    "request_, steps",
    [(REQUEST, [*LAYER, *LAYER, "norm"]), (BATCH, [*LAYER, *LAYER, "norm", "products"])],
    ids=["chunk", "batch"],
)
def test_every_step_has_its_program(request_: dict[str, int], steps: list[str]) -> None:
    config = operation("prefill").configuration("npu2")
    [one] = operation("prefill").submissions(config, request_)
    assert loaded(config, one) == steps
    data = [zeros_but(a["contents"], a["bytes"]) for a in one.arguments]
    execute(config, one.stream, data=data)


def test_every_submission_begins_with_a_load() -> None:
    config = operation("prefill").configuration("npu2")
    for first, steps, names in ((6, 1, ["products"]), (8, 3, ["products", "norm", "products"])):
        [one] = operation("prefill").submissions(
            config, REQUEST | {"first_step": first, "steps": steps}
        )
        assert loaded(config, one) == names


def test_one_program_is_never_loaded() -> None:
    config = operation("prefill").configuration("npu1")
    assert b"\noverlay " not in config and b"port programs" not in config
    [one] = operation("prefill").submissions(config, REQUEST)
    data = [zeros_but(a["contents"], a["bytes"]) for a in one.arguments]
    execute(config, one.stream, data=data)
