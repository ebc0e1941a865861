"""The rest of what is claimed for loops, each way in its own process: a line of JSON says all.

`overhead`: a loop without a bound against a for-loop. `scaling`: the peak of a long loop. `hvp`: a
Hessian-vector product. `inversion`: some iterations of L-BFGS.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from loop_waves import KERNELS, make_shot, traces_of
from torch import Tensor

import elbowroom as er
from elbowroom.errors import BudgetUnreachable
from elbowroom.host import trim_heap
from elbowroom.keep.activations.gauge import Process

Answer = dict[str, Any]


def overhead(options: argparse.Namespace) -> Answer:
    """Both take turns in one process: a pair of runs is compared, and the median counts."""
    torch.manual_seed(0)
    step, state, inputs, outputs = _cheap(options)
    knob = options.knob

    def plain() -> Any:
        current, heard = state(), []
        for x in inputs:
            current = step(current, x)
            if outputs:
                current, trace = current
                heard.append(trace)
        return torch.stack(heard).sum() if outputs else current.sum()

    def looped() -> Any:
        result = er.loop(step, state(), len(inputs), inputs=inputs, outputs=outputs)
        return result[1].sum() if outputs else result.sum()

    ratios: list[float] = []
    alone: list[float] = []
    for number in range(options.rounds + 1):
        took = {}
        for run in (plain, looped) if number % 2 else (looped, plain):
            start = time.perf_counter()
            torch.autograd.grad(run(), knob)
            took[run] = time.perf_counter() - start
        if number:
            ratios.append(took[looped] / took[plain])
            alone.append(took[plain] / len(inputs))
    return {"step_s": min(alone), "times_plain": statistics.median(ratios)}


def _cheap(options: argparse.Namespace) -> tuple[Callable[..., Any], Any, Tensor, bool]:
    if options.way == "waves":
        shot = make_shot(every=options.every, steps=options.steps, kernel=options.kernel)
        options.knob = shot.squared
        return shot.step, shot.quiet, shot.wavelet, True
    width = {"tiny": 8, "small": 128, "middle": 512}[options.way]
    knob = options.knob = torch.randn(width, requires_grad=True)
    inputs = torch.randn(options.steps, 1)
    start = torch.zeros(width) if options.way == "tiny" else torch.zeros(width, width)
    return lambda h, x: torch.tanh(h * knob + x), lambda: start, inputs, False


def scaling(options: argparse.Namespace) -> Answer:
    """The peak of one gradient; nothing but the loop grows with its steps."""
    little = make_shot(every=options.every, steps=64, kernel=options.kernel)
    field = little.field_bytes
    ways: dict[str, dict[str, Any]] = {
        "full": {},
        "slots": {"slots": 20},
        "memory": {"memory": 40 * field},
        "encoded": {"memory": 40 * field, "tolerance": 0.01},
    }
    step = little.step
    wavelet = torch.nn.functional.pad(little.wavelet, (0, options.steps - little.steps))

    def run(inputs: Tensor) -> str:
        made = er.Loop(
            lambda state, x: step(state, x)[0],
            parameters=(little.squared,),
            probe_every=0,
            **ways[options.way],
        )
        after = made(little.quiet(), len(inputs), inputs=inputs)
        torch.autograd.grad(after[0].square().sum(), little.squared)
        return "" if made.plan is None else made.plan.kind

    run(wavelet[:64])
    return _gauged(lambda: {"plan": run(wavelet), "history_bytes": options.steps * field})


def hvp(options: argparse.Namespace) -> Answer:
    """Reverse over reverse, along a smooth direction."""
    shapes = {"every": options.every, "kernel": options.kernel, "points": options.points}

    def run(steps: int, **bounds: Any) -> Tensor:
        shot = make_shot(steps=steps, **shapes)
        squared = shot.squared
        direction = squared.detach() - squared.detach().mean()
        if options.way == "full":
            traces = traces_of(shot)
        else:
            made = er.Loop(shot.step, outputs=True, parameters=(squared,), probe_every=0, **bounds)
            _, traces = made(shot.quiet(), shot.steps, inputs=shot.wavelet)
        (first,) = torch.autograd.grad(shot.misfit(traces), squared, create_graph=True)
        return torch.autograd.grad((first * direction).sum(), squared)[0]

    bounds: dict[str, Any] = {}
    if options.way != "full":
        bounds["memory"] = options.memory_bytes
    if options.way == "encoded":
        bounds["tolerance"] = options.tolerance
    run(16, **(bounds and {"slots": 4}))

    def work() -> Answer:
        start = time.perf_counter()
        found = run(options.steps, **bounds)
        seconds = time.perf_counter() - start
        if options.save:
            torch.save({"gradient": found}, options.save)
        return {"seconds": seconds}

    return _gauged(work)


def inversion(options: argparse.Namespace) -> Answer:
    """Some shots, and the same iterations whatever is kept."""
    places = [(n + 0.5) / options.shots for n in range(options.shots)]
    shots = [
        make_shot(
            every=options.every,
            steps=options.steps,
            kernel=options.kernel,
            points=options.points,
            at=at,
        )
        for at in places
    ]
    true = make_shot(
        every=options.every, steps=1, kernel=options.kernel, points=options.points, is_true=True
    ).squared.detach()
    start = shots[0].squared.detach()
    scale = torch.ones_like(start, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [scale], max_iter=options.iterations, history_size=10, line_search_fn="strong_wolfe"
    )
    misfits: list[float] = []
    kinds: set[str] = set()

    def measure() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for shot in shots:
            shot.squared = start * scale
            bounds: dict[str, Any] = {}
            if options.way == "memory":
                share = int(options.share * shot.history_bytes)
                bounds = {"memory": share, "tolerance": options.tolerance}
            elif options.way == "encoded":
                bounds = {"store": "encoded", "tolerance": options.tolerance}
            made = er.Loop(
                shot.step, outputs=True, parameters=(shot.squared,), probe_every=0, **bounds
            )
            _, traces = made(shot.quiet(), shot.steps, inputs=shot.wavelet)
            kinds.add("" if made.plan is None else made.plan.kind)
            # Of one, so that a first step of L-BFGS has a sensible length.
            misfit = shot.misfit(traces) / shot.observed.square().sum()
            misfit.backward()
            total = total + misfit.detach()
        misfits.append(float(total))
        return total

    optimizer.step(measure)
    last = float(measure())
    off = float((start * scale.detach() - true).norm() / (start - true).norm())
    return {
        "first": misfits[0],
        "last": last,
        "model_error": off,
        "evaluations": len(misfits),
        "plans": sorted(kinds),
    }


def _gauged(work: Callable[[], Answer]) -> Answer:
    trim_heap()
    gauge = Process()
    base_bytes = gauge.now()
    gauge.reset()
    answer = work()
    return answer | {"peak_bytes": gauge.peak() - base_bytes}


TASKS = {"overhead": overhead, "scaling": scaling, "hvp": hvp, "inversion": inversion}


def main() -> None:
    """Do one task in one way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("way")
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--points", type=int, default=None)
    parser.add_argument("--kernel", choices=KERNELS, default="plain")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shots", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--share", type=float, default=1 / 40)
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--memory-bytes", type=int, default=0)
    parser.add_argument("--save", default="")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    try:
        answer = TASKS[options.task](options)
    except BudgetUnreachable as error:
        answer = {"refused": str(error)}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
