"""Command streams as runtime sequences of MLIR.

Asserts that an encoder of its own (doubles.py) makes of the printed sequence the words of the
stream, in both forms of the dialect: for streams of every operation and for any stream there is.
"""

from __future__ import annotations

import doubles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu import stream
from npu.designs.lowering import lower, print_mlir, serialise
from npu.errors import BuildError
from npu.hardware.build import sample as samples
from npu.hardware.build import targets
from npu.hardware.build.sample import Sample

EMPTY = "module {\n  aie.device(npu2) {\n    %a = aie.tile(0, 2)\n  }\n}\n"


def words(mlir: str) -> bytes:
    found = dict(doubles.sequences(next(iter(doubles.devices(mlir).values()))))
    return found["sample"]


@pytest.mark.parametrize("operands", [False, True])
@pytest.mark.parametrize("name", ["gemm", "gemv", "dequant", "attention", "decoder"])
@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_streams_of_operations(generation, name, operands):
    target = targets.select(generation, [name])[0]
    lowered = lower(target.design())
    one = samples.sample(name, serialise(lowered))
    assert one is not None
    assert one.buffers == {"gemm": one.buffers, "dequant": 2, "decoder": 4}.get(name, 3)
    mlir = samples.with_sequence(print_mlir(lowered), one, operands=operands)
    assert words(mlir) == one.words
    device = next(iter(doubles.devices(mlir).values()))
    assert device.rindex("aie.runtime_sequence") == device.index("aie.runtime_sequence @sample(")
    assert len(stream.operations(one.words)) <= 512


def test_every_example_of_gemm_counts():
    target = targets.select("npu2", ["gemm"])[0]
    one = samples.sample("gemm", serialise(lower(target.design())))
    assert one is not None and one.buffers == 8


address = st.builds(
    stream.tile_address, st.integers(0, 7), st.integers(0, 5),
    st.integers(0, 0x3FFF).map(lambda n: 4 * n),
)  # fmt: skip
word = st.integers(0, 2**32 - 1)
operation = st.one_of(
    st.tuples(st.just("write"), address, word),
    st.tuples(st.just("mask_write"), address, word, word),
    st.tuples(st.just("block_write"), address, st.lists(word, min_size=1, max_size=9)),
    st.tuples(
        st.just("sync"), st.integers(0, 7), st.just(0), st.sampled_from(["s2mm", "mm2s"]),
        st.integers(0, 1),
    ),
    st.tuples(
        st.just("address_patch"), st.just(0x1D004), st.integers(0, 15), st.integers(0, 2**30)
    ),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(operation, max_size=20), st.booleans())
def test_any_stream(operations, operands):
    builder = stream.Builder("npu2", 8)
    for name, *values in operations:
        getattr(builder, name)(*values)
    data = bytes(builder.finish())
    mlir = samples.with_sequence(EMPTY, Sample(data, 5, ""), operands=operands)
    assert words(mlir) == data
    assert mlir.count("memref<1024xi32>") == 5


def test_operations_without_a_form_are_refused():
    builder = stream.Builder("npu2", 8)
    builder.noop()
    with pytest.raises(BuildError, match="NOOP"):
        samples.with_sequence(EMPTY, Sample(bytes(builder.finish()), 1, ""), operands=True)


@pytest.mark.parametrize("text", ["", "module {\n}\n", EMPTY.replace("\n  }", "")])
def test_other_modules_are_refused(text):
    one = Sample(bytes(stream.Builder("npu2", 8).finish()), 1, "")
    with pytest.raises(BuildError, match="device"):
        samples.with_sequence(text, one, operands=True)
