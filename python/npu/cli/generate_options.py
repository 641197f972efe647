"""The options of `npu generate` and `npu chat`: ours, llama.cpp's spellings of the same, and those
of llama.cpp that are refused with the reason.

An option of llama.cpp is an alias where it means the same. It is accepted without effect only where
it asks for what always happens; what would change the answer is refused (docs/generate.md).
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from npu.cli import common

if TYPE_CHECKING:
    from npu import Device
    from npu.models.gemma3.header import Header
    from npu.models.sampling_settings import Settings

# Attributes of the command line -> arguments of npu.models.sampling.Sampler have the same names.
SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n",
    "presence_penalty", "frequency_penalty",
)  # fmt: skip
# What always happens.
_WITHOUT_EFFECT = (
    "-st", "--single-turn", "--no-display-prompt", "--no-escape", "--jinja", "--simple-io",
    "--no-warmup", "--no-context-shift", "--mmap",
)  # fmt: skip
_ORDER = "top-k, top-p and min-p apply in this order, after the temperature"
_NO_CONSTRAINT = "answers are not constrained"
_NO_SAMPLER = "this sampler does not exist here"
_CACHE = "the KV cache is bfloat16 in memory that the device reads"
_REFUSED = {
    ("-ngl", "--gpu-layers", "--n-gpu-layers"): "the products of all layers run on the NPU",
    ("-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first"): (
        "npu generate answers its prompts and ends; `npu chat` goes on"
    ),
    ("-r", "--reverse-prompt"): "use --stop TEXT, which does not print TEXT",
    ("-tb", "--threads-batch"): "prompt and answer have the same threads, -t N",
    ("-b", "--batch-size", "-ub", "--ubatch-size"): "prompts run in chunks of 2048 tokens",
    ("-ctk", "--cache-type-k", "-ctv", "--cache-type-v", "-nkvo", "--no-kv-offload"): _CACHE,
    ("-fa", "--flash-attn"): "attention has one implementation, which streams keys and values",
    ("--mlock", "--no-mmap"): "model files are mapped, not locked",
    ("--samplers", "--sampler-seq", "--sampling-seq"): _ORDER,
    ("--grammar", "--grammar-file", "-j", "--json-schema", "-jf", "--json-schema-file"): (
        _NO_CONSTRAINT
    ),
    ("-l", "--logit-bias", "--ignore-eos"): "logits are changed by penalties only",
    ("--typical", "--typical-p", "--mirostat", "--xtc-probability", "--dry-multiplier",
     "--dynatemp-range", "--top-nsigma", "--top-n-sigma"): _NO_SAMPLER,
    ("--lora", "--lora-scaled", "--control-vector"): "adapters are not applied",
    ("-hf", "-hfr", "--hf-repo", "-mu", "--model-url"): (
        "nothing is downloaded; `npu models` lists the models on this machine"
    ),
    ("--chat-template", "--chat-template-file", "--no-jinja"): (
        "the model's own chat template is used; --raw uses none"
    ),
    ("--display-prompt",): "the prompt is not printed",
    ("--context-shift", "--keep"): "an answer ends where the context is full",
    ("-co", "--color"): "output has no colours",
}  # fmt: skip


class _Refuse(argparse.Action):
    """An option whose presence is an error; ``const`` says why."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> NoReturn:
        parser.error(f"{option_string} of llama.cpp does not apply: {self.const}; leave it out")


class _Ignore(argparse.Action):
    """An option that asks for what always happens."""

    def __call__(self, *_: object) -> None:
        pass


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `npu generate`."""
    common.add_model_arguments(parser)
    _prompt_options(parser)
    add = parser.add_argument
    _answer_options(parser, max_tokens=256)
    add(
        "--cache", "--prompt-cache", metavar="FILE",
        help="KV cache: what FILE holds of the prompt is not run again; written at the end",
    )  # fmt: skip
    add(
        "--batch", type=common.positive, default=1, metavar="N",
        help="so many of --prompts at a time, 1 to 8 (1), on an NPU in one pass over the weights",
    )  # fmt: skip
    add("--json", action="store_true", help="one JSON object per prompt instead of text")
    _foreign_options(parser, _WITHOUT_EFFECT, _REFUSED)


def add_chat_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `npu chat`."""
    common.add_model_arguments(parser)
    _system_options(parser)
    _answer_options(parser, max_tokens=None)
    refused = {names: reason for names, reason in _REFUSED.items() if "-cnv" not in names}
    without = [name for name in _WITHOUT_EFFECT if name not in ("-st", "--single-turn")]
    conversation = ["-cnv", "--conversation", "-i", "--interactive"]
    refused[("-st", "--single-turn")] = "use npu generate for one answer"
    _foreign_options(parser, [*without, *conversation], refused)


def _answer_options(parser: argparse.ArgumentParser, max_tokens: int | None) -> None:
    add = parser.add_argument
    default = f"{max_tokens}" if max_tokens else "no limit"
    add(
        "-n",
        "--max-tokens",
        "--n-predict",
        "--predict",
        type=_max_tokens,
        default=max_tokens,
        metavar="N",
        help=f"at most N tokens ({default}); -1: until the context is full",
    )
    _sampling_options(parser)
    add("--stop", action="append", default=[], metavar="TEXT", help="stop before TEXT; repeatable")
    add(
        "-c",
        "--context",
        "--ctx-size",
        type=_context,
        metavar="N",
        help="context length (default, and 0: the model's)",
    )
    add(
        "-t",
        "--threads",
        type=common.threads,
        metavar="N",
        help="threads of this machine (default: $NPU_THREADS, else all CPUs)",
    )
    add("-q", "--quiet", action="store_true", help="no settings, progress and figures on stderr")


