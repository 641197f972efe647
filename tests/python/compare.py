"""The tolerances of the Python tests, each with the arithmetic it comes from, and how to compare.

Errors of logits are given relative to the standard deviation of the reference's logits.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

# Relative error of rounding to nearest bfloat16 (8 significant bits): at most 2^-8; root mean
# square 2^-8 * sqrt(E[1/m^2] / 3) = 0.42 * 2^-8, with E[1/m^2] = 0.54 for mantissas m in [1, 2)
# distributed as 1/m.
BF16_MAX = 2.0**-8
BF16_RMS = 0.42 * BF16_MAX

# Dequantised values are three float32 roundings (2 products, 1 sum) of exact integers and float16.
DEQUANTISED = 3 * 2.0**-24

# Two float32 evaluations of one decoder that sum in different orders: each dot product of K <= 200
# terms differs by about sqrt(K) * 2^-24 = 8e-7 relative, some 60 of them follow one another. 1e-4
# leaves a factor of ten over sqrt(60) * 8e-7 = 6e-6 for the largest of 10^5 logits.
FLOAT32_LOGITS = 1e-4


def bf16_logits_rms(
    layers: int, score_std: float = 1.09, *, operands: int = 1, cache: bool = True
) -> float:
    """Bound of the root mean square error that bfloat16 projection inputs and bfloat16 keys and
    values cause in a row of logits.

    Variances, relative to what they are an error of. A projection whose weights have no common
    sign adds errors as it adds terms: relative error out = error in, plus BF16_RMS^2 for rounding
    its input. Attention: v passes its error on, q and k each move the scores (standard deviation
    s), which the softmax turns into a relative change: error e in gives (1 + 2 s^2) e out, fresh
    rounding of the input (2 + 2 s^2) BF16_RMS^2 with the output projection, of the cached k and v
    another (1 + s^2) BF16_RMS^2; averaging over keys is left out, so this is a bound for the worst
    row. Feed-forward: gate (1.3, the squared slope of GELU) and up give 2.3 e, and 3.3 BF16_RMS^2
    with down. Norms leave relative errors as they are. After n sublayers the residual stream is
    n + 1 parts of like size, the last of them the newest. ``score_std``: product of the RMS norm
    weights of q and k; 1 + 0.3^2 for gemma3_files.py. ``operands``: of a projection that are
    rounded, 2 where its weights are too; ``cache``: whether keys and values are.
    """
    squared = score_std**2
    attention = (1 + 2 * squared, operands * (2 + 2 * squared) + cache * (1 + squared))
    feed_forward = (2.3, operands * 3.3)
    error, parts = 0.0, 1
    for _ in range(layers):
        for gain, fresh in (attention, feed_forward):
            parts += 1
            error += ((gain - 1) * error + fresh) / parts
    return BF16_RMS * math.sqrt(error + operands)


def bf16_logits_max(layers: int, score_std: float = 1.09, *, operands: int = 1) -> float:
    """Bound of a single logit: six standard deviations, for the largest of 10^5."""
    return 6 * bf16_logits_rms(layers, score_std, operands=operands)


def decoder_logits_rms(layers: int, score_std: float = 1.09) -> float:
    """The bound of ``bf16_logits_rms`` for tokens that the array computes as a whole, where results
    of projections are bfloat16, too (model and units: there).

    Attention, besides rounding the inputs of both projections (2 + 2 s^2): q is rounded as a result
    and after its rotation, k as a result and in the cache, each s^2; v once, as a result; the
    softmax's weights 1 (of one key; of many they average out); the output projection's result 1:
    3 + 4 s^2. Feed-forward, besides 3.3 for the inputs: results of gate and up 2.3, of down 1, and
    the unit that computes tanh to bfloat16 1. Sums, norms, rotation and the residual stream are
    float32.
    """
    squared = score_std**2
    attention = (1 + 2 * squared, 5 + 6 * squared)
    feed_forward = (2.3, 3.3 + 2.3 + 1 + 1)
    error, parts = 0.0, 1
    for _ in range(layers):
        for gain, fresh in (attention, feed_forward):
            parts += 1
            error += ((gain - 1) * error + fresh) / parts
    return BF16_RMS * math.sqrt(error + 1)


def decoder_logits_max(layers: int, score_std: float = 1.09) -> float:
    """Bound of a single logit, as ``bf16_logits_max``."""
    return 6 * decoder_logits_rms(layers, score_std)


# Rounding to bfp16, as BF16_RMS relative to the root mean square of the values: steps of 2^(E - 6)
# for the exponent E of the largest of 8 values, error step^2 / 12. Over all scales E[4^E] is 0.541
# of E[largest^2], which for normal values is 3.5 times their variance: 14.2 BF16_RMS^2; 15.9 for a
# normal value times 1 + 0.3 of another (inputs of projections), 25.5 for GELU(gate) up. Weights
# of the softmax: at most 1 in 8 keys has the largest, all have its step, so the eight errors are
# at most 8 steps^2 / 12 of a sum of one key's: 33.
BFP16_NORMAL, BFP16_NORMED, BFP16_ACT, BFP16_SOFTMAX = 14.2, 15.9, 25.5, 33.0


def prompt_logits_rms(
    layers: int, score_std: float = 1.09, *, bfp16: bool, rounded_weights: bool = False
) -> float:
    """The bound of ``decoder_logits_rms`` for prompts on the array. ``bfp16``: npu2, whose products
    round both operands once more; ``rounded_weights``: where blocks expand to other than bfloat16
    values, which are rounded to bfloat16 before.

    Per projection the input is off by its bfp16, the weights by theirs: (2 + 2 s^2) of both in
    attention, 2.3 for gate and up and 1 for down. Scores: q and k each s^2; values: v 1 and the
    softmax's weights.
    """
    squared = score_std**2
    projection = 2 * squared + 1  # of q, k and v
    attention, feed_forward = 5 + 6 * squared, 3.3 + 2.3 + 1 + 1
    if rounded_weights:
        attention, feed_forward = attention + projection + 1, feed_forward + 3.3
    if bfp16:
        attention += projection * (BFP16_NORMED + BFP16_NORMAL) + 2 * BFP16_NORMAL
        attention += 2 * squared * BFP16_NORMAL + BFP16_NORMAL + BFP16_SOFTMAX
        feed_forward += 2.3 * (BFP16_NORMED + BFP16_NORMAL) + BFP16_ACT + BFP16_NORMAL
    error, parts = 0.0, 1
    for _ in range(layers):
        for gain, fresh in ((1 + 2 * squared, attention), (2.3, feed_forward)):
            parts += 1
            error += ((gain - 1) * error + fresh) / parts
    return BF16_RMS * math.sqrt(error + 1 + rounded_weights)


def batch_logits_rms(
    layers: int, score_std: float = 1.09, *, bfp16: bool, rounded_weights: bool = False
) -> float:
    """The bound of ``prompt_logits_rms`` for batches, whose head is a product of that kind, too: on
    npu2 both of its operands are rounded once more, to bfp16."""
    prompt = prompt_logits_rms(layers, score_std, bfp16=bfp16, rounded_weights=rounded_weights)
    head = BF16_RMS**2 * (BFP16_NORMED + BFP16_NORMAL) if bfp16 else 0.0
    return math.sqrt(prompt**2 + head)


def max_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference relative to the standard deviation of ``expected``."""
    assert actual.shape == expected.shape
    return float(np.abs(actual - expected).max() / expected.std())


