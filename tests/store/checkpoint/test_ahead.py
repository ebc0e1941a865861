"""States that are read as a whole."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from elbowroom.errors import CorruptData
from elbowroom.store.checkpoint import ahead
from elbowroom.store.checkpoint.naming import PACKS
from elbowroom.store.checkpoint.store import Store
from elbowroom.store.checkpoint.system import System

from .holders import save


class Counting(System):
    """Knows which files are open, and how often each was opened."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        self.now: dict[int, str] = {}

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        handle = super().open(path, flags, mode)
        self.times[Path(path).name] += 1
        self.now[handle] = Path(path).name
        return handle

    def close(self, handle: int) -> None:
        del self.now[handle]  # before another thread is given the same number
        super().close(handle)


def state_of(number: int) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(number)
    large = {f"large {at}": torch.randn(9000, generator=made) for at in range(20)}
    steps = {f"step {at}": torch.tensor(float(number)) for at in range(50)}
    return large | steps


def pack_of(where: Path) -> str:
    (pack,) = (name.name for name in (where / PACKS).iterdir())
    return pack


def test_a_file_is_opened_once_for_a_state(tmp_path: Path) -> None:
    save(tmp_path / "run", state_of(1))
    system = Counting()
    store = Store.open(tmp_path / "run", system)
    found = store.state(store.manifest(store.names()[-1]))
    assert str(found).count("large") == 20
    assert system.times[pack_of(tmp_path / "run")] == 1
    assert not system.now


@pytest.mark.parametrize("most", [0, 1])
def test_more_files_than_may_stay_open_are_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(ahead, "_MOST_OPEN", most)
    states = [
        state_of(1),
        state_of(2) | {f"large {at}": state_of(1)[f"large {at}"] for at in (3, 4)},
    ]
    save(tmp_path / "run", *states)
    system = Counting()
    store = Store.open(tmp_path / "run", system)
    found = store.state(store.manifest(store.names()[-1]))
    text = {name: value for name, value in _flat(found) if name in states[1]}
    assert text.keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in text.items())
    assert not system.now


def test_files_are_closed_after_damage(tmp_path: Path) -> None:
    save(tmp_path / "run", state_of(1))
    pack = tmp_path / "run" / PACKS / pack_of(tmp_path / "run")
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    system = Counting()
    store = Store.open(tmp_path / "run", system)
    with pytest.raises(CorruptData, match="damaged"):
        store.state(store.manifest(store.names()[-1]))
    assert not system.now


def _flat(found: object) -> list[tuple[str, torch.Tensor]]:
    if not isinstance(found, dict):
        return []
    pairs: list[tuple[str, torch.Tensor]] = []
    for name, value in found.items():
        pairs += [(name, value)] if isinstance(value, torch.Tensor) else _flat(value)
    return pairs
