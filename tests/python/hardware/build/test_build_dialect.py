"""Which form of MLIR is printed for an installation of mlir-aie: what its aie-opt reads, not what
the options of aiecc suggest.

Asserts both answers with both sets of options, the cases without an answer, and that a build passes
on what is read.
"""

from __future__ import annotations

from pathlib import Path

import doubles
import pytest

from npu.errors import BuildError
from npu.hardware.build import dialect
from npu.hardware.build.dialect import example, reads_operands


def _aiecc(folder: Path) -> Path:
    return folder / "mlir_aie" / "bin" / "aiecc"


@pytest.mark.parametrize("otherwise", [False, True])
@pytest.mark.parametrize("reads", ["new", "old"])
def test_aie_opt_says_it(tools, reads, otherwise):
    doubles.set_faults(tools, reads=reads)
    assert reads_operands(_aiecc(tools), otherwise) == (reads == "new")


@pytest.mark.parametrize("otherwise", [False, True])
def test_without_aie_opt_the_options_say_it(tools, otherwise):
    program = _aiecc(tools).with_name("aie-opt")
    program.chmod(0o644)  # does not run
    assert reads_operands(_aiecc(tools), otherwise) == otherwise
    program.unlink()
    assert reads_operands(_aiecc(tools), otherwise) == otherwise


def test_aie_opt_beside_what_aiecc_links_to(tools, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "aiecc").symlink_to(_aiecc(tools))
    doubles.set_faults(tools, reads="old")
    assert not reads_operands(tmp_path / "bin" / "aiecc", True)


def test_neither_form_is_read(tools):
    doubles.set_faults(tools, reads="none")
    with pytest.raises(BuildError, match=r"aie-opt reads neither .*\(.*error: expected something"):
        reads_operands(_aiecc(tools), True)


@pytest.mark.parametrize("script", [
    'echo "aie-opt: error while loading shared libraries: libz.so.9: cannot open"; exit 1',
    'echo "no such interpreter"; exit 127',
])  # fmt: skip
def test_an_aie_opt_that_does_not_start_is_not_asked_for_forms(tools, script):
    _aiecc(tools).with_name("aie-opt").write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(BuildError, match=r"aie-opt does not run \(.*pip install mlir_aie -f"):
        reads_operands(_aiecc(tools), True)


@pytest.mark.parametrize("words", [["--dry-run"], []])
def test_it_is_asked_once_per_command(tools, npu, monkeypatch, words):
    asked = []
    monkeypatch.setattr(dialect, "attempt", lambda command: asked.append(command) or (0, ""))
    assert npu("--device", "npu1", "copy", "rope", *words)[0] == 0
    assert len(asked) == 1


@pytest.mark.parametrize("reads", ["new", "old"])
def test_the_example_has_each_operation_in_one_form(reads):
    text = example(reads == "new")
    assert doubles.unread(text, reads) == ""
    other = {"new": "old", "old": "new"}[reads]
    for name in ("aie.use_lock(", "aie.dma_bd(", "aiex.npu.write32", "aiex.npu.maskwrite32"):
        lines = [line for line in text.splitlines() if line.startswith(name)]
        assert lines and all(doubles.unread(line, other) == line for line in lines)


@pytest.mark.parametrize("reads", ["new", "old"])
def test_a_build_prints_what_is_read(either, reads, npu):
    """The double of aiecc refuses the other form. Options and text changed in different weeks."""
    doubles.set_faults(either, reads=reads)
    code, _, err = npu("--device", "npu1", "copy")
    assert code == 0, err
