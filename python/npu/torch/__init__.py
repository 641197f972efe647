"""torch on the NPU: matrix products and linear layers with gradients, and models whose linear
layers are offloaded in place. Needs torch (``pip install "npu-xdna[torch]"``).

    import npu.torch
    print(npu.torch.offload(model))      # nn.Linear and transformers' Conv1D, forward and backward

``matmul`` and ``linear`` are custom operators: autograd, autocast, checkpointing and torch.compile
know them. Products are those of ``npu.matmul``: bfloat16 operands, float32 sums
(docs/torch.md).
"""

import sys as _sys

from npu.torch import threads as _threads

if "torch" not in _sys.modules:
    _threads.sleep_if_idle()
try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"[torch] npu.torch needs torch, which does not load ({error}): "
        'pip install "npu-xdna[torch]"'
    ) from error

from npu.torch.functions import linear, matmul
from npu.torch.modules import Linear
from npu.torch.offloading import Change, Offloaded, offload

__all__ = ["Change", "Linear", "Offloaded", "linear", "matmul", "offload"]
