"""What becomes of logits: written over, kept, read by others, gone back over again."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations import logits, pieces
from elbowroom.keep.activations.gauge import Process
from tests.keep.activations.checking import TOLERANCES, nothing_is_left, same_bits
from tests.keep.activations.heads import (
    CLASSES,
    IGNORED,
    PIECE_BYTES,
    Head,
    draw,
    nearness,
)


@pytest.fixture(autouse=True)
def smaller_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few megabytes are several."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", PIECE_BYTES)


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_the_gradient_is_written_over_the_logits(tolerance: float) -> None:
    """Between the start of backward and the end of its first step nothing so large is added."""
    torch.manual_seed(0)
    model = Head("positions", classes=8192)
    x, target = draw(positions=512, classes=8192)
    nbytes = target.numel() * 8192 * 4
    room = er.Activations(model, tolerance=tolerance, meter=0)
    gauge, most = Process(), list[int]()
    for _ in range(2):
        with room:
            y = model(x)
            y.register_hook(lambda g: most.append(gauge.peak()))
            loss = functional.cross_entropy(y, target)
            del y
        gauge.reset()
        before = gauge.now()
        loss.backward()
        # Within a bound they are first decoded.
        assert most.pop() - before < (0.3 if tolerance == 0 else 1.4) * nbytes
        del loss


def test_the_meter_waits_with_a_part_of_the_gradient() -> None:
    """All of it is as large as the logits, and would wait until backward has ended."""
    torch.manual_seed(0)
    model = Head("positions", classes=300)
    room = er.Activations(model, meter=1)
    counts = list[int]()
    for seed in range(4):
        x, target = draw(samples=16, positions=64, classes=300, seed=seed)
        with room:
            y = model(x)
            loss = functional.cross_entropy(y, target)
        meter = room._meter
        if meter is not None and meter._seen is not None:
            arrivals = meter._seen.arrivals
            y.register_hook(
                lambda _, arrivals=arrivals: counts.extend(
                    len(g) for g in arrivals.gradients if g is not None
                )
            )
        loss.backward()
    assert counts == [1, 1]


def test_logits_that_somebody_holds_stay_as_they_are() -> None:
    model = Head()
    x, target = draw()
    with er.Activations(model, tolerance=0):
        y = model(x)
        loss = functional.cross_entropy(y, target.flatten())
    copy = y.detach().clone()
    loss.backward()
    assert torch.equal(copy, y)


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_several_backwards_through_one_graph(tolerance: float) -> None:
    torch.manual_seed(0)
    model = Head("positions")
    x, target = draw()
    room = er.Activations(model, tolerance=tolerance)
    with room:
        y = model(x)
        loss = functional.cross_entropy(y, target)
        del y
    found = [
        torch.autograd.grad(loss, model.layer.weight, retain_graph=number < 2)[0]
        for number in range(3)
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    if tolerance == 0:
        plain = torch.autograd.grad(functional.cross_entropy(model(x), target), model.layer.weight)
        assert torch.equal(found[0], plain[0])
    with pytest.raises(RuntimeError, match=r"second time"):
        loss.backward()
    del loss
    nothing_is_left(room)


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_logits_that_others_read_too(tolerance: float) -> None:
    """A second loss, and one that is no loss over classes."""
    torch.manual_seed(0)
    model = Head("positions")
    x, target = draw()

    def step(room: Any) -> list[Tensor]:
        model.zero_grad()
        with room:
            y = model(x)
            loss = functional.cross_entropy(y, target) + 1e-3 * y.logsumexp(1).square().mean()
            loss = loss + functional.cross_entropy(y, target.roll(1), label_smoothing=0.1)
            loss = loss + 1e-5 * (y * y.roll(1, 0)).sum()
            del y
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    plain = step(nullcontext())
    ours = step(er.Activations(model, tolerance=tolerance))
    assert torch.equal(plain[0], ours[0])
    assert same_bits(list(plain), list(ours)) if tolerance == 0 else nearness(plain, ours) < 0.01


def test_double_backward() -> None:
    torch.manual_seed(0)
    model = Head("positions").double()
    x, target = draw()
    x = x.double().requires_grad_()

    def penalty(room: Any, **options: Any) -> Tensor:
        with room:
            loss = functional.cross_entropy(model(x), target, **options)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), model.layer.weight)[0]

    for options in ({}, {"label_smoothing": 0.1, "ignore_index": IGNORED}):
        plain = penalty(nullcontext(), **options)
        exact = penalty(er.Activations(model, tolerance=0), **options)
        assert torch.allclose(plain, exact, 1e-12, 1e-18)
        lossy = penalty(er.Activations(model), **options)
        assert float((plain - lossy).norm() / plain.norm()) < 0.2


def test_changes_in_place_are_found() -> None:
    model = Head()
    x, target = draw()
    for change in ("logits", "classes"):
        with er.Activations(model):
            y = model(x)
            classes = target.flatten()
            loss = functional.cross_entropy(y, classes)
            with torch.no_grad():
                (y if change == "logits" else classes).mul_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_an_interrupted_backward_does_not_use_what_it_has_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Head()
    x, target = draw()
    room = er.Activations(model, tolerance=0)
    with room:
        loss = functional.cross_entropy(model(x), target.flatten())
    works, count = logits._exact, 0

    def interrupted(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        works(*arguments)

    monkeypatch.setattr(logits, "_exact", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match=r"second time|run the forward again"):
        loss.backward()
    del loss
    nothing_is_left(room)


def test_what_is_refused_is_refused_in_the_same_words() -> None:
    model = Head()
    x, target = draw()
    y = model(x)
    wrong: list[tuple[Tensor, dict[str, Any]]] = [
        (target.flatten().clamp_min(CLASSES), {}),
        (target.flatten() - 3, {}),
        (target.flatten()[1:], {}),
        (target.flatten().int(), {}),
        (target.flatten(), {"weight": torch.ones(3)}),
        (target.flatten(), {"label_smoothing": 2.0}),
        (target.flatten(), {"reduction": "most"}),
    ]
    for classes, options in wrong:
        with pytest.raises(Exception) as plain:
            functional.cross_entropy(y, classes, **options)
        with er.Activations(model), pytest.raises(type(plain.value)) as ours:
            functional.cross_entropy(y, classes, **options)
        assert str(ours.value) == str(plain.value)
