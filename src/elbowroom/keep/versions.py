"""Autograd's check for changes in place, which hooks on saved tensors switch off."""

import re

import torch
from torch import Tensor


class Watch:
    """Tells whether a tensor was changed in place since; holds none of its memory."""

    __slots__ = ("_counter", "_origin", "_shape", "_type", "version")

    def __init__(self, tensor: Tensor, *, is_plain: bool = True) -> None:
        """Of tensors that are not plain, such as sparse ones, the data is held."""
        self.version = tensor._version
        self._shape = tensor.shape
        self._type = tensor.dtype, tensor.device
        node = tensor.grad_fn
        self._origin = None if node is None else (tensor.output_nr, node.name())
        # A detached tensor shares the counter, and keeps sharing it without the data.
        self._counter = tensor.detach()
        if is_plain:
            self._counter.data = _NOTHING

    def check(self) -> None:
        """Raise what autograd would."""
        if self._counter._version == self.version:
            return
        dtype, device = self._type
        kind = torch.empty(0, dtype=dtype, device=device).type()
        origin = ""
        if self._origin is not None:
            origin = f", which is output {self._origin[0]} of {_ENDING.sub('', self._origin[1])},"
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{kind} {list(self._shape)}]{origin} is at version "
            f"{self._counter._version}; expected version {self.version} instead. Hint: enable "
            "anomaly detection to find the operation that failed to compute its gradient, with "
            "torch.autograd.set_detect_anomaly(True, check_nan=False)."
        )


_NOTHING = torch.empty(0)
_ENDING = re.compile(r"Backward\d*$")
