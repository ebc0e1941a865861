"""A neural differential equation, trained through a loop of thousands of steps.

A small network is the right-hand side of x' = f(x), and the method of Runge and Kutta takes it from
a first point to a whole path. Plain autograd keeps every step of every stage; with `slots` a few
states are kept, the others are made again, and the gradient is the same, to the last bit.

    python examples/neural_ode.py --steps 1000 --slots 20 --rounds 10
"""

import argparse
from collections import Counter

import torch
from torch import Tensor, nn

import elbowroom as er


class Flow(nn.Module):
    """One step of the classical method of Runge and Kutta."""

    def __init__(self, step_s: float, width: int = 32) -> None:
        super().__init__()
        self.step_s = step_s
        self.speed = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.step_s
        a = self.speed(x)
        b = self.speed(x + h / 2 * a)
        c = self.speed(x + h / 2 * b)
        d = self.speed(x + h * c)
        x = x + h / 6 * (a + 2 * b + 2 * c + d)
        return x, x


def watch(starts: Tensor, steps: int, step_s: float) -> Tensor:
    """What is to be learnt: an oscillator that finds its rhythm (van der Pol), steps x runs x 2."""
    x, seen = starts, []
    for _ in range(steps):
        for _ in range(4):
            place, speed = x.unbind(1)
            turn = torch.stack([speed, (1 - place**2) * speed - place], 1)
            x = x + step_s / 4 * turn
        seen.append(x)
    return torch.stack(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="of the loop")
    parser.add_argument("--slots", type=int, default=20, help="states that are kept")
    parser.add_argument("--rounds", type=int, default=25, help="of training")
    parser.add_argument("--quick", action="store_true", help="few steps, few rounds")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.steps, chosen.rounds = 40, 5
    torch.manual_seed(0)
    step_s = 4.0 / chosen.steps
    starts = 2 * torch.rand(64, 2) - 1
    seen = watch(starts, chosen.steps, step_s)
    flow = Flow(step_s)
    run = er.Loop(flow, outputs=True, slots=chosen.slots)
    optimizer = torch.optim.Adam(flow.parameters(), 1e-2)

    def loss_of(loop: er.Loop) -> Tensor:
        _, path = loop(starts, chosen.steps)
        return (path - seen).square().mean()

    # The same gradient as that of a plain loop, which keeps everything.
    weights = list(flow.parameters())
    saved = Counter()

    def count(tensor: Tensor) -> Tensor:
        saved[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        loss = loss_of(er.Loop(flow, outputs=True))
    plain = torch.autograd.grad(loss, weights)
    loss = loss_of(run)
    held = run.engine.held_bytes if run.engine else 0
    kept = torch.autograd.grad(loss, weights)
    print(
        f"a plain loop keeps {saved.total():,} bytes for backward, {chosen.slots} states {held:,}"
    )
    is_same = all(torch.equal(one, other) for one, other in zip(plain, kept, strict=True))
    print(f"the gradient is {'the same, bit by bit' if is_same else 'another'}", flush=True)
    for number in range(chosen.rounds):
        loss = loss_of(run)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % max(1, chosen.rounds // 5) == 0 or number == chosen.rounds - 1:
            print(f"round {number + 1}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
