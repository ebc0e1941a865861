"""Cross entropy over many classes: the bits of plain PyTorch, and less of everything else."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations import logits, pieces
from elbowroom.keep.activations.gauge import Process
from tests.keep.activations.checking import TOLERANCES, nothing_is_left, same_bits

WIDTH, CLASSES = 24, 1031
IGNORED = 2
PIECE_BYTES = 1 << 20


@pytest.fixture(autouse=True)
def smaller_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few megabytes are several."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", PIECE_BYTES)


class Head(nn.Module):
    """A linear layer, and its outputs as losses want them."""

    def __init__(self, layout: str = "rows", classes: int = CLASSES) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, classes)
        self.bias = nn.Parameter(torch.randn(classes))
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        samples, positions, classes = y.shape
        if self.layout == "rows":
            return y.view(-1, classes)
        if self.layout == "positions":
            return y.transpose(1, 2)
        if self.layout == "positions, turned":
            return y.permute(0, -1, 1)
        if self.layout == "positions, summed behind":
            # The sum over samples and positions depends on where they lie.
            return (y + self.bias).transpose(1, 2)
        image = y.view(samples, 5, positions // 5, classes).permute(0, 3, 1, 2)
        return image if self.layout == "channels last" else image.contiguous()


LAYOUTS = (
    "rows",
    "positions",
    "positions, turned",
    "positions, summed behind",
    "channels last",
    "image",
)


def draw(
    samples: int = 4, positions: int = 330, classes: int = CLASSES, seed: int = 1
) -> tuple[Tensor, Tensor]:
    """Inputs, and classes of which some are to be ignored."""
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(samples, positions, WIDTH, generator=generator)
    target = torch.randint(0, classes, (samples, positions), generator=generator)
    return x, target.masked_fill(torch.rand(target.shape, generator=generator) < 0.2, IGNORED)


def train(model: Head, x: Tensor, target: Tensor, room: Any = None, **options: Any) -> list[Tensor]:
    """Loss and gradients of one step; rows of losses are weighed."""
    model.zero_grad()
    with room or nullcontext():
        y = model(x)
        shape = (y.shape[0], *y.shape[2:])
        loss = functional.cross_entropy(y, target.reshape(shape), **options)
        del y
        scale = torch.linspace(-1, 1, loss.numel()).view(loss.shape)
        result = loss if loss.dim() == 0 else (loss * scale.to(loss.dtype)).sum()
    assert room is None or is_ours(loss)
    result.backward()
    if room is not None:
        nothing_is_left(room)
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def is_ours(loss: Tensor) -> bool:
    nodes, names = [loss.grad_fn], set[str]()
    while nodes:
        node: Any = nodes.pop()
        names.add(node.name())
        nodes.extend(n for n, _ in node.next_functions if n is not None)
    return "CrossEntropyBackward" in names


def nearness(plain: list[Tensor], ours: list[Tensor]) -> float:
    """Squared error of the gradient beside its square."""
    pairs = list(zip(plain[1:], ours[1:], strict=True))
    error = sum(float((a - b).double().square().sum()) for a, b in pairs)
    return error / sum(float(a.double().square().sum()) for a, _ in pairs)


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
        if meter is not None:
            y.register_hook(
                lambda _, meter=meter: counts.extend(
                    len(g) for g in meter._outputs if g is not None
                )
            )
        loss.backward()
    assert counts == [4, 4]


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
