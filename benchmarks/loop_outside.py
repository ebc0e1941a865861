"""Programs of other packages under `er.loop`, beside a for-loop: are gradients the same bits?

A line of JSON for each program whose package is installed; `tests/keep/loops/test_outside.py` has
torchdiffeq, deepwave and a neural operator.
"""

import importlib
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad

import elbowroom as er

WAYS: dict[str, dict[str, Any]] = {
    "slots": {"slots": 3},
    "budget": {"memory": "40 MB"},
    "mixed": {"slots": 3, "schedule": "mixed"},
}

Program = tuple[Callable[..., Any], Any, nn.Module | Tensor]
"""A step, its first state, and what gradients are taken of."""


def draw(*shape: int) -> Tensor:
    """The same numbers each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def spikes() -> Program:
    """Of snntorch: a layer of leaky neurons."""
    leaky = importlib.import_module("snntorch").Leaky(beta=0.9, learn_beta=True)
    layer = nn.ModuleList([nn.Linear(6, 6), leaky])

    def step(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        spike, membrane = leaky(layer[0](state[0]), state[1])
        return spike + 0.1 * torch.tanh(membrane), membrane

    return step, (draw(4, 6), torch.zeros(4, 6)), layer


def denoising() -> Program:
    """Of diffusers: a DDIM sampler over a small UNet."""
    diffusers = importlib.import_module("diffusers")
    unet = diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    scheduler = diffusers.DDIMScheduler(num_train_timesteps=100)
    scheduler.set_timesteps(12)
    times = scheduler.timesteps

    def step(x: Tensor, number: int) -> Tensor:
        return scheduler.step(unet(x, times[number]).sample, times[number], x).prev_sample

    return step, draw(1, 1, 8, 8), unet


def diffusion() -> Program:
    """Of torchsde: an Euler step between two times, with a Brownian path of its own seed."""
    torchsde = importlib.import_module("torchsde")

    class Equation(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift = nn.Linear(3, 3)

        def f(self, t: Tensor, y: Tensor) -> Tensor:
            return torch.tanh(self.drift(y))

        def g(self, t: Tensor, y: Tensor) -> Tensor:
            return 0.1 * torch.sigmoid(y)

    equation, times = Equation(), torch.linspace(0, 1, 13)

    def step(y: Tensor, number: int) -> Tensor:
        part = times[number : number + 2]
        path = torchsde.BrownianInterval(part[0], part[1], size=(4, 3), entropy=number)
        return torchsde.sdeint(equation, y, part, bm=path, dt=0.05, method="euler")[-1]

    return step, draw(4, 3), equation


def sphere() -> Program:
    """Of torch-harmonics: diffusion and transport on the sphere by spectral transforms."""
    harmonics = importlib.import_module("torch_harmonics")
    forth, back = harmonics.RealSHT(12, 24), harmonics.InverseRealSHT(12, 24)
    speed = draw(12, 24).requires_grad_()

    def step(x: Tensor) -> Tensor:
        waves = forth(x + 0.05 * speed * torch.roll(x, 1, -1))
        return back(waves * torch.exp(-0.01 * torch.arange(waves.shape[-2])[:, None] ** 2))

    return step, draw(12, 24), speed


def learning() -> Program:
    """Of torchopt: a learning rate through steps of its SGD."""
    torchopt = importlib.import_module("torchopt")
    rate, target = torch.tensor(0.1, requires_grad=True), draw(5)

    def step(weights: Tensor) -> Tensor:
        rule = torchopt.sgd(lr=1.0)
        slope = torch.func.grad(lambda w: (w.sin() - target).square().sum())(weights) * rate
        changes, _ = rule.update([slope], rule.init([weights]), params=[weights], inplace=False)
        return torchopt.apply_updates([weights], changes, inplace=False)[0]

    return step, draw(5), rate


def dynamics() -> Program:
    """Of torchdyn: a neural ODE, a stretch of time a step."""
    core = importlib.import_module("torchdyn.core")
    model = core.NeuralODE(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)), solver="rk4")

    def step(y: Tensor) -> Tensor:
        return model(y, torch.linspace(0, 0.1, 3))[1][-1]

    return step, draw(4, 3), model


PROGRAMS = (spikes, denoising, diffusion, sphere, learning, dynamics)


def main() -> None:
    """One program after the other."""
    torch.set_num_threads(1)
    for make in PROGRAMS:
        line: dict[str, Any] = {"program": make.__name__}
        try:
            torch.manual_seed(0)
            step, state, named = make()
        except ImportError as error:
            print(json.dumps(line | {"left out": str(error)}), flush=True)
            continue
        asked = [named] if isinstance(named, Tensor) else list(named.parameters())
        asked = [t for t in asked if t.requires_grad]

        def gradient(options: dict[str, Any]) -> list[Tensor]:
            torch.manual_seed(1)
            last = er.loop(step, state, 12, parameters=named, **options)  # noqa: B023
            total = (last[0] if isinstance(last, tuple) else last).square().sum()
            found = grad(total, asked, allow_unused=True)  # noqa: B023
            return [g for g in found if g is not None]

        expected = gradient({})
        for name, options in WAYS.items():
            found = gradient(options)
            size = sum(float(e.square().sum()) for e in expected) ** 0.5
            off = sum(float((e - f).square().sum()) for e, f in zip(expected, found, strict=True))
            line[name] = off**0.5 / size if off else 0.0
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
