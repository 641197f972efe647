"""Version counters after an optimiser's step: fused ones write parameters and move none, and a
packed weight would be stale.

torch keeps the hook, and so this module, beyond the end of the extension: it names nothing that
holds a device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.optim.optimizer import register_optimizer_step_post_hook


@torch._disable_dynamo  # which would drop the counting from a compiled step
def _count_step(optimiser: torch.optim.Optimizer, *arguments: Any) -> None:
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    increment_version([p for p in parameters if p.requires_grad or p.grad is not None])


register_optimizer_step_post_hook(_count_step)
