"""Full-waveform inversion: what lies under the ground, from what was heard above it.

Inverts a made-up section of tilted layers, twice: with all fields of every loop kept, and with an
encoded history in a small part of the memory. Prints how far both come, and draws pictures.

    python examples/seismic_inversion.py --pictures out
    python examples/seismic_inversion.py --marmousi --memory "30 MB" --pictures out
    python examples/seismic_inversion.py --marmousi --method gauss-newton --prior dias --alone

`--marmousi` needs the data (`elbowroom data`); it inverts every fourth point of the model. With
`--every 2`, a loop would keep eight times as much, and takes eight times as long.
`--alone` leaves out the run that keeps everything, where that does not fit.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elbowroom.science import seismic

SHARE = "memory for the loop, such as '30 MB'; all that an encoded history takes by default"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--marmousi", action="store_true", help="the real model, coarser")
    parser.add_argument("--every", type=int, default=4, help="of how many points of it one is used")
    parser.add_argument("--shots", type=int, help="8 of Marmousi and 4 of layers by default")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--method", choices=("lbfgs", "gauss-newton", "newton"), default="lbfgs")
    parser.add_argument("--inner", type=int, default=4, help="products an iteration, at most")
    parser.add_argument("--prior", choices=("none", "tikhonov", "dias"), default="none")
    parser.add_argument("--memory", help=SHARE)
    parser.add_argument("--tolerance", type=float, default=0.01, help="of encoded gradients")
    parser.add_argument("--alone", action="store_true", help="without the run that keeps all")
    parser.add_argument("--noise", type=float, default=0.1, help="relative to what was heard")
    parser.add_argument("--pictures", type=Path, help="a folder for them")
    parser.add_argument("--kind", choices=("svg", "png"), default="svg", help="of sections")
    parser.add_argument("--quick", action="store_true", help="a small section, two iterations")
    chosen = parser.parse_args()
    # Waves begin as numbers so small that processors take their slow path, twice the time in all.
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    if chosen.marmousi:
        truth, survey, water = make_marmousi(chosen.every, chosen.shots or 8)
    else:
        truth, survey, water = make_layers(chosen.shots or 4, is_quick=chosen.quick)
    if chosen.quick:
        chosen.iterations = 2
    fastest = 1.2 * float(truth.m_per_s.max())
    step_s = seismic.longest_step_s(truth) / 1.25
    heard = seismic.record(seismic.Medium.of(truth, step_s=step_s), survey)
    heard += chosen.noise * heard.square().mean().sqrt() * torch.randn_like(heard)
    start = blurred(truth, water)
    bounded: dict[str, Any] = {"memory": chosen.memory, "tolerance": chosen.tolerance}
    if chosen.memory is None:
        bounded = {"store": "encoded", "tolerance": chosen.tolerance}
    prior = believe(chosen.prior, survey, heard, start, step_s, water, bounded)
    ways: dict[str, dict[str, Any]] = {} if chosen.alone else {"kept": {}}
    ways[chosen.memory or "encoded"] = bounded
    found = {}
    for name, choices in ways.items():
        began = time.perf_counter()
        found[name] = seismic.invert(
            survey,
            heard,
            start,
            step_s=step_s,
            method=chosen.method,
            iterations=chosen.iterations,
            inner=chosen.inner,
            prior=prior,
            bounds_m_per_s=(1400.0, fastest),
            water_rows=water,
            truth=truth,
            tell=lambda now, name=name: tell(name, now),
            **choices,
        )
        print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
    show(found)
    if chosen.pictures is not None:
        draw(chosen.pictures, chosen.kind, truth, start, found, water)


def tell(name: str, now: seismic.Progress) -> None:
    print(f"{name}, iteration {now.iteration}: misfit {now.misfit:.4g}", flush=True)


def make_marmousi(every: int, shots: int) -> tuple[seismic.Velocity, seismic.Survey, int]:
    """The model, a survey of it, and how many rows are water."""
    truth = seismic.marmousi().every(every)
    water = 1 + int((truth.m_per_s < 1510).all(1).sum())
    steps, peak_hz = 4800 // every, 20 / every  # as long, and as many points a wavelength
    survey = seismic.line_survey(
        truth, shots=shots, receivers=800 // every, steps=steps, peak_hz=peak_hz
    )
    return truth, survey, max(4, water)


def make_layers(shots: int, *, is_quick: bool) -> tuple[seismic.Velocity, seismic.Survey, int]:
    """The same, of tilted layers."""
    size = (30, 40) if is_quick else (50, 100)
    truth = seismic.layered(*size, layers=4, bottom_m_per_s=2700.0)
    steps = 120 if is_quick else 400
    shots = 2 if is_quick else shots
    return truth, seismic.line_survey(truth, shots=shots, receivers=30, steps=steps), 5


def blurred(truth: seismic.Velocity, water: int) -> seismic.Velocity:
    """Where the inversion starts: the water is known, and below it all is smooth."""
    smooth = seismic.smooth(truth, over_m=8 * truth.spacing_m).m_per_s
    values = torch.cat([truth.m_per_s[:water], smooth[water:]])
    return seismic.Velocity(m_per_s=values, spacing_m=truth.spacing_m)


def believe(
    kind: str,
    survey: seismic.Survey,
    heard: Tensor,
    start: seismic.Velocity,
    step_s: float,
    water: int,
    bounded: dict[str, Any],
) -> seismic.Prior | None:
    if kind == "none":
        return None
    if kind == "tikhonov":
        return seismic.Tikhonov(weight=1.0, reference=start.m_per_s)
    loop = seismic.Runner(**bounded)
    misfit = seismic.Misfit(survey, heard, spacing_m=start.spacing_m, step_s=step_s, loop=loop)
    subspace = seismic.find_by_gradients(lambda m: misfit.gradient(m)[1], start, water_rows=water)
    print(f"the data tell {subspace.rank} directions; the prior leaves them alone", flush=True)
    return seismic.Dias(weight=1.0, reference=start.m_per_s, subspace=subspace)


def show(found: dict[str, seismic.Inversion]) -> None:
    print(f"{'':>9}  " + "  ".join(f"{name:>20}" for name in found))
    print("iteration  " + "  ".join(f"{'misfit':>10}{'model':>10}" for _ in found))
    rows = max(len(result.misfits) for result in found.values())
    for row in range(rows):
        cells = [
            f"{result.misfits[row]:>10.4g}{result.model_errors[row]:>10.4f}"
            if row < len(result.misfits)
            else " " * 20
            for result in found.values()
        ]
        print(f"{row:>9}  " + "  ".join(cells))
    for name, result in found.items():
        for error in result.probed:
            print(f"{name}: the gradient was off by {error:.2%}")


def draw(
    folder: Path,
    kind: str,
    truth: seismic.Velocity,
    start: seismic.Velocity,
    found: dict[str, seismic.Inversion],
    water: int,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    limits = float(truth.m_per_s.min()), float(truth.m_per_s.max())
    sections = {"truth": truth, "start": start}
    names = {name: name.lower().replace(" ", "_") for name in found}
    sections |= {f"found_{names[name]}": result.velocity for name, result in found.items()}
    for name, velocity in sections.items():
        seismic.draw_section(
            folder / f"{name}.{kind}",
            velocity.m_per_s,
            spacing_m=velocity.spacing_m,
            title=name.replace("_", ", ", 1).replace("_", " "),
            limits=limits,
        )
    # All gradients in the colours of the first: what they differ by is seen.
    gradients = {
        name: torch.cat([torch.zeros_like(truth.m_per_s[:water]), result.first_gradient[water:]])
        for name, result in found.items()
    }
    most = float(next(iter(gradients.values())).abs().quantile(0.99))
    for name, gradient in gradients.items():
        seismic.draw_section(
            folder / f"gradient_{names[name]}.{kind}",
            gradient,
            spacing_m=truth.spacing_m,
            title=f"first gradient, {name}",
            unit="a km/s",
            is_signed=True,
            limits=(-most, most),
        )
    misfits = {name: result.misfits for name, result in found.items()}
    seismic.draw_curves(folder / "misfit.svg", misfits, title="misfit")
    print(f"pictures are in {folder}")


if __name__ == "__main__":
    main()
