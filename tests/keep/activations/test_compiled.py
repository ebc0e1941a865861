"""Compiled models: what they save is encoded inside the graphs, and the gradient is right."""

import gc
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import elbowroom as er
from elbowroom.keep.activations import compiled, graphs
from tests.keep.activations.checking import error_of, gradients, nothing_is_left, same_bits

# Torch's own tracing warns of what it does itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled for one test is used by another."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch.compiler.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(64, 128), nn.LayerNorm(128), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.down(self.norm(functional.gelu(self.up(x)))))


class Network(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def network(layers: int = 1) -> Any:
    torch.manual_seed(0)
    return Network(layers)


def convolutional() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(), nn.Dropout(0.2)),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10)),
    )


def loss_of(model: Any) -> tuple[Tensor, ...]:
    return (model(torch.randn(256, 64)).square().sum(),)


def image_loss(model: Any) -> tuple[Tensor, ...]:
    return (functional.cross_entropy(model(torch.randn(8, 3, 24, 24)), torch.arange(8)),)


def nothing_stays(room: er.Activations) -> None:
    """Frames that torch makes anew are in cycles."""
    gc.collect()
    nothing_is_left(room)


def encoded(room: er.Activations) -> list[Any]:
    rows = room.ledger.rows
    return [row for row in rows if "compiled" in row.readers and row.method == "encode"]


def breaks() -> int:
    return sum(torch._dynamo.utils.counters["graph_break"].values())


@pytest.mark.parametrize("case", ["dense", "images"])
def test_gradients_of_compiled_models(case: str) -> None:
    make, loss = {"dense": (network, loss_of), "images": (convolutional, image_loss)}[case]
    model: Any = torch.compile(make(), backend="aot_eager", fullgraph=True)
    plain = gradients(model, loss)
    exact = er.Activations(model, tolerance=0)
    assert same_bits(plain, gradients(model, loss, exact))
    room = er.Activations(model)
    for _ in range(2):
        ours = gradients(model, loss, room)
        assert 0 < error_of(plain, ours) < 0.005
    nothing_stays(room)
    rows = encoded(room)
    assert len(rows) >= 3
    assert room.ledger.ratio > 3
    assert breaks() == 0
    assert len([e for e in room.ledger.events if "compiled" in e]) == 1


