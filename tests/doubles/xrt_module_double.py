"""A plugin of pytest: the device xrt of the C++ library over the stand-in for XRT.

Every configuration that the process lowers is written as an xclbin of the stand-in
(tests/doubles/xrt), its overlays beside it, into a folder that NPU_XCLBINS then names. The
environment says which NPU it is, where the module is, and where the stand-in that it was built
against, if not beside it:

    NPU_XRT_DOUBLE=emu:npu1+reload-random-11 NPU_XRT_MODULE=BUILD/xrt_double/libnpu_xrt.so
    NPU_XRT_LIBRARY=BUILD/xrt_double/libxrt_coreutil.so NPU_TEST_DEVICES=xrt+module
    PYTHONPATH=tests/doubles pytest -p xrt_module_double tests/conformance
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from npu import _npu
from npu.designs import lowering

_BUFFERS = 16  # that the kernels of the xclbins declare

_module = Path(os.environ["NPU_XRT_MODULE"])
_stand_in = ctypes.CDLL(
    os.environ.get("NPU_XRT_LIBRARY") or str(_module.with_name("libxrt_coreutil.so"))
)
_stand_in.xrt_double_write_xclbin.argtypes = [
    ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t
]  # fmt: skip
_stand_in.xrt_double_complaints.restype = ctypes.c_char_p

_folder = Path(tempfile.mkdtemp(prefix="npu-xclbins-"))
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
os.environ["NPU_XCLBINS"] = str(_folder)

_serialise = lowering.serialise


def _kept(lowered: Any) -> bytes:
    data = _serialise(lowered)
    configuration = _npu.device.Configuration.parse(data)
    place = _folder / configuration.generation / configuration.artefact / "design.xclbin"
    if not place.exists():
        place.parent.mkdir(parents=True)
        assert not _stand_in.xrt_double_write_xclbin(bytes(place), data, len(data), _BUFFERS)
    return data


lowering.serialise = _kept


@pytest.fixture(autouse=True)
def no_complaints() -> Iterator[None]:
    """Nothing was done that the real XRT would not have survived, no run failed by itself."""
    yield
    assert not _stand_in.xrt_double_complaints().decode()
