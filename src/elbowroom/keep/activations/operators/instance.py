"""Instance normalisation whose output is no view.

Torch's own is a batch normalisation between two views. An activation in place behind it changes a
view, and autograd hides what that saves: nobody can tell what it is good for.
"""

from typing import Any

import torch
from torch import Tensor

from elbowroom.keep.activations.untouched import is_plain


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """The same operations as torch's own, or None where that had better be called."""
    if not (isinstance(input, Tensor) and is_plain(input) and use_input_stats):
        return None
    if running_mean is not None or running_var is not None or input.dim() < 3:
        return None
    if not input.is_cpu or not input.numel() or input[0, 0].numel() < 2:
        # Torch has an error to raise, or another way.
        return None
    batch, channels = input.shape[:2]
    gain, offset = (None if t is None else t.repeat(batch) for t in (weight, bias))
    x = input.contiguous().view(1, batch * channels, *input.shape[2:])
    options: tuple[Any, ...] = (None, None, True, momentum, eps, torch.backends.cudnn.enabled)
    found = torch.batch_norm(x, gain, offset, *options)
    return torch.ops.aten._unsafe_view(found, list(input.shape))
