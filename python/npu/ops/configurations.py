"""The configurations that come with the package: which they are, and a folder of them as files.

A program without Python finds them there (backend/runtime/configuration_store.h). The folder has
one file per configuration and ``index.txt``: a line of magic, one line per use of a file

    OPERATION GENERATION FILE SOURCE CRC32 key=value ...

and ``end COUNT``. SOURCE is the hash of the design and the kernels, CRC32 that of the file. What
follows is for those who choose: the tile and more of gemm (backend/ops/gemm/gemm_design.h), the
format of dequant, small=1 where blocks of weights have 4608 bytes. One file may have several uses.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from npu.designs import dequant, gemm, gemm_catalogue
from npu.designs.api import Design
from npu.errors import ArgumentError, DesignError
from npu.ops.gemm_designs import candidates, gemm_product_of
from npu.ops.gemm_product import Product
from npu.ops.registry import BLOCK_SIZES, Operation, operations

INDEX = "index.txt"
MAGIC = "npu-configurations 1"
GENERATIONS = ("npu1", "npu2")


@dataclasses.dataclass(frozen=True)
class Use:
    """What a configuration is for. ``key``: its file's name without the suffix."""

    operation: str
    generation: str
    key: str
    about: tuple[tuple[str, str], ...]
    make: Callable[[], bytes]
    design: Callable[[], Design]

    @property
    def file(self) -> str:
        return f"{self.key}.config"

    @property
    def for_emulation(self) -> bool:
        """Whether only emulated devices use it: a GEMM on a part of the array."""
        return "cores" in dict(self.about)


def uses() -> Iterator[Use]:
    """Every use of every configuration, in an order that depends on nothing but the designs."""
    for generation in GENERATIONS:
        for operation in operations().values():
            if operation.name == "gemm":
                yield from _gemm_uses(generation)
            else:
                yield from _plain_uses(operation, generation)


def _plain_uses(operation: Operation, generation: str) -> Iterator[Use]:
    """The default configuration, one for every other format of dequantisation, and those of
    products for small blocks."""
    key = f"{generation}-{operation.name}"
    yield Use(
        operation.name, generation, key, (), lambda: operation.configuration(generation),
        lambda: operation.design(generation),
    )  # fmt: skip
    for format in dequant.FORMATS[1:] if operation.name == "dequant" else ():
        yield Use(
            operation.name, generation, f"{key}-{format}", (("format", format),),
            functools.partial(operation.configuration, generation, format=format),
            functools.partial(operation.design, generation, format=format),
        )  # fmt: skip
    if operation.name in BLOCK_SIZES:
        yield Use(
            operation.name, generation, f"{key}-small", (("small", "1"),),
            functools.partial(operation.configuration, generation, small=True),
            functools.partial(operation.design, generation, small=True),
        )  # fmt: skip


def _gemm_uses(generation: str) -> Iterator[Use]:
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for product, prefers in itertools.product(_products(), ("array", "host")):
        for kernel in (None,) if prefers == "array" else gemm.KERNELS:
            try:
                found = candidates(generation, prefers, product, kernel)
            except DesignError:  # what a generation has not: bf16="bfp16", blocks
                continue
            for design in found:
                use = _gemm_use(design, prefers, product.layout)
                if (use.key, use.about) not in seen:
                    seen.add((use.key, use.about))
                    yield use


def _products() -> Iterator[Product]:
    """What is multiplied, each way that npu.matmul asks for."""
    for (a, c), layout, sums, bf16 in itertools.product(
        gemm.PAIRS, gemm_catalogue.VALUE_LAYOUTS, gemm.ACCUMULATE, gemm.BF16
    ):
        product = gemm_product_of(a, c, layout, sums, bf16)
        if product.accumulate == sums:
            yield product
    for (a, c), sums in itertools.product(gemm.BLOCK_PAIRS, gemm.BLOCK_ACCUMULATE):
        product = gemm_product_of(a, c, "blocks", sums)
        if product.accumulate == sums and (sums != "bfloat16" or c == gemm.BFP16):
            yield product


def _gemm_use(o: gemm.DesignPoint, prefers: str, layout: str) -> Use:
    about = {
        "prefers": prefers, "layout": layout, "a": o.a_dtype, "c": o.c_dtype,
        "accumulate": o.accumulate, "bf16": o.bf16, "kernel": o.kernel,
        "tile": "x".join(map(str, o.tile)), "k_mt": str(o.k_mt), "b_layout": o.b_layout,
        "c_buffers": str(o.c_buffers), "a_parts": str(o.a_parts), "b_pairs": str(int(o.b_pairs)),
    }  # fmt: skip
    if not o.whole:
        about["cores"] = f"{o.rows}x{o.columns}"
    return Use(
        "gemm", o.generation, o.key, tuple(about.items()), lambda: gemm.configuration_of(o),
        lambda: gemm.design_of(o),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Written:
    """What ``write_all`` wrote."""

    files: int
    uses: int
    bytes: int


def write_all(folder: str | Path) -> Written:
    """Writes every configuration and the index to a folder, which is made or replaced whole.

    The same designs give the same bytes. Raises ArgumentError for a path that is something else
    than a folder of configurations or an empty one, or that cannot be written.
    """
    try:
        target = Path(folder).resolve()
        if target.exists() and not (target / INDEX).is_file() and any(target.iterdir()):
            raise ArgumentError(
                f"[compile] {target} has other files than configurations; name a new folder"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as made:
            new, old = Path(made) / "new", Path(made) / "old"
            new.mkdir()
            written = _write(new)
            if target.exists():
                target.rename(old)
            new.rename(target)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(
            f"[compile] {folder}: {getattr(error, 'strerror', None) or error}"
        ) from error
    return written


def _write(folder: Path) -> Written:
    sources: dict[str, str] = {}
    lines, total = [MAGIC], 0
    for use in uses():
        if use.file not in sources:
            data = use.make()
            (folder / use.file).write_bytes(data)
            sources[use.file] = f"{source_of(data)} {zlib.crc32(data):08x}"
            total += len(data)
        about = [f"{name}={value}" for name, value in use.about]
        lines.append(" ".join([use.operation, use.generation, use.file, sources[use.file], *about]))
    lines.append(f"end {len(lines) - 1}")
    (folder / INDEX).write_text("\n".join(lines) + "\n")
    return Written(len(sources), len(lines) - 2, total)


def source_of(data: bytes) -> str:
    """The hash of the design and the kernels, from the head of a serialised configuration."""
    for line in data.split(b"\n", 4)[:4]:
        if line.startswith(b"source "):
            return line[7:].decode()
    raise ArgumentError("[compile] a configuration without a source line")
