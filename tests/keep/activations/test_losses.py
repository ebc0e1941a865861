"""Cross entropy over many classes: the bits of plain PyTorch, and less of everything else."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations import pieces
from tests.keep.activations.checking import same_bits
from tests.keep.activations.heads import (
    CLASSES,
    IGNORED,
    LAYOUTS,
    PIECE_BYTES,
    Head,
    draw,
    is_ours,
    nearness,
    train,
)


@pytest.fixture(autouse=True)
def smaller_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few megabytes are several."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", PIECE_BYTES)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bits_are_those_of_plain_torch(layout: str, reduction: str, smoothing: float) -> None:
    torch.manual_seed(0)
    model = Head(layout)
    x, target = draw()
    for weight in (None, torch.rand(CLASSES) + 0.1):
        options: dict[str, Any] = {
            "weight": weight,
            "reduction": reduction,
            "ignore_index": IGNORED,
            "label_smoothing": smoothing,
        }
        plain = train(model, x, target, **options)
        room = er.Activations(model, tolerance=0)
        assert same_bits(list(plain), list(train(model, x, target, room, **options)))


@pytest.mark.parametrize("layout", ["rows", "positions"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_bits_of_other_types(layout: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Head(layout).to(dtype)
    x, target = draw()
    plain = train(model, x.to(dtype), target)
    assert plain[0].dtype == dtype
    room = er.Activations(model, tolerance=0)
    assert same_bits(list(plain), list(train(model, x.to(dtype), target, room)))
    near = train(model, x.to(dtype), target, er.Activations(model))
    assert nearness(plain, near) < 0.02


@pytest.mark.parametrize("layout", ["rows", "positions"])
def test_autocast_makes_no_wider_copy(layout: str) -> None:
    """Logits of 16 bits are kept as they are; probabilities and the loss have 32, as always."""
    torch.manual_seed(0)
    model = Head(layout)
    x, target = draw()
    weight = torch.rand(CLASSES) + 0.1

    def step(room: Any) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return train(model, x, target, room, weight=weight, ignore_index=IGNORED)

    plain = step(None)
    assert plain[0].dtype == torch.float32
    exact = er.Activations(model, tolerance=0)
    assert same_bits(list(plain), list(step(exact)))
    row = next(r for r in exact.ledger.rows if "CrossEntropy.logits" in r.readers)
    assert row.kept_bytes == target.numel() * CLASSES * 2
    assert nearness(plain, step(er.Activations(model))) < 0.02


@pytest.mark.parametrize("options", [{}, {"weight": torch.ones(CLASSES), "label_smoothing": 0.2}])
def test_values_within_bounds_are_near(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Head("positions")
    room = er.Activations(model, meter=0)
    for seed in range(5):
        x, target = draw(seed=seed)
        plain = train(model, x, target, **options)
        ours = train(model, x, target, room, **options)
        assert torch.equal(plain[0], ours[0])
        assert nearness(plain, ours) < 0.3
    row = next(r for r in room.ledger.rows if "CrossEntropy.logits" in r.readers)
    assert row.error_class == "P"
    assert row.method == "encode"
    assert row.bound > 0
    assert row.saved_bytes > 2 * row.kept_bytes


def test_errors_have_no_bias() -> None:
    """Also where a network is sure of itself: mean gradients of many draws are the exact one."""
    torch.manual_seed(0)
    model = Head(classes=300)
    x, target = draw(classes=300, positions=240)
    with torch.no_grad():
        best = model(x).argmax(1).view(target.shape)
    target = torch.where(target % 4 == 0, target, best)
    plain = train(model, x, target)[1]
    total, single = torch.zeros_like(plain), 0.0
    for seed in range(24):
        room = er.Activations(model, seed=seed, meter=0)
        room._policy.first = 0.3
        error = train(model, x, target, room)[1] - plain
        single += float(error.square().sum()) / 24
        total += error / 24
    # Of independent errors the mean's square is a 24th.
    assert float(total.square().sum()) < 2 * single / 24


def test_masked_classes_and_exact_zeros() -> None:
    """Infinities under a mask, also at classes nobody asks for, and logits that are zero."""
    torch.manual_seed(0)
    model = Head("positions")
    x, target = draw()
    mask = torch.zeros(CLASSES, dtype=torch.bool)
    mask[[0, 5, 900]] = True
    is_zero = torch.rand(4, CLASSES, 330) < 0.5

    def step(around: Any) -> Tensor:
        model.zero_grad()
        with around:
            y = model(x).masked_fill(mask[:, None], -torch.inf).masked_fill(is_zero, 0)
            y = y.masked_fill(mask[:, None], -torch.inf)
            allowed = target.masked_fill(mask[target], IGNORED)
            loss = functional.cross_entropy(y, allowed, ignore_index=IGNORED)
        loss.backward()
        gradient = model.layer.weight.grad
        assert gradient is not None
        return gradient

    plain = step(nullcontext())
    assert plain.isfinite().all()
    assert torch.equal(plain, step(er.Activations(model, tolerance=0)))
    near = step(er.Activations(model))
    assert float((near - plain).square().sum() / plain.square().sum()) < 0.01


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_steps_aside() -> None:
    """Probabilities as targets, few classes, no gradient, tangents: torch's own function runs."""
    model = Head()
    x, target = draw()
    with er.Activations(model, tolerance=0):
        y = model(x)
        for loss in (
            functional.cross_entropy(y, y.detach().softmax(1)),
            functional.cross_entropy(y[:50], target.flatten()[:50]),
        ):
            assert not is_ours(loss)
        with torch.no_grad():
            assert functional.cross_entropy(y, target.flatten()).grad_fn is None
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(y, torch.ones_like(y))
            loss = functional.cross_entropy(dual, target.flatten())
            tangent = torch.autograd.forward_ad.unpack_dual(loss).tangent
            assert tangent is not None
            assert float(tangent.detach().abs()) < 1e-5
        many = torch.vmap(functional.cross_entropy)(y.view(4, 330, -1), target)
        assert many.shape == (4,)
        assert is_ours(nn.CrossEntropyLoss()(y, target.flatten()))
    assert not is_ours(functional.cross_entropy(y, target.flatten()))


