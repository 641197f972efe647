"""npu.q4nx.Tensor: blocks built by plain loops from the published formulas are read exactly, values
are the float32 formula rounded once, views copy nothing, and wrong arguments are named."""

from __future__ import annotations

import array

import ml_dtypes
import numpy as np
import pytest
import q4nx_files
from hypothesis import given, settings
from hypothesis import strategies as st

from npu import q4nx
from npu.errors import ArgumentError, DtypeError, ShapeError
from npu.formats.q4nx import layout

SHAPES = [(32, 256), (64, 512), (1, 1), (33, 257), (70, 300), (96, 40)]


@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_of_the_formula_give_its_values(shape: tuple[int, int]) -> None:
    matrix = q4nx_files.random_matrix(*shape)
    tensor = q4nx.Tensor.from_blocks(q4nx_files.pack(matrix), shape)
    assert tensor.shape == shape and tensor.dialect == "additive"
    assert tensor.padded_shape == (-(-shape[0] // 32) * 32, -(-shape[1] // 256) * 256)
    assert tensor.nbytes == tensor.padded_shape[0] * tensor.padded_shape[1] * 5 // 8
    exact = matrix.exact()
    # The product is exact, the sum rounds once.
    assert (tensor.to_numpy(np.float32) == exact.astype(np.float32)).all()
    expected = exact.astype(np.float32).astype(ml_dtypes.bfloat16)
    actual = tensor.to_numpy()
    assert actual.dtype == ml_dtypes.bfloat16
    assert (actual.view(np.uint16) == expected.view(np.uint16)).all()


def test_zero_point_dialect() -> None:
    matrix = q4nx_files.random_matrix(40, 300, low=0, high=15)
    tensor = q4nx.Tensor.from_blocks(q4nx_files.pack(matrix), (40, 300), dialect="zero_point")
    d, z = matrix.d.astype(np.float32), matrix.m.astype(np.float32)
    codes = np.pad(matrix.codes, ((0, 0), (0, 20))).reshape(40, 10, 32).astype(np.float32)
    expected = (d[..., None] * (codes - z[..., None])).reshape(40, 320)[:, :300]
    assert (tensor.to_numpy(np.float32) == expected).all()
    # The additive form differs by the rounding of d * z to 8 bits.
    additive = tensor.to_additive()
    assert additive.dialect == "additive"
    error = np.abs(additive.to_numpy(np.float32) - matrix.exact(zero_point=True))
    assert (error <= np.repeat(d * z, 32, axis=1)[:, :300] * 2.0**-8 + 1e-7).all()
    assert error.max() > 0
    assert tensor.blocks.tobytes() == q4nx_files.pack(matrix)


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_bytes_give_the_formula(data: st.DataObject) -> None:
    """Random bytes, thus every kind of number in the planes: NaN and infinity, no exception."""
    rows, columns = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    seed = data.draw(st.integers(0, 2**32 - 1))
    raw = np.random.default_rng(seed).bytes(rows * columns * 5120)
    tensor = q4nx.Tensor.from_blocks(raw, (rows * 32, columns * 256))
    values = tensor.to_numpy(np.float32)
    for _ in range(20):
        i = data.draw(st.integers(0, rows * 32 - 1))
        j = data.draw(st.integers(0, columns * 256 - 1))
        with np.errstate(all="ignore"):
            expected = np.float32(q4nx_files.value(raw, columns * 256, i, j))
        assert values[i, j] == expected or (np.isnan(values[i, j]) and np.isnan(expected))


def test_pack_is_the_loops() -> None:
    matrix = q4nx_files.random_matrix(64, 512)
    blocks = layout.pack(matrix.codes, matrix.d, matrix.m)
    assert blocks.tobytes() == q4nx_files.pack(matrix)
    codes, d, m = layout.unpack(blocks)
    assert (codes == matrix.codes).all() and (d == matrix.d).all() and (m == matrix.m).all()


def test_nothing_is_copied() -> None:
    raw = np.frombuffer(q4nx_files.pack(q4nx_files.random_matrix(96, 256)), np.uint8).copy()
    tensor = q4nx.Tensor.from_blocks(raw, (96, 256))
    part = tensor[32:96]
    assert np.shares_memory(tensor.blocks, raw) and np.shares_memory(part.blocks, raw)
    assert part.shape == (64, 256)
    assert (part.to_numpy() == tensor.to_numpy()[32:96]).all()
    again = q4nx.concatenate([tensor[:32], tensor[32:64], tensor[64:]])
    assert again.blocks.ctypes.data == raw.ctypes.data and again.shape == (96, 256)
    assert (again.to_numpy() == tensor.to_numpy()).all()
    # Not neighbours, or neighbours by chance in another array: a copy.
    apart = q4nx.concatenate([tensor[:32], tensor[64:]])
    assert not np.shares_memory(apart.blocks, raw)
    assert (
        apart.to_numpy() == np.concatenate([tensor.to_numpy()[:32], tensor.to_numpy()[64:]])
    ).all()


def test_a_joined_view_keeps_its_memory() -> None:
    def make() -> q4nx.Tensor:
        raw = np.frombuffer(q4nx_files.pack(q4nx_files.random_matrix(64, 256)), np.uint8).copy()
        whole = q4nx.Tensor.from_blocks(raw, (64, 256))
        return q4nx.concatenate([whole[:32], whole[32:]])

    expected = q4nx_files.random_matrix(64, 256).exact().astype(np.float32)
    joined = make()
    junk = [np.full(64 * 160, 255, np.uint8) for _ in range(100)]
    assert (joined.to_numpy(np.float32) == expected).all() and junk


def test_neighbours_of_different_owners_are_copied() -> None:
    """A view would keep only the first owner's memory alive."""
    raw = memoryview(bytearray(q4nx_files.pack(q4nx_files.random_matrix(64, 256))))
    parts = [q4nx.Tensor.from_blocks(half, (32, 256)) for half in (raw[:5120], raw[5120:])]
    both = q4nx.concatenate(parts)
    assert not np.shares_memory(both.blocks, parts[0].blocks)
    assert both.blocks.tobytes() == raw.tobytes()


def test_the_last_part_may_end_inside_a_row_block() -> None:
    a, b = q4nx_files.random_matrix(32, 256, 1), q4nx_files.random_matrix(40, 256, 2)
    tensors = [q4nx.Tensor.from_blocks(q4nx_files.pack(x), x.shape) for x in (a, b)]
    both = q4nx.concatenate(tensors)
    assert both.shape == (72, 256)
    assert (
        both.to_numpy(np.float32) == np.concatenate([a.exact(), b.exact()]).astype(np.float32)
    ).all()
    assert both[64:72].shape == (8, 256) and both[64:].shape == (8, 256)
    with pytest.raises(ShapeError, match="ends inside a row-block"):
        q4nx.concatenate(tensors[::-1])


@pytest.mark.parametrize(
    ("shape", "size", "words"),
    [
        ((32, 256), 5119, "5120 bytes; the data has 5119"),
        ((33, 256), 5120, r"2 x 1 blocks, 10240 bytes"),
        ((0, 256), 0, "at least 1"),
        ((32,), 5120, r"logical \(N, K\)"),
        ((32, 256, 1), 5120, r"logical \(N, K\)"),
        (("a", 2), 5120, r"logical \(N, K\)"),
        (("32", "256"), 5120, r"logical \(N, K\)"),
        ((32.9, 256.0), 5120, r"logical \(N, K\)"),
        ((float("inf"), 256), 5120, r"logical \(N, K\)"),
        ((True, 256), 5120, r"logical \(N, K\)"),
        ({32, 256}, 5120, r"logical \(N, K\)"),
        (None, 5120, r"logical \(N, K\)"),
    ],
)
def test_shapes_that_do_not_fit(shape: tuple, size: int, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        q4nx.Tensor.from_blocks(bytes(size), shape)


def test_other_wrong_arguments() -> None:
    tensor = q4nx.Tensor.from_blocks(bytes(2 * 5120), (64, 256))
    with pytest.raises(ArgumentError, match="dialect is 'I8'"):
        q4nx.Tensor.from_blocks(bytes(5120), (32, 256), dialect="I8")
    for data, error, words in (
        ("text", ArgumentError, "blocks are str"),
        (np.zeros(1280, np.float32), DtypeError, "dtype float32"),
        (array.array("f", bytes(5120)), DtypeError, "format 'f'"),
        (memoryview(bytes(10240))[::2], ArgumentError, "gaps"),
        (np.ma.masked_array(np.zeros(5120, np.uint8), True), ArgumentError, "mask"),
    ):
        with pytest.raises(error, match=words):
            q4nx.Tensor.from_blocks(data, (32, 256))
    for rows in (slice(1, 64), slice(0, 33), slice(0, 64, 2), slice(32, 32), slice("a", "b"), 3):
        with pytest.raises(ArgumentError, match=r"\[q4nx.Tensor\]"):
            tensor[rows]
    with pytest.raises(DtypeError, match="cannot be int8"):
        tensor.to_numpy(np.int8)
    with pytest.raises(DtypeError, match="not a valid dtype"):
        tensor.to_numpy("half a float")
    with pytest.raises(ArgumentError, match="pass a Tensor"):
        q4nx.dequantize_host(tensor.blocks)
    with pytest.raises(ArgumentError, match="at least one"):
        q4nx.concatenate([])
    for wrong in (None, tensor, [tensor, tensor.blocks]):
        with pytest.raises(ArgumentError, match="not a sequence of Tensors"):
            q4nx.concatenate(wrong)
    other = q4nx.Tensor.from_blocks(bytes(5120), (32, 256), dialect="zero_point")
    with pytest.raises(ShapeError, match="K and dialect"):
        q4nx.concatenate([tensor, other])
