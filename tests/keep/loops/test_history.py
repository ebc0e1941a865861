"""A history that is encoded takes less, and moves gradients by no more than was asked for."""

import gc
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import elbowroom as er
from elbowroom.keep import Encoding, LoopWarning
from elbowroom.keep.loops.coders import PlainCoder
from elbowroom.keep.loops.history import History, Recorder
from elbowroom.keep.loops.probe import feed, relative_error
from elbowroom.keep.loops.series import Frame, Series

from .steps import plain, pulse, wave

POINTS, STEPS = 20_000, 120


def wave_gradient(run: Any) -> tuple[Tensor, Any]:
    """Of a wave's end with respect to the speed in every point."""
    speed = torch.linspace(0.2, 0.4, POINTS).requires_grad_()
    after = run(wave(speed), pulse(POINTS), speed)
    (found,) = torch.autograd.grad((after[0] * torch.linspace(0, 1, POINTS)).square().sum(), speed)
    return found, after


@pytest.fixture(scope="module")
def exact() -> tuple[Tensor, Any]:
    return wave_gradient(lambda step, state, speed: plain(step, state, STEPS))


@pytest.mark.parametrize("every", [None, 1, 4])
@pytest.mark.parametrize("relative", [1e-3, 1e-5])
def test_gradients_follow_the_bound(exact: Any, every: int | None, relative: float) -> None:
    loops: list[er.Loop] = []

    def run(step: Any, state: Any, speed: Tensor) -> Any:
        loops.append(
            er.Loop(step, parameters=speed, store=Encoding(relative=relative, every=every))
        )
        return loops[0](state, STEPS)

    found, after = wave_gradient(run)
    for one, other in zip(exact[1], after, strict=True):
        assert torch.equal(one, other)  # the loop itself is exact
    error = relative_error([exact[0]], [found])
    assert 0 < error < 10 * relative


def test_a_history_is_small_and_is_given_back(exact: Any) -> None:
    speed = torch.linspace(0.2, 0.4, POINTS).requires_grad_()
    loop = er.Loop(wave(speed), parameters=speed, tolerance=1e-2, store="encoded", probe_every=0)
    after = loop(pulse(POINTS), STEPS)
    assert loop.plan is not None and loop.plan.kind == "history"
    engine = loop.engine
    assert isinstance(engine, History) and isinstance(engine.recorder, Recorder)
    recorder = engine.recorder
    assert recorder.plain_bytes >= STEPS * POINTS * 4
    assert 15 * recorder.held_bytes < recorder.plain_bytes
    assert sum(series.interpolated for series in recorder.series) > STEPS / 3
    after[0].sum().backward()
    del after, recorder
    gc.collect()
    frames = [one for one in gc.get_objects() if type(one).__name__ == "Frame"]
    assert not frames


def test_interpolated_frames_keep_the_bound() -> None:
    """Each frame of a film is compared with what comes back."""
    at = torch.linspace(0, 20, 5000)
    spent: list[int] = []
    for every in (None, 1, 3, 8):
        series = Series(PlainCoder(), 1e-3, every, spent.append)

        # It travels, and then stands and swings, with moments in which it is nearly nothing.
        films = [torch.sin(at - 0.05 * n) * (1 if n < 60 else 3) for n in range(100)]
        films += [torch.sin(at) * math.cos(0.07 * n) for n in range(100)]
        films[70][5] = torch.nan
        films[71][6] = torch.inf
        frames = []
        for number, film in enumerate(films):
            frame = Frame(film.clone(), number, series)
            frames.append(frame)
            series.add(frame)
        series.flush()
        assert all(frame.raw is None for frame in frames)
        for film, frame in zip(films, frames, strict=True):
            found = frame.tensor()
            assert torch.equal(found.isnan(), film.isnan())
            good = film.isfinite()
            most = 1e-3 * (film[good].max() - film[good].min())
            assert (found[good] - film[good]).abs().max() <= most
        assert series.interpolated > 20 or every == 1


