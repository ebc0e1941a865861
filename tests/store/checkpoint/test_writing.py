"""What a checkpoint costs on disk: only what is new, and nothing dead for long."""

from pathlib import Path

import pytest
import torch
from torch import nn

from elbowroom.store.checkpoint import Checkpointer, Store


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "packs").iterdir())


def test_a_frozen_backbone_is_written_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 4))
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model[1].parameters(), 0.1)
    with Checkpointer(tmp_path, model=model, optimizer=optimizer, keep=None) as checkpointer:
        checkpointer.save(sync=True)
        full = size_of(tmp_path)
        for _ in range(3):
            model(torch.randn(8, 600)).square().mean().backward()
            optimizer.step()
            before = size_of(tmp_path)
            checkpointer.step()
            checkpointer.save(sync=True)
            assert size_of(tmp_path) - before < 0.05 * full


def test_what_moves_within_a_tensor_is_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    history = nn.ParameterList([nn.Parameter(torch.randn(64, 4096))])
    with Checkpointer(tmp_path, model=history, keep=None) as checkpointer:
        checkpointer.save(sync=True)
        with torch.no_grad():
            history[0].copy_(history[0].roll(5, 0))  # 4 KB rows of floats: 16 KB each
        before = size_of(tmp_path)
        checkpointer.save(sync=True)
        assert size_of(tmp_path) - before < 20_000
    again = nn.ParameterList([nn.Parameter(torch.zeros(64, 4096))])
    Checkpointer(tmp_path, model=again).close()
    assert torch.equal(again[0], history[0])


def test_small_changes_are_differences_and_chains_end(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = nn.Linear(300, 300)
    sizes = []
    with Checkpointer(tmp_path, model=weights, keep=None) as checkpointer:
        for _ in range(24):
            with torch.no_grad():
                weights.weight.add_(torch.randn(300, 300) * 1e-7)
            checkpointer.save(sync=True)
            newest = max((tmp_path / "packs").iterdir())
            sizes.append(newest.stat().st_size)
    full = sizes[0]
    # Whole at first as it is; whole again it is compressed, if only by a tenth.
    assert sum(size > 0.75 * full for size in sizes) == 4
    assert sum(size > 0.95 * full for size in sizes) == 1
    assert sum(size < 0.5 * full for size in sizes) == 20
    store = Store.open(tmp_path)
    assert store.verify(store.names()[-1]) == []


def test_chains_of_large_differences_are_short(tmp_path: Path) -> None:
    """What is read for the newest state is bounded, however little each difference saves."""
    torch.manual_seed(0)
    weights = nn.Linear(400, 400, bias=False)
    nbytes, depths = 4 * 400 * 400, []
    with Checkpointer(tmp_path, model=weights, keep=None) as checkpointer:
        for _ in range(9):
            with torch.no_grad():
                weights.weight.add_(torch.randn(400, 400) * 1e-4)
            checkpointer.save(sync=True)
            store = Store.open(tmp_path)
            (part,) = store.manifest(store.names()[-1]).parts
            chain = [content for content in part.contents if content.nbytes == nbytes]
            later = [sum(e.nbytes for e in content.extents) for content in chain[1:]]
            assert all(0.4 * nbytes < size < 0.7 * nbytes for size in later)
            assert sum(later[:-1]) <= 1.5 * nbytes
            depths.append(len(later))
    assert depths == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_what_stays_is_moved_from_among_what_is_dead(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ParameterDict(
        {"frozen": nn.Parameter(torch.randn(100_000)), "moving": nn.Parameter(torch.randn(400_000))}
    )
    full = 4 * 500_000
    sizes = []
    with Checkpointer(tmp_path, model=model, keep=1) as checkpointer:
        for _ in range(20):
            with torch.no_grad():
                model["moving"].normal_()
            checkpointer.save(sync=True)
            sizes.append(size_of(tmp_path))
    # Without moving, the first pack would stay for the sake of a fifth of it.
    assert max(sizes[4:]) < 1.1 * full
    assert len(list((tmp_path / "packs").glob("*-s.pack"))) == 1
    again = nn.ParameterDict(
        {"frozen": nn.Parameter(torch.zeros(100_000)), "moving": nn.Parameter(torch.zeros(400_000))}
    )
    Checkpointer(tmp_path, model=again).close()
    assert all(torch.equal(again[name], model[name]) for name in model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64, torch.bool])
def test_all_types_and_layouts_come_back(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    base = torch.randint(0, 2, (6, 4, 30, 20)).to(dtype)
    held = {
        "rows": base,
        "channels": base.contiguous(memory_format=torch.channels_last),
        "gaps": base[:, ::2],
        "expanded": base[:1, :1].expand(3, 5, 30, 20),
        "transposed": base.transpose(0, 3),
        "empty": base[:0],
        "scalar": base[0, 0, 0, 0],
    }

    class Holder:
        def state_dict(self) -> dict[str, torch.Tensor]:
            return held

        def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
            held.update(state)

    original = dict(held)
    with Checkpointer(tmp_path, model=Holder()) as checkpointer:
        checkpointer.save(sync=True)
        for name in held:
            held[name] = torch.zeros(1)
        checkpointer.restore()
    for name, tensor in original.items():
        assert torch.equal(held[name], tensor) and held[name].dtype == dtype, name
    assert held["channels"].stride() == original["channels"].stride()
    assert held["transposed"].stride() == original["transposed"].stride()


def test_equal_contents_are_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = nn.Linear(500, 500)
    tied = nn.ModuleList([first, first, nn.Linear(500, 500)])
    tied[2].load_state_dict(first.state_dict())
    with Checkpointer(tmp_path, model=tied) as checkpointer:
        checkpointer.save(sync=True)
    assert size_of(tmp_path) < 1.1 * 4 * 500 * 500


class Held:
    """A state of any tensors."""

    def __init__(self) -> None:
        self.state: dict[str, torch.Tensor] = {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.state.items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.state = state


def test_contents_that_are_held_twice_are_always_found(tmp_path: Path) -> None:
    """By itself, and below a difference: of two copies the one that the manifest names counts."""
    generator = torch.Generator().manual_seed(0)
    first, other = (torch.randn(1 << 16, generator=generator) for _ in range(2))
    near = first.clone()
    near[:50] += 1
    holder = Held()
    with Checkpointer(tmp_path, thing=holder) as checkpointer:
        for a, b in [(first, None), (near, None), (near, first), (other, first), (other, first)]:
            holder.state = {"a": a} if b is None else {"a": a, "b": b}
            checkpointer.step()
            checkpointer.save(sync=True)
    store = Store.open(tmp_path)
    assert all(store.verify(name) == [] for name in store.names())
    found = store.state(store.manifest(store.names()[-1]))["thing"]
    assert torch.equal(found["a"], other) and torch.equal(found["b"], first)
