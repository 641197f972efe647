"""`npu chat`: a conversation with a model; answers go to stdout as they are made, notes to stderr.

At a terminal with line editing and history; otherwise every line of standard input is a message and
standard output becomes the transcript.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from npu.cli import chat_line, common, generate, generate_options, prompts

if TYPE_CHECKING:
    from npu import Device
    from npu.cli.chat_session import Session
    from npu.models.gemma3 import Generation

HELP = "talk to a Gemma 3 model in several turns; what was run is not run again"
add_arguments = generate_options.add_chat_arguments
_COMMANDS = {
    "/reset": "forget the conversation",
    "/save FILE": "write the conversation and its KV cache to a file",
    "/load FILE": "continue what /save wrote, with the same model and device",
    "/system TEXT": "system message from now on; without TEXT none",
    "/stats": "tokens in the cache, tokens reused",
    "/help": "these commands",
    "/quit": "end, as Ctrl-D",
}
_TAKES = {line.split()[0]: " " in line for line in _COMMANDS}  # whether a command has an argument


def run(arguments: argparse.Namespace) -> int:
    from npu.cli.chat_session import Session

    generate_options.check(arguments)
    system = prompts.system_message(arguments, str)
    with generate_options.opened(arguments, "chat") as (device, header, settings):
        model = common.load_model(
            header, arguments.weights, cache=not arguments.no_cache, quiet=arguments.quiet,
            report=False,
        )  # fmt: skip
        session = Session(
            model, header.tokenizer, settings.sampler(arguments.seed), arguments.context,
            arguments.max_tokens, arguments.stop, system,
        )  # fmt: skip
        with chat_line.edited() as lines:
            if not arguments.quiet:
                _note(f"model: {header.path}; {common.device_line(device)}")
                _note(generate_options.sampling_line(settings, arguments.seed))
                if lines.interactive:
                    _note("Ctrl-C stops an answer, Ctrl-D ends; /help lists the commands")
            return _Chat(session, device, lines, arguments.quiet).all()


class _Chat:
    """The loop over messages. Errors of one message do not end it."""

    def __init__(
        self, session: Session, device: Device, lines: chat_line.Lines, quiet: bool
    ) -> None:
        self.session, self.device, self.lines, self.quiet = session, device, lines, quiet

    def all(self) -> int:
        """The exit code: without a terminal 1, if a message failed."""
        from npu.errors import NpuError

        failed = False
        while True:
            try:
                text = self.lines.read()
            except KeyboardInterrupt:
                if not self.lines.interactive:
                    raise
                print(flush=True)
                _note("Ctrl-D or /quit ends")
                continue
            if text is None or text.strip() == "/quit":
                return int(failed and not self.lines.interactive)
            try:
                self._one(text)
            except KeyboardInterrupt:  # of a command: files are written whole or not at all
                if not self.lines.interactive:
                    raise
                _note("interrupted")
            except NpuError as error:
                failed = True
                _note(f"npu: error: {' '.join(str(error).split())}")

    def _one(self, text: str) -> None:
        if not text.strip():
            return
        if text.startswith("/"):
            self._command(text)
            return
        if not self.lines.interactive:  # a terminal shows what was typed
            print(f"> {text}", flush=True)
        self._answer(text)
        if not self.lines.interactive:
            print(flush=True)

    def _answer(self, text: str) -> None:
        def show(generation: Generation, pieces: list[str]) -> None:
            generate.stream(generation, self.quiet, pieces)

        messages = len(self.session.messages)
        try:
            generation = self.session.answer(text, show)
        except KeyboardInterrupt:
            if not self.lines.interactive:
                raise
            kept = len(self.session.messages) > messages
            _note("stopped; " + ("the conversation goes on from here" if kept else "no answer"))
            return
        if not self.quiet:
            generate.report(generation, self.device)
        if generation.finish_reason == "context":
            _note(self.session.context_note())

    def _command(self, text: str) -> None:
        from npu.errors import ArgumentError

        name, _, rest = text.strip().partition(" ")
        rest = rest.strip()
        if name not in _TAKES:
            raise ArgumentError(
                f"[chat] {name} is no command, /help lists them; a message that begins with a "
                "slash needs a space before it"
            )
        if rest and not _TAKES[name]:
            raise ArgumentError(f"[chat] {name} stands alone; leave out {rest!r}")
        if name in ("/save", "/load") and not rest:
            raise ArgumentError(f"[chat] {name} needs a file; name one")
        session = self.session
        if name == "/help":
            for line, meaning in _COMMANDS.items():
                _note(f"{line:14} {meaning}")
        elif name == "/stats":
            for line in session.describe():
                _note(line)
        elif name == "/reset":
            session.reset()
            _note("the conversation is forgotten")
        elif name == "/save":
            session.save(rest)
            _note(f"saved {session.cache.length} tokens in {rest}")
        elif name == "/load":
            session.load(rest)
            _note(f"loaded {session.cache.length} tokens from {rest}")
        elif name == "/system":
            session.system = rest or None
            _note("system message set" if rest else "no system message")


def _note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
