"""Several rooms, several threads, and the many ways to write a step."""

import copy
import threading
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from tests.keep.activations.checking import (
    TOLERANCES,
    error_of,
    gradients,
    matches,
    nothing_is_left,
    same_bits,
)
from tests.keep.activations.models import loss_of, normed


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_two_rooms_of_two_models(tolerance: float) -> None:
    """Generator and critic, each in its own room, one graph through both."""

    def losses(make: Any, critic: Any, rooms: tuple[Any, Any]) -> list[Tensor | None]:
        torch.manual_seed(1)
        for model in (make, critic):
            model.zero_grad()
        with rooms[0]:
            fake = make(torch.randn(128, 64))
        with rooms[1]:
            real = critic(torch.randn(128, 64)).mean()
            score = critic(fake.detach()).mean() - real
        score.backward()
        first = [p.grad.clone() for p in critic.parameters()]
        with rooms[1]:
            loss = -critic(fake).mean()
        loss.backward()
        return [*first, *[p.grad for p in make.parameters()]]

    make, critic = normed(), normed(96)
    plain = [
        None if g is None else g.clone()
        for g in losses(make, critic, (nullcontext(), nullcontext()))
    ]
    rooms = er.Activations(make, tolerance=tolerance), er.Activations(critic, tolerance=tolerance)
    ours = losses(make, critic, rooms)
    matches(plain, ours, tolerance, near=0.02)
    for room in rooms:
        nothing_is_left(room)
        assert room.ledger.ratio > 1


def test_one_room_inside_another() -> None:
    outer, inner = normed(), normed()
    whole = nn.Sequential(outer, inner)
    plain = gradients(whole, loss_of)
    room, other = er.Activations(whole, tolerance=0), er.Activations(inner, tolerance=0)

    def forward(model: Any) -> tuple[Tensor, ...]:
        hidden = outer(torch.randn(128, 64))
        with other:
            out = inner(hidden)
        return (out.square().sum(),)

    assert same_bits(plain, gradients(whole, forward, room))
    for each in (room, other):
        nothing_is_left(each)
        assert each.ledger.saved_bytes > 0


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_threads(shared: bool, tolerance: float) -> None:
    """Two models in two threads, or one model and one room in both, through refreshes."""
    models = [normed(), normed()]
    if shared:
        models[1] = models[0]
    rooms = [er.Activations(model, tolerance=tolerance) for model in models]
    if shared:
        rooms[1] = rooms[0]
    torch.manual_seed(3)
    xs = torch.randn(12, 128, 64)
    plain = [
        torch.autograd.grad(models[0](x).square().sum(), list(models[0].parameters())) for x in xs
    ]
    worst: list[float] = []
    failures: list[BaseException] = []
    meet = threading.Barrier(2)

    def work(model: Any, room: Any) -> None:
        try:
            for x, wanted in zip(xs, plain, strict=True):
                meet.wait(60)
                with room:
                    loss = model(x).square().sum()
                found = torch.autograd.grad(loss, list(model.parameters()))
                worst.append(error_of(list(wanted), list(found)))
        except BaseException as error:
            failures.append(error)
            meet.abort()

    threads = [threading.Thread(target=work, args=pair) for pair in zip(models, rooms, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(worst) == 24
    assert max(worst) == 0 if tolerance == 0 else max(worst) < 0.5
    for room in rooms:
        nothing_is_left(room)


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_replicas_in_threads(tolerance: float) -> None:
    """As DataParallel does it: copies run in threads of their own, which no room watches."""
    model = normed()
    room = er.Activations(model, tolerance=tolerance)

    def forward(model: Any) -> tuple[Tensor, ...]:
        parts = torch.randn(4, 64, 64)
        outs: list[Tensor | None] = [None] * 4

        def run(place: int) -> None:
            outs[place] = model(parts[place])

        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (torch.cat([o for o in outs if o is not None]).square().sum(),)

    plain = gradients(model, forward)
    ours = gradients(model, forward, room)
    matches(plain, ours, tolerance, near=0.02)
    nothing_is_left(room)


# Around a step.


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize(
    "style", ["grad", "whole step", "accumulated", "hooked", "anomaly", "functional", "evaluated"]
)
def test_ways_to_write_a_step(style: str, tolerance: float) -> None:
    def steps(room: Any) -> list[Tensor | None]:
        model = normed()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        seen: list[Tensor] = []
        if style == "hooked":
            model[2].register_full_backward_hook(lambda _, __, out: seen.append(out[0].clone()))
            model[3].weight.register_post_accumulate_grad_hook(
                lambda p: seen.append(p.grad.clone())
            )
        for step in range(3):
            torch.manual_seed(step)
            x = torch.randn(128, 64)
            optimizer.zero_grad()
            if style == "grad":
                with room:
                    loss = model(x).square().sum()
                parameters = list(model.parameters())
                for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    p.grad = g
            elif style == "whole step":
                with room:
                    model(x).square().sum().backward()
                    optimizer.step()
                continue
            elif style == "accumulated":
                for part in x.chunk(4):
                    with room:
                        loss = model(part).square().sum() / 4
                    loss.backward()
            elif style == "hooked":
                with room:
                    y = model(x)
                    y.register_hook(lambda g: g * 0.5)
                    y.retain_grad()
                    loss = y.square().sum()
                loss.backward()
                seen.append(y.grad.clone())
            elif style == "anomaly":
                with torch.autograd.set_detect_anomaly(True):
                    with room:
                        loss = model(x).square().sum()
                    loss.backward()
            elif style == "functional":
                own = {n: p.detach() * 1.5 for n, p in model.named_parameters()}
                own = {n: (p + model.get_parameter(n)) for n, p in own.items()}
                with room:
                    loss = torch.func.functional_call(model, own, (x,)).square().sum()
                loss.backward()
            else:
                with room:
                    with torch.no_grad():
                        target = model(x)
                    with torch.inference_mode():
                        model(x)
                    model.eval()
                    loss = (model(x) - target.roll(1, 0)).square().sum()
                    model.train()
                loss.backward()
            optimizer.step()
        return [*[p.detach().clone() for p in model.parameters()], *seen]

    plain = steps(nullcontext())
    torch.manual_seed(0)
    stand_in = normed()
    room = er.Activations(stand_in, tolerance=tolerance)
    ours = steps(room)
    matches(plain, ours, tolerance, near=0.05)
    nothing_is_left(room)


def test_copies_and_saves_of_a_model_in_a_room(tmp_path: Any) -> None:
    model = normed()
    room = er.Activations(model)
    room.install()
    gradients(model, loss_of)
    twin = copy.deepcopy(model)
    torch.save(model.state_dict(), tmp_path / "weights")
    model.load_state_dict(torch.load(tmp_path / "weights", weights_only=True))
    with torch.no_grad():
        x = torch.randn(4, 64)
        assert torch.equal(model(x), twin(x))
    room.close()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
