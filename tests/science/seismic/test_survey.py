"""Recording through a loop in bounded memory: the same traces, and gradients as exact as asked."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import elbowroom as er
from elbowroom.keep import Encoding
from elbowroom.science.seismic import Runner, record, ricker

from .scene import off, scene


def gradient(dtype: torch.dtype = torch.float32, **choices: Any) -> tuple[Tensor, Tensor]:
    """Traces, and the gradient of their misfit at the start."""
    here = scene(dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    values = here.start.m_per_s.to(dtype).requires_grad_()
    traces = record(here.medium(values), here.survey, **choices)
    loss = (traces - here.heard.to(dtype)).square().sum()
    (found,) = torch.autograd.grad(loss, values)
    return traces.detach(), found


def test_it_is_what_a_plain_loop_hears() -> None:
    here = scene()
    medium = here.medium(here.start.m_per_s)
    state = medium.quiet(len(here.survey.sources))
    shots = torch.arange(len(here.survey.sources))
    at = (shots, *(here.survey.sources + medium.sponge_points).T)
    rows, columns = (here.survey.receivers + medium.sponge_points).T
    traces: list[Tensor] = []
    for value in ricker(here.survey.peak_hz, here.survey.steps, medium.step_s).float():
        state = medium.push(state, at, value)
        traces.append(state[0][:, rows, columns])
    assert torch.equal(record(medium, here.survey), torch.stack(traces, 2))


def test_a_source_in_the_equation_is_a_pressure_added_to_one_point() -> None:
    here = scene(dtype=torch.float64)
    medium = here.medium(here.start.m_per_s)
    torch.manual_seed(0)
    now = torch.randn(1, *medium.squared.shape, dtype=torch.float64)
    point = (torch.tensor([0]), torch.tensor([20]), torch.tensor([15]))
    pushed = medium.push((now, now), point, torch.tensor(3.0, dtype=torch.float64))
    source = torch.zeros_like(now)
    source[point] = 3.0 * medium.squared[20, 15]
    torch.testing.assert_close(pushed, medium.step((now, now), source))


def test_a_step_keeps_one_field() -> None:
    here = scene()
    medium = here.medium(here.start.m_per_s.clone().requires_grad_())
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.numel() >= medium.squared.numel():
            kept[tensor.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        record(medium, here.survey)
    # One a step, besides the medium itself and its damping.
    assert len(kept) == here.survey.steps + 2


@pytest.mark.parametrize(
    ("dtype", "choices"),
    [
        (torch.float32, {"slots": 7}),
        (torch.float32, {"memory": "600 kB"}),
        (torch.float64, {"slots": 2}),
        (torch.float64, {"slots": (2, 5)}),
        (torch.float64, {"memory": "1.2 MB"}),
    ],
)
def test_states_made_again_give_the_same_gradient(
    dtype: torch.dtype, choices: dict[str, Any]
) -> None:
    traces, exact = gradient(dtype)
    heard, found = gradient(dtype, **choices)
    assert torch.equal(heard, traces)
    assert off(found, exact) < (1e-6 if dtype == torch.float32 else 1e-14)


def test_bf16_through_slots() -> None:
    _, exact = gradient(torch.bfloat16)
    heard, found = gradient(torch.bfloat16, slots=7)
    assert heard.dtype == found.dtype == torch.bfloat16
    # Sums of gradients are rounded to 8 bits on the way, in an order of their own.
    assert off(found, exact) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_encoded_history_keeps_its_tolerance(dtype: torch.dtype) -> None:
    traces, exact = gradient(dtype)
    heard, found = gradient(dtype, store="encoded", tolerance=0.01)
    assert torch.equal(heard, traces)
    assert 0 < off(found, exact) < 0.01


def test_a_runner_measures_and_remembers() -> None:
    runner = Runner(store="encoded", tolerance=0.01, probe_every=2)
    _, exact = gradient()
    for _ in range(3):
        assert off(gradient(loop=runner)[1], exact) < 0.01
    assert len(runner.probed) == 1 and 0 < runner.probed[0] < 0.01
    assert runner.last is not None and runner.last.relative != 0.25 * 0.01
    assert runner.last.plan is not None and runner.last.plan.kind == "history"


def test_a_fixed_encoding_is_left_alone() -> None:
    runner = Runner(store=Encoding(relative=1e-4), probe_every=1)
    for _ in range(2):
        gradient(loop=runner)
    assert runner.last is not None and runner.last.relative == 1e-4
    with pytest.raises(er.InvalidArgument, match="probe_every"):
        Runner(probe_every=-1)


def test_any_loop_may_run_it() -> None:
    assert torch.equal(gradient(loop=partial(er.loop, slots=7))[1], gradient(slots=7)[1])
    with pytest.raises(er.InvalidArgument, match="beside slots, tolerance"):
        gradient(loop=er.loop, slots=7, tolerance=0.1)


def test_shots_in_parts() -> None:
    here = scene()
    medium = here.medium(here.start.m_per_s)
    parts = [record(medium, here.survey.part(slice(n, n + 1))) for n in range(2)]
    assert torch.equal(torch.cat(parts), record(medium, here.survey))
