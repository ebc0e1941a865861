"""Buffers that a step may change: kept with a state, and put back only where they differ."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

Copies = list[tuple[Tensor, Tensor, int]]
"""Buffers, their values and their versions."""

Moved = dict[int, Tensor]
"""Values of those that change from step to step, by their places."""

# Of a buffer; statistics have a number for each channel.
_SMALL_BYTES = 1 << 20

# Of large buffers, that are copied before the first step has shown which of them it changes.
_MOST_COPIED_BYTES = 64 << 20


class Statistics:
    """Buffers of modules, such as running means, and tensors that a step finds and changes."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._buffers = [t for t in {id(t): t for t in tensors}.values() if _is_kept(t)]
        self._versions = [b._version for b in self._buffers]
        self._is_settled = False
        self._touched: set[int] = set()
        room = _MOST_COPIED_BYTES
        self._first: list[Tensor | None] = []
        for buffer in self._buffers:
            large = 0 if buffer.nbytes < _SMALL_BYTES else buffer.nbytes
            self._first.append(buffer.detach().clone() if large <= room else None)
            room -= large if large <= room else 0
        self._moving: set[int] = set()

    @property
    def are_moving(self) -> bool:
        """Whether any was seen to change."""
        return bool(self._moving or self._touched)

    def settle(self) -> None:
        """A step was made: a large buffer that nobody has changed since is a constant.

        Of small ones nobody can tell: a norm of batches changes its means and counts no version.
        """
        self._is_settled = True
        for place in range(len(self._buffers)):
            if not self._may_change(place):
                self._first[place] = None

    def copy(self) -> Copies:
        """Those that may change, with their values and versions."""
        return [
            (b, b.detach().clone(), b._version)
            for place, b in enumerate(self._buffers)
            if self._may_change(place)
        ]

    def restore(self, copies: Copies) -> None:
        """Give them their values again."""
        touched = {id(b) for b, value, version in copies if _put(b, value, version)}
        self._touched |= {n for n, b in enumerate(self._buffers) if id(b) in touched}

    def keep(self) -> Moved:
        """What those have now that have changed since the loop began."""
        for place, (buffer, first) in enumerate(zip(self._buffers, self._first, strict=True)):
            if first is not None and place not in self._moving and not _is_same(buffer, first):
                self._moving.add(place)
        return {n: self._buffers[n].detach().clone() for n in self._moving}

    def put(self, kept: Moved) -> None:
        """Give the same to them; those that had not changed by then get what they began with."""
        for place, (buffer, first) in enumerate(zip(self._buffers, self._first, strict=True)):
            value = kept.get(place, first)
            if value is not None:
                _put(buffer, value, None)

    def is_moving(self, tensor: Tensor) -> bool:
        """Whether the step itself changes this one."""
        places = [n for n, buffer in enumerate(self._buffers) if buffer is tensor]
        return any(n in self._moving or self._versions[n] != tensor._version for n in places)

    def _may_change(self, place: int) -> bool:
        buffer = self._buffers[place]
        is_small = buffer.nbytes < _SMALL_BYTES
        was_changed = buffer._version != self._versions[place] or place in self._touched
        return not self._is_settled or is_small or was_changed


def _is_kept(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and not tensor.is_inference()
        and not tensor.requires_grad
        and tensor.device.type != "meta"
    )


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or bool(torch.allclose(one, other, 0, 0, equal_nan=True))


def _put(buffer: Tensor, value: Tensor, version: int | None) -> bool:
    """Write where it differs; graphs that have saved it find the version that they knew."""
    found = buffer._version if version is None else version
    is_other = not _is_same(buffer, value)
    if is_other:
        with torch.no_grad():
            if buffer.shape == value.shape:
                buffer.copy_(value)
            else:
                buffer.resize_(value.shape).copy_(value)
    if buffer._version != found:
        inside: Any = torch._C
        inside._autograd._unsafe_set_version_counter((buffer,), (found,))
        return True
    return is_other
