"""What the kernels of vector_kernels.py must give: random operands and the results of the C++
kernels in `silicon`, through npu's operations. All arrays are bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def dequant(device: str, blocks: int, seed: int, columns: int, format: str) -> list[np.ndarray]:
    """Blocks in a column, and their tiles."""
    import npu

    rng = np.random.default_rng(seed)
    codes = _codes(rng, blocks)
    data = np.concatenate([_scales(rng, blocks, format), codes], axis=1)
    with npu.device(f"emu:{device}", arithmetic="silicon"):
        values = npu.dequantize((data, (32 * blocks, columns), format))
    return [data, np.ascontiguousarray(values).view(np.uint8).reshape(-1)]


def gemv(
    device: str, blocks: int, seed: int, columns: int, format: str, room: int = 0
) -> list[np.ndarray]:
    """Blocks of a row-block, their x, the rows before, which are zeros as npu.gemv has them, and
    after; ``room``: bytes per block that rows take with what follows them."""
    import npu

    rng = np.random.default_rng(seed)
    data = np.concatenate([_scales(rng, blocks, format), _codes(rng, blocks)], axis=1)
    x = rng.standard_normal(columns * blocks).astype(BFLOAT16)
    weights = (data, (32, columns * blocks), format)
    with npu.device(f"emu:{device}", arithmetic="silicon"):
        y = npu.gemv(weights, x, out_dtype=np.float32)
    before = np.zeros(room * blocks or y.nbytes, np.uint8)
    return [data, x.view(np.uint8), before, y.view(np.uint8)]


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


def _codes(rng: np.random.Generator, blocks: int) -> np.ndarray:
    return rng.integers(0, 256, (blocks, 4096), dtype=np.uint8)


def _scales(rng: np.random.Generator, blocks: int, format: str) -> np.ndarray:
    """Scales and, of q4nx, minima, in bytes."""
    exponents = rng.integers(-20, 8, (blocks, 256 if format == "q8" else 512))
    values = np.ldexp(rng.standard_normal(exponents.shape), exponents)
    return values.astype(np.float32 if format == "q8" else BFLOAT16).view(np.uint8)
