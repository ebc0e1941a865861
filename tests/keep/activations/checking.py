"""Running a model with and without a room, and looking at what is left behind."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import module as modules

import elbowroom as er
from elbowroom.keep.activations.hooks import top_hooks

Forward = Callable[[Any], tuple[Tensor, ...]]
"""From the model to its loss, and to leaves other than parameters whose gradients count."""

TOLERANCES = (0.0, 0.1)
"""Exact, and what most rooms have."""


def gradients(
    model: Any, forward: Forward, room: er.Activations | None = None, *, seed: int = 1
) -> list[Tensor | None]:
    """Of one step, from the same state and the same random numbers every time."""
    state = {key: value.clone() for key, value in model.state_dict().items()}
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    with room or nullcontext():
        loss, *leaves = forward(model)
    loss.backward()
    model.load_state_dict(state)
    found = [*model.parameters(), *leaves]
    return [None if t.grad is None else t.grad.detach().clone() for t in found]


def error_of(plain: list[Tensor | None], ours: list[Tensor | None]) -> float:
    """Squared error beside the squared norm; the same places must be there and be finite."""
    error = size = 0.0
    for a, b in zip(plain, ours, strict=True):
        assert (a is None) == (b is None)
        if a is None or b is None:
            continue
        a, b = (g.to_dense() if g.layout != torch.strided else g for g in (a, b))
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
        assert torch.equal(torch.isfinite(a), torch.isfinite(b))
        a, b = (torch.nan_to_num(g, 0, 0, 0).to(torch.complex128) for g in (a, b))
        error += float((a - b).abs().square().sum())
        size += float(a.abs().square().sum())
    return error / size if size > 0 else error


def same_bits(plain: list[Tensor | None], ours: list[Tensor | None]) -> bool:
    """Whether nothing differs, NaN for NaN."""
    pairs = zip(plain, ours, strict=True)
    return all(
        a is b
        if a is None or b is None
        else torch.equal(a, b)
        if a.layout == torch.strided and not a.isnan().any()
        else torch.allclose(a.to_dense(), b.to_dense(), 0, 0, equal_nan=True)
        for a, b in pairs
    )


def matches(
    plain: list[Tensor | None], ours: list[Tensor | None], tolerance: float, near: float = 0.01
) -> None:
    """The same bits at tolerance 0, else a squared error below `near`."""
    if tolerance == 0:
        assert same_bits(plain, ours)
    else:
        assert error_of(plain, ours) < near


def nothing_is_left(room: er.Activations, hooks: int = 0) -> None:
    """The pass holds no byte, and no hook stays where it could be met by somebody else."""
    assert room._tally.held_bytes == 0
    assert top_hooks() is None
    assert not torch.overrides._get_current_function_mode_stack()
    assert len(modules._global_forward_hooks) == hooks
    assert len(modules._global_forward_pre_hooks) == hooks


def agrees(make: Callable[[], Any], forward: Forward, *, near: float = 0.02) -> er.Activations:
    """Same bits at tolerance 0; near at first, sensible when bounds follow the gradient."""
    torch.manual_seed(0)
    model = make()
    plain = gradients(model, forward)
    exact = er.Activations(model, tolerance=0)
    for _ in range(2):
        assert same_bits(plain, gradients(model, forward, exact))
        nothing_is_left(exact)
    room = er.Activations(model)
    ours = gradients(model, forward, room)
    assert error_of(plain, ours) < near
    for seed in range(2, 6):
        ours = gradients(model, forward, room, seed=seed)
        nothing_is_left(room)
    assert error_of(gradients(model, forward, seed=5), ours) < 0.5
    room.close()
    return room
