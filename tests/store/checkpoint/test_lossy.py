"""Tensors that may lose a little lose no more, and nothing else loses anything."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elbowroom.codec import Bound
from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint import Checkpointer, CheckpointWarning, Store


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 5) -> None:
    for number in range(steps):
        torch.manual_seed(number)
        model(torch.randn(16, 200)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 50))
    return model, torch.optim.Adam(model.parameters(), 1e-3)


def saved(folder: Path, **options: Any) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The state before and after, and the bytes of the checkpoint."""
    model, optimizer = make()
    train(model, optimizer)
    before = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with Checkpointer(folder, model=model, optimizer=optimizer, **options) as checkpointer:
        checkpointer.save(sync=True)
    store = Store.open(folder)
    assert store.verify(store.names()[-1]) == []
    state = store.state(store.manifest(store.names()[-1]))
    return before, state, sum(path.stat().st_size for path in (folder / "packs").iterdir())


def test_moments_come_back_within_a_share_of_each_value(tmp_path: Path) -> None:
    _, _, exact = saved(tmp_path / "exact")
    before, after, nbytes = saved(tmp_path / "lossy", tolerance=1e-2)
    assert nbytes < 0.7 * exact
    for name, value in before["model"].items():
        assert torch.equal(value, after["model"][name])
    changed = 0
    for number, moments in before["optimizer"]["state"].items():
        for name, value in moments.items():
            found = after["optimizer"]["state"][number][name]
            assert ((found - value).abs() <= 1e-2 * value.abs()).all(), name
            assert torch.equal(found == 0, value == 0)
            changed += not torch.equal(found, value)
    assert changed == 4  # two moments of the two large weights


def test_names_of_tensors_and_objects_have_bounds_of_their_own(tmp_path: Path) -> None:
    bounds = {"exp_avg": 0.1, "exp_avg_sq": Bound.lossless(), "model": Bound.absolute(1e-3)}
    before, after, _ = saved(tmp_path, tolerance=bounds)
    for name, value in before["model"].items():
        assert (after["model"][name] - value).abs().max() <= 1e-3
    assert not torch.equal(before["model"]["0.weight"], after["model"]["0.weight"])
    for number, moments in before["optimizer"]["state"].items():
        found = after["optimizer"]["state"][number]
        assert torch.equal(found["exp_avg_sq"], moments["exp_avg_sq"])
        assert (
            (found["exp_avg"] - moments["exp_avg"]).abs() <= 0.1 * moments["exp_avg"].abs()
        ).all()


def test_the_run_itself_is_not_touched(tmp_path: Path) -> None:
    plain, optimizer = make()
    train(plain, optimizer, 8)
    model, optimizer = make()
    train(model, optimizer, 4)
    with Checkpointer(tmp_path, model=model, optimizer=optimizer, tolerance=0.3) as checkpointer:
        checkpointer.save(sync=True)
        for number in range(4, 8):
            torch.manual_seed(number)
            model(torch.randn(16, 200)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    ours, theirs = model.state_dict(), plain.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_what_stays_the_same_is_still_shared(tmp_path: Path) -> None:
    model, optimizer = make()
    train(model, optimizer)
    with Checkpointer(tmp_path, model=model, optimizer=optimizer, tolerance=1e-3) as checkpointer:
        checkpointer.save(sync=True)
        first = sum(path.stat().st_size for path in (tmp_path / "packs").iterdir())
        checkpointer.save(sync=True)
    both = sum(path.stat().st_size for path in (tmp_path / "packs").iterdir())
    assert both < 1.05 * first


@pytest.mark.parametrize("bad", [-1, 1, "much", True, {"exp_avg": 2}])
def test_tolerances_that_are_none(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(InvalidArgument, match="must be a share from 0"):
        Checkpointer(tmp_path / "x", model=nn.Linear(2, 2), tolerance=bad)


def test_a_name_of_nothing_is_told(tmp_path: Path) -> None:
    with pytest.warns(CheckpointWarning, match="tolerance names 'exp_average'"):
        saved(tmp_path, tolerance={"exp_average": 0.1, "exp_avg_sq": 0.1})
