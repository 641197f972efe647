"""Writes the configurations that come with the package, at build time: CMake calls it as soon as
the extension module is built.

    python write_configurations.py SOURCES EXTENSION FOLDER

SOURCES: this repository; EXTENSION: the folder that holds _npu; FOLDER: what is written
(npu/ops/configurations.py). Needs nothing but Python: the package is put together from the sources
and the extension without its __init__, which imports NumPy.
"""

import sys
import types
from pathlib import Path


def main(sources: str, extension: str, folder: str) -> None:
    sys.dont_write_bytecode = True
    package = types.ModuleType("npu")
    package.__path__ = [f"{sources}/python/npu", sources, extension]  # designs are in SOURCES
    sys.modules["npu"] = package
    from npu.ops.configurations import write_all

    written = write_all(Path(folder))
    print(f"{written.files} configurations, {written.bytes / 1e6:.1f} MB, in {folder}")


if __name__ == "__main__":
    main(*sys.argv[1:])
