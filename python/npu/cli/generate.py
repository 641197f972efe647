"""`npu generate`: streams a model's answer to stdout, settings and timings to stderr; or the
answers to many prompts, as text or JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from npu.cli import common, generate_options, progress, prompts

if TYPE_CHECKING:
    from npu import Device
    from npu.models.gemma3 import Generation, Model
    from npu.models.gemma3.header import Header
    from npu.models.kv_cache import Cache
    from npu.models.sampling_settings import Settings

HELP = "generate text with a Gemma 3 model (GGUF or Q4NX)"
add_arguments = generate_options.add_arguments
REASONS = {
    "end": "the model ended its turn",
    "stop": "stop string",
    "length": "--max-tokens reached",
    "context": "context full",
}


@dataclasses.dataclass
class _Job:
    """A prompt on its way: its tokens, or why it cannot run."""

    number: int
    prompt: prompts.Prompt
    tokens: list[int] = dataclasses.field(default_factory=list)
    error: str | None = None


def run(arguments: argparse.Namespace) -> int:
    # What the command line and the file's header decide fails before a large model is read.
    generate_options.check(arguments)
    _check_cache(arguments)
    _check_batch(arguments)
    jobs = [_Job(number, prompt) for number, prompt in enumerate(prompts.read(arguments), 1)]
    with generate_options.opened(arguments, "generate") as (device, header, settings):
        for job in jobs:
            _encode(job, header, arguments)
        model = None
        if not all(job.error for job in jobs):
            model = common.load_model(
                header, arguments.weights, cache=not arguments.no_cache, quiet=arguments.quiet
            )
            if not arguments.quiet:
                _note(f"model: {header.path}; {common.device_line(device)}")
                _note(generate_options.sampling_line(settings, arguments.seed))
        _Run(arguments, settings, device, header, model).all(jobs)
    return 1 if any(job.error for job in jobs) else 0


def _check_cache(arguments: argparse.Namespace) -> None:
    """Raises ArgumentError where --cache has no meaning or no file can be written."""
    from npu.errors import ArgumentError
    from npu.formats.atomic_file import check_writable

    if arguments.cache is None:
        return
    if arguments.prompts is not None:
        raise ArgumentError(
            "[generate] --cache does not apply to --prompts, whose prompts have nothing to do with "
            "one another; leave out --cache"
        )
    check_writable(arguments.cache, "generate")


def _check_batch(arguments: argparse.Namespace) -> None:
    """Raises ArgumentError where --batch has no meaning."""
    from npu.errors import ArgumentError
    from npu.models.interface import MOST_SEQUENCES

    if arguments.batch > 1 and arguments.prompts is None:
        raise ArgumentError(
            "[generate] --batch applies to --prompts, one prompt was given; leave out --batch"
        )
    if arguments.batch > MOST_SEQUENCES:
        raise ArgumentError(
            f"[generate] a batch of {arguments.batch} was asked for, it has 1 to "
            f"{MOST_SEQUENCES}; more prompts follow as others end"
        )


def _encode(job: _Job, header: Header, arguments: argparse.Namespace) -> None:
    """The tokens of a prompt; among several prompts, an error is kept for its turn."""
    from npu.errors import NpuError

    try:
        text, tokenizer = job.prompt.text, header.tokenizer
        if not arguments.raw:
            messages = [{"role": "user", "content": text}]
            if job.prompt.system:
                messages.insert(0, {"role": "system", "content": job.prompt.system})
            text = tokenizer.render_chat(messages)
        job.tokens = tokenizer.encode(text)
        header.check_prompt(job.tokens, arguments.context)
    except NpuError as error:
        if arguments.prompts is None:
            raise
        job.error = str(error)


@dataclasses.dataclass
class _Run:
    """What all prompts of a run share."""

    arguments: argparse.Namespace
    settings: Settings
    device: Device
    header: Header
    model: Model | None

    def all(self, jobs: list[_Job]) -> None:
        from npu.errors import NpuError

        if self.arguments.batch > 1 and any(not job.error for job in jobs):
            return self._batched(jobs)
        for job in jobs:
            if not job.error:
                try:
                    self._one(job)
                except NpuError as error:
                    if self.arguments.prompts is None:
                        raise
                    job.error = str(error)
            self._end(job, job is jobs[-1])

    def _end(self, job: _Job, last: bool) -> None:
        """Says why a prompt failed, or separates its answer from the next one."""
        if job.error and self.arguments.json:
            _print_json({"index": job.number, "prompt": job.prompt.text, "error": job.error})
        elif job.error:
            _note(f"npu: error: prompt {job.number}: {' '.join(job.error.split())}")
        elif not last and not self.arguments.json:
            print(flush=True)

    def _batched(self, jobs: list[_Job]) -> None:
        """Several prompts at a time; each answer is printed when it and those before it are
        complete."""
        from npu.models.gemma3 import BatchGeneration

        assert self.model is not None
        if not self.model.batches_on_array and not self.arguments.quiet:
            _note("the array does not run batches of this model: tokens are computed one by one")
        sound = [job for job in jobs if not job.error]
        batch = BatchGeneration([self._generation(job) for job in sound], self.arguments.batch)
        answers = [""] * len(sound)
        places = {job.number: index for index, job in enumerate(sound)}
        printed = 0

        def print_complete() -> None:
            nonlocal printed
            while printed < len(jobs):
                job = jobs[printed]
                index = places.get(job.number)
                if index is not None and index not in batch.ended:
                    return
                if index in batch.errors:
                    job.error = str(batch.errors[index])
                with progress.aside():
                    if not job.error and index is not None:
                        self._print(job, batch.generations[index], answers[index])
                    self._end(job, job is jobs[-1])
                printed += 1

        with progress.shown(
            "prompts", "answered", lambda: (printed, len(jobs)), quiet=self.arguments.quiet
        ):
            for index, text in batch:
                answers[index] += text
                print_complete()
            print_complete()

    def _print(self, job: _Job, generation: Generation, answer: str) -> None:
        if self.arguments.json:
            _print_json(self._document(job, generation, answer))
        else:
            print(_printable(answer), flush=True)
        if not self.arguments.quiet:
            report(generation, self.device, f"prompt {job.number}: ")

    def _generation(self, job: _Job, cache: Cache | None = None) -> Generation:
        """With a sampler of its own: the answer is that of a run with this prompt alone."""
        from npu.models.gemma3 import Generation

        assert self.model is not None
        return Generation(
            self.model,
            self.header.tokenizer,
            job.tokens,
            self.settings.sampler(self.arguments.seed),
            max_tokens=self.arguments.max_tokens or sys.maxsize,
            stop=self.arguments.stop,
            context=self.arguments.context,
            cache=cache,
        )

    def _one(self, job: _Job) -> None:
        cache = self._cache()
        generation = self._generation(job, cache)
        if self.arguments.json:
            self._collect(job, generation)
        else:
            stream(generation, self.arguments.quiet)
        if not self.arguments.quiet:
            prefix = "" if self.arguments.prompts is None else f"prompt {job.number}: "
            report(generation, self.device, prefix)
        if cache is not None:
            cache.save(self.arguments.cache)

    def _cache(self) -> Cache | None:
        """The cache of --cache: what its file holds, empty if there is no file yet."""
        from npu.errors import ArgumentError

        if self.arguments.cache is None:
            return None
        assert self.model is not None
        cache = self.model.new_cache(self.arguments.context)
        if os.path.exists(self.arguments.cache) and cache.load(self.arguments.cache):
            raise ArgumentError(
                f"[generate] --cache {self.arguments.cache} is a conversation that npu chat has "
                "saved, which would be lost; name another file"
            )
        return cache

    def _collect(self, job: _Job, generation: Generation) -> None:
        room = self.arguments.context or self.header.config.context
        most = min(len(job.tokens) + (self.arguments.max_tokens or room), room)
        with progress.shown(
            f"prompt {job.number}", "tokens at most", lambda: (generation.position, most),
            quiet=self.arguments.quiet,
        ):  # fmt: skip
            answer = "".join(generation)
        _print_json(self._document(job, generation, answer))

    def _document(self, job: _Job, generation: Generation, answer: str) -> dict[str, Any]:
        timings = generation.timings
        return {
            "index": job.number,
            "prompt": job.prompt.text,
            "answer": answer,
            "finish_reason": generation.finish_reason,
            "prompt_tokens": timings.prompt_tokens,
            "reused_tokens": timings.reused_tokens,
            "generated_tokens": timings.generated_tokens,
            "ttft_ms": 1e3 * timings.first_token,
            "prefill_tokens_per_s": timings.prefill_rate,
            "decode_tokens_per_s": timings.decode_rate,
            "times": common.time_label(self.device),
            "sampling": self.settings.values,
            "seed": None if self.settings.greedy else self.arguments.seed,
        }


def stream(generation: Generation, quiet: bool, shown: list[str] | None = None) -> None:
    """Prints the text as it comes, and a newline behind it; ``shown`` gets its pieces."""
    started = False
    texts = iter(generation)
    try:
        with progress.shown(
            "prefill", "tokens", lambda: (generation.position, len(generation.prompt)), quiet=quiet
        ):
            text = next(texts, None)
        while text is not None:
            started = True
            if shown is not None:
                shown.append(text)
            print(_printable(text), end="", flush=True)
            text = next(texts, None)
    finally:
        if started:
            print(flush=True)


def _printable(text: str) -> str:
    """A terminal of another encoding shows `?` instead of failing in the middle of an answer."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def report(generation: Generation, device: Device, prefix: str = "") -> None:
    """Counts and times of a finished generation on standard error."""
    timings = generation.timings
    decode = (
        f"decode {timings.decode_rate:.1f} tok/s ({timings.decode_steps} steps)"
        if timings.decode_steps
        else "decode: no step after the first token"
    )
    reused = f" ({timings.reused_tokens} reused)" if timings.reused_tokens else ""
    _note(
        f"{prefix}{timings.prompt_tokens} prompt tokens{reused}, {timings.generated_tokens} "
        f"generated ({REASONS[generation.finish_reason]})"
    )
    _note(
        f"{prefix}TTFT {timings.first_token * 1e3:.1f} ms, prefill {timings.prefill_rate:.1f} "
        f"tok/s, {decode} [{common.time_label(device)}]"
    )


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def _note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