def _foreign_options(
    parser: argparse.ArgumentParser, without: Sequence[str], refused: dict[tuple[str, ...], str]
) -> None:
    add = parser.add_argument
    add(*without, action=_Ignore, nargs=0, dest=argparse.SUPPRESS, help=argparse.SUPPRESS)
    for names, reason in refused.items():
        add(*names, action=_Refuse, nargs="?", const=reason, dest=argparse.SUPPRESS,
            help=argparse.SUPPRESS)  # fmt: skip


def check(arguments: argparse.Namespace) -> None:
    """Refuses values that no model can make good. Raises ArgumentError."""
    from npu.models.generation import StopScanner
    from npu.models.sampling import Sampler
    from npu.models.sampling_settings import DEFAULTS

    asked = {name: getattr(arguments, name) for name in SAMPLING}
    given = {name: value for name, value in asked.items() if value is not None}
    seed = None if arguments.seed == -1 else arguments.seed
    Sampler(**{**DEFAULTS, **given}, seed=seed)  # type: ignore[arg-type]
    StopScanner(arguments.stop)


@contextlib.contextmanager
def opened(
    arguments: argparse.Namespace, command: str
) -> Iterator[tuple[Device, Header, Settings]]:
    """The device of a run, the header of its model's file and its sampling settings: what they rule
    out fails here, before a large model is read."""
    if arguments.threads is not None:
        common.use_threads(arguments.threads)
    with common.use_device(arguments) as device:
        common.check_computes(device, command)
        header = common.read_header(arguments.model)
        found = settings(arguments, header)
        header.check_context(arguments.context)
        yield device, header, found


def settings(arguments: argparse.Namespace, header: Header) -> Settings:
    """The sampling settings of the run; gives it a seed if it has none."""
    from npu.models.sampling_settings import resolve

    asked = {name: getattr(arguments, name) for name in SAMPLING}
    if arguments.seed in (None, -1):
        arguments.seed = secrets.randbelow(1 << 32)
    return resolve(asked, header.source)


def sampling_line(settings: Settings, seed: int) -> str:
    """The words for a run's sampling."""
    line = f"sampling: {settings.describe()}"
    if not settings.greedy:
        line += f"; seed {seed}"
    if settings.ignored:
        line += f"; the file's {', '.join(settings.ignored)} is not applied"
    return line


def _prompt_options(parser: argparse.ArgumentParser) -> None:
    one = parser.add_mutually_exclusive_group()
    one.add_argument("-p", "--prompt", help="the prompt; `-` or absent: read standard input")
    one.add_argument("-f", "--file", metavar="FILE", help="a file with the prompt")
    one.add_argument(
        "--prompts", metavar="FILE",
        help="a file with one prompt a line (or a JSON string or object); `-`: standard input",
    )  # fmt: skip
    _system_options(parser)
    parser.add_argument(
        "--raw", "-no-cnv", "--no-conversation", action="store_true",
        help="continue the prompt, no chat template",
    )  # fmt: skip
    parser.add_argument(
        "-e", "--escape", action="store_true",
        help=r"replace \n, \t, \\, ... in -p, -f and --system",
    )  # fmt: skip


def _system_options(parser: argparse.ArgumentParser) -> None:
    system = parser.add_mutually_exclusive_group()
    system.add_argument(
        "-sys", "--system", "--system-prompt", metavar="TEXT", help="system message of the chat"
    )
    system.add_argument(
        "-sysf", "--system-prompt-file", dest="system_file", metavar="FILE",
        help="a file with the system message",
    )  # fmt: skip


def _sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "sampling", "default: the model's own settings, else those of llama.cpp"
    )
    add = group.add_argument
    add(
        "--temp",
        "--temperature",
        dest="temperature",
        type=float,
        metavar="T",
        help="0: always the likeliest token (0.8)",
    )
    add("--top-k", type=int, metavar="K", help="0: all tokens (40)")
    add("--top-p", type=float, metavar="P", help="1: all tokens (0.95)")
    add("--min-p", type=float, metavar="P", help="0: all tokens (0.05)")
    add("--repeat-penalty", type=float, metavar="R", help="1: none (1)")
    add(
        "--repeat-last-n",
        type=int,
        metavar="N",
        help="tokens that penalties look back at (64); 0: none, -1: all",
    )
    add("--presence-penalty", type=float, metavar="P", help="0: none (0)")
    add("--frequency-penalty", type=float, metavar="P", help="0: none (0)")
    add("-s", "--seed", type=int, help="seed of the sampling (default, and -1: random)")


def _max_tokens(text: str) -> int | None:
    """An argparse type: a whole number >= 1; None for llama.cpp's -1 and -2, no limit."""
    return None if text in ("-1", "-2") else common.positive(text)


def _context(text: str) -> int | None:
    """An argparse type: a whole number >= 1; None for llama.cpp's 0, the model's context."""
    return None if text == "0" else common.positive(text)
