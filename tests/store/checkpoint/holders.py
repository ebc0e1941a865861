"""Stores of known content for the tests, and manifests that nobody would write."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from elbowroom.store.checkpoint import Checkpointer, Store
from elbowroom.store.checkpoint import manifest as manifests
from elbowroom.store.checkpoint.naming import Name


class Holder:
    """An object whose state is what it is given."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def save(where: Path, *states: Any) -> Store:
    """A store whose steps 1, 2, ... have these as their model."""
    holder = Holder(None)
    with Checkpointer(
        where, model=holder, every=1, keep=None, resume=False, handle_signals=False
    ) as checkpointer:
        for state in states:
            holder.state = state
            checkpointer.step()
            checkpointer.wait()
    return Store.open(where)


def forge(store: Store, name: Name, change: Callable[[dict[str, Any]], None]) -> None:
    """Write a manifest anew, with a digest that is right."""
    path = manifest_path(store, name)
    held = manifests.unseal(path.read_bytes(), path.name)
    change(held)
    path.write_bytes(manifests.seal(json.dumps(held)))


def double_ranks(store: Store, name: Name) -> Name:
    """A checkpoint of the next step whose two ranks have saved the same."""
    old = store.manifest(name)
    order = int(old.id[:8], 16) + 1
    return store.commit(
        replace(old, step=old.step + 1, id=f"{order:08x}00000000", parts=old.parts * 2)
    )


def manifest_path(store: Store, name: Name) -> Path:
    return root_of(store) / "manifests" / f"{name}.json"


def root_of(store: Store) -> Path:
    return store.place.root  # pyright: ignore[reportAttributeAccessIssue]


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)