def test_other_rules_keep_logits_exactly() -> None:
    torch.manual_seed(0)
    model = Head()
    x, target = draw()
    room = er.Activations(model, rule="certified")
    train(model, x, target, room)
    row = next(r for r in room.ledger.rows if "CrossEntropy.logits" in r.readers)
    assert (row.method, row.bound) == ("keep", 0.0)


def test_the_ledger_counts_what_plain_autograd_would_hold() -> None:
    model = Head()
    x, target = draw()
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        own = {p.untyped_storage()._cdata for p in (x, *model.parameters())}
        if storage._cdata not in own:
            storages[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        loss = functional.cross_entropy(model(x), target.flatten())
    room = er.Activations(model, tolerance=0)
    train(model, x, target, room)
    del loss
    # Beside the log-probabilities there are a few numbers a row.
    assert room.ledger.saved_bytes == pytest.approx(sum(storages.values()), rel=0.02)


@pytest.mark.parametrize("is_smoothed", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(1, 9), (5, 700_000), (1025, 1024), (3, 7, 5), (3, 9000, 400), (1, 9000, 130), (7, 70, 1)],
)
def test_pieces_cover_all_of_it_once(shape: tuple[int, ...], is_smoothed: bool) -> None:
    counts = torch.zeros(shape, dtype=torch.uint8)
    x = torch.empty(shape, device="meta")
    for piece in pieces.cut(x, is_smoothed):
        part = counts[piece]
        part += 1
        assert not (is_smoothed and len(shape) == 2 and part.shape[0] == 1 and shape[0] > 1)
        least = 64 if len(shape) == 3 else 3
        assert is_smoothed or 4 * part.numel() <= max(PIECE_BYTES, 4 * least * shape[1]) * 2
    assert bool((counts == 1).all())
