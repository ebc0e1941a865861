"""Rooms that find their modules themselves, and leave everything else as it was."""

import copy
import gc
import io
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.utils.checkpoint import checkpoint

import elbowroom as er
from elbowroom.keep.activations.anywhere import Anywhere, Terms
from elbowroom.keep.activations.compiled import surround
from elbowroom.keep.activations.hooks import top_hooks
from tests.keep.activations.checking import error_of, gradients, nothing_is_left
from tests.keep.activations.models import loss_of, make, smooth


class Watch:
    """Watching at given terms, and what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.current: Anywhere | None = None

    def __call__(self, **terms: Any) -> Anywhere:
        self.current = Anywhere(Terms(**terms), self.said.append)
        self.current.install()
        return self.current


@pytest.fixture
def watch() -> Iterator[Watch]:
    watching = Watch()
    yield watching
    if watching.current is not None:
        watching.current.remove()
    assert not _global_forward_pre_hooks
    assert len(_global_forward_hooks) <= 1  # the next pass takes it off


def step(model: Any, x: Tensor, y: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    functional.cross_entropy(model(x), y).backward()
    return [p.grad.clone() for p in model.parameters()]


class Named(nn.Module):
    """Called with names, as models of transformers are, and computes its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))

    def forward(self, *, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": functional.cross_entropy(self.body(x), labels)}


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(128, 64, generator=generator)
    return {"x": x, "labels": x[:, :10].argmax(1)}


def test_only_the_outermost_trained_module_gets_a_room(watch: Watch) -> None:
    rooms = watch()
    model, x, y = make("convolutional")
    for _ in range(5):
        nn.CrossEntropyLoss()(model(x), y).backward()
    model.eval()
    model(x)
    with torch.no_grad():
        model.train()(x)
    nn.Linear(4, 4).requires_grad_(False)(torch.randn(2, 4))
    (account,) = rooms.accounts
    rooms.remove()
    assert (account.name, account.passes) == ("Sequential", 5)
    assert account.ledger.ratio > 4
    assert account.encode_s > 0 and account.decode_s > 0


def test_tolerance_zero_gives_the_same_bits(watch: Watch) -> None:
    for name in ("convolutional", "transformer"):
        model, x, y = make(name)
        plain = step(copy.deepcopy(model), x, y)
        rooms = watch(tolerance=0.0)
        ours = step(model, x, y)
        rooms.remove()
        assert rooms.accounts[0].ledger.ratio > 1.1
        assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))


def test_inputs_given_by_name_are_left_alone(watch: Watch) -> None:
    """They live on in the loop: to encode them would free nothing."""
    torch.manual_seed(0)
    rooms, model, given = watch(), Named(), batch()
    for _ in range(3):
        model(**given)["loss"].backward()
    ledger = rooms.accounts[0].ledger
    assert ledger.rows
    assert all(row.shape != given["x"].shape for row in ledger.rows)


def test_two_networks_have_two_rooms(watch: Watch) -> None:
    torch.manual_seed(0)
    rooms = watch()
    maker = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    judge = nn.Sequential(nn.Linear(64, 256), nn.LeakyReLU(), nn.Linear(256, 1))
    for _ in range(3):
        made = maker(torch.randn(128, 64))
        (judge(made).mean() - judge(torch.randn(128, 64)).mean()).backward()
    assert [(a.name, a.passes) for a in rooms.accounts] == [
        ("Sequential", 3),
        ("Sequential (2)", 6),
    ]


def test_a_part_that_was_trained_alone_joins_the_whole(watch: Watch) -> None:
    torch.manual_seed(0)
    rooms, model, given = watch(), Named(), batch()
    model.body(given["x"]).sum().backward()
    model(**given)["loss"].backward()
    model(**given)["loss"].backward()
    assert [(a.name, a.passes) for a in rooms.accounts] == [("Sequential", 1), ("Named", 2)]
    assert rooms.accounts[1].room is not None
    assert len(rooms.accounts[1].room.ledger.rows) > 1


def test_modules_can_be_copied_and_stored(watch: Watch) -> None:
    watch()
    model, x, y = make("transformer")
    for _ in range(3):
        step(model, x, y)
    assert not model._forward_hooks and not model._forward_pre_hooks
    torch.save(model, io.BytesIO())
    twin = copy.deepcopy(model)
    assert not any(p._backward_hooks for p in twin.parameters())


def test_modules_go_when_the_script_lets_go(watch: Watch) -> None:
    """Without the garbage collector: a loop over folds would fill the memory before it comes."""
    rooms = watch()
    model, x, y = make("convolutional")
    for _ in range(3):
        step(model, x, y)
    references = [weakref.ref(model), *map(weakref.ref, model.parameters())]
    gc.collect()
    gc.disable()
    try:
        del model
        assert [reference() for reference in references] == [None] * len(references)
    finally:
        gc.enable()
    assert rooms.accounts[0].room is None
    assert rooms.accounts[0].ledger.ratio > 4


def test_a_graph_outlives_its_module(watch: Watch) -> None:
    rooms = watch()

    def forget() -> tuple[Tensor, Tensor]:
        first = nn.Linear(64, 256)
        model = nn.Sequential(first, nn.GELU(), nn.Linear(256, 10))
        return first.weight, model(batch()["x"]).sum()

    weight, loss = forget()
    assert rooms.accounts[0].room is None
    loss.backward()
    assert weight.grad is not None and weight.grad.abs().sum() > 0