def test_frames_that_jump_are_encoded_alone() -> None:
    generator = torch.Generator().manual_seed(0)

    def step(state: Tensor) -> Tensor:
        return torch.sin(state * 1.7 + torch.roll(state, 1))

    x = torch.randn(5000, generator=generator).requires_grad_()
    expected = torch.autograd.grad(plain(step, x, 30).sum(), x)[0]
    loop = er.Loop(step, store=Encoding(relative=1e-6), probe_every=0)
    found = torch.autograd.grad(loop(x, 30).sum(), x)[0]
    assert relative_error([expected], [found]) < 1e-3
    engine = loop.engine
    assert isinstance(engine, History) and engine.recorder is not None
    assert sum(series.alone for series in engine.recorder.series) > 10


def test_a_budget_chooses_a_history_or_states(exact: Any) -> None:
    plain_bytes = STEPS * POINTS * 4
    kinds = {}
    loops: list[er.Loop] = []

    def run(step: Any, state: Any, speed: Tensor) -> Any:
        memory = int(share * plain_bytes)
        loops.append(er.Loop(step, parameters=speed, memory=memory, tolerance=0.01))
        return loops[-1](state, STEPS)

    for share in (2.5, 0.6, 0.35):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LoopWarning)
            found, _ = wave_gradient(run)
        assert relative_error([exact[0]], [found]) < 0.01
        made = loops[-1].plan
        assert made is not None
        kinds[share] = made.kind
    assert kinds[2.5] == "tape" and kinds[0.6] != "tape" and kinds[0.35] != "tape"


def test_noise_does_not_fit_and_states_are_kept_instead() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(60, 5000, generator=generator)
    k = torch.tensor(0.3, requires_grad=True)

    def step(state: Tensor, push: Tensor) -> Tensor:
        return torch.sin(state * k) + push

    x = torch.zeros(5000)
    state = x
    for push in noise:
        state = step(state, push)
    (expected,) = torch.autograd.grad(state.sum(), k)
    memory = 30 * 5000 * 4
    made = [0]

    def counted(state: Tensor, push: Tensor) -> Tensor:
        made[0] += 1
        return step(state, push)

    loop = er.Loop(counted, parameters=k, memory=memory, tolerance=1e-4, store="encoded")
    for number in range(2):
        made[0] = 0
        after = loop(x, inputs=noise)
        assert loop.plan is not None and loop.plan.kind == "replay"
        assert "took more than it may" in loop.plan.reason
        assert (made[0] == len(noise)) == (number == 1)  # the second time, it is known
        assert torch.equal(torch.autograd.grad(after.sum(), k)[0], expected)


def test_a_second_backward_with_a_bound_that_does_not_fit(exact: Any) -> None:
    loops: list[er.Loop] = []

    def run(step: Any, state: Any, speed: Tensor) -> Any:
        loop = er.Loop(step, parameters=speed, memory="3.2 MB", tolerance=0.02, store="encoded")
        loops.append(loop)
        return loop(state, STEPS)

    speed = torch.linspace(0.2, 0.4, POINTS).requires_grad_()
    after = run(wave(speed), pulse(POINTS), speed)
    assert loops[0].plan is not None and loops[0].plan.kind == "history"
    total = (after[0] * torch.linspace(0, 1, POINTS)).square().sum()
    torch.autograd.grad(total, speed, retain_graph=True)
    loops[0].relative = 1e-7  # as a probe may have found that it must be
    (found,) = torch.autograd.grad(total, speed)
    assert torch.equal(found, exact[0])  # states were kept instead


def test_constants_and_parameters_are_left_alone() -> None:
    torch.manual_seed(0)
    table = torch.randn(5000)
    weight = torch.randn(5000).requires_grad_()

    def step(state: Tensor) -> Tensor:
        return torch.sin(state * table) * weight

    loop = er.Loop(step, parameters=weight, store=Encoding(relative=1e-4), probe_every=0)
    loop(torch.ones(5000), 10).sum().backward()
    engine = loop.engine
    assert isinstance(engine, History) and isinstance(engine.recorder, Recorder)
    # Of each step the sine's argument and the sine itself; the first state is a constant.
    assert engine.recorder.plain_bytes == 10 * 2 * 5000 * 4


def test_small_tensors_are_not_worth_it() -> None:
    x = torch.ones(100, requires_grad=True)
    loop = er.Loop(torch.sin, tolerance=0.01, store="encoded")
    with pytest.warns(LoopWarning, match="too small to be encoded"):
        loop(x, 9).sum().backward()
    assert loop.plan is not None and loop.plan.kind == "full"
    loop = er.Loop(torch.sin, tolerance=0.01, memory=20_000)
    loop(x, 900).sum().backward()
    assert loop.plan is not None and loop.plan.kind == "replay"


