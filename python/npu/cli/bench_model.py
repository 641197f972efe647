"""`npu bench -m MODEL`: what loading a model takes in time and memory, and its speed on this
machine: prompts, generation, or both, per length, depth and number of threads."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from npu import memory
from npu.cli import bench_against, bench_runs, common
from npu.cli import bench_gemm_files as files

if TYPE_CHECKING:
    from npu import Device
    from npu.models.gemma3 import Model
    from npu.models.gemma3.header import Header

_SEED = 0
_CONTEXTS, _STEPS = [16, 64, 256], 16
_PROMPTS, _GENERATED = [512], [128]  # llama-bench's defaults


def add_options(parser: argparse.ArgumentParser) -> None:
    common.add_model_arguments(parser)
    add = parser.add_argument
    add(
        "-r", "--repeats", "--repetitions", type=common.positive, default=5, metavar="N",
        help="measured runs, after one warm-up that is discarded (5)",
    )  # fmt: skip
    add(
        "--context", type=common.positives, metavar="N,N,...",
        help="prompt lengths, each followed by -n decode steps (16,64,256, if -p, -n, -d are not "
        "given)",
    )  # fmt: skip
    add(
        "-p", "--n-prompt", type=_counts, metavar="N,N,...",
        help="prompts alone of these lengths, as llama-bench's pp (512; 0: none)",
    )  # fmt: skip
    add(
        "-n", "--n-gen", "--tokens", type=_counts, metavar="N,N,...",
        help="generation alone of so many tokens, as llama-bench's tg (128; 0: none); with "
        "--context: decode steps (16)",
    )  # fmt: skip
    add(
        "-d", "--n-depth", type=_counts, metavar="N,N,...",
        help="tokens in the context before -p and -n, not timed (0)",
    )  # fmt: skip
    add(
        "-s", "--sequences", type=_sequence_counts, metavar="N,N,...",
        help="with -n: so many sequences at once, 1 to 8, a token of each per step (1)",
    )  # fmt: skip
    add(
        "--roof",
        action="store_true",
        help="beside -n: the rate at which weights are read, and that of a plain read of the same "
        "bytes on the same threads, in turn",
    )
    add(
        "--against",
        nargs="+",
        metavar="llama.cpp",
        help="the same tests by llama.cpp, in turn: llama.cpp, or llama.cpp PATH with the path of "
        "llama-bench (default: that in $PATH, else the Python module llama_cpp); numpy,torch: "
        "products of matrices, see `npu bench gemm --host`",
    )
    add("--against-model", metavar="FILE.gguf", help="with --against: what it reads (that of -m)")
    add(
        "-t", "--threads", type=_thread_counts, metavar="N,N,...",
        help="threads of this machine (default: $NPU_THREADS, else all CPUs)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    with files.opened(json_path=arguments.json) as outputs, common.use_device(arguments) as device:
        common.check_computes(device, "bench")
        header, model, loading = _load(arguments)
        rows, rival = _measure(arguments, header, model)
        document = _document(header, device, arguments, loading, rows, model)
        if rival:
            document |= {"against": rival}
        if outputs:
            outputs["json"].write(files.json_bytes("model", document, header.source.paths))
    if arguments.json != files.STDOUT:
        _print(document, device)
    return 0


def _load(arguments: argparse.Namespace) -> tuple[Header, Model, dict[str, float]]:
    """Loads the model; what that took: seconds, and the process's memory before and after it."""
    before = memory.private_bytes()
    begin = time.perf_counter()
    header = common.read_header(arguments.model)
    header.check_context(_longest(arguments))
    model = common.load_model(header, arguments.weights, cache=not arguments.no_cache, report=False)
    loading = {
        "seconds": time.perf_counter() - begin,
        "private_bytes_before": before,
        "private_bytes": memory.private_bytes(),
        "peak_resident_bytes": memory.peak_resident_bytes(),
    }
    return header, model, loading


def _counts(text: str) -> list[int]:
    """An argparse type: whole numbers >= 0, separated by commas."""
    return [0 if part.strip() == "0" else common.positive(part) for part in text.split(",")]


