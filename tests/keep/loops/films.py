"""A wave in two dimensions, as frames for coders and as a loop around them."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

import elbowroom as er
from elbowroom.keep import Encoding
from elbowroom.keep.loops.coders import Coded

POINTS, STEPS = 112, 100

# A range that stands for that of frames in which nothing has happened yet.
EPS = 1e-12


def _step(speed: Tensor) -> Any:
    at = torch.arange(POINTS, dtype=speed.dtype)
    down, along = (torch.exp(-(((at - POINTS / part) / 4) ** 2)) for part in (2, 3))
    source = down[:, None] * along[None, :]

    def step(state: tuple[Tensor, Tensor], push: Tensor) -> tuple[Tensor, Tensor]:
        now, before = state
        curve = sum(torch.roll(now, shift, axis) for shift in (1, -1) for axis in (0, 1)) - 4 * now
        return 2 * now - before + speed * curve + push * source, now

    return step


def _pushes(dtype: torch.dtype) -> Tensor:
    at = (torch.arange(STEPS, dtype=dtype) - 20) / 9
    return (1 - 2 * at**2) * torch.exp(-(at**2))


@cache
def film(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """The pressure at every step; nothing at first."""
    speed = torch.full((POINTS, POINTS), 0.25, dtype=dtype)
    speed[50:] = 0.4
    step = _step(speed)
    state = (torch.zeros_like(speed), torch.zeros_like(speed))
    frames = [state[0]]
    for push in _pushes(dtype):
        state = step(state, push)
        frames.append(state[0])
    return frames


def gradient_of_a_film(store: Encoding | None) -> tuple[Tensor, er.Loop]:
    """Of the last frame's energy with respect to the speeds."""
    speed = torch.full((POINTS, POINTS), 0.25)
    speed[50:] = 0.4
    speed.requires_grad_()
    loop = er.Loop(_step(speed), parameters=speed, store=store, probe_every=0)
    state = (torch.zeros(POINTS, POINTS), torch.zeros(POINTS, POINTS))
    after = loop(state, inputs=_pushes(torch.float32))
    (found,) = torch.autograd.grad(after[0].square().sum(), speed)
    return found, loop


def worst_error(coded: Coded, frame: Tensor) -> float:
    """The largest over all finite values; what is not finite must come back."""
    found = coded.decode()
    assert found.shape == frame.shape and found.dtype == frame.dtype
    finite = frame.isfinite()
    assert torch.equal(found[~finite].nan_to_num(), frame[~finite].nan_to_num())
    if not bool(finite.any()):
        return 0.0
    return float((found[finite].double() - frame[finite].double()).abs().max())
