"""Coders of a wave's history side by side: bytes, time in steps of the wave, gradient error."""

import argparse
import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import elbowroom as er
from elbowroom.errors import ElbowroomError
from elbowroom.keep import Encoding
from elbowroom.keep.loops.coders import Coder, PlainCoder
from elbowroom.keep.loops.learned import LearnedCoder
from elbowroom.keep.loops.linear import LinearCoder
from elbowroom.keep.loops.network import Network
from elbowroom.keep.loops.probe import relative_error
from elbowroom.science.seismic.velocity import Velocity, layered, marmousi
from elbowroom.science.seismic.waves import Medium, ricker

BOUNDS = (1e-2, 1e-3, 1e-4)
DEPTH_POINTS = 2

# Nearly all of a gradient's norm lies within five points of the source (99.98 % in the layered
# section), so that it says little about the rest: the error is given without these points as well.
MUTED_POINTS = 20


@dataclass(frozen=True)
class Case:
    """One shot, and how long it is followed."""

    name: str
    medium: Medium
    wavelet: Tensor

    def source(self, value: Tensor) -> Tensor:
        """What is added to the pressure."""
        field = torch.zeros((1, *self.medium.squared.shape))
        place = DEPTH_POINTS + self.medium.sponge_points
        field[0, place, field.shape[2] // 2] = value
        return field

    def frames(self) -> Iterator[Tensor]:
        """The pressure after each step."""
        state = self.medium.quiet(1)
        for value in self.wavelet:
            state = self.medium.step(state, self.source(value))
            yield state[0]

    def step_s(self) -> float:
        """The shortest time of a step, of twenty."""
        state, source = self.medium.quiet(1), self.source(self.wavelet[0])
        best = float("inf")
        for _ in range(20):
            start = time.perf_counter()
            state = self.medium.step(state, source)
            best = min(best, time.perf_counter() - start)
        return best

    def away(self, gradient: Tensor) -> Tensor:
        """A gradient with zeros around the source."""
        muted = gradient.clone()
        row, column = DEPTH_POINTS + self.medium.sponge_points, gradient.shape[1] // 2
        rows = slice(max(0, row - MUTED_POINTS), row + MUTED_POINTS + 1)
        muted[rows, max(0, column - MUTED_POINTS) : column + MUTED_POINTS + 1] = 0
        return muted

    def gradient(self, store: Encoding | None) -> Tensor:
        """Of the last pressure's energy with respect to the squared speeds."""
        squared = self.medium.squared.clone().requires_grad_()
        medium = replace(self.medium, squared=squared)
        loop = er.Loop(
            lambda state, value: medium.step(state, self.source(value)),
            parameters=squared,
            store=store,
            probe_every=0,
        )
        after = loop(medium.quiet(1), inputs=self.wavelet)
        return torch.autograd.grad(after[0].square().sum(), squared)[0]


@dataclass(frozen=True)
class ZfpCoded:
    """A frame in zfp's own format."""

    data: bytes
    shape: torch.Size

    @property
    def nbytes(self) -> int:
        """That it takes."""
        return len(self.data)

    def decode(self) -> Tensor:
        """The frame."""
        import zfpy

        return torch.from_numpy(np.asarray(zfpy.decompress_numpy(self.data))).reshape(self.shape)


@dataclass
class ZfpCoder:
    """zfp with its tolerance for the bound; what it cannot take is encoded plainly."""

    plain: PlainCoder = field(default_factory=PlainCoder)

    def tighten(self, by: int) -> None:
        """It has one way only."""

    def encode(self, frame: Tensor, bound: er.Bound) -> Any:
        """Encode a frame."""
        if bound == er.Bound.lossless():
            return self.plain.encode(frame, bound)
        import zfpy

        # Frames of one shot: as a grid of two dimensions, which suits zfp.
        values = np.ascontiguousarray(frame.squeeze().numpy())
        return ZfpCoded(zfpy.compress_numpy(values, tolerance=bound.value), frame.shape)


@dataclass
class Row:
    """What a coder did to a film."""

    raw: int = 0
    taken: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    worst: float = 0.0
    frames: int = 0


def measure(frames: list[Tensor], make: Callable[[], Coder], relative: float) -> tuple[Row, Coder]:
    """Encode and decode every frame under a share of its range."""
    coder, row = make(), Row()
    for frame in frames:
        low, high = (float(v) for v in frame.aminmax())
        most = relative * (high - low)
        bound = er.Bound.absolute(most) if most > 0 else er.Bound.lossless()
        start = time.perf_counter()
        coded = coder.encode(frame, bound)
        between = time.perf_counter()
        found = coded.decode()
        row.decode_s += time.perf_counter() - between
        row.encode_s += between - start
        row.raw += frame.nbytes
        row.taken += coded.nbytes
        row.frames += 1
        if most > 0:
            row.worst = max(row.worst, float((found.double() - frame.double()).abs().max()) / most)
    return row, coder


def make_cases(names: list[str], steps: int) -> Iterator[Case]:
    """Those whose data is there."""
    sections: dict[str, Callable[[], Velocity]] = {
        "layered": lambda: layered(200, 400),
        "marmousi": lambda: marmousi().every(2),
    }
    for name in names:
        try:
            medium = Medium.of(sections[name]())
        except ElbowroomError as error:
            print(f"No {name}: {error}\n")
            continue
        yield Case(name, medium, ricker(8.0, steps, medium.step_s).float())


def show(case: Case, options: argparse.Namespace) -> None:
    """Print the rows of one case."""
    # Far apart, as anchors of a history are; a model sees them in the same order.
    frames = list(case.frames())[:: options.every]
    step_s = case.step_s()
    exact = case.gradient(None)
    for relative in options.bounds:
        makers: dict[str, Callable[[], Coder]] = {
            "plain": PlainCoder,
            "linear": LinearCoder,
            "learned": partial(LearnedCoder, fit_steps=options.fit_steps),
        }
        if importlib.util.find_spec("zfpy") is not None:
            makers["zfp"] = ZfpCoder
        network: Network | None = None
        for name, make in makers.items():
            row, coder = measure(frames, make, relative)
            write(case, relative, name, row, coder, make, step_s, exact)
            network = getattr(coder, "network", None) or network
        if network is not None:
            # As in every sweep but the first.
            make = partial(LearnedCoder, network=network)
            row, coder = measure(frames, make, relative)
            write(case, relative, "learned before", row, coder, make, step_s, exact)


def write(
    case: Case,
    relative: float,
    name: str,
    row: Row,
    coder: Coder,
    make: Callable[[], Coder],
    step_s: float,
    exact: Tensor,
) -> None:
    """One row, with the gradient of a whole loop whose every step is encoded so."""
    found = case.gradient(Encoding(relative=relative, every=1, coder=make))
    error = relative_error([exact], [found])
    away = relative_error([case.away(exact)], [case.away(found)])
    counts = getattr(coder, "counts", None)
    used = "" if counts is None else f"{counts['model']} of {row.frames}"
    model = getattr(coder, "model", None)
    kilobytes = "" if model is None else f"{model.nbytes / 1e3:.1f}"
    print(
        f"| {case.name} | {relative:.0e} | {name} | {row.raw / row.taken:.1f} | {used} | "
        f"{kilobytes} | {row.encode_s / row.frames / step_s:.2f} | "
        f"{row.decode_s / row.frames / step_s:.2f} | {row.worst:.4f} | {error:.1e} | {away:.1e} |",
        flush=True,
    )


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=["layered", "marmousi"], metavar="CASE")
    parser.add_argument("--bounds", type=float, nargs="+", default=list(BOUNDS))
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--every", type=int, default=4, help="of how many frames one is encoded")
    parser.add_argument("--fit-steps", type=int, default=400)
    options = parser.parse_args()
    print(
        "Times are in steps of the wave, a frame; the model's bytes and the time of its fit are "
        "included.\n"
    )
    print(
        "| wave | bound | coder | times smaller | by model | model kB | encode | decode | "
        "worst / bound | gradient error | away from the source |"
    )
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for case in make_cases(options.cases, options.steps):
        show(case, options)


if __name__ == "__main__":
    main()
