"""Small random networks, trained plainly and with a room: same bits, or near, and no exception."""

import logging
import random
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations import (
    convolutions,
    losses,
    memory,
    pieces,
    room,
    scratch,
    windows,
)
from elbowroom.keep.activations.policy import CAREFUL
from tests.keep.activations import random_layers
from tests.keep.activations.checking import error_of, nothing_is_left, same_bits
from tests.keep.activations.random_steps import STEPS, Maker, Run

assert random_layers.ROWS  # It adds its steps to the others.

SHAPES = {2: (24, 16), 3: (4, 8, 16), 4: (4, 8, 12, 12)}
NAMES = tuple(STEPS)
LOSSES = (
    *("square", "absolute", "cross_entropy", "smoothed", "ignoring", "each_pixel", "binary"),
    *("likelihood", "mean", "huber"),
)

PASSES = 3
NEAR = 0.25
"""Squared error of the whole gradient beside its squared norm, before bounds follow from it."""


@dataclass(frozen=True)
class Plan:
    """From which a network follows; printed, it can be built again."""

    axes: int
    steps: tuple[tuple[str, int], ...]
    loss: str
    seed: int = 0

    @staticmethod
    def draw(seed: str) -> "Plan":
        """The same for the same seed."""
        rng = random.Random(seed)
        axes = rng.choice([2, 3, 3, 4, 4])
        steps = [(rng.choice(NAMES), rng.randrange(64)) for _ in range(rng.randint(3, 14))]
        return Plan(axes, tuple(steps), rng.choice(LOSSES), rng.randrange(1000))

    def without(self, place: int) -> "Plan":
        """One step less."""
        return Plan(self.axes, self.steps[:place] + self.steps[place + 1 :], self.loss, self.seed)


class Network(nn.Module):
    """Steps that do not suit the shape that arrives, or fail on it, are left out."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        torch.manual_seed(plan.seed)
        self.parts = nn.ModuleList()
        self.plan = plan
        self.rounding: torch.Generator | None = None
        """Of errors added to what each step hands on, as large as a room's first bounds."""

        shape = SHAPES[plan.axes]
        features = shape[1] if plan.axes == 4 else shape[-1]
        first = nn.Conv2d(features, 8, 3, padding=1) if plan.axes == 4 else nn.Linear(features, 16)
        self.parts.append(first)
        self.names = ["first"]
        self._runs: list[Run] = [first]
        x = first(torch.randn(shape))
        self._maker = make = Maker(tuple(x.shape), 0, self.parts, {tuple(x.shape): [0]}, [x])
        for name, number in plan.steps:
            axes, build = STEPS[name]
            if x.dim() not in axes:
                continue
            make.shape, make.number, count = tuple(x.shape), number, len(self.parts)
            run, found = build(make), x
            try:
                found = run(x)
                usual = found.dim() in (2, 3, 4) and found.dtype == torch.float32
                fits = 256 <= found.numel() <= 20000 and min(found.shape) > 3
                sound = usual and fits and bool(found.isfinite().all())
            except (RuntimeError, ValueError, IndexError, ZeroDivisionError):
                sound = False
            if not sound:
                del self.parts[count:]
                continue
            x = found
            self.names.append(name)
            self._runs.append(run)
            make.earlier.append(x)
            make.seen.setdefault(tuple(x.shape), []).append(len(make.earlier) - 1)
        make.earlier = []
        last = nn.Conv2d(x.shape[1], 5, 1) if x.dim() == 4 else nn.Linear(x.shape[-1], 5)
        self.parts.append(last)

    def forward(self, x: Tensor) -> Tensor:
        self._maker.earlier = earlier = []
        for run in self._runs:
            x = run(x)
            if self.rounding is not None:
                noise = torch.rand(x.shape, generator=self.rounding).sub_(0.5).mul_(2 * CAREFUL)
                x = x + noise * x.detach().std()
            earlier.append(x)
        self._maker.earlier = []
        return self.parts[-1](x)


def loss_of(name: str, y: Tensor, generator: torch.Generator) -> Tensor:
    """Of five classes or values."""
    y = y if y.dim() == 4 else y.reshape(-1, 5)
    target = torch.randn(y.shape, generator=generator)
    classes = torch.randint(5, (y.shape[0], *y.shape[2:]), generator=generator)
    if name == "square":
        return functional.mse_loss(y, target)
    if name == "absolute":
        return functional.l1_loss(y, target)
    if name == "cross_entropy":
        return functional.cross_entropy(y, classes)
    if name == "smoothed":
        return functional.cross_entropy(y, classes, label_smoothing=0.1)
    if name == "ignoring":
        return functional.cross_entropy(y, classes, ignore_index=2)
    if name == "each_pixel":
        return functional.cross_entropy(y, classes, reduction="none").square().mean()
    if name == "binary":
        return functional.binary_cross_entropy_with_logits(y, target.sigmoid())
    if name == "likelihood":
        return functional.nll_loss(y.log_softmax(1), classes)
    if name == "huber":
        return functional.smooth_l1_loss(y, target)
    return (y * target).mean()


@contextmanager
def small_limits(*, in_pieces: bool) -> Iterator[None]:
    """What is done for large tensors alone is done for small ones too."""
    few = [
        (room, "SMALL_BYTES", 512),
        *((m, "LEAST_BYTES", 512) for m in (losses, scratch, windows)),
        *((m, "PIECE_BYTES", 4096) for m in (convolutions, pieces, windows)),
        (scratch, "_NORM_BYTES", 512),
        (scratch, "_NORM_PIECE_BYTES", 512),
        *(((memory, "ALWAYS_BYTES", 0),) if in_pieces else ()),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in few]
    try:
        for module, name, value in few:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