def _sequence_counts(text: str) -> list[int]:
    from npu.models.interface import MOST_SEQUENCES

    found = common.positives(text)
    if max(found) > MOST_SEQUENCES:
        raise argparse.ArgumentTypeError(f"{max(found)} is more than {MOST_SEQUENCES}")
    return found


def _thread_counts(text: str) -> list[int]:
    return [common.threads(part) for part in text.split(",")]


def _check(arguments: argparse.Namespace) -> None:
    """Fills in defaults. Raises ArgumentError for options that exclude each other."""
    from npu.errors import ArgumentError

    given = [arguments.n_prompt, arguments.n_gen, arguments.n_depth]
    beside = arguments.roof or arguments.against or arguments.sequences
    if arguments.context is None and given == [None, None, None] and not beside:
        arguments.context = _CONTEXTS
    if arguments.context is None:
        arguments.n_prompt = _PROMPTS if given[0] is None else given[0]
        arguments.n_gen = _GENERATED if given[1] is None else given[1]
        arguments.n_depth = [0] if given[2] is None else given[2]
        _check_against(arguments)
        if arguments.sequences and not any(arguments.n_gen):
            raise ArgumentError("[bench] --sequences is about generation; give -n")
        if arguments.roof and not any(arguments.n_gen):
            raise ArgumentError("[bench] --roof is about generation; give -n")
        if not _tests(arguments):
            raise ArgumentError("[bench] -p and -n are 0: nothing is measured; give one of them")
        return
    for name, value in (("--roof", arguments.roof), ("--against", arguments.against)):
        if value:
            raise ArgumentError(f"[bench] {name} does not apply to --context; give -p or -n")
    for option, value in (
        ("-p", arguments.n_prompt), ("-d", arguments.n_depth), ("-s", arguments.sequences)
    ):  # fmt: skip
        if value is not None:
            raise ArgumentError(
                f"[bench] {option} does not apply to --context, whose prompts are followed by "
                f"decoding; leave out {option} or --context"
            )
    arguments.n_gen = [_STEPS] if arguments.n_gen is None else arguments.n_gen
    if len(arguments.n_gen) != 1 or arguments.n_gen == [0]:
        raise ArgumentError("[bench] -n with --context is one number of decode steps, at least 1")


def _check_against(arguments: argparse.Namespace) -> None:
    from npu.errors import ArgumentError

    given = arguments.against
    if given is None:
        if arguments.against_model:
            raise ArgumentError("[bench] --against-model needs --against llama.cpp")
    elif given[0] != "llama.cpp" or len(given) > 2:
        raise ArgumentError(
            f"[bench] --against {' '.join(given)}: a model is compared with llama.cpp, or "
            "llama.cpp PATH; products of matrices with numpy, torch or both (numpy,torch)"
        )


