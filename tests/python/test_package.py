"""The package's public names: each one named in ``__all__`` can be had from a fresh ``import npu``,
which does not load the modules that only some users need."""

import subprocess
import sys

SCRIPT = """
import sys
import npu
lazy = ["npu.models", "npu.formats", "npu.emulator", "npu.perf", "npu.stream"]
assert not [name for name in lazy if name in sys.modules], sys.modules.keys()
for name in npu.__all__:
    getattr(npu, name)
"""


def test_every_public_name_is_there_after_a_plain_import():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
