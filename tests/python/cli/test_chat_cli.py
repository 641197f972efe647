"""`npu chat` through a pipe and a terminal, with the demo model: turns, reuse, commands, Ctrl-C in
an answer, pasted lines, history, a full context; and `npu generate --cache`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npu import cli
from npu.cli import common

SUM, OTHER = "What is 17 + 25?", "What is 3 + 4?"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if common.default_model() is None:
        pytest.skip("no demo model")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def chat(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, *words: str
) -> tuple[int, str, str]:
    stdin = SimpleNamespace(buffer=io.BytesIO(text.encode()), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", stdin)
    code = cli.main(["chat", "--temp", "0", *words])
    return (code, *capsys.readouterr())


def generated(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(["generate", "--temp", "0", *words])
    return (code, *capsys.readouterr())


# A pipe


def test_a_pipe_gives_a_transcript(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = chat(capsys, monkeypatch, f"{SUM}\n\n{OTHER}\n/stats\n")
    assert code == 0
    assert out == f"> {SUM}\n17 + 25 = 42.\n\n> {OTHER}\n3 + 4 = 7.\n\n"
    counts = [int(n) for n in re.findall(r"\((\d+) reused\)", err)]
    prompts = [int(n) for n in re.findall(r"(\d+) prompt tokens", err)]
    assert len(counts) == 1 and counts[0] > prompts[0]  # the first answer, too
    run = prompts[0] + prompts[1] - counts[0]
    assert f"prompts: {run} tokens run, {counts[0]} reused" in err
    assert "2 answers; 4 messages" in err


def test_turns_answer_as_generate_does_with_the_whole_conversation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from npu import gemma3

    _, out, _ = chat(capsys, monkeypatch, f"hello\n{SUM}\n{OTHER}\n", "-q", "-sys", "Be brief.")
    answers = re.findall(r"> .*\n(.*)\n\n", out)
    model, tokenizer = gemma3.load(common.default_model() or "")
    messages = [{"role": "system", "content": "Be brief."}]
    for question, answer in zip(("hello", SUM, OTHER), answers, strict=True):
        messages.append({"role": "user", "content": question})
        prompt = tokenizer.encode(tokenizer.render_chat(messages))
        assert "".join(gemma3.Generation(model, tokenizer, prompt)) == answer
        messages.append({"role": "assistant", "content": answer})


def test_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "a chat.kv"
    lines = [SUM, f"/save {saved}", "/reset", "/stats", f"/load {saved}", OTHER, "/stats", "/quit",
             "never"]  # fmt: skip
    code, out, err = chat(capsys, monkeypatch, "\n".join(lines))
    assert code == 0 and "never" not in out and "3 + 4 = 7." in out
    assert "0 messages in the conversation" in err and "4 messages in the conversation" in err
    assert re.search(r"context: 0 of \d+ tokens in the cache, 0.0 MB", err)
    reused = int(re.findall(r"\((\d+) reused\)", err)[0])
    assert reused == int(re.findall(r"loaded (\d+) tokens", err)[0])
    # Another process continues it.
    code, out, err = chat(capsys, monkeypatch, f"/load {saved}\n{OTHER}\n")
    assert code == 0 and f"({reused} reused)" in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/nope", "/nope is no command"),
        ("/etc/passwd", "needs a space before it"),
        ("/save", "/save needs a file"),
        ("/load", "/load needs a file"),
        ("/load /nowhere/x", "cannot read /nowhere/x"),
        ("/load /etc/passwd", "not a file of a KV cache"),
        ("/save /nowhere/x", "has no folder to be in"),
        ("/reset now", "/reset stands alone"),
    ],
)
def test_wrong_commands_keep_the_conversation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    code, out, err = chat(capsys, monkeypatch, f"{SUM}\n{line}\n{OTHER}\n")
    assert code == 1 and message in err and "3 + 4 = 7." in out and "reused)" in err


def test_a_prompt_cache_is_no_conversation_and_the_other_way_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, saved = tmp_path / "p.kv", tmp_path / "c.kv"
    generated(capsys, "-p", SUM, "--cache", str(prompt))
    chat(capsys, monkeypatch, f"{SUM}\n/save {saved}\n")
    code, _, err = chat(capsys, monkeypatch, f"/load {prompt}\n")
    assert code == 1 and "has no conversation" in err
    before = saved.read_bytes()
    code, _, err = generated(capsys, "-p", SUM, "--cache", str(saved))
    assert code == 1 and "which would be lost" in err and saved.read_bytes() == before


def test_a_full_context_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = chat(capsys, monkeypatch, f"{SUM}\n{OTHER}\n/reset\n{OTHER}\n", "-c", "34")
    assert code == 1
    assert "the context is full: the conversation has" in err
    assert "start over with /reset, or start npu chat with a longer one (-c, up to 2048)" in err
    assert out.count("> ") == 3 and out.endswith("3 + 4 = 7.\n\n")
    code, out, err = chat(capsys, monkeypatch, f"{SUM}\n", "-c", "22")
    assert code == 0 and "the context of 22 tokens is full and the answer cut off" in err


def test_a_backslash_continues_a_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = chat(capsys, monkeypatch, "What is\\\n17 + 25?\nlast\\", "-q")
    assert out.startswith("> What is\n17 + 25?\n") and "> last\n" in out


def test_llama_cpps_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = chat(capsys, monkeypatch, f"{SUM}\n", "-cnv", "--no-display-prompt", "-n", "-1")
    assert code == 0 and "42" in out
    code, _, err = chat(capsys, monkeypatch, "", "-st")
    assert code == 2 and "use npu generate for one answer" in err


# A terminal


class Terminal:
    """`npu chat` at a pseudo-terminal; ``read_until`` gives what it printed up to a pattern."""

    def __init__(self, *words: str, **environment: str) -> None:
        main, other = pty.openpty()
        self.main = main
        variables = os.environ | {"TERM": "xterm", "NPU_THREADS": "1"} | environment
        self.process = subprocess.Popen(
            [sys.executable, "-m", "npu.cli", "chat", "--temp", "0", *words],
            stdin=other, stdout=other, stderr=other, env=variables, start_new_session=True,
            preexec_fn=_own_terminal,
        )  # fmt: skip
        os.close(other)
        self.text = ""

    def type(self, text: str) -> None:
        os.write(self.main, text.encode())

    def read_until(self, pattern: str, seconds: float = 60) -> str:
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text, re.DOTALL)):
            ready, _, _ = select.select([self.main], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {pattern!r} in {self.text!r}"
            try:
                self.text += os.read(self.main, 4096).decode(errors="replace")
            except OSError as error:  # the other end was closed
                raise AssertionError(f"no {pattern!r} in {self.text!r}") from error
        before, self.text = self.text[: found.end()], self.text[found.end() :]
        return before

    def interrupt(self, pattern: str, typed: str = "") -> str:
        """Ctrl-C at a prompt, again if need be: Python's readline misses one that comes between its
        prompt and its wait for keys."""
        for _ in range(20):
            self.type(typed + "\x03")
            with contextlib.suppress(AssertionError):
                return self.read_until(pattern, 3)
        raise AssertionError(f"no {pattern!r} in {self.text!r}")

    def end(self) -> int:
        code = self.process.wait(30)
        os.close(self.main)
        return code


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal() -> Iterator[Any]:
    opened: list[Terminal] = []

    def make(*words: str, **environment: str) -> Terminal:
        opened.append(Terminal(*words, **environment))
        return opened[-1]

    yield make
    for one in opened:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGKILL)
            one.process.wait()


def test_a_terminal_has_turns_editing_and_history(terminal: Any, tmp_path: Path) -> None:
    one = terminal()
    one.read_until(r"/help lists the commands.*> ")
    one.type("What is 17 + 99?\x1b[D\x7f\x7f25\r")  # left, delete 99
    one.read_until(r"17 \+ 25 = 42.*tok/s.*> ")
    one.type("/stats\r")
    one.read_until(r"1 answers; 2 messages.*> ")
    one.interrupt(r"Ctrl-D or /quit ends.*> ")
    one.interrupt(r"Ctrl-D or /quit ends.*> ", "half")  # what was typed is gone
    one.type("\x04")
    assert one.end() == 0
    history = tmp_path / "state/npu-xdna/chat_history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "/stats" in history.read_text()
    again = terminal()
    again.read_until(r"/help lists the commands.*> ")
    again.type("\x1b[A\r")  # up: the last line of before
    again.read_until(r"0 answers; 0 messages.*> ")
    again.type("/quit\r")
    assert again.end() == 0


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(terminal: Any) -> None:
    """The model is made to talk on; the partial answer is part of the conversation."""
    code = (
        "import sys, time\n"
        "from npu.models import generation\n"
        "real = generation.Generation._next\n"
        "def slow(self, tokens, cache):\n"
        "    token = real(self, tokens, cache)\n"
        "    if len(self.prompt) < 25 and self.tokens:\n"
        "        time.sleep(0.2)\n"
        "    return token\n"
        "generation.Generation._next = slow\n"
        "from npu.cli import main\n"
        "sys.exit(main(['chat', '--temp', '0']))\n"
    )
    one = Terminal.__new__(Terminal)
    main, other = pty.openpty()
    one.main, one.text = main, ""
    one.process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=other, stdout=other, stderr=other,
        env=os.environ | {"TERM": "xterm"}, start_new_session=True, preexec_fn=_own_terminal,
    )  # fmt: skip
    os.close(other)
    try:
        one.read_until(r"/help lists the commands.*> ")
        one.type(f"{SUM}\r")
        one.read_until(r"17 \+")  # the question, as typed
        one.read_until(r"17 \+")  # the answer has begun
        one.type("\x03")
        one.read_until(r"stopped; the conversation goes on from here.*> ")
        one.type("/stats\r")
        one.read_until(r"1 answers; 2 messages.*> ")
        one.type(f"{OTHER}\r")
        shown = one.read_until(r"\((\d+) reused\)")
        assert int(re.findall(r"\((\d+) reused\)", shown)[0]) >= 19
        one.read_until(r"> ")
        one.type("/quit\r")
        assert one.end() == 0
    finally:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_a_pasted_text_is_one_message(terminal: Any) -> None:
    """As terminals send it: in brackets that readline asked for."""
    one = terminal("-q")
    one.read_until(r"\x1b\[\?2004h")
    one.read_until(r"> ")
    one.type("\x1b[200~What is\n17 + 25?\x1b[201~\r")
    one.read_until(r"\x1b\[\?2004h")
    one.type("/stats\r")
    one.read_until(r"1 answers; 2 messages")
    one.type("/quit\r")
    assert one.end() == 0


# npu generate --cache


@pytest.mark.parametrize("option", ["--cache", "--prompt-cache"])
def test_generate_reuses_its_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    path = str(tmp_path / "p.kv")
    plain = generated(capsys, "-p", SUM)[1]
    counts = []
    for text in (SUM, SUM, "What is 17 + 31?"):
        code, out, _ = generated(capsys, "-p", text, option, path, "--json", "-q")
        document = json.loads(out)
        counts.append((document["prompt_tokens"], document["reused_tokens"]))
        assert code == 0
        if text == SUM:
            assert document["answer"] == plain.strip()
        else:
            assert document["answer"] == generated(capsys, "-p", text)[1].strip()
    assert counts[0][1] == 0 and counts[1][1] == counts[1][0] - 1
    assert 0 < counts[2][1] < counts[2][0] - 1


def test_generate_refuses_a_cache_of_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.kv"
    path.write_bytes(b"important")
    code, out, err = generated(capsys, "-p", SUM, "--cache", str(path))
    assert (code, out) == (1, "") and "not a file of a KV cache" in err
    assert path.read_bytes() == b"important"
    path.unlink()
    generated(capsys, "-p", SUM, "--cache", str(path))
    before = path.read_bytes()
    code, _, err = generated(capsys, "-p", SUM, "--cache", str(path), "--device", "emu:npu1")
    assert code == 1 and "device npu2, fast, native there, device npu1" in err
    assert path.read_bytes() == before
    code, _, err = generated(capsys, "--prompts", "x", "--cache", str(path))
    assert code == 1 and "--cache does not apply to --prompts" in err
