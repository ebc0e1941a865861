"""The first passes of a training: is the gradient's error what the room says it is?

Networks whose mean gradient moves fast at the start train with a room at its default tolerance. At
passes among the first forty the gradient of the batch is computed exactly and with compression,
and the variance over other batches at the same weights. Errors are shares of that variance: as the
room predicts them, as its meter last read them, and in truth, of the whole gradient and of every
parameter by itself.
"""

import argparse
import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from truth_models import SUBJECTS, Batch

import elbowroom as er

# A gradient that is zero but for rounding has no variance to speak of.
LEAST_SHARE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Point:
    """One pass; errors are shares of the variance over other batches at the same weights."""

    network: str
    step: int
    predicted: float
    read: float | None
    """By the meter, the last time."""

    true: float
    variance: float
    """As the room estimates it, over the true one."""

    worst: float
    """Of all parameters: error over the parameter's own variance."""

    worst_name: str
    above: int
    """Parameters whose error is above three times their own share of the tolerance."""

    parameters: int
    ratio: float


class Bench:
    """Trains a subject and compares on the way."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        torch.manual_seed(options.seed)
        self._name, self._others, self._tolerance = name, options.batches, options.tolerance
        self._subject = SUBJECTS[name]()
        self._room = er.Activations(
            self._subject.network,
            overhead=None,
            tolerance=options.tolerance,
            optimizer=self._subject.optimizer if options.informed else None,
        )

    def run(self, steps: int, every: int) -> list[Point]:
        """The first passes."""
        points: list[Point] = []
        for step in range(1, steps + 1):
            batch = self._subject.draw()
            with self._room:
                loss = self._subject.loss(self._subject.network, batch)
            self._subject.optimizer.zero_grad()
            loss.backward()
            if step >= 3 and (step <= 8 or step % every == 0):
                point = self._compare(step, batch)
                points += [] if point is None else [point]
            self._subject.optimizer.step()
        return points

    def _compare(self, step: int, batch: Batch) -> Point | None:
        network, room = self._subject.network, self._room
        names = [name for name, p in network.named_parameters() if p.requires_grad]
        was, room._measuring = room._measuring, True
        with torch.random.fork_rng(devices=[]):
            exact = self._gradient(batch, nullcontext())
            others = [
                self._gradient(self._subject.draw(), nullcontext()) for _ in range(self._others)
            ]
            with room._trial():
                lossy = self._gradient(batch, room._retry(1.0))
        room._measuring = was
        errors = [float((a - b).abs().square().sum()) for a, b in zip(exact, lossy, strict=True)]
        truth = [
            float(
                torch.stack([torch.view_as_real(g) if g.is_complex() else g for g in one])
                .var(0)
                .sum()
            )
            for one in zip(*others, strict=True)
        ]
        names_kept = {row.name for row in room.ledger.rows if row.bound > 0}
        predicted = sum(
            s.share for s in room._sites if s.name in names_kept and s.bound is not None
        )
        if not predicted > 0:
            return None
        estimate = sum(room._noise.variance(p) or 0.0 for p in network.parameters())
        least = LEAST_SHARE * sum(truth)
        worst = max(
            (error / variance, name)
            for error, variance, name in zip(errors, truth, names, strict=True)
            if variance > least
        )
        above = sum(
            error > 3 * self._tolerance * variance and variance > least
            for error, variance in zip(errors, truth, strict=True)
        )
        readings = room.ledger.readings
        return Point(
            network=self._name,
            step=step,
            predicted=predicted,
            read=readings[-1].measured if readings else None,
            true=sum(errors) / sum(truth),
            variance=estimate / sum(truth),
            worst=worst[0],
            worst_name=worst[1],
            above=above,
            parameters=len(names),
            ratio=room.ledger.ratio,
        )

    def _gradient(self, batch: Batch, around: Any) -> list[Tensor]:
        network = self._subject.network
        buffers = [b.detach().clone() for b in network.buffers()]
        with around:
            loss = self._subject.loss(network, batch)
        found = torch.autograd.grad(loss, [p for p in network.parameters() if p.requires_grad])
        with torch.no_grad():
            for buffer, value in zip(network.buffers(), buffers, strict=True):
                buffer.copy_(value)
        return list(found)


def summarise(points: list[Point], tolerance: float) -> str:
    """A row of the table."""
    off = [point.predicted / point.true for point in points]
    within = sum(0.5 <= each <= 2 for each in off)
    worst = max(points, key=lambda point: point.worst)
    return (
        f"| {points[0].network} | {median(p.variance for p in points):.2f} | {median(off):.2f} | "
        f"{within} of {len(points)} | {min(off):.2f} to {max(off):.2f} | "
        f"{max(p.true for p in points):.3f} | {worst.worst:.3f} ({worst.worst_name}) | "
        f"{max(p.above for p in points)} of {points[0].parameters} | "
        f"{points[-1].ratio:.1f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", choices=[*SUBJECTS, []], default=[])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=4, help="passes between two comparisons")
    parser.add_argument("--batches", type=int, default=16, help="other batches, for the variance")
    parser.add_argument("--tolerance", type=float, default=0.1)
    parser.add_argument("--informed", action="store_true", help="the room knows the optimizer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="every comparison, one a line")
    options = parser.parse_args()
    if not options.json:
        print(
            "| network | variance | predicted / true | within 2x | range | largest error | "
            "worst parameter | above 3x | ratio |\n|---|---:|---:|---|---|---:|---|---|---:|"
        )
    for name in options.networks or SUBJECTS:
        points = Bench(name, options).run(options.steps, options.every)
        if options.json:
            for point in points:
                print(json.dumps(asdict(point)), flush=True)
        else:
            print(summarise(points, options.tolerance), flush=True)


if __name__ == "__main__":
    main()
