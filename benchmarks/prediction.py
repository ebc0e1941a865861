"""The gradient's error as predicted, against the truth: by network, and by place within it.

Networks train with a room at its default tolerance. At every refresh of the bounds, and half-way
to the next one, the gradient of the batch is computed once exactly and a few times with
compression, each time with another dither. What the errors add to the gradient's variance is
compared with what the ledger says.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch
from activation_cases import loss_of, maps, pictures, sentences
from torch import Tensor, nn

import elbowroom as er
from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.sites import Site
from elbowroom.science.applications import find_recipe
from elbowroom.science.climate.models import UNet
from elbowroom.science.language.models import LSTM, gpt_mini
from elbowroom.science.vision import resnet18, resnet50, vit_small

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A network in training."""

    network: nn.Module
    draw: Callable[[torch.Generator], Batch]
    loss: Callable[[Any, Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    rate_at: Callable[[int], float] | None = None


def of_network(
    make: Callable[[], nn.Module], draw: Any, batch: int, rate: float = 0.02
) -> Callable[[int], Subject]:
    """One of the networks of the activation benchmark, on data made up for it."""

    def subject(steps: int) -> Subject:
        network = make()
        return Subject(
            network=network,
            draw=lambda generator: draw(generator, batch),
            loss=loss_of,
            optimizer=torch.optim.SGD(network.parameters(), rate, momentum=0.9),
        )

    return subject


def of_application(name: str, **changes: Any) -> Callable[[int], Subject]:
    """An application of science on real data, with its own optimizer and schedule."""

    def subject(steps: int) -> Subject:
        recipe: Any = find_recipe(name)
        schedule = replace(recipe.schedule, steps=steps)
        recipe = replace(recipe, schedule=schedule, **changes)
        task = recipe.make_task(None)
        network = recipe.make_network(task)
        return Subject(
            network=network,
            draw=lambda generator: task.draw(schedule.batch, generator),
            loss=task.loss,
            optimizer=schedule.make_optimizer(network),
            rate_at=schedule.rate_at,
        )

    return subject


SUBJECTS: dict[str, Callable[[int], Subject]] = {
    "resnet18": of_network(lambda: resnet18(classes=10), pictures(64, 10), 16),
    "resnet50": of_network(lambda: resnet50(classes=10), pictures(64, 10), 16),
    "unet": of_network(lambda: UNet(channels=3, outputs=2), maps(64), 8),
    "vit_small": of_network(
        lambda: vit_small(classes=10, pixels=64, dropout=0.1), pictures(64, 10), 16
    ),
    "gpt_mini": of_network(
        lambda: gpt_mini(symbols=256, context=128, width=128), sentences(128, 256), 8
    ),
    "lstm": of_network(lambda: LSTM(symbols=256, width=128), sentences(64, 256), 32, 0.5),
    "cifar-resnet": of_application("cifar-resnet"),
    "cifar-vit": of_application("cifar-vit"),
    "extreme-rain": of_application("extreme-rain"),
    "jets": of_application("jets"),
    "gpt": of_application("gpt"),
    "shakespeare-lstm": of_application("lstm"),
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One comparison; errors are shares of the gradient's variance."""

    network: str
    step: int
    is_refresh: bool
    predicted: float
    raw: float
    """The closed forms alone, without what the meter has taught."""

    measured: float
    ratio: float
    """Bytes saved over bytes kept."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One place, compressed alone."""

    network: str
    step: int
    site: str
    readers: tuple[str, ...]
    predicted: float
    measured: float
    relative_bound: float
    """Of the values' spread."""


class Bench:
    """Trains a subject and compares on the way."""

    def __init__(self, name: str, *, steps: int, refresh: int, meter: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.name = name
        self.subject = SUBJECTS[name](steps)
        self.room = er.Activations(
            self.subject.network, refresh=refresh, meter=meter, seed=seed, overhead=None
        )
        self._refresh = refresh
        self._generator = torch.Generator().manual_seed(seed)
        self._random = torch.get_rng_state()

    def step(self, number: int) -> Batch:
        """Train on one batch; the weights are those before it until `update`."""
        x, y = self.subject.draw(self._generator)
        self._random = torch.get_rng_state()
        with self.room:
            loss = self.subject.loss(self.subject.network(x), y)
        self.subject.optimizer.zero_grad()
        loss.backward()
        return x, y

    def is_refresh(self, number: int) -> bool:
        """Whether the bounds follow from this step's gradients."""
        every = self._refresh
        return number % every == 0 if number >= every else number & (number - 1) == 0

    def update(self, number: int) -> None:
        """Let the optimizer act."""
        if self.subject.rate_at is not None:
            for group in self.subject.optimizer.param_groups:
                group["lr"] = self.subject.rate_at(number - 1)
        self.subject.optimizer.step()

    def compare(self, number: int, batch: Batch, draws: int) -> Point | None:
        """The present bounds on this batch."""
        sites = self._encoded()
        variance = self._variance()
        predicted = sum(site.share for site in sites)
        if not (variance > 0 and predicted > 0):
            return None
        return Point(
            network=self.name,
            step=number,
            is_refresh=self.is_refresh(number),
            predicted=predicted,
            raw=predicted / self.room._correction.trust,
            measured=self._error(batch, draws) / variance,
            ratio=self.room.ledger.ratio,
        )

    def parts(self, number: int, batch: Batch, draws: int) -> list[Part]:
        """Every place on its own, all others kept as they are."""
        variance = self._variance()
        readers = {row.name: row.readers for row in self.room.ledger.rows if row.bound > 0}
        sites = self._encoded()
        found: list[Part] = []
        for site in sites:
            with self._alone(site):
                error = self._error(batch, draws)
            values = site.sample if site.sample is not None else torch.zeros(1)
            found.append(
                Part(
                    network=self.name,
                    step=number,
                    site=site.name,
                    readers=readers[site.name],
                    predicted=site.share / self.room._correction.trust,
                    measured=error / variance,
                    relative_bound=(site.bound or 0.0) / max(1e-30, float(values.std())),
                )
            )
        return found

    @contextmanager
    def _alone(self, site: Site) -> Iterator[None]:
        """Whatever else is saved stays as it is."""
        policy: Any = self.room._policy
        pack = policy.pack

        def pack_one(entry: Entry, tensor: Tensor, *how: Any) -> Any:
            return pack(entry, tensor, *how) if entry.site is site else None

        policy.pack = pack_one
        try:
            yield
        finally:
            del policy.pack

    def _encoded(self) -> list[Site]:
        names = {row.name for row in self.room.ledger.rows if row.bound > 0}
        return [s for s in self.room._sites if s.name in names and s.bound is not None]

    def _variance(self) -> float:
        found = (self.room._noise.variance(p) for p in self.subject.network.parameters())
        return sum(value or 0.0 for value in found)

    def _error(self, batch: Batch, draws: int) -> float:
        """Mean squared error of the gradient."""
        exact = self._gradient(batch, nullcontext())
        total = 0.0
        policy = self.room._policy
        seed = policy.seed
        with self.room._trial():
            for draw in range(draws):
                policy.seed = seed + 7919 * (draw + 1)
                lossy = self._gradient(batch, self.room._retry(1.0))
                total += sum(
                    float((a - b).double().square().sum())
                    for a, b in zip(exact, lossy, strict=True)
                    if a is not None and b is not None
                )
        policy.seed = seed
        return total / draws

    def _gradient(self, batch: Batch, around: Any) -> list[Tensor | None]:
        network = self.subject.network
        buffers = [b.detach().clone() for b in network.buffers()]
        # Dropout repeats itself, and the estimate of the variance does not see these gradients.
        was, self.room._measuring = self.room._measuring, True
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            with around:
                loss = self.subject.loss(network(batch[0]), batch[1])
            parameters = [p for p in network.parameters() if p.requires_grad]
            found: list[Tensor | None] = [*torch.autograd.grad(loss, parameters, allow_unused=True)]
        self.room._measuring = was
        with torch.no_grad():
            for buffer, value in zip(network.buffers(), buffers, strict=True):
                buffer.copy_(value)
        return found


def run(name: str, options: argparse.Namespace) -> tuple[list[Point], list[Part]]:
    """One network from start to end."""
    bench = Bench(
        name, steps=options.steps, refresh=options.refresh, meter=options.meter, seed=options.seed
    )
    points: list[Point] = []
    parts: list[Part] = []
    for number in range(1, options.steps + 1):
        batch = bench.step(number)
        is_between = number % options.refresh == options.refresh // 2
        if bench.is_refresh(number) or is_between:
            point = bench.compare(number, batch, options.draws)
            if point is not None:
                points.append(point)
                if options.verbose:
                    print(json.dumps(asdict(point)), flush=True)
        if number in options.sites:
            parts += bench.parts(number, batch, options.draws)
        bench.update(number)
    return points, parts


def within(ratios: list[float], factor: float = 2.0) -> float:
    """Share of the ratios that are off by less than the factor."""
    return sum(1 / factor <= ratio <= factor for ratio in ratios) / max(1, len(ratios))


def summarise(name: str, points: list[Point]) -> str:
    """As the table shows it."""
    cells = [name]
    for chosen in ([p for p in points if p.is_refresh], [p for p in points if not p.is_refresh]):
        for kind in ("raw", "predicted"):
            ratios = [getattr(p, kind) / p.measured for p in chosen]
            if not ratios:
                cells += ["-"]
                continue
            worst = max(ratios, key=lambda ratio: max(ratio, 1 / ratio))
            cells.append(
                f"{median(ratios):.2f}, {within(ratios):.0%} of {len(ratios)}, {worst:.2f}"
            )
    measured = [p.measured for p in points if p.is_refresh]
    cells.append(f"{median(measured):.3f}" if measured else "-")
    cells.append(f"{points[-1].ratio:.1f}" if points else "-")
    return "| " + " | ".join(cells) + " |"


HEADINGS = (
    "Predicted over measured: median, share within 2x, worst.\n\n"
    "| network | at refreshes, closed forms | with the meter | between, closed forms | "
    "with the meter | measured | ratio of bytes |\n"
    "| --- | --- | --- | --- | --- | ---: | ---: |"
)


def main() -> None:
    """Compare the networks that were named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", help=f"of {', '.join(SUBJECTS)}; all by default")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--refresh", type=int, default=20)
    parser.add_argument("--meter", type=int, default=50)
    parser.add_argument("--draws", type=int, default=2, help="of the dither, for each comparison")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--sites",
        type=int,
        nargs="*",
        default=[],
        help="steps at which places are taken one by one",
    )
    parser.add_argument("--verbose", action="store_true", help="every comparison")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    everything: list[Point] = []
    print(HEADINGS)
    for name in options.networks or SUBJECTS:
        points, parts = run(name, options)
        everything += points
        print(summarise(name, points), flush=True)
        for part in sorted(parts, key=lambda p: (p.step, -max(p.measured, p.predicted))):
            times = part.predicted / max(part.measured, 1e-30)
            print(
                f"  {part.step:5d} {times:8.2f} = {part.predicted:.2e} / "
                f"{part.measured:.2e}  b/s {part.relative_bound:5.2f}  {part.site}  "
                f"{' '.join(part.readers)}",
                flush=True,
            )
    print(summarise("all", everything))


if __name__ == "__main__":
    main()