def rms_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Root mean square difference relative to the standard deviation of ``expected``."""
    assert actual.shape == expected.shape
    return float(np.sqrt(np.mean(np.square(actual - expected))) / expected.std())


def assert_logits(actual: np.ndarray, expected: np.ndarray, bound: float) -> None:
    """Every logit within ``bound``, and the same choice wherever the margin of the reference
    between its first and second exceeds what the bound allows to move (both by ``bound``)."""
    error = max_error(actual, expected)
    if not error <= bound:
        rows = np.abs(actual - expected).max(axis=-1) / expected.std()
        worst = ", ".join(f"row {row}: {rows[row]:.2g}" for row in np.argsort(-rows)[:5])
        raise AssertionError(f"logits differ by {error:.3g} std, bound {bound:.3g} ({worst})")
    top = np.sort(expected, axis=-1)
    clear = top[:, -1] - top[:, -2] > 2 * bound * expected.std()
    same = actual.argmax(axis=-1) == expected.argmax(axis=-1)
    assert clear.any(), "no row of the reference has a margin above the bound"
    assert same[clear].all(), f"argmax differs in rows {np.flatnonzero(clear & ~same)}"


FLOAT32_UNIT = 2.0**-24
# Half a unit in the last place, relative, of the formats a product is rounded to at the end.
OUTPUT_UNIT = {"float32": 0.0, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def round_bf16(array: np.ndarray) -> np.ndarray:
    """float32 of the nearest bfloat16 values (ties to even)."""
    return np.asarray(array).astype(ml_dtypes.bfloat16).astype(np.float32)


BFP16_BLOCK = 8  # values along K that share an exponent


def bfp16_unit(x: np.ndarray, axis: int) -> np.ndarray:
    """Weight of a mantissa's last bit for every element: 8-bit mantissas, sign included, against
    the largest exponent E of the block leave steps of 2^(E - 6). Blocks start at 0 along ``axis``,
    the last one filled up with zeros."""
    x = np.moveaxis(np.abs(x), axis, -1)
    length = x.shape[-1]
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -length % BFP16_BLOCK)])
    blocks = (padded.shape[-1] // BFP16_BLOCK, BFP16_BLOCK)
    top = padded.reshape(*x.shape[:-1], *blocks).max(-1)
    exponent = np.where(top > 0, np.frexp(top)[1] - 1, -127)
    unit = np.ldexp(1.0, np.maximum(exponent, -127) - 6).repeat(BFP16_BLOCK, -1)[..., :length]
    return np.moveaxis(unit, -1, axis)


def round_bfp16(x: np.ndarray, axis: int) -> np.ndarray:
    """float64 of the bfp16 values of bfloat16 ones: mantissas to nearest even, 127 at most."""
    unit = bfp16_unit(x, axis)
    return np.minimum(np.rint(x / unit), 127) * unit


def bfp16_bound(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Bound of |c - a @ b| for products of bfloat16 values through bfp16.

    An element is off by at most half a step, da or db (saturation too: bfloat16's largest is half a
    step above 127), so each product by |a| db + |b| da + da db. The eight products of two blocks
    are summed exactly, K / 8 of these sums in float32.
    """
    da, db = bfp16_unit(a, -1) / 2, bfp16_unit(b, -2) / 2
    a, b = np.abs(a), np.abs(b)
    steps = -(-a.shape[-1] // BFP16_BLOCK) + 1
    return a @ db + da @ (b + db) + steps * FLOAT32_UNIT * ((a + da) @ (b + db))


def bfp16_rounding(most: np.ndarray) -> np.ndarray:
    """Bound of the error of rounding float32 values of magnitudes up to ``most`` to bfp16 along the
    last axis: half a step, but from 127.5 steps on, where mantissas end, up to a whole one. (A
    block whose largest value is lower has at most half the step.)"""
    unit = bfp16_unit(most, -1)
    return np.where(most >= 127.5 * unit, unit, unit / 2)


def assert_blocks_close(
    c: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    sums: str,
    k: int,
    depth: int,
    out: str,
    *,
    a_in_blocks: bool = False,
) -> None:
    """c is a @ b of a B, or A and B, in bfp16 blocks. a, b: before they were rounded to blocks,
    after they were rounded to bfloat16; a_in_blocks: a has the values of blocks already (which
    would not round to themselves at -128 steps).

    ``sums``: what partial sums are kept in, "float32", "bfloat16" or "bfp16" between steps of k;
    ``depth``: K with the zeros behind it; their steps round sums in blocks again, which changes
    them where a mantissa is -128. ``out``: what c was written as.

    With P the exact prefix sum of the rounded operands, after a step of k terms
    d = e_(t-1) + (k / 8 + 1) 2^-24 (|P_(t-1)| + e_(t-1) + sum |a||b|), the sums of eight products
    being exact; then sums are rounded: e_t = d + r(|P| + d), r of bfloat16 2^-8 of it, of bfp16
    ``bfp16_rounding``. At the end c is rounded from its sums the same way, where its type is
    another. Against float64 of a and b, the operands' own rounding adds to that.
    """
    a, b = (np.asarray(x).astype(np.float64) for x in (a, b))
    left, right = a if a_in_blocks else round_bfp16(a, -1), round_bfp16(b, -2)
    prefix = np.zeros((a.shape[0], b.shape[1]))
    error = np.zeros_like(prefix)
    step = k if sums != "float32" else a.shape[1]
    end = depth if sums == "bfp16" else a.shape[1]
    rounding = {
        "float32": np.zeros_like,
        "bfloat16": lambda most: OUTPUT_UNIT["bfloat16"] * most,
        "bfp16": bfp16_rounding,
        "float16": lambda most: OUTPUT_UNIT["float16"] * most + 2.0**-25,
    }
    for first in range(0, end, step):
        x, y = left[:, first : first + step], right[first : first + step]
        unit = (-(-x.shape[1] // BFP16_BLOCK) + 1) * FLOAT32_UNIT
        error = error + unit * (np.abs(prefix) + error + np.abs(x) @ np.abs(y))
        prefix = prefix + x @ y
        error = error + rounding[sums](np.abs(prefix) + error)
    if out != sums:
        error = error + rounding[out](np.abs(prefix) + error)
    for exact, bound in ((prefix, error), (a @ b, error + np.abs(prefix - a @ b))):
        # float64 rounds differences and sum by 2^-53 each: c and P may be tiny beside a @ b.
        wrong = np.abs(c.astype(np.float64) - exact) > bound * (1 + 2.0**-51)
        if wrong.any():
            first = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise AssertionError(
                f"{int(wrong.sum())} of {wrong.size} elements differ; first at {first}: "
                f"{c[first]} against {exact[first]}, bound {bound[first]:.3g}"
            )
    da, db = bfp16_unit(a, -1) / 2, bfp16_unit(b, -2) / 2
    operands = np.abs(a) @ db + da @ (np.abs(b) + db)
    assert (np.abs(prefix - a @ b) <= operands * (1 + 1e-12)).all()


def bfp16_rms(spread: float) -> float:
    """Root mean square error of a product through bfp16, relative to that of the product, for
    independent values of the same spread; ``spread``: the mean of (step / root mean square value)^2
    over blocks. A value is off by a uniform part of a step, variance step^2 / 12; both are."""
    return math.sqrt(2 * spread / 12)


def assert_matmul_close(
    c: np.ndarray, a: np.ndarray, b: np.ndarray, silicon: bool = False, bf16: str = "native"
) -> None:
    """c is a @ b of the bfloat16-rounded operands, within the error of float32 accumulation; with
    ``bf16="bfp16"`` of their bfp16 values, and within that format's bound of the bfloat16 ones.

    Any order of K float32 additions errs by at most about K * 2^-24 * sum |a||b| (Higham, gamma_K).
    In `silicon` mode each of the 9 terms of an 8-term product is rounded at 2^-24 of the largest,
    which is at most sum |a||b|, then the sum once: (9 * 2 + 1) / 8 < 3 times as much per term.
    The output format adds half a unit in the last place of the result.
    """
    a, b = round_bf16(a).astype(np.float64), round_bf16(b).astype(np.float64)
    steps = (3 if silicon else 1) * a.shape[-1] + 1
    if bf16 == "bfp16":
        _assert_within(c, a @ b, bfp16_bound(a, b))
        a, b = round_bfp16(a, -1), round_bfp16(b, -2)
        steps = -(-a.shape[-1] // BFP16_BLOCK) + 1
    _assert_within(c, a @ b, steps * FLOAT32_UNIT * (np.abs(a) @ np.abs(b)))


def assert_narrow_sums_close(
    c: np.ndarray, a: np.ndarray, b: np.ndarray, k: int, silicon: bool = False, bf16: str = "native"
) -> None:
    """c is a @ b with the sums rounded to bfloat16 after every k terms (accumulate="narrow").

    After step t the sum is the one before plus k products in float32, k + 1 additions of terms up
    to |sum| + sum |a||b| (three times as much in `silicon` mode, see assert_matmul_close), then
    rounded: with P the exact prefix sum, e_t <= d + 2^-8 (|P| + d), where d = e_(t-1) + the
    additions' error.
    """
    a, b = round_bf16(a).astype(np.float64), round_bf16(b).astype(np.float64)
    if bf16 == "bfp16":
        a, b = round_bfp16(a, -1), round_bfp16(b, -2)
    prefix = np.zeros((a.shape[0], b.shape[1]))
    error = np.zeros_like(prefix)
    unit = (3 if silicon else 1) * (k + 1) * FLOAT32_UNIT
    for first in range(0, a.shape[1], k):
        left, right = a[:, first : first + k], b[first : first + k]
        error = error + unit * (np.abs(prefix) + error + np.abs(left) @ np.abs(right))
        prefix = prefix + left @ right
        error = error + OUTPUT_UNIT["bfloat16"] * (np.abs(prefix) + error)
    wrong = np.abs(c.astype(np.float64) - prefix) > error
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} elements differ by more than the bound"


def _assert_within(c: np.ndarray, exact: np.ndarray, bound: np.ndarray) -> None:
    """Every element within ``bound`` of the exact one, half a unit of c's format added to it."""
    bound = bound + OUTPUT_UNIT[str(c.dtype)] * (np.abs(exact) + bound)
    if c.dtype == np.float16:
        bound += 2.0**-25  # spacing of float16 subnormals
    error = np.abs(c.astype(np.float64) - exact)
    wrong = error > bound
    if wrong.any():
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.size} elements differ; first at {first}: "
            f"{c[first]} against {exact[first]}, bound {bound[first]:.3g}"
        )


def assert_gemv_close(
    y: np.ndarray,
    w: np.ndarray,
    d: np.ndarray,
    m: np.ndarray | None,
    x: np.ndarray,
    silicon: bool = False,
) -> None:
    """y is x @ w.T of Q4NX weights w = d code + m, or where m is None of Q4_0 weights w =
    d (code - 8), within the error of the GEMV kernel.

    w, d, m: (N, K); x: (B, K) of bfloat16 values; u = 2^-24. Per group of 32 columns: X = sum x has
    31 additions; s = -128 X + sum (128 + code) x has 34 roundings of sums up to 271 sum |x|, and
    128 times the error of X: (34 * 271 + 128 * 31) u sum |x|, with code <= 15. Then two roundings
    per group on the way to y, of partial sums up to sum 15 d |x| + |m| |x|. Q4_0: -136 X, which is
    rounded, too, instead of -128 X: (35 * 279 + 136 * 31) u sum |x|; partial sums up to sum 8 d
    |x|. `silicon` on npu1 rounds both terms of a multiply-add before their sum: three times as
    much.
    """
    x = np.asarray(x).astype(np.float64)
    exact = x @ w.T
    scaled = np.abs(x) @ np.abs(d).T
    groups = -(-x.shape[-1] // 32)
    if m is None:
        bound = (35 * 279 + 136 * 31 + (2 * groups + 2) * 8) * scaled
    else:
        minimum = np.abs(x) @ np.abs(m).T
        bound = (34 * 271 + 128 * 31) * scaled + 31 * minimum
        bound += (2 * groups + 2) * (15 * scaled + minimum)
    bound *= (3 if silicon else 1) * FLOAT32_UNIT
    bound += OUTPUT_UNIT[str(y.dtype)] * (np.abs(exact) + bound)
    error = np.abs(y.astype(np.float64).reshape(exact.shape) - exact)
    assert (error <= bound).all(), f"largest error {error.max():.3g}, bound there {bound.max():.3g}"


def assert_block_gemv_close(
    y: np.ndarray, w: np.ndarray, x: np.ndarray, format: str, silicon: bool = False
) -> None:
    """y is x @ w.T of 8-bit ("q8", "q8_0") or bfloat16 ("bf16") weights, within the error of the
    kernel.

    w: (N, K); x: (B, K) of bfloat16 values; u = 2^-24; every product is exact. q8: per group of 16
    columns at most 17 additions (two sums), one product with d, one addition to y: 19 u, and the
    K / 16 additions to y before; q8_0, of groups of 32: 35 u and K / 32. bf16: per block at most 84
    additions, and K / 16 to y (`fast` builds add after 16 columns). `silicon` on npu1: three times
    as much, see assert_gemv_close.
    """
    x = np.asarray(x).astype(np.float64)
    steps, columns = {"q8": (19, 16), "q8_0": (35, 32), "bf16": (84, 16)}[format]
    steps += -(-x.shape[-1] // columns)
    bound = (3 if silicon else 1) * steps * FLOAT32_UNIT * (np.abs(x) @ np.abs(w).T)
    _assert_within(y.reshape(x.shape[0], -1), x @ w.T, bound)
