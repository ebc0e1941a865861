"""Manifests that someone has written on purpose, with a right digest, and what they may cause."""

import contextlib
import copy
import json
import random
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from elbowroom.errors import BudgetUnreachable, CorruptData, IncompatibleFormat, InvalidArgument
from elbowroom.store.checkpoint import CheckpointWarning, Store
from elbowroom.store.checkpoint.manifest import seal

from .disk import Disk
from .held import Holder, checkpointer_on
from .replay import ROOT, bits_of, state_at

Evil = Callable[[dict[str, Any]], Any]
# Bytes that add up, and are more than the machine has, are not wrong, and not read either.
REFUSALS = (CorruptData, IncompatibleFormat, BudgetUnreachable)
ROOM_BYTES = 768 << 20
_LONG_S = 120


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Nothing can be allocated that is much larger than what an honest manifest needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """What waits for ever fails, so that others get their turn."""

    def fail(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still waiting ({number}) at {frame}")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(_LONG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def newest_of(disk: Disk) -> tuple[str, dict[str, Any]]:
    """The path of the newest manifest, and what is in it."""
    name = Store.open(ROOT, disk).names()[-1]
    path = f"{ROOT}/manifests/{name}.json"
    return path, json.loads(disk.files()[path[1:]].rpartition(b"\n")[0].rpartition(b"\n")[0])


def with_manifest(disk: Disk, change: Evil) -> Disk:
    """A disk whose newest manifest was changed, or replaced by a text, and sealed again."""
    path, held = newest_of(disk)
    held = copy.deepcopy(held)
    text = change(held)
    other = disk.copy()
    other.put(path, seal(text if isinstance(text, str) else json.dumps(held)))
    return other


def face(disk: Disk) -> str:
    """Do with a store all that people do; return what was said of its newest checkpoint.

    Only the errors that are meant for it may come out, and what is taken is what was saved.
    """
    store = Store.open(ROOT, disk)
    name = store.names()[-1]
    with little_memory():
        said = "; ".join(map(str, store.verify(name)))
        try:
            store.state(store.manifest(name))
        except REFUSALS as error:
            said = said or str(error)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            holder = Holder(99)
            try:
                with checkpointer_on(disk.copy(), holder) as checkpointer:
                    resumed = checkpointer.resumed_from
                    checkpointer._steps = 7
                    checkpointer.save(sync=True)
                    checkpointer.restore()
            except (*REFUSALS, InvalidArgument) as error:
                return said or str(error)
    if said:
        assert resumed != name.step, said
        assert resumed is None or bits_of(holder.state) == bits_of(state_at(resumed))
        assert any(issubclass(one.category, CheckpointWarning) for one in told)
    return said


def mutate(held: Any, seed: int, value: Any) -> None:
    """Replace, remove or repeat something at a place in a manifest that a number tells."""
    draw = random.Random(seed)
    inside: Any = held
    key: Any = draw.choice([*held, *(["parts"] * 20 if "parts" in held else [])])
    while True:
        found = inside[key]
        if not found or not isinstance(found, dict | list) or draw.random() < 0.12:
            break
        inside = found
        key = draw.choice(list(found)) if isinstance(found, dict) else draw.randrange(len(found))
    match draw.randrange(4):
        case 0 | 1:
            inside[key] = value
        case 2:
            del inside[key]
        case _:
            other = draw.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
            inside[other] = copy.deepcopy(inside[key])
