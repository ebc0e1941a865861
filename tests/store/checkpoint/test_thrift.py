"""Checkpoints that stay take no more room than as many files of torch.save."""

import io
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elbowroom.store.checkpoint import Checkpointer, Keep
from elbowroom.store.checkpoint.thrift import most_states

from .holders import Holder

pytestmark = pytest.mark.usefixtures("one_thread")


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("apart", [1, 6])
def test_adamw_in_steady_state(tmp_path: Path, keep: int, apart: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 256), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    sizes: list[int] = []
    objects: dict[str, Any] = {"model": model, "optimizer": optimizer}
    with Checkpointer(tmp_path / "run", every=apart, keep=keep, snapshot="copy", **objects) as ck:
        for _ in range(14 * apart):
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if ck.step():
                ck.wait()
                sizes.append(bytes_in(tmp_path / "run"))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    assert max(sizes[4:]) <= keep * file.tell()


def test_what_hardly_changes_is_still_a_difference(tmp_path: Path) -> None:
    """A table of which a few rows move: writing less counts for more than a fifth of room."""
    table = torch.randn(20_000, 16)
    draw = torch.Generator().manual_seed(0)
    holder, written = Holder({"table": table}), list[int]()
    with Checkpointer(tmp_path, held=holder, every=1, keep=1, handle_signals=False) as ck:
        for _ in range(22):
            table[torch.randint(0, len(table), (300,), generator=draw)] += 0.01
            before = {path.name for path in (tmp_path / "packs").iterdir()}
            ck.step()
            ck.wait()
            new = [path for path in (tmp_path / "packs").iterdir() if path.name not in before]
            written.append(sum(path.stat().st_size for path in new))
    small = [size for size in written if size < table.nbytes / 10]
    assert len(small) >= 18


def count_states(keep: int, length: int, share: float) -> float:
    """The most that the last ones weigh, found by writing a long run."""
    most = 0.0
    for newest in range(3 * length, 5 * length + keep):
        stays = range(newest - keep + 1, newest + 1)
        first = stays[0] // length * length
        most = max(most, sum(1 if n % length == 0 else share for n in range(first, newest + 1)))
    return most


def test_the_formula_counts_what_stays() -> None:
    draw = random.Random(0)
    for _ in range(200):
        keep, length, share = draw.randint(1, 12), draw.randint(1, 9), draw.random()
        assert most_states(keep, length, share) >= count_states(keep, length, share) - 1e-9
    assert most_states(3, 2, 0.4) == pytest.approx(2.8)
    assert Keep(last=3).last == 3
