"""What the kernels of vector_kernels.py must give: random operands and the results of the C++
kernels in `silicon`, through npu's operations. All arrays are bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def dequant_q4nx(device: str, blocks: int, seed: int) -> list[np.ndarray]:
    """Blocks in a column, and their tiles."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (blocks, 4096), dtype=np.uint8)
    exponents = rng.integers(-20, 8, (blocks, 512))
    planes = np.ldexp(rng.standard_normal(exponents.shape), exponents).astype(BFLOAT16)
    data = np.concatenate([planes.view(np.uint8), codes], axis=1)
    return [data, _dequantized(device, data, 256, "q4nx")]


def dequant_q8(device: str, blocks: int, seed: int) -> list[np.ndarray]:
    """Blocks in a column, and their tiles."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (blocks, 4096), dtype=np.uint8)
    exponents = rng.integers(-20, 8, (blocks, 256))
    scales = np.ldexp(rng.standard_normal(exponents.shape), exponents).astype(np.float32)
    data = np.concatenate([scales.view(np.uint8), codes], axis=1)
    return [data, _dequantized(device, data, 128, "q8")]


def gemv_q4nx(device: str, blocks: int, seed: int) -> list[np.ndarray]:
    """Blocks, their x, the sums before (s = -128 X, X) and after. A group's s is the product of a
    block whose only scales are ones, those of this group."""
    import npu

    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (blocks, 5120), dtype=np.uint8)
    x = rng.standard_normal((blocks, 256)).astype(BFLOAT16)
    before = np.empty((blocks, 8, 2, 32), np.float32)
    before[:, :, 1] = _halved(x.astype(np.float32).reshape(blocks, 8, 32))
    before[:, :, 0] = -128 * before[:, :, 1]
    after = before.copy()
    with npu.device(f"emu:{device}", arithmetic="silicon"):
        for block in range(blocks):
            for group in range(8):
                planes = np.zeros((2, 8, 32), BFLOAT16)
                planes[0, group] = 1
                one = np.concatenate([planes.reshape(-1).view(np.uint8), data[block, 1024:]])
                weights = (one[None], (32, 256), "q4nx")
                after[block, group, 0] = npu.gemv(weights, x[block], out_dtype=np.float32)
    return [data, x.view(np.uint8), before.view(np.uint8), after.reshape(-1).view(np.uint8)]


def rms_norm(device: str, blocks: int, seed: int) -> list[np.ndarray]:
    """A row of x, its weights, the row normalised."""
    import npu
    from npu.vliw.rms_norm import CHUNK, EPSILON

    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(CHUNK * blocks) * 2.0 ** rng.integers(-8, 8)).astype(BFLOAT16)
    weight = (1 + 0.3 * rng.standard_normal(len(x))).astype(np.float32)
    with npu.device(f"emu:{device}", arithmetic="silicon"):
        y = npu.rms_norm(x, weight, epsilon=EPSILON)
    return [array.view(np.uint8).reshape(-1) for array in (x, weight, y)]


def geglu(device: str, blocks: int, seed: int) -> list[np.ndarray]:
    """Gates, what they gate, the results."""
    import npu
    from npu.vliw.geglu import CHUNK

    rng = np.random.default_rng(seed)
    gate, up = (
        (rng.standard_normal(CHUNK * blocks) * 2.0 ** rng.integers(-3, 4)).astype(BFLOAT16)
        for _ in range(2)
    )
    with npu.device(f"emu:{device}", arithmetic="silicon"):
        y = npu.geglu(gate, up)
    return [array.view(np.uint8) for array in (gate, up, y)]


def softmax(device: str, blocks: int, seed: int) -> list[np.ndarray]:
    """Scores and, for an identity as values, what attention gives. Rows are unit vectors: keys have
    the scores as elements."""
    import npu
    from npu.vliw.softmax import POSITIONS, ROWS

    rng = np.random.default_rng(seed)
    positions, dim = POSITIONS * blocks, 256 // blocks
    k = np.zeros((positions, 1, dim), BFLOAT16)
    k[:, 0, :ROWS] = 64 * rng.standard_normal((positions, ROWS)) + rng.integers(-64, 64)
    q, v = (np.eye(n, dim, dtype=BFLOAT16)[:, None] for n in (ROWS, positions))
    with npu.device(f"emu:{device}", arithmetic="silicon"):
        y = npu.attention(q, k, v, causal=False, scale=1 / 16)
    scores = np.ascontiguousarray(k[:, 0, :ROWS]).astype(np.float32)
    shares = np.ascontiguousarray(y[:, 0, :positions])
    return [array.view(np.uint8).reshape(-1) for array in (scores, shares)]


def rope(device: str, blocks: int, seed: int) -> list[np.ndarray]:
    """Vectors, their cosines and sines, the vectors rotated."""
    import npu
    from npu.vliw.rope import WIDTH

    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((blocks, 1, WIDTH)) * 2.0 ** rng.integers(-8, 8)).astype(BFLOAT16)
    places = rng.integers(0, 8192, blocks)
    angles = places[:, None] * 10000.0 ** (-np.arange(0, WIDTH, 2, dtype=np.float64) / WIDTH)
    table = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    with npu.device(f"emu:{device}", arithmetic="silicon"):
        y = npu.rope(x, places)
    return [array.reshape(-1).view(np.uint8) for array in (x, table, y)]


def convert_bfp16(device: str, tiles: int, seed: int, source: str) -> list[np.ndarray]:
    """Operands with a zero, tiny and infinite values, by the code that `npu.pack` shares with the
    cores; sums of a product, and that product in blocks."""
    import npu

    rng = np.random.default_rng(seed)
    if source == "bfloat16":
        x = np.ldexp(rng.standard_normal((8, 8 * tiles)), rng.integers(-30, 30, (8, 8 * tiles)))
        x[0, :6] = 0, np.inf, 1e-39, -1e38, -0.0, 3e-41
        x = x.astype(BFLOAT16)
        return [_tiles(x), npu.pack(x, format="bfp16", side="a").tiles.reshape(-1)]
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((8, 64), (64, 8 * tiles)))
    packed = [npu.pack(x, format="bfp16", side=side) for x, side in ((a, "a"), (b, "b"))]
    with npu.device(f"emu:{device}", arithmetic="silicon"):
        sums, blocks = (npu.matmul(*packed, out_dtype=out) for out in ("float32", "bfp16"))
    return [_tiles(sums), blocks.tiles.reshape(-1)]


def convert_bfp16_rows(device: str, n1: int, seed: int, k1: int) -> list[np.ndarray]:
    """A row-major B in tiles, and its blocks along K."""
    import npu

    rng = np.random.default_rng(seed)
    shape = (8 * k1, 8 * n1)
    b = np.ldexp(rng.standard_normal(shape), rng.integers(-30, 30, shape)).astype(BFLOAT16)
    b[:4, 0] = 0, np.inf, 1e-39, -1e38
    rows = np.concatenate([_tiles(b[8 * k : 8 * k + 8]) for k in range(k1)])
    return [rows, npu.pack(b, format="bfp16", side="b").tiles.reshape(-1)]


def _tiles(matrix: np.ndarray) -> np.ndarray:
    """The bytes of 8 rows as tiles of 8 x 8."""
    return np.ascontiguousarray(matrix.reshape(8, -1, 8).swapaxes(0, 1)).view(np.uint8).reshape(-1)


def gemv_q8(device: str, blocks: int, seed: int) -> list[np.ndarray]:
    """Blocks, their x and the groups' sums: each the product of a block whose only scales are ones,
    those of this group."""
    import npu

    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (blocks, 5120), dtype=np.uint8)
    x = rng.standard_normal((blocks, 128)).astype(BFLOAT16)
    sums = np.empty((blocks, 8, 32), np.float32)
    with npu.device(f"emu:{device}", arithmetic="silicon"):
        for block, group in np.ndindex(blocks, 8):
            scales = np.zeros((8, 32), np.float32)
            scales[group] = 1
            one = np.concatenate([scales.reshape(-1).view(np.uint8), data[block, 1024:]])
            weights = (one[None], (32, 128), "q8")
            sums[block, group] = npu.gemv(weights, x[block], out_dtype=np.float32)
    return [data, x.view(np.uint8), sums.reshape(-1).view(np.uint8)]


def _halved(values: np.ndarray) -> np.ndarray:
    """Sums of the last axis as aie::reduce_add makes them: halves added to each other."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[..., :half] + values[..., half:]
    return values


def _dequantized(device: str, data: np.ndarray, columns: int, format: str) -> np.ndarray:
    import npu

    with npu.device(f"emu:{device}", arithmetic="silicon"):
        values = npu.dequantize((data, (32 * len(data), columns), format))
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1)