def test_what_is_not_encoded_counts_as_well() -> None:
    """Complex numbers and small tensors are kept as they are, and a budget is one for them too."""
    potential = torch.linspace(0, 1, 20_000).requires_grad_()

    def turn(state: Tensor) -> Tensor:
        curve = torch.roll(state, 1) - 2 * state + torch.roll(state, -1)
        return state + 0.05j * (curve - potential * state)

    first = torch.exp(1j * torch.linspace(0, 50, 20_000))
    (expected,) = torch.autograd.grad(plain(turn, first, 60).abs().sum(), potential)
    loop = er.Loop(
        turn, parameters=potential, memory="3 MB", tolerance=0.01, store="encoded", probe_every=0
    )
    after = loop(first, 60)
    assert loop.plan is not None and loop.plan.kind == "replay"
    assert torch.equal(torch.autograd.grad(after.abs().sum(), potential)[0], expected)

    def pieces(state: Tensor) -> Tensor:
        field = torch.sin(state * potential)
        return field * torch.cat([torch.cos(part) for part in field.split(1000)])

    loop = er.Loop(pieces, parameters=potential, store=Encoding(relative=1e-3), probe_every=0)
    after = loop(torch.ones(20_000), 8)
    engine = loop.engine
    assert isinstance(engine, History) and engine.recorder is not None
    assert engine.held_bytes > 8 * 20_000 * 4  # of each step, all parts of the field
    after.sum().backward()


def test_changes_in_place_are_noticed() -> None:
    def step(state: Tensor) -> Tensor:
        after = torch.sin(state)
        kept = after * after
        after.add_(1)
        return kept

    x = torch.ones(5000, requires_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        plain(step, x, 3).sum().backward()
    total = er.loop(step, x, 3, store=Encoding(relative=1e-4)).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_the_probe_measures_and_feeds_the_bound(exact: Any) -> None:
    speed = torch.linspace(0.2, 0.4, POINTS).requires_grad_()
    loop = er.Loop(wave(speed), parameters=speed, tolerance=1e-3, store="encoded", probe_every=1)
    loop.relative = 0.02  # far too much
    weights = torch.linspace(0, 1, POINTS)
    with pytest.warns(LoopWarning, match="more than the tolerance"):
        (loop(pulse(POINTS), STEPS)[0] * weights).square().sum().backward()
    assert loop.probed[0].error > 1e-3 and loop.relative < 0.02
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoopWarning)
        for _ in range(5):
            (loop(pulse(POINTS), STEPS)[0] * weights).square().sum().backward()
        error = loop.measure(pulse(POINTS), STEPS, lambda s: (s[0] * weights).square().sum())
    assert error < 2e-3
    assert feed(1e-3, 1e-6, 1e-3) == pytest.approx(1.5e-3)
    assert feed(1e-3, 1.0, 1e-3) == pytest.approx(2.5e-4)


def test_a_bound_does_not_grow_without_end() -> None:
    relative = 5e-4
    for _ in range(100):
        relative = feed(relative, 0.0, 1e-3)  # a loop whose gradient the history does not reach
    assert relative < 1e-2
    assert feed(1e-3, float("nan"), 1e-3) == feed(1e-3, float("inf"), 1e-3) == 1e-3
    assert feed(0.4, 1e-9, 0.9) < 1


def test_second_derivatives_of_an_encoded_loop_are_exact() -> None:
    speed = torch.linspace(0.2, 0.4, 4000, dtype=torch.float64).requires_grad_()

    def product(run: Any) -> Tensor:
        first = torch.autograd.grad(run().square().sum(), speed, create_graph=True)[0]
        return torch.autograd.grad((first * torch.linspace(0, 1, 4000)).sum(), speed)[0]

    state = pulse(4000, torch.float64)
    expected = product(lambda: plain(wave(speed), state, 30)[0])
    encoded = Encoding(relative=1e-6)
    found = product(lambda: er.loop(wave(speed), state, 30, parameters=speed, store=encoded)[0])
    assert relative_error([expected], [found]) < 1e-4