@pytest.mark.parametrize("way", ["whole", "outside", "in place", "parts", "parts in place"])
def test_ways_to_compile(way: str) -> None:
    model: Any = network(2)
    plain = gradients(model, loss_of)
    forward: Any = model
    if way == "whole":
        model = cast(Any, torch.compile(model, backend="aot_eager"))
        forward = model
    elif way == "outside":
        forward = torch.compile(model, backend="aot_eager")
    elif way == "in place":
        model.compile(backend="aot_eager")
    elif way == "parts":
        model.blocks[0] = torch.compile(model.blocks[0], backend="aot_eager")
    else:
        model.blocks[0].compile(backend="aot_eager")
    room = er.Activations(model)
    for _ in range(2):
        ours = gradients(model, lambda _: loss_of(forward), room)
        assert 0 < error_of(plain, ours) < 0.005
    nothing_stays(room)
    readers = [row.readers for row in room.ledger.rows]
    assert any("compiled" in r for r in readers)
    assert any("Addmm.mat1" in r for r in readers) == way.startswith("parts")
    assert breaks() == 0
    # Outside of the room the model is as it was.
    assert same_bits(plain, gradients(model, lambda _: loss_of(forward)))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_one_tensor_at_a_time_in_both_directions(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch packs at the end of forward and unpacks at the start of backward: we do not."""
    sources: list[StorageWeakRef] = []
    results: list[StorageWeakRef] = []
    alive: dict[str, list[int]] = {"hold": [], "give": []}
    hold, give = compiled.Regions.encode, graphs.decode

    def count(refs: list[StorageWeakRef]) -> int:
        return len({ref.cdata for ref in refs if not ref.expired()})

    def watched_encode(region: Any, x: Tensor, tag: str) -> Any:
        sources.append(StorageWeakRef(x.untyped_storage()))
        alive["hold"].append(count(sources))
        return hold(region, x, tag)

    def watched_decode(blob: Any) -> Any:
        tensor = give(blob)
        results.append(StorageWeakRef(tensor.untyped_storage()))
        alive["give"].append(count(results))
        return tensor

    monkeypatch.setattr(compiled.Regions, "encode", watched_encode)
    monkeypatch.setattr(graphs, "decode", watched_decode)
    eager = network(4)
    plain = gradients(eager, loss_of)
    room = er.Activations(eager)
    fast: Any = torch.compile(eager, backend=backend)
    ours = gradients(eager, lambda _: loss_of(fast), room)
    assert 0 < error_of(plain, ours) < 0.005
    assert len(alive["hold"]) == len(alive["give"]) >= 8
    assert max(alive["hold"]) <= 3
    assert max(alive["give"]) <= 3


def test_what_is_held_goes_with_the_graph() -> None:
    """After backward, and without one."""
    model: Any = torch.compile(network(), backend="aot_eager")
    room = er.Activations(model)
    for ending in ("backward", "dropped"):
        with room:
            (loss,) = loss_of(model)
        node: Any = loss.grad_fn
        while "CompiledFunction" not in node.name():
            node = node.next_functions[0][0]
        storages = [t.untyped_storage() for t in node.saved_tensors if t.dtype == torch.uint8]
        rows = [
            row for row in room.ledger.rows if "compiled" in row.readers and row.method == "encode"
        ]
        assert len(storages) == len(rows) >= 3
        assert sum(s.nbytes() for s in storages) == sum(row.kept_bytes for row in rows)
        held = [StorageWeakRef(storage) for storage in storages]
        del node, storages
        if ending == "backward":
            loss.backward()
        del loss
        assert all(ref.expired() for ref in held)


def test_changing_shapes_and_graph_breaks() -> None:
    class Breaking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 64)

        def forward(self, x: Tensor) -> Tensor:
            y = functional.gelu(self.first(x))
            torch._dynamo.graph_break()
            return self.second(y.sin())

    torch.manual_seed(0)
    plain_model = Breaking()
    model: Any = torch.compile(plain_model, backend="aot_eager", dynamic=True)
    room = er.Activations(model)
    for rows in (256, 300, 7):
        forward = lambda m, rows=rows: (m(torch.randn(rows, 64)).square().sum(),)  # noqa: E731
        plain = gradients(plain_model, forward)
        assert error_of(plain, gradients(model, forward, room)) < 0.005
        # Seven rows are too little to be worth it.
        readers = [row.readers for row in room.ledger.rows]
        assert any("compiled" in r and len(r) > 1 for r in readers) == (rows > 7)
    nothing_stays(room)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_other_ways_through_a_compiled_model(backend: str) -> None:
    """Without gradients, under autocast, inside a checkpoint."""
    model = network(1)
    fast: Any = torch.compile(model, backend=backend)
    room = er.Activations(fast)
    with room, torch.no_grad():
        assert torch.allclose(fast(torch.ones(2, 64)), model(torch.ones(2, 64)), atol=1e-6)

    def cast(m: Any) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            return (m(torch.randn(256, 64)).float().square().sum(),)

    def checked(m: Any) -> tuple[Tensor, ...]:
        x = torch.randn(256, 64, requires_grad=True)
        return (checkpoint(m, x, use_reentrant=False).square().sum(),)

    for forward in (cast, checked, loss_of):
        plain = gradients(model, forward)
        assert error_of(plain, gradients(fast, forward, room)) < 0.005
    nothing_stays(room)


@pytest.mark.parametrize("is_in_place", [False, True])
def test_an_installed_room_breaks_no_graph(is_in_place: bool) -> None:
    model = network(1)
    plain = gradients(model, loss_of)
    options: Any = {"backend": "aot_eager", "fullgraph": True}
    fast: Any = model
    if is_in_place:
        model.compile(**options)
    else:
        fast = torch.compile(model, **options)
    room = er.Activations(fast)
    room.install()
    for step in (1, 2):
        assert 0 < error_of(plain, gradients(fast, loss_of)) < 0.005
        assert room.ledger.step == step
    assert any("compiled" in row.readers for row in room.ledger.rows)
    room.remove()
    nothing_stays(room)
    assert same_bits(plain, gradients(fast, loss_of))
    assert room.ledger.step == 2
    assert breaks() == 0


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_compiled_functions_in_a_room_and_a_room_in_one(tolerance: float) -> None:
    """Nobody can see them coming: whatever torch makes of it, the gradient is right."""
    model = network(1)
    room = er.Activations(model, tolerance=tolerance)

    @torch.compile(backend="aot_eager")
    def penalty(y: Tensor) -> Tensor:
        return (y.square().sum() + y.sin().exp().sum()).sqrt()

    @torch.compile(backend="aot_eager")
    def whole(x: Tensor) -> Tensor:
        with room:
            return model(x).square().sum()

    def called(m: Any) -> tuple[Tensor, ...]:
        return (penalty(m(torch.randn(256, 64))),)

    def around(_: Any) -> tuple[Tensor, ...]:
        return (whole(torch.randn(256, 64)),)

    for forward, context in ((called, room), (around, nullcontext())):
        plain = gradients(model, called if forward is called else loss_of)
        ours = gradients(model, lambda m, f=forward, c=context: _within(f, m, c))
        assert error_of(plain, ours) < (1e-9 if tolerance == 0 else 0.005)
    nothing_stays(room)


def _within(forward: Any, model: Any, context: Any) -> tuple[Tensor, ...]:
    with context:
        return forward(model)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_interruptions_in_a_compiled_model(error: type[BaseException]) -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network(1)
            self.fails = False

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x)
            self.check()  # pyright: ignore[reportCallIssue]
            return y

        @torch._dynamo.disable
        def check(self) -> None:
            if self.fails:
                raise error("stop")

    own = Failing()
    model: Any = torch.compile(own, backend="aot_eager")
    plain = gradients(own, loss_of)
    room = er.Activations(model)
    gradients(model, loss_of, room)
    own.fails = True
    with pytest.raises(error, match="stop"), room:
        loss_of(model)
    own.fails = False
    gc.collect()
    nothing_stays(room)
    assert not model._forward_hooks
    assert error_of(plain, gradients(model, loss_of, room)) < 0.005


def test_values_that_divide_or_are_compared_stay_exact() -> None:
    class Edges(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return y.clamp(-0.3, 0.3) + y.abs().sqrt() + 1 / (y.sigmoid() + 1e-3) + y.relu().log1p()

    torch.manual_seed(0)
    model: Any = torch.compile(Edges(), backend="aot_eager")
    plain = gradients(model, loss_of)
    room = er.Activations(model)
    ours = gradients(model, loss_of, room)
    assert error_of(plain, ours) < 0.005
