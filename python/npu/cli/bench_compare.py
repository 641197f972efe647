"""`npu bench --compare A.json B.json`: the figures of two runs side by side, with their ratios.

Rows are matched by what they measured. Files of different benchmarks, kinds of time or models are
refused unless asked for.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from typing import Any

from npu.cli import bench_gemm_files as files
from npu.errors import ArgumentError, FormatError

# What tells rows of a benchmark apart, in the order in which it is shown.
_KEYS = (
    "device", "model", "projection", "operation", "example", "request", "test", "context",
    "prompt_tokens", "generated_tokens", "decode_steps", "depth", "threads", "dtype_in",
    "dtype_out", "accumulate", "bf16", "b_layout", "tile_m", "tile_k", "tile_n", "k_mt", "size",
    "M", "K", "N", "n", "k",
)  # fmt: skip
# Found by the run, not asked for.
_OUTCOMES = {"gemm --designs": {"tile_m", "tile_k", "tile_n", "k_mt"}}
_IN_TEST = {"prompt_tokens", "generated_tokens", "depth"}  # which the name of a test has in it
# Endings of figures: whether more is better.
_FIGURES = {
    "tokens_per_second": True, "tokens_per_s": True, "tops": True, "gflops": True,
    "gb_per_s": True, "seconds": False, "_ms": False, "_us": False,
}  # fmt: skip
_MUST_AGREE = {"benchmark": "benchmarks", "times": "kinds of time", "model": "models"}
_MAY_DIFFER = (
    "version",
    "commit",
    "device",
    "machine",
    "kernels",
    "arithmetic",
    "host_cpu",
    "host_cpus",
)
_MAX_BYTES = 1 << 28


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs=2, metavar="FILE.json", help="what --json wrote: A, then B")
    parser.add_argument(
        "--different", action="store_true",
        help="compare although benchmark, kind of time or model differ",
    )  # fmt: skip
    parser.add_argument(
        "--fail-over", type=float, metavar="PERCENT",
        help="exit code 1 if a figure of B is worse than A's by more than so much",
    )  # fmt: skip


@dataclass(frozen=True)
class _Figure:
    """One figure of one row, in both files. ``ratio`` is B / A."""

    row: str
    name: str
    a: float
    b: float
    more_is_better: bool

    @property
    def ratio(self) -> float:
        return self.b / self.a

    @property
    def loss(self) -> float:
        """Percent by which B is worse than A; negative: better."""
        return 100 * ((1 - self.ratio) if self.more_is_better else (self.ratio - 1))


def run(arguments: argparse.Namespace) -> int:
    with files.opened(json_path=arguments.json) as outputs:
        names = arguments.files
        a, b = (_read(name) for name in names)
        facts = [_facts(document) for document in (a, b)]
        if not arguments.different:
            _check_alike(names, *facts)
        rows = [_rows(document) for document in (a, b)]
        figures = _figures(*rows)
        if not figures:
            raise ArgumentError(f"[bench] {names[0]} and {names[1]} have no row in common")
        alone = [sorted(set(rows[i]) - set(rows[1 - i])) for i in range(2)]
        differ = {
            key: [fact[key] for fact in facts]
            for key in (*_MUST_AGREE, *_MAY_DIFFER)
            if facts[0][key] != facts[1][key]
        }
        if outputs:
            outputs["json"].write(files.plain_json_bytes(_document(names, differ, figures, alone)))
    if arguments.json != files.STDOUT:
        _print(names, facts, differ, figures, alone)
    limit = arguments.fail_over
    return int(limit is not None and any(figure.loss > limit for figure in figures))


def _read(name: str) -> dict[str, Any]:
    """A document of `npu bench`. Raises ArgumentError, FormatError."""
    try:
        if os.path.getsize(name) > _MAX_BYTES:
            raise FormatError(f"[bench] {name}: too large for figures of npu bench --json")
        with open(name, "rb") as file:
            document = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        if isinstance(error, OSError):
            raise ArgumentError(f"[bench] cannot read {name}: {error.strerror or error}") from None
        raise FormatError(f"[bench] {name}: no JSON; name a file of npu bench --json") from None
    if not isinstance(document, dict) or not isinstance(document.get("stamp"), dict):
        raise FormatError(f"[bench] {name}: it has no stamp; name a file of npu bench --json")
    return document


def _facts(document: dict[str, Any]) -> dict[str, Any]:
    return {
        key: document["stamp"].get(key) for key in (*_MUST_AGREE, *_MAY_DIFFER) if key != "times"
    } | {"times": document.get("times")}


def _check_alike(names: list[str], a: dict[str, Any], b: dict[str, Any]) -> None:
    for key, what in _MUST_AGREE.items():
        if a[key] != b[key]:
            raise ArgumentError(
                f"[bench] the two files are of different {what}: {a[key]} in {names[0]}, {b[key]} "
                f"in {names[1]}; --different compares them all the same"
            )


def _rows(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Rows by what they measured; the second of two alike has "#2" behind it, and so on."""
    found: dict[str, dict[str, Any]] = {}
    outcomes = _OUTCOMES.get(str(document["stamp"].get("benchmark")), set())
    for row in _all_rows(document):
        left_out = outcomes | (_IN_TEST if "test" in row else set())
        key = ", ".join(
            f"{name} {_text(row[name])}" for name in _KEYS if name in row and name not in left_out
        )
        number = 1
        while (name := key if number == 1 else f"{key} #{number}") in found:
            number += 1
        found[name] = row
    return found


