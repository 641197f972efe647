"""`npu q4nx info|verify|diff`: the contents of a Q4NX file, a check, errors against its source."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from npu.cli.progress import aside, reported

HELP = "inspect, check or compare Q4NX files"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    info = actions.add_parser("info", help="header, dialect, shapes, sizes, bits per weight")
    verify = actions.add_parser("verify", help="check all that generating needs, and checksums")
    compare = actions.add_parser("diff", help="errors of every tensor against the source")
    compare.add_argument("source", help="the model it was made from: GGUF file or folder")
    for action in (info, verify, compare):
        action.add_argument("file", help="Q4NX file")
        action.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from npu.formats.q4nx.container import Q4nxFile

    file = Q4nxFile(arguments.file)
    actions = {"info": _info, "verify": _verify, "diff": _diff}
    return actions[arguments.action](file, arguments)


def _info(file: Any, arguments: argparse.Namespace) -> int:
    from npu.models.report import describe

    document = describe(file)
    if arguments.json:
        print(json.dumps(document, indent=2))
        return 0
    print(f"{document['file']}: {document['bytes'] / 1e6:.1f} MB of tensors", end="")
    print(f", header of {document['header_bytes']} bytes, written by {document['written_by']}")
    rule = "m + d * code" if document["dialect"] == "additive" else "d * (code - z)"
    print(f"dialect: {document['header_dialect']} ({document['dialect']}, w = {rule})")
    for key in ("architecture", "name", "source", "checksums"):
        if document[key]:
            print(f"{key}: {_printable(document[key])}")
    if document["quantised_weights"]:
        print(
            f"{document['quantised_weights']} weights in blocks, "
            f"{document['bits_per_weight']:.3f} bits each"
        )
    for row in document["tensors"]:
        shape = row["shape"] or f"{row['stored_shape']} stored, logical shape not in the file"
        bits = row["bits_per_weight"]
        end = f"  {bits:.3f} bits" if bits else ""
        name = _printable(row["name"])
        print(f"  {name:<52} {row['type']:<5} {shape!s:<16} {row['bytes']:>12} bytes{end}")
    return 0


def _printable(value: Any) -> str:
    """A string of an untrusted file as it is, unless a terminal would act on it."""
    text = str(value)
    return text if text.isprintable() else repr(text)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _verify(file: Any, arguments: argparse.Namespace) -> int:
    from npu.models.report import verify

    with reported("checking") as report:
        problems = verify(file, report)
    if arguments.json:
        document = {
            "file": file.path,
            "good": not problems,
            "checksums": file.checksums,
            "problems": problems,
        }
        print(json.dumps(document, indent=2))
    elif problems:
        print("\n".join(problems))
    else:
        sums = f"{file.checksums} of all tensors" if file.checksums else "no checksums in the file"
        contents = f"{len(file.entries)} tensors, dialect {file.header_dialect}, {sums}"
        print(f"{file.path}: good ({contents})")
    return 1 if problems else 0


def _diff(file: Any, arguments: argparse.Namespace) -> int:
    from npu.models.report import diff, differences
    from npu.models.sources import Q4nxSource, open_source

    source, target = open_source(arguments.source), Q4nxSource(file)
    if arguments.json:
        with reported("comparing") as report:
            rows = diff(source, target, report)
        tensors = [{key: _finite(value) for key, value in row.items()} for row in rows]
        document = {"source": arguments.source, "file": file.path, "tensors": tensors}
        print(json.dumps(document, indent=2, allow_nan=False))
        return 0
    title = f"{'tensor':<52} {'types':<13} {'max':>10} {'rms':>10} {'relative':>9} {'cosine':>9}"
    with reported("comparing") as report:
        for row in differences(source, target, report):
            types = f"{row['source_type']}->{row['type']}"
            with aside():
                if title:
                    print(title)
                    title = ""
                print(
                    f"{row['name']:<52} {types:<13} {row['max']:>10.3g} {row['rms']:>10.3g} "
                    f"{row['relative_rms']:>9.2%} {row['cosine']:>9.6f}",
                    flush=True,
                )
    return 0