def _longest(arguments: argparse.Namespace) -> int:
    """Positions that the longest run needs."""
    if arguments.context is not None:
        return int(max(arguments.context) + arguments.n_gen[0])
    return max(test.depth + test.tokens // test.sequences for test in _tests(arguments))


def _tests(arguments: argparse.Namespace) -> list[bench_runs.Test]:
    return bench_runs.tests(
        arguments.n_prompt, arguments.n_gen, arguments.n_depth, arguments.sequences or [1]
    )


def _measure(
    arguments: argparse.Namespace, header: Header, model: Model
) -> tuple[list[dict[str, Any]], dict[str, str] | None]:
    """A row per test and number of threads, and what they are compared with."""
    import numpy as np

    import npu

    size = min(len(header.tokenizer), header.config.vocabulary)
    words = np.random.default_rng(_SEED).integers(0, size, _longest(arguments))
    runner = bench_runs.Runner(
        model, words, size, arguments.repeats, header.tokenizer.bos_id, arguments.roof
    )
    rows, compared = [], None
    for count in arguments.threads or [None]:
        if count is not None:
            common.use_threads(count)
        with _rival(arguments, header) as (name, runner.rival):
            if name:
                compared = {"name": name, "model": arguments.against_model or header.path}
            label = "" if count is None else f", {count} threads"
            if arguments.context is not None:
                steps = arguments.n_gen[0]
                found = [runner.context(length, steps, label) for length in arguments.context]
            else:
                found = [runner.test(test, label) for test in _tests(arguments)]
        rows += [row | {"threads": npu.threads()} for row in found]
    return rows, compared


@contextlib.contextmanager
def _rival(
    arguments: argparse.Namespace, header: Header
) -> Iterator[tuple[str, bench_against.Rival | None]]:
    """What --against names, with the threads of now; ("", None) without it."""
    import npu

    if not arguments.against:
        yield "", None
        return
    path = arguments.against[1] if arguments.against[1:] else None
    file = arguments.against_model or header.path
    most = max(arguments.sequences or [1])
    with bench_against.llama_cpp(path, file, _longest(arguments), npu.threads(), most) as rival:
        yield rival


def _weights(model: Model, header: Header) -> Any:
    """The model's weight formats for the document."""
    from npu.models.gemma3.products import weight_types

    return {
        "stored": weight_types(header.source, header.config),
        "blocks": model.weights_report.lines(),
    }


def _document(
    header: Header,
    device: Device,
    arguments: argparse.Namespace,
    loading: dict[str, float],
    rows: list[dict[str, Any]],
    model: Model,
) -> dict[str, Any]:
    return {
        "model": header.path,
        "device": device.name,
        "emulated": device.emulated,
        "arithmetic": device.arithmetic,
        "times": common.time_label(device),
        "warm_up_runs": 1,
        "repeats": arguments.repeats,
        "loading": loading,
        "weights": _weights(model, header),
        "results": rows,
    }


def _print(document: dict[str, Any], device: Device) -> None:
    print(f"model: {document['model']}")
    print("\n".join(document["weights"]["blocks"]))
    print(common.device_line(device))
    loading, rows = document["loading"], document["results"]
    print(
        "loading: {seconds:.2f} s; private memory {after:.0f} MB after it, {before:.0f} MB before; "
        "peak resident {peak:.0f} MB, pages of the mapped file included".format(
            seconds=loading["seconds"],
            after=loading["private_bytes"] / 1e6,
            before=loading["private_bytes_before"] / 1e6,
            peak=loading["peak_resident_bytes"] / 1e6,
        )
    )
    print(
        f"{document['times']}; median [min, max] of {document['repeats']} runs after one warm-up",
        end="",
    )
    if "test" in rows[0]:
        print("; tokens of the depth are not timed")
        _table(rows, "test", {"tokens_per_s": "tok/s"})
        _print_against(document.get("against"), rows)
        _print_roof([row for row in rows if "weight_bytes" in row])
    else:
        print(f"; {rows[0]['decode_steps']} decode steps")
        columns = {
            "ttft_ms": "TTFT ms",
            "prefill_tokens_per_s": "prefill tok/s",
            "decode_tokens_per_s": "decode tok/s",
        }
        _table(rows, "prompt_tokens", columns)


def _print_against(rival: dict[str, str] | None, rows: list[dict[str, Any]]) -> None:
    if rival is None:
        return
    print(
        f"\n{rival['name']} with {rival['model']}, each run after one of ours; ratio: ours / theirs"
    )
    _table(rows, "test", {"rival_tokens_per_s": "their tok/s", "ratio": "ratio"}, digits=2)


def _print_roof(rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    megabytes = rows[0]["weight_bytes"] / 1e6
    print(f"\n{megabytes:.0f} MB of weights per token; GB/s that generation reads, and that plain")
    print("reads of the same bytes reach on the same threads, in turn; keys and values not counted")
    columns = {
        "weights_gb_per_s": "weights GB/s",
        "plain_gb_per_s": "plain read GB/s",
        "share_of_roof": "share",
    }
    _table(rows, "test", columns, digits=2)


def _table(
    rows: list[dict[str, Any]], first: str, columns: dict[str, str], digits: int = 1
) -> None:
    head = "test" if first == "test" else "context"
    print(f"{head:>14}  {'threads':>7}" + "".join(f"  {name:>28}" for name in columns.values()))
    for row in rows:
        cells = [
            "{median:.{n}f} [{min:.{n}f}, {max:.{n}f}]".format(n=digits, **row[name])
            for name in columns
        ]
        line = f"{row[first]:>14}  {row['threads']:>7}"
        print(line + "".join(f"  {cell:>28}" for cell in cells))
