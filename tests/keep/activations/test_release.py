"""After every end, good or bad: memory is released, hooks are gone, the next step is right."""

import copy
import gc
import weakref

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import elbowroom as er
from tests.keep.activations.models import (
    make,
    run,
)


class Watched:
    """Finds out whether what a pass held is gone."""

    def __init__(self, room: er.Activations) -> None:
        self.room = room

    def held(self) -> int:
        gc.collect()
        return self.room._tally.held_bytes


def test_backward_releases_everything() -> None:
    model, x, y = make("convolutional")
    room = er.Activations(model)
    with room:
        loss = functional.cross_entropy(model(x), y)
    assert Watched(room).held() == room.ledger.kept_bytes > 0
    loss.backward()
    assert Watched(room).held() == 0


def test_dropping_the_graph_releases_everything() -> None:
    model, x, y = make("transformer")
    room = er.Activations(model)
    with room:
        loss = functional.cross_entropy(model(x), y)
    del loss
    assert Watched(room).held() == 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_exception_in_forward(error: type[BaseException]) -> None:
    model, x, y = make("transformer")
    room = er.Activations(model, tolerance=0)

    def stop(*_: object) -> None:
        raise error("stop")

    handle = model.blocks[1].register_forward_hook(stop)
    with pytest.raises(error, match="stop"), room:
        functional.cross_entropy(model(x), y)
    handle.remove()
    assert Watched(room).held() == 0
    twin = copy.deepcopy(model)
    _, plain = run(twin, x, y)
    _, ours = run(model, x, y, room)
    assert all(torch.equal(plain[n], ours[n]) for n in plain)
    assert not torch.overrides._get_current_function_mode_stack()


def test_exception_in_backward() -> None:
    model, x, y = make("convolutional")
    room = er.Activations(model, tolerance=0)
    with room:
        loss = functional.cross_entropy(model(x), y)

    def stop(_: Tensor) -> None:
        raise KeyboardInterrupt("stop")

    handle = model[4].conv1.weight.register_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    handle.remove()
    del loss
    # The engine itself lets go of a broken backward when the next one runs.
    torch.ones(1, requires_grad=True).sum().backward()
    assert Watched(room).held() == 0
    _, plain = run(copy.deepcopy(model), x, y)
    _, ours = run(model, x, y, room)
    assert all(torch.equal(plain[n], ours[n]) for n in plain)


def test_model_can_go_while_the_room_is_alive() -> None:
    model, x, y = make("convolutional")
    room = er.Activations(model)
    with room:
        loss = functional.cross_entropy(model(x), y)
    seen = weakref.ref(model)
    loss.backward()
    room.close()
    del room, model, loss
    gc.collect()
    assert seen() is None


def test_close_leaves_the_model_as_it_was() -> None:
    model, x, y = make("convolutional")
    room = er.Activations(model)
    run(model, x, y, room)
    room.close()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert all(not p._backward_hooks for p in model.parameters())
