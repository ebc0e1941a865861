"""The user's hooks on gradients: they see a gradient once, and not what it is added up from."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


@contextmanager
def unhooked(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Take gradients of tensors without their hooks, and without `retain_grad`.

    Autograd calls hooks of what it is asked for, and a loop asks for a parameter again and again,
    with the sum so far: a hook that clips or scales would do so in every step. It is called when
    the loop hands the whole gradient over.
    """
    held: list[tuple[Any, Any]] = []
    kept: list[tuple[Tensor, Tensor | None]] = []
    for tensor in tensors:
        hooks: Any = tensor._backward_hooks
        if hooks:
            held.append((hooks, dict(hooks)))
            hooks.clear()
        if tensor.grad_fn is not None and tensor.retains_grad:
            kept.append((tensor, tensor.grad))
    try:
        yield
    finally:
        for hooks, before in held:
            since = dict(hooks)
            hooks.clear()
            hooks.update(before | since)
        for tensor, grad in kept:
            tensor.grad = grad
