"""Reports about Q4NX files: contents, a full check, and errors against the source.

Everything is read in chunks of rows, so a report needs little memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from npu.errors import NpuError
from npu.formats.metadata import show
from npu.formats.q4nx import layout
from npu.formats.q4nx.container import SOURCE_KEY, Q4nxFile, describe_nan
from npu.formats.q4nx.tensor import Tensor
from npu.models.gemma3 import checks, names
from npu.models.gemma3.config import read_config
from npu.models.gemma3.names import check_tensors
from npu.models.sources import Q4nxSource
from npu.models.sources.interface import Source

_CHUNK_WEIGHTS = 1 << 21

Progress = Callable[[int, int, str], None]


def describe(file: Q4nxFile) -> dict[str, Any]:
    """Header, dialect and tensors of a file."""
    tensors = []
    weights = blocks = 0
    for name, entry in file.entries.items():
        quantised = name in file.quantised
        shape = file.shapes.get(name) if quantised else entry.shape
        count = math.prod(shape) if shape else None
        tensors.append(
            {
                "name": name,
                "type": "Q4NX" if quantised else entry.dtype,
                "shape": list(shape) if shape else None,
                "stored_shape": list(entry.shape),
                "bytes": entry.size,
                "bits_per_weight": round(entry.size * 8 / count, 4) if count else None,
            }
        )
        if quantised and count:
            weights, blocks = weights + count, blocks + entry.size
    return {
        "file": file.path,
        "header_bytes": file.header_size,
        "header_dialect": file.header_dialect,
        "dialect": file.dialect,
        "written_by": "npu convert" if file.own else "another converter",
        "source": file.metadata.get(SOURCE_KEY),
        "checksums": file.checksums,
        "architecture": file.model.get("general.architecture"),
        "name": file.model.get("general.name"),
        "bytes": sum(entry.size for entry in file.entries.values()),
        "quantised_weights": weights,
        "bits_per_weight": round(blocks * 8 / weights, 4) if weights else None,
        "tensors": tensors,
    }


def verify(file: Q4nxFile, progress: Progress | None = None) -> list[str]:
    """Every problem of a file, in words; empty when it is good. Reads all of it.

    ``progress(done, total, name)`` counts bytes.
    """
    problems = file.header_problems() + file.gaps()
    source: Source | None = None
    try:
        source = Q4nxSource(file)
        problems += checks.problems(source)
    except NpuError as error:  # the model is incomplete, the tensors may be good
        problems.append(str(error))
    shapes = dict(file.shapes)
    if isinstance(source, Q4nxSource):
        stored = {source.stored_name(name): shape for name, shape in source.shapes.items()}
        for name in file.quantised:
            if len(shape := stored.get(name, ())) == 2:
                shapes[name] = (shape[0], shape[1])
    done, total = 0, sum(entry.size for entry in file.entries.values())
    for name, entry in file.entries.items():
        problems += file.checksum_problems(name)
        with np.errstate(invalid="ignore"):  # signalling NaN are found all the same
            problems += _check_values(file, name, shapes.get(name))
        file.release(name)
        done += entry.size
        if progress:
            progress(done, total, name)
    return list(dict.fromkeys(problems))


def _check_values(file: Q4nxFile, name: str, shape: tuple[int, int] | None) -> list[str]:
    try:
        if name not in file.quantised:
            return _check_plain(file, name)
        return _check_blocks(file, name, file.tensor_unchecked(name, shape)) if shape else []
    except ValueError as error:  # among them an element type that this package does not read
        return [str(error)]


def diff(
    source: Source, target: Q4nxSource, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """``differences`` of all tensors."""
    return list(differences(source, target, progress))


def differences(
    source: Source, target: Q4nxSource, progress: Progress | None = None
) -> Iterator[dict[str, Any]]:
    """Errors of every tensor of the text model against its source, one by one: max, RMS, cosine.

    The embedding is compared unscaled, a tied head with the embedding of the source.
    ``progress(done, total, name)`` counts weights.
    """
    config = read_config(target)
    check_tensors(source, read_config(source))
    check_tensors(target, config)
    known = {*names.tensor_shapes(config), names.HEAD}
    compared = {name: shape for name, shape in target.shapes.items() if name in known}
    pairs = {name: name if name in source.shapes else names.EMBEDDING for name in compared}
    for name, shape in compared.items():
        source.check(pairs[name], shape)
    done, total = 0, sum(map(math.prod, compared.values()))
    for name, shape in compared.items():
        stored = target.stored_name(name)

        def report(weights: int, before: int = done, name: str = stored) -> None:
            if progress:
                progress(before + weights, total, name)

        yield {"name": stored} | _errors(source, pairs[name], target, name, report)
        done += math.prod(shape)
        source.release(pairs[name])
        target.release(name)


def _errors(
    source: Source, theirs: str, target: Source, name: str, report: Callable[[int], None]
) -> dict[str, Any]:
    shape = target.shapes[name]
    width = shape[1] if len(shape) == 2 else 1
    step = max(1, _CHUNK_WEIGHTS // (width * layout.ROWS)) * layout.ROWS
    largest = square = aa = bb = ab = 0.0
    for start in range(0, shape[0], step):
        rows = slice(start, min(start + step, shape[0]))
        with np.errstate(all="ignore"):  # NaN and infinity show in the figures
            a, b = _unscaled(source, theirs, rows), _unscaled(target, name, rows)
            difference = b - a
            largest = max(largest, float(np.abs(difference).max()))
            square += float(np.square(difference).sum())
            aa, bb = aa + float((a * a).sum()), bb + float((b * b).sum())
            ab += float((a * b).sum())
        if math.isnan(square):
            largest = math.nan  # max() would lose it
        report(rows.stop * width)
    count = math.prod(shape)
    return {
        "shape": list(shape),
        "source_type": source.stored_type(theirs),
        "type": target.stored_type(name),
        "max": largest,
        "rms": math.sqrt(square / count),
        "relative_rms": math.sqrt(square / aa) if aa else (0.0 if not square else math.inf),
        "cosine": ab / math.sqrt(aa * bb) if aa and bb else (1.0 if aa == bb else 0.0),
    }


def _unscaled(source: Source, name: str, rows: slice) -> np.ndarray:
    """Rows as float64, an embedding as the model has it before its scale."""
    whole = len(source.shapes[name]) == 1
    values = source.float32(name, None if whole else rows).astype(np.float64)
    values = values[rows] if whole else values
    if source.embedding_scaled and name == names.EMBEDDING:
        values /= np.sqrt(np.float64(source.shapes[name][1]))
    return values


def _check_plain(file: Q4nxFile, name: str) -> list[str]:
    values = file.plain(name).reshape(-1)
    if values.dtype.kind not in "fV":
        return []
    bad = 0
    for start in range(0, values.size, _CHUNK_WEIGHTS):
        bad += int((~np.isfinite(values[start : start + _CHUNK_WEIGHTS])).sum())
    return [f"the tensor {show(name)} has NaN or infinity in {bad} values"] if bad else []


def _check_blocks(file: Q4nxFile, name: str, tensor: Tensor) -> list[str]:
    """NaN in the planes, and padding that is not zero (d = m = code = 0)."""
    problems = []
    if problem := file.suspicion(tensor.blocks.reshape(-1, layout.BLOCK_BYTES)):
        problems.append(problem)
    bad = [0, 0]
    first_bad: np.ndarray | None = None
    dirty = 0
    n, k = tensor.shape
    step = max(1, _CHUNK_WEIGHTS // (tensor.padded_shape[1] * layout.ROWS))
    for start in range(0, tensor.blocks.shape[0], step):
        blocks = tensor.blocks[start : start + step]
        codes, d, m = layout.unpack(blocks)
        for index, plane in enumerate((d, m)):
            count = int((~np.isfinite(plane.astype(np.float32))).sum())
            bad[index] += count
            if count and first_bad is None:
                first_bad = blocks.reshape(-1, layout.BLOCK_BYTES)
        rows = n - start * layout.ROWS
        for plane, used in ((codes, k), (d, -(-k // layout.GROUP)), (m, -(-k // layout.GROUP))):
            words = plane if plane is codes else plane.view(np.uint16)
            dirty += int((words[:, used:] != 0).sum()) + int((words[max(rows, 0) :] != 0).sum())
    if first_bad is not None:
        problems = [describe_nan((bad[0], bad[1]), first_bad)]
    # Nobody has said what the padding of other converters holds beyond zero scales and codes.
    if dirty and file.own:
        problems.append(f"has {dirty} values other than zero in its padding")
    return [f"the tensor {show(name)} {problem}" for problem in problems]
