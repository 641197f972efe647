"""Temporary files beside a target: complete ones appear, killed writers' are removed, nothing else.

A killed `npu convert` leaves its partial file; the next run in that folder removes it. Files that a
living process holds, files of other names, links and folders stay.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from gemma3_files import Shape, write_model
from limits import HANG

from npu import cli
from npu.formats import partial_file
from npu.formats.atomic_file import replacing
from npu.formats.q4nx.writer import Announced, Writer

SHAPE = Shape(layers=1, width=64, heads=2, kv_heads=1, head_dim=32, ffn_width=96)
ONE = [Announced("t", "U8", (100,))]
KILLED = """
import os, signal, sys
from npu import cli
from npu.models import convert
def stop(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
convert.embedding = stop
cli.main(["convert", sys.argv[1], sys.argv[2]])
"""


def test_a_killed_conversion_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", SHAPE)
    target = tmp_path / "out" / "m.q4nx"
    target.parent.mkdir()
    for _ in range(2):
        arguments = [sys.executable, "-c", KILLED, str(source), str(target)]
        assert subprocess.run(arguments, timeout=HANG, check=False).returncode == -9
        # The second killed run has removed what the first one left.
        assert len(os.listdir(target.parent)) == 1
    assert cli.main(["convert", "-q", str(source), str(target)]) == 0
    assert os.listdir(target.parent) == ["m.q4nx"]


def test_only_unheld_files_of_this_kind_are_removed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"kept")
    folder = tmp_path / "f"
    folder.mkdir()
    held = partial_file.create(str(folder / "a"))
    left = partial_file.create(str(folder / "b"))
    left.close()  # as by a killed process: the lock is gone, the file is not
    others = [".b.partial", "b.0123abcd.npu.partial", ".b.0123abcd.npu.partial.txt",
              ".b.0123ABCD.npu.partial", ".b.0123abcd.npupartial"]  # fmt: skip
    for name in others:
        (folder / name).write_bytes(b"kept")
    (folder / ".l.01234567.npu.partial").symlink_to(tmp_path / "outside")
    (folder / ".d.01234567.npu.partial").mkdir()
    os.mkfifo(folder / ".p.01234567.npu.partial")
    expected = sorted([*os.listdir(folder), "c"])
    expected.remove(os.path.basename(left.name))
    with Writer(folder / "c", ONE) as writer:
        assert not os.path.exists(left.name)
        writer.append(np.zeros(100, np.uint8))
    assert sorted(os.listdir(folder)) == expected
    held.write(b"1")
    partial_file.publish(held, str(folder / "a"))
    assert (folder / "a").read_bytes() == b"1"
    assert (tmp_path / "outside").read_bytes() == b"kept"


def test_reports_use_the_same_mechanism(tmp_path: Path) -> None:
    left = partial_file.create(str(tmp_path / "x"))
    left.close()
    with replacing(tmp_path / "r.json", "test") as file:
        file.write(b"{}")
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == ["r.json"]
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "r.json", "test"):
        raise KeyboardInterrupt
    assert (tmp_path / "r.json").read_bytes() == b"{}" and os.listdir(tmp_path) == ["r.json"]
    (tmp_path / "r.json").unlink()
    name = "\u00e9" * 127  # 254 bytes, the longest that there is
    with replacing(tmp_path / name, "test") as file:
        file.write(b"{}")
    assert os.listdir(tmp_path) == [name]


def test_writers_in_one_folder_at_a_time(tmp_path: Path) -> None:
    """Several processes that write to one folder never take each other's files for leftovers."""
    code = """
import sys
import numpy as np
from npu.formats.q4nx.writer import Announced, Writer
for index in range(40):
    with Writer(sys.argv[1], [Announced("t", "U8", (9,))], force=True) as writer:
        writer.append(np.zeros(9, np.uint8))
"""
    runs = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / f"{index}.q4nx")])
        for index in range(3)
    ]
    end = time.monotonic() + HANG
    assert [run.wait(max(0.1, end - time.monotonic())) for run in runs] == [0, 0, 0]
    assert sorted(os.listdir(tmp_path)) == ["0.q4nx", "1.q4nx", "2.q4nx"]


def test_the_system_gets_whole_pieces(tmp_path: Path) -> None:
    """Whatever is written at once, the file grows by 2 MiB until it is complete."""
    piece, written = 2 << 20, bytearray()
    random = np.random.default_rng(1)
    file = partial_file.create(str(tmp_path / "a"))
    for size in (10, 5 << 20, 0, 3 << 19, piece - 1, 1, 4 << 20, 123_456):
        part = random.integers(0, 256, size, np.uint8)
        assert file.write(part) == size
        written += part.tobytes()
        assert os.stat(file.name).st_size % piece == 0
    file.seek(0)
    file.write(b"header")
    written[:6] = b"header"
    partial_file.publish(file, str(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == written
