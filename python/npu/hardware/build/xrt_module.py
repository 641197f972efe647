"""`npu build --xrt`: the module through which programs in C and C++ reach the NPU (docs/cpp.md).

CMake builds it against the XRT of this machine; then it is put where the library looks for it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from npu import cache_folder
from npu.errors import BuildError, FileError
from npu.hardware.build import places, process
from npu.hardware.build.process import Limits
from npu.hardware.doctor import distribution

FILE = "libnpu_xrt.so"
# Where headers and library are, if not where CMake looks (backend/devices/xrt/module/module.cmake).
PATHS = ("NPU_XRT_INCLUDE", "NPU_XRT_LIBRARY")


def target() -> Path:
    """Where the module is looked for: ``xrt`` in the folder of the cache."""
    return cache_folder.root() / "xrt" / FILE


def build(limits: Limits) -> Path:
    """Builds the module and puts it into its place, whole or not at all; returns the place.

    Raises BuildError where CMake, a compiler or XRT's headers are missing, or a step fails (its
    output is kept beside the place), FileError for a folder that cannot be written.
    """
    cmake = shutil.which("cmake")
    if cmake is None:
        raise BuildError(
            "[build] cmake is needed to build the module for XRT and not found; install it with "
            f"`{places.interpreter()} -m pip install cmake` or as a package of the distribution"
        )
    place = target()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=place.parent) as folder:
            made = _made(cmake, Path(folder), place.with_suffix(".log"), limits)
            os.replace(made, place)
    except OSError as error:
        raise FileError(
            f"[build] {place}: the module cannot be kept ({error.strerror}); name a folder that "
            "can be written with NPU_CACHE"
        ) from error
    return place


def _made(cmake: str, folder: Path, log: Path, limits: Limits) -> Path:
    """The module, built in a temporary folder."""
    given = [f"-D{name}={os.environ[name]}" for name in PATHS if os.environ.get(name)]
    work, out = folder / "work", folder / "out"
    steps: tuple[list[str | Path], ...] = (
        ["-S", _sources(), "-B", work, "-DCMAKE_BUILD_TYPE=Release", *given],
        ["--build", work],
        ["--install", work, "--prefix", out],
    )
    for number, words in enumerate(steps):
        try:
            process.run([cmake, *words], folder, log, limits)
        except BuildError as error:
            if number == 0:
                raise BuildError(f"{error}. {_needs()}") from error
            raise
    if not (out / FILE).is_file():
        raise BuildError(f"[build] cmake left no {FILE}; its output is in {log}")
    log.unlink(missing_ok=True)
    return out / FILE


def _needs() -> str:
    system = distribution.present()
    commands = distribution.in_words(system, distribution.install_headers(system))
    return (
        f"It needs a C++ compiler and XRT with its headers: {commands}; or name what is elsewhere "
        f"with {' and '.join(PATHS)}"
    )


def _sources() -> Path:
    """The module's sources, which are installed with the package."""
    import npu

    found = Path(npu.__file__).parent / "xrt_module"
    if not (found / "CMakeLists.txt").is_file():
        raise BuildError(
            f"[build] the module's sources are not at {found}; install the package again"
        )
    return found
