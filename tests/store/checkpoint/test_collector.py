"""The collector of cycles waits, and comes back."""

import gc
from pathlib import Path

import pytest
import torch

from elbowroom.store.checkpoint import Checkpointer
from elbowroom.store.checkpoint.collector import let_collector_wait
from elbowroom.store.checkpoint.store import Store


def test_it_waits_inside_of_the_block_and_comes_back_after_errors() -> None:
    assert gc.isenabled()
    with pytest.raises(KeyError), let_collector_wait():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        with let_collector_wait():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_nothing_is_collected_while_a_checkpoint_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(3, 3)
    with Checkpointer(tmp_path, model=model) as checkpointer:
        checkpointer.save(sync=True)
    seen: list[bool] = []
    real = Store.state

    def state(*arguments: object) -> object:
        seen.append(gc.isenabled())
        return real(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Store, "state", state)
    with Checkpointer(tmp_path, model=model) as checkpointer:
        assert gc.isenabled()
        checkpointer.restore()
    assert seen == [False, False] and gc.isenabled()
