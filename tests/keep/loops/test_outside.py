"""Programs of other packages under a loop: the same bits as under a for-loop."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad

import elbowroom as er

WAYS: list[dict[str, Any]] = [{"slots": 3}, {"memory": "20 MB"}, {"slots": 3, "schedule": "mixed"}]


def compare(run: Callable[..., Tensor], asked: list[Tensor]) -> None:
    expected = grad(run().square().sum(), asked)
    for options in WAYS:
        found = grad(run(**options).square().sum(), asked)
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True)), options


class Field(nn.Module):
    """The right side of an equation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, time: Tensor, state: Tensor) -> Tensor:
        """At a time."""
        return self.inner(state) * torch.cos(time)


@pytest.mark.parametrize("method", ["euler", "rk4", "dopri5"])
def test_torchdiffeq(method: str) -> None:
    solver = pytest.importorskip("torchdiffeq", reason="torchdiffeq is not installed")
    field, times = Field(), torch.linspace(0, 1, 13)

    def step(state: Tensor, number: int) -> Tensor:
        return solver.odeint(field, state, times[number : number + 2], method=method)[-1]

    def run(**options: Any) -> Tensor:
        return er.loop(step, torch.ones(2, 3), 12, parameters=field, **options)

    compare(run, list(field.parameters()))


@pytest.mark.filterwarnings("ignore:This auxiliary_state:UserWarning")
def test_deepwave_in_chunks() -> None:
    waves = pytest.importorskip("deepwave", reason="deepwave is not installed")
    speed = torch.full((24, 24), 1500.0).requires_grad_()
    pushes = waves.wavelets.ricker(25.0, 60, 0.002, 0.06).view(6, 1, 1, 10)
    source, receivers = torch.tensor([[[3, 12]]]), torch.tensor([[[3, 5], [3, 19]]])

    def propagate(push: Tensor, **more: Any) -> Any:
        return waves.scalar(
            speed,
            10.0,
            0.002,
            source_amplitudes=push,
            source_locations=source,
            receiver_locations=receivers,
            pml_width=4,
            pml_freq=25.0,
            max_vel=1500.0,
            **more,
        )

    with torch.no_grad():
        first = propagate(0 * pushes[0])
    names = list(first.auxiliary_state.keys())

    def step(fields: dict[str, Tensor], push: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        border = copy.copy(first.auxiliary_state)  # what it has besides tensors
        border.__dict__["_tensors"] = {name: fields[name] for name in names}
        before = {name: fields[name] for name in ("wavefield_0", "wavefield_m1")}
        after = propagate(push, initial_state=before | {"auxiliary_state": border})
        rest = {name: after.auxiliary_state[name] for name in names}
        rest |= {"wavefield_0": after.wavefield_0, "wavefield_m1": after.wavefield_m1}
        return rest, after.receiver_amplitudes

    still = {name: torch.zeros_like(first.auxiliary_state[name]) for name in names}
    still |= {name: torch.zeros_like(first.wavefield_0) for name in ("wavefield_0", "wavefield_m1")}

    def run(**options: Any) -> Tensor:
        return er.loop(step, still, inputs=pushes, outputs=True, parameters=speed, **options)[1]

    compare(run, [speed])


def test_a_rollout_of_a_neural_operator() -> None:
    models = pytest.importorskip("neuralop.models", reason="neuralop is not installed")
    torch.manual_seed(0)
    model = models.FNO(n_modes=(4, 4), hidden_channels=6, in_channels=1, out_channels=1, n_layers=2)
    x = torch.randn(1, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    compare(lambda **options: er.loop(model, x, 7, **options), list(model.parameters()))