def _all_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    lists = [document.get("results"), document.get("rows")]
    found = [row for rows in lists if isinstance(rows, list) for row in rows]
    sweeps = document.get("sweeps")
    for sweep in sweeps if isinstance(sweeps, list) else []:
        if isinstance(sweep, dict) and isinstance(sweep.get("rows"), list):
            head = {name: value for name, value in sweep.items() if name in _KEYS}
            found += [head | row for row in sweep["rows"] if isinstance(row, dict)]
    return [row for row in found if isinstance(row, dict)]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "x".join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{name}={inner}" for name, inner in value.items())
    return str(value)


def _figures(a: dict[str, dict[str, Any]], b: dict[str, dict[str, Any]]) -> list[_Figure]:
    found = []
    for row, ours in a.items():
        theirs = b.get(row, {})
        for name in ours:
            more = next((m for end, m in _FIGURES.items() if name.endswith(end)), None)
            x, y = _number(ours[name]), _number(theirs.get(name))
            if more is not None and x and y:
                found.append(_Figure(row, name, x, y, more))
    return found


def _number(value: Any) -> float | None:
    """A figure, or the median of repeated measurements; None for anything else."""
    if isinstance(value, dict):
        value = value.get("median")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def _document(
    names: list[str], differ: dict[str, Any], figures: list[_Figure], alone: list[list[str]]
) -> dict[str, Any]:
    rows = [
        {"row": f.row, "figure": f.name, "a": f.a, "b": f.b, "ratio": f.ratio, "loss": f.loss}
        for f in figures
    ]
    return {"files": names, "different": differ, "rows": rows, "only_in_a": alone[0],
            "only_in_b": alone[1]}  # fmt: skip


def _print(
    names: list[str], facts: list[dict[str, Any]], differ: dict[str, Any],
    figures: list[_Figure], alone: list[list[str]],
) -> None:  # fmt: skip
    print(f"A: {names[0]}, B: {names[1]}; {facts[0]['times'] or 'time of unknown kind'}")
    for key, (a, b) in differ.items():
        print(f"{key.replace('_', ' ')}: {a} in A, {b} in B")
    width = max(len(f.row) for f in figures)
    name_width = max(len(f.name) for f in figures)
    print(f"{'':{width}}  {'':{name_width}}  {'A':>12}  {'B':>12}  {'B / A':>7}")
    for f in figures:
        word = "better" if f.loss < 0 else "worse" if f.loss > 0 else ""
        print(
            f"{f.row:{width}}  {f.name:{name_width}}  {f.a:12.5g}  {f.b:12.5g}  {f.ratio:7.3f}  "
            f"{word}".rstrip()
        )
    for letter, rows in zip("AB", alone, strict=True):
        if rows:
            print(f"only in {letter}: {'; '.join(rows)}")
