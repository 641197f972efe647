"""The package: each name of ``__all__`` can be had from a fresh ``import npu``, which does not load
the modules that only some users need; one version everywhere; types for users of an installed
package."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

from limits import HANG

import npu

SCRIPT = """
import sys
import npu
lazy = ["npu.models", "npu.formats", "npu.emulator", "npu.perf", "npu.stream"]
assert not [name for name in lazy if name in sys.modules], sys.modules.keys()
for name in npu.__all__:
    getattr(npu, name)
"""
ROOT = Path(__file__).resolve().parents[2]


def test_every_public_name_is_there_after_a_plain_import():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 0, done.stderr


def test_the_version_is_that_of_cmakelists():
    (written,) = re.findall(
        r"^project\(npu_xdna VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE
    )
    assert npu.__version__ == written
    assert "version = " not in (ROOT / "pyproject.toml").read_text().split("[tool.", 1)[0]
    assert f"## [{written}]" in (ROOT / "CHANGELOG.md").read_text()


def test_an_installed_package_carries_its_version_and_types():
    """Holds for an installed wheel; a build folder on PYTHONPATH has no metadata to look at."""
    package = Path(npu.__file__).parent
    assert (package / "py.typed").is_file()
    for distribution in importlib.metadata.distributions(path=[str(package.parent)]):
        if distribution.name == "npu-xdna":
            assert distribution.version == npu.__version__
            stubs = {path.name for path in (package / "_npu").glob("*.pyi")}
            assert {"__init__.pyi", "arch.pyi", "device.pyi", "ops.pyi", "stream.pyi"} <= stubs