@dataclass(frozen=True)
class Outcome:
    """Of one pass: all that a program could see."""

    error: str
    results: list[Tensor | None]


def train(network: Network, context: er.Activations | None, passes: int = PASSES) -> list[Outcome]:
    """Some steps of plain descent, always with the same numbers."""
    found: list[Outcome] = []
    parameters = [p for p in network.parameters() if p.requires_grad]
    for number in range(passes):
        torch.manual_seed(number)
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(SHAPES[network.plan.axes], generator=generator).requires_grad_()
        network.zero_grad(set_to_none=True)
        error, loss = "", None
        try:
            with context or nullcontext():
                loss = loss_of(network.plan.loss, network(x), generator)
            loss.backward()
        except Exception as raised:
            # Autograd tells an operation that it has put in place of the user's.
            said = re.sub(r", which is output \d+ of \w+,", "", str(raised).splitlines()[0])
            error = f"{type(raised).__name__}: {said}"
        results = [loss, x.grad, *(p.grad for p in network.parameters())]
        found.append(
            Outcome(
                error,
                [None if t is None else t.detach().clone() for t in (*results, *network.buffers())]
                + [torch.get_rng_state()],
            )
        )
        if error:
            break
        with torch.no_grad():
            for parameter in parameters:
                if parameter.grad is not None and bool(parameter.grad.isfinite().all()):
                    parameter.sub_(parameter.grad.clamp(-1, 1), alpha=0.01)
    return found


class _Warnings(logging.Handler):
    """What a room has to say."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if "above the tolerance" not in said:
            self.said.append(said)


def fault(plan: Plan) -> str | None:
    """What is wrong with a room around this network, if anything is."""
    plain = train(Network(plan), None)
    warnings = _Warnings()
    logging.getLogger("elbowroom").addHandler(warnings)
    try:
        with small_limits(in_pieces=plan.seed % 2 == 1):
            found = _exact_fault(plan, plain) or _near_fault(plan, plain)
    except Exception:
        found = traceback.format_exc()
    finally:
        logging.getLogger("elbowroom").removeHandler(warnings)
    return found or "; ".join(warnings.said) or None


def _exact_fault(plan: Plan, plain: list[Outcome]) -> str | None:
    twin = Network(plan)
    exact = er.Activations(twin, tolerance=0)
    ours = train(twin, exact)
    for number, (one, two) in enumerate(zip(plain, ours, strict=False)):
        if one.error != two.error:
            return f"exact, pass {number}: {two.error or 'no error'} in place of {one.error}"
        if not one.error and not same_bits(one.results, two.results):
            places = [
                i
                for i, (a, b) in enumerate(zip(one.results, two.results, strict=True))
                if not same_bits([a], [b])
            ]
            return f"exact, pass {number}: other bits at {places}"
    if not plain[-1].error:
        nothing_is_left(exact)
    exact.close()
    return None


def _near_fault(plan: Plan, plain: list[Outcome]) -> str | None:
    if plain[-1].error:
        return None
    twin = Network(plan)
    near = er.Activations(twin)
    ours = train(twin, near)
    for number, (one, two) in enumerate(zip(plain, ours, strict=True)):
        if two.error:
            return f"default, pass {number}: {two.error}"
        # Weights are the same in the first pass alone.
        apart = error_of(one.results[:-1], two.results[:-1])
        if number == 0 and apart > NEAR and not _is_touchy(plan, plain):
            return f"default, pass {number}: squared error {apart:.3g}"
    nothing_is_left(near)
    near.close()
    return None


def _is_touchy(plan: Plan, plain: list[Outcome]) -> bool:
    """Whether plain training has such errors too where forward rounds as a room does at first.

    A norm of rows that are nearly zero makes any error large; nobody promises anything of these
    before gradients have been seen.
    """
    found: list[float] = []
    for seed in range(3):
        network = Network(plan)
        network.rounding = torch.Generator().manual_seed(seed)
        rounded = train(network, None, 1)
        found.append(error_of(plain[0].results[:-1], rounded[0].results[:-1]))
    return max(found) > NEAR / 10


def smallest(plan: Plan) -> tuple[Plan, str]:
    """A network with the same kind of fault and as few steps as possible."""
    told = fault(plan)
    assert told is not None
    place = len(plan.steps) - 1
    while place >= 0:
        less = plan.without(place)
        found = fault(less)
        if found is not None:
            plan, told = less, found
        place -= 1
    return plan, told


def report(seeds: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Of networks by seed: what is wrong with those that fail, and the smallest that does too."""
    for seed in seeds:
        plan = Plan.draw(seed)
        told = fault(plan)
        if told is not None:
            few, why = smallest(plan)
            yield seed, f"{why}\n  {few}\n  (at first: {told})"


def draw_any(strategy: Any) -> Any:
    """Networks for hypothesis, which finds the smallest that fails by itself."""
    steps = strategy.lists(
        strategy.tuples(strategy.sampled_from(NAMES), strategy.integers(0, 63)),
        min_size=1,
        max_size=10,
    )
    return strategy.builds(
        Plan,
        axes=strategy.sampled_from(sorted(SHAPES)),
        steps=steps.map(tuple),
        loss=strategy.sampled_from(LOSSES),
        seed=strategy.integers(0, 99),
    )
