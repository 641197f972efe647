"""The tables of `npu bench --simulated`, and the same figures as a document."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npu.perf.batch_simulation import SimulatedBatch
    from npu.perf.decode_simulation import SimulatedDecode
    from npu.perf.prefill_simulation import SimulatedPrefill

    # Of tokens and, unless the note says why there are none, of prompts.
    Rows = tuple[list[SimulatedDecode], list[SimulatedPrefill], str | None]

_TOKEN = {
    "weights": "weights", "kv": "KV", "products": "product", "attention": "attent.",
    "small operations": "small", "command processor": "command", "waiting": "waiting",
    "dispatch": "dispatch",
}  # fmt: skip
_PROMPT = {
    "weights": "weight", "kv": "KV", "activations": "activ.", "products": "prod.",
    "attention": "attent", "rows": "rows", "command processor": "comm.", "waiting": "wait",
    "head": "head", "dispatch": "disp.", "configuration loads": "loads",
}  # fmt: skip
_TOKEN_LEGEND = (
    "Simulated, no hardware involved: one token with its largest logits, everything on the array. "
    "weights, KV: bytes / read ceiling. The rest is time in which memory was not at its ceiling "
    "while weights were multiplied (product), attention or the vector core ran (small: norms, "
    "rotation, GeGLU), the command processor worked, or nothing did (waiting); docs/decoder.md."
)
_BATCH_LEGEND = (
    "Simulated: a step gives every sequence its next token; tok/s of all together, and how often "
    "that is the rate of one sequence. Parts of the time as of prompts, the head among them; "
    "docs/prefill.md."
)
_PROMPT_LEGEND = (
    "Simulated: time to first token (TTFT) of a prompt of so many tokens, in chunks of 2048, with "
    "its largest logits. weight, KV, activ. (activations): the memory's share of the time, bytes / "
    "read ceiling. The rest is time in which cores multiplied (prod.), attention or rows (norms, "
    "rotation, GeGLU) ran, the command processor worked (comm.), or nothing did (wait); then the "
    "head, the submissions' dispatch and loads of configurations; docs/prefill.md."
)


def document(
    device: str,
    rows: Sequence[SimulatedDecode],
    prompts: Sequence[SimulatedPrefill],
    note: str | None,
    batches: Sequence[SimulatedBatch] = (),
) -> dict[str, Any]:
    """What ``--json`` writes."""
    from npu.perf import published_decode

    known = device == published_decode.DEVICE
    rates = published_decode.curves(rows[0].shape) if known else {}
    times = published_decode.prompts(rows[0].shape) if known else {}
    results: list[dict[str, Any]] = [
        {
            "context": row.context,
            "ttft_seconds": None,
            "decode_tokens_per_second": row.tokens_per_second,
            "seconds_per_token": row.seconds,
            "split_seconds": row.split,
            "bound": row.bound,
            "weight_bytes": row.weight_bytes,
            "kv_bytes": row.kv_bytes,
            "published": _beside(rates, row.context, "tokens_per_second", row.tokens_per_second),
        }
        for row in rows
    ]
    for result, prompt in zip(results, prompts, strict=False):
        result |= {
            "ttft_seconds": prompt.seconds,
            "ttft_split_seconds": prompt.split,
            "ttft_bound": prompt.bound,
            "ttft_bytes": prompt.bytes,
            "ttft_chunks": prompt.chunks,
            "ttft_configuration_loads": prompt.configuration_loads,
            "ttft_published": _beside(times, prompt.tokens, "seconds", prompt.seconds),
        }
    for result, batch in zip(results, batches, strict=False):
        result["batch"] = {
            "sequences": batch.sequences,
            "tokens_per_second": batch.tokens_per_second,
            "seconds_per_step": batch.seconds,
            "head_seconds": batch.head,
            "split_seconds": batch.split,
            "bound": batch.bound,
            "bytes": batch.bytes,
        }
    return {
        "device": device,
        "machine": rows[0].machine,
        "kernels": rows[0].kernels,
        "times": "simulated",
        "shape": rows[0].shape,
        "read_ceiling_bytes_per_second": rows[0].ceiling,
        "ttft_note": note,
        "results": results,
    }


def _beside(
    curves: Mapping[str, Mapping[int, float]], at: int, name: str, value: float
) -> list[dict[str, Any]]:
    """What is published for this context; ratio: simulated / published."""
    return [
        {"source": source, name: curve[at], "ratio": value / curve[at]}
        for source, curve in curves.items()
        if at in curve
    ]


def show(
    document: Mapping[str, Any],
    rows: Sequence[SimulatedDecode],
    prompts: Sequence[SimulatedPrefill],
) -> None:
    """Prints both tables, at most 100 columns wide."""
    ceiling = document["read_ceiling_bytes_per_second"] / 1e9
    _wrapped(
        f"{document['shape']} on {document['device']}, simulated; machine {document['machine']}, "
        f"kernels: {document['kernels']}; reads up to {ceiling:g} GB/s"
    )
    print()
    print(f"Decode: {rows[0].weight_bytes / 1e6:.0f} MB of weights per token")
    _wrapped(_TOKEN_LEGEND)
    print(f"{'':>7} {'':>7} {'ms':>8}  of these ms:")
    head = "".join(f"{name:>9}" for name in _TOKEN.values())
    print(f"{'context':>7} {'tok/s':>7} {'/ token':>8}{head}")
    for row in rows:
        parts = "".join(f"{row.split[name] * 1e3:>9.2f}" for name in _TOKEN)
        print(f"{row.context:>7} {row.tokens_per_second:>7.1f} {row.seconds * 1e3:>8.2f}{parts}")
    print(f"largest part: {_in_turn([row.bound for row in rows])}")
    _published(document, "published", "tokens_per_second", "{:.1f} tok/s")
    print()
    print("Prompts")
    if not prompts:
        return _wrapped(f"ttft_seconds is {document['ttft_note']}")
    _wrapped(_PROMPT_LEGEND)
    print(f"{'':>7} {'TTFT':>8}  of it, %:")
    head = "".join(f"{name:>7}" for name in _PROMPT.values())
    print(f"{'tokens':>7} {'seconds':>8}{head}")
    for prompt in prompts:
        share = (100 * prompt.split[name] / prompt.seconds for name in _PROMPT)
        parts = "".join(f"{value:>7.1f}" for value in share)
        print(f"{prompt.tokens:>7} {prompt.seconds:>8.3f}{parts}")
    print(f"binds most of the time: {_in_turn([prompt.bound for prompt in prompts])}")
    _published(document, "ttft_published", "seconds", "{:.2f} s", rates=True)


def show_batches(rows: Sequence[SimulatedDecode], batches: Sequence[SimulatedBatch]) -> None:
    """Prints the table of batches, if there are any."""
    if not batches:
        return
    names = {name: head for name, head in _PROMPT.items() if name in batches[0].split}
    print(f"\nBatches of {batches[0].sequences} sequences")
    _wrapped(_BATCH_LEGEND)
    print(f"{'':>7} {'':>7} {'ms':>8} {'':>6}  of it, %:")
    head = "".join(f"{name:>7}" for name in names.values())
    print(f"{'context':>7} {'tok/s':>7} {'/ step':>8} {'rate':>6}{head}")
    for row, batch in zip(rows, batches, strict=True):
        ratio = batch.tokens_per_second / row.tokens_per_second
        share = (100 * batch.split[name] / batch.seconds for name in names)
        parts = "".join(f"{value:>7.1f}" for value in share)
        print(
            f"{batch.context:>7} {batch.tokens_per_second:>7.1f} {batch.seconds * 1e3:>8.2f} "
            f"{ratio:>5.2f}x{parts}"
        )
    print(f"binds most of the time: {_in_turn([batch.bound for batch in batches])}")


def _published(
    document: Mapping[str, Any], key: str, name: str, form: str, rates: bool = False
) -> None:
    found = [(row["context"], row[key]) for row in document["results"] if row[key]]
    if found:
        what = "published (measured on hardware" + (
            "; FastFlowLM: tokens / its rate)" if rates else ")"
        )
        print(f"{what}, and simulated / published:")
    for context, figures in found:
        texts = [
            f"{one['source']}: {form.format(one[name])}, {one['ratio']:.2f}x" for one in figures
        ]
        print(f"{context:>7}  {';  '.join(texts)}")


def _in_turn(names: Sequence[str]) -> str:
    return ", then ".join(dict.fromkeys(names))


def _wrapped(text: str) -> None:
    print("\n".join(textwrap.wrap(text, 100)))