class Failing(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()], ids=["error", "stop"])
def test_after_an_exception_training_goes_on(watch: Watch, error: BaseException) -> None:
    rooms = watch(tolerance=0.0)
    model, x, y = make("convolutional")
    twin = copy.deepcopy(model)
    step(model, x, y)
    step(twin, x, y)
    good, model[8] = model[8], Failing(error)
    with pytest.raises(type(error)) as caught:
        model(x)
    assert caught.value is error
    model[8] = good
    model.load_state_dict(twin.state_dict())
    plain = step(twin, x, y)
    rows = len(rooms.accounts[-1].room.ledger.rows) if rooms.accounts[-1].room else 0
    ours = step(model, x, y)
    assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
    assert top_hooks() is None
    assert rows > 3
    assert rooms.accounts[0].passes == 3


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled for one test is used by another."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch.compiler.reset()


class Own(nn.Module):
    """Torch compiles no class of its own in place."""

    def __init__(self) -> None:
        super().__init__()
        self.body = smooth()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Using `torch.compile")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("way", ["whole", "in place", "parts", "parts in place"])
def test_compiled_modules_have_rooms_too(watch: Watch, way: str) -> None:
    model = Own()
    plain = gradients(model, loss_of)
    rooms = watch()
    options: Any = {"backend": "aot_eager", "fullgraph": True}
    called: Any = nn.Sequential(nn.Identity(), model) if way.startswith("parts") else model
    if way == "whole":
        called = torch.compile(model, **options)
    elif way == "parts":
        called[1] = torch.compile(model, **options)
    else:
        model.compile(**options)
    if way == "in place":
        surround(
            model,
            lambda args, _: rooms.enter(model, args, sys._getframe(1)),
            lambda: rooms.leave(model),
            lambda output: rooms.returned(model, output),
        )
    for _ in range(2):
        assert 0 < error_of(plain, gradients(model, lambda _: loss_of(called))) < 0.005
    assert watch.said == []
    (account,) = rooms.accounts
    assert account.name == ("Sequential" if way.startswith("parts") else "Own")
    assert account.passes == 2
    assert account.room is not None
    passed = account.room.ledger.rows
    rows = [row for row in passed if "compiled" in row.readers and row.method == "encode"]
    assert len(rows) == 2
    assert sum(r.saved_bytes for r in rows) > 3 * sum(r.kept_bytes for r in rows)
    assert sum(torch._dynamo.utils.counters["graph_break"].values()) == 0
    copy.deepcopy(model)
    called.eval()
    assert account.passes == 2
    assert torch.isfinite(called(torch.ones(2, 64))).all()
    nothing_is_left(account.room, hooks=1)


def test_hooks_of_others_are_left_to_do_their_work(watch: Watch) -> None:
    rooms = watch()
    model, x, y = make("convolutional")
    for _ in range(2):
        with torch.autograd.graph.save_on_cpu():
            loss = functional.cross_entropy(model(x), y)
        loss.backward()
    assert len(watch.said) == 1
    assert "other hooks" in watch.said[0]
    mine = er.Activations(model)
    with mine:
        loss = functional.cross_entropy(model(x), y)
    loss.backward()
    assert mine.ledger.ratio > 2
    assert len(watch.said) == 1
    assert all(account.passes == 0 for account in rooms.accounts)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_run_again_without_a_room(watch: Watch, reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(64, 256)
            self.second = nn.Sequential(nn.GELU(), nn.Linear(256, 256), nn.GELU())

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.second, self.first(x), use_reentrant=reentrant)

    torch.manual_seed(0)
    rooms, model = watch(tolerance=0.0), Checkpointed()
    x = torch.randn(128, 64)
    targets = torch.randint(256, (128,))
    ours = [step(model, x, targets) for _ in range(2)][-1]
    rooms.remove()
    plain = step(model, x, targets)
    assert [(a.name, a.passes) for a in rooms.accounts] == [("Checkpointed", 2)]
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


def test_transforms_and_traces_are_left_alone(watch: Watch) -> None:
    rooms = watch()
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU())
    parameters: dict[str, Tensor] = dict(model.named_parameters())

    def loss(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, values, torch.randn(64, 64)).sum()

    assert torch.func.grad(loss)(parameters).keys() == parameters.keys()
    torch.fx.symbolic_trace(model)
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        model(torch.randn(64, 64)).sum().backward()
    assert rooms.accounts == []


def test_lazy_parameters_get_their_shapes_first(watch: Watch) -> None:
    rooms = watch()
    model = nn.Sequential(nn.LazyLinear(256), nn.GELU(), nn.LazyLinear(10))
    for _ in range(3):
        model(torch.randn(128, 64)).sum().backward()
    assert [account.passes for account in rooms.accounts] == [2]


def test_of_several_the_largest_has_to_meet_the_budget(watch: Watch) -> None:
    torch.manual_seed(0)
    rooms = watch(memory="100 GB")
    small = nn.Sequential(nn.Linear(64, 64), nn.GELU())
    large = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU())
    for _ in range(5):
        large(small(torch.randn(128, 64))).sum().backward()
    first, second = rooms.accounts
    assert first.room is not None and second.room is not None
    assert first.room._budget is None and second.room._budget is not None
    assert len(watch.said) == 1
    assert "Sequential (2) has to meet it" in watch.said[0]
    assert second.peak_bytes > 0
    # There is room for all of the large one; the small one is always encoded.
    assert second.ledger.ratio < 2 < first.ledger.ratio
