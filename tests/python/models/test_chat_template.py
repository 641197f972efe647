"""Chat templates: bounded in time, memory and output, in a sandbox; Gemma's format without one.

Hostile templates end with one sentence within seconds and a few hundred megabytes. Expected texts
of the built-in format are those of Gemma 3's own template, worked out by hand.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from limits import HANG

from npu.errors import ArgumentError, FormatError
from npu.models import chat_template
from npu.models.chat_template import gemma_turns, render

USER = {"role": "user", "content": "hello"}
LOOP = "{% for i in range(99999) %}"
HOSTILE = {
    "nested loops": f"{LOOP}{LOOP}{{% endfor %}}{{% endfor %}}",
    "a large string": "{{ 'a' * 3000000000 }}",
    "a constant list": "{{ ['a'] * 1000000000 }}",
    "a width": "{{ '%9999999999d' % 1 }}",
    "a format": "{{ '{:>9999999999}'.format(1) }}",
    "centering": "{{ 'a'.center(10 ** 10) }}",
    "a power": "{{ (7 ** (7 ** 9)) % 10 }}",
    "repetition of a number": "{{ ((10 ** 9) | string * 999999999) | length }}",
    "doubling": "{% set n = namespace(a='a') %}" + LOOP + "{% set n.a = n.a ~ n.a %}{% endfor %}",
    "join": "{{ (range(99999) | list * 9999) | join('aaaaaaaaaaaaaaaa') | length }}",
    "batch": "{{ (range(99999) | list * 999) | batch(1) | list | length }}",
    "indent": "{{ ('a\\n' * 100000) | indent(99999) | length }}",
    "much output": LOOP + "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "deep brackets": "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}",
    "deep sums": "{{ 1" + "+1" * 30000 + " }}",
    "cycler": "{% set c = cycler('a' * 99999999) %}" + LOOP + "{{ c.next() }}{% endfor %}",
    "a long range": "{{ range(10 ** 12) | list }}",
    "replace": "{{ ('a' * 10 ** 8).replace('a', 'b' * 100) | length }}",
    "text of many words": "{{ lipsum(n=100000000) }}",
}
FORBIDDEN = (
    "{{ ''.__class__.__mro__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__.os.system('true') }}",
    "{{ messages.append(1) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__.x }}",
    "{{ raise_exception('roles must alternate') }}",
    "{% for %}",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_with_a_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_SECONDS", 1)
    begin = time.monotonic()
    with pytest.raises(FormatError, match="chat template failed: ") as caught:
        render(HOSTILE[name], {"messages": [USER]})
    assert time.monotonic() - begin < HANG
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_hostile_templates_take_bounded_time_and_memory() -> None:
    """Measured by the system on the processes of a fresh Python that renders some of them."""
    code = f"""
import resource
from npu.errors import FormatError
from npu.models.chat_template import render
for name, template in {HOSTILE!r}.items():
    if name in ("nested loops", "a large string", "doubling", "centering", "join"):
        try:
            render(template, {{}})
        except FormatError as error:
            print(name, error)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_maxrss // 1024, used.ru_utime + used.ru_stime)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=True)
    *lines, last = done.stdout.splitlines()
    megabytes, seconds = last.split()
    assert len(lines) == 5 and int(megabytes) < 400 and float(seconds) < 5 * 6
    # The limits are the renderer's own, not ours.
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize("template", FORBIDDEN)
def test_the_sandbox(template: str) -> None:
    with pytest.raises(FormatError, match="chat template failed: ") as caught:
        render(template, {"messages": [USER]})
    assert "\n" not in str(caught.value)


def test_what_templates_may_use() -> None:
    """The environment of transformers: loop controls, tojson as it is, dates, trimmed blocks."""
    variables: dict[str, Any] = {"messages": [USER], "tools": None, "bos_token": "<bos>"}
    for template, text in {
        "{{ bos_token }}{{ messages[0].content }}": "<bos>hello",
        "{% for m in messages * 3 %}\n{{ loop.index }}{% if loop.index == 2 %}{% break %}"
        "{% endif %}\n  {% endfor %}": "12",
        "{{ {'a': '<é>'} | tojson }}": '{"a": "<é>"}',
        "{{ strftime_now('%Y') | length }}": "4",
        "{{ tools is none }}": "True",
        "{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}": '{"a":2,"b":1}',
        "a{% generation %}{{ messages[0].content }}{% endgeneration %}b": "ahellob",
        "{{ '\\u00fc' }}\U0001f600": "\u00fc\U0001f600",
    }.items():
        assert render(template, variables) == text
    long = {"messages": [{"role": "user", "content": "x" * 5_000_000}]}
    assert len(render("{{ messages[0]['content'] }}!", long)) == 5_000_001
    with pytest.raises(ArgumentError, match="no text or plain data"):
        render("", {"messages": [object()]})


def test_what_is_no_plain_data_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ArgumentError, match="no text or plain data"):
        render("", {"messages": deep})


def test_refusals_of_a_template_are_safe_to_print() -> None:
    """The words are the file's author's: no terminal sequences, nothing that UTF-8 cannot write."""
    with pytest.raises(FormatError) as caught:
        render("{{ raise_exception('\\x1b[2Jno \\ud800 \u00fc') }}", {})
    assert str(caught.value).endswith("failed: \\x1b[2Jno \\ud800 \u00fc")


def test_rendering_does_not_depend_on_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedded interpreter has no executable; programs put what they like on sys.path."""
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/tmp"), b"/tmp", "relative"])
    assert render("ok", {}) == "ok"
    monkeypatch.setattr(sys, "executable", None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(FormatError, match="python3 did not start"):
        render("ok", {})


def turns(*messages: Any, generate: bool = True) -> str:
    return gemma_turns(messages, "<bos>", add_generation_prompt=generate)


def test_the_built_in_format() -> None:
    assert turns(USER) == "<bos><start_of_turn>user\nhello<end_of_turn>\n<start_of_turn>model\n"
    assert turns(
        {"role": "system", "content": [{"type": "text", "text": " Be brief. "}]},
        {"role": "user", "content": [
            {"type": "text", "text": " a "}, {"type": "image"}, {"type": "text", "text": "b\n"}]},
        {"role": "model", "content": " c "},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "d"},
        generate=False,
    ) == (
        "<bos><start_of_turn>user\n Be brief. \n\na<start_of_image>b<end_of_turn>\n"
        "<start_of_turn>model\nc<end_of_turn>\n"
        "<start_of_turn>user\n<end_of_turn>\n"
        "<start_of_turn>model\nd<end_of_turn>\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "no user message"),
        ([{"role": "system", "content": "x"}], "no user message"),
        ([{"role": "assistant", "content": "x"}], "message 1 .*'assistant'; .*alternate"),
        ([USER, USER], "message 2 of the chat has the role 'user'; .*alternate"),
        ([USER, {"role": "tool", "content": "x"}], "message 2 .* role 'tool'"),
        ([{"role": "system", "content": "x"}, USER, USER], "message 3 .*alternate"),
        ([USER, {"role": "system", "content": "x"}], "role 'system'"),
        ([{"content": "x"}], "has no role"),
        (["x"], "has no role"),
        ([{"role": "user"}], "content is 'None'"),
        ([{"role": "user", "content": 5}], "content is '5'"),
        ([{"role": "user", "content": ["x"]}], "give a string or a list"),
        ([{"role": "user", "content": [{"type": "video"}]}], "give a string or a list"),
        ([{"role": "system", "content": []}, USER], "give a string or a list"),
    ],
)
def test_what_the_built_in_format_refuses(messages: list[Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        turns(*messages)
