"""Taking a run's state out of a store: as plain dicts, whole or in part, under other names."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.store.checkpoint.comparison import find_checkpoint
from elbowroom.store.checkpoint.exchange import read_state
from elbowroom.store.checkpoint.objects import Options
from elbowroom.store.checkpoint.store import Store
from elbowroom.store.checkpoint.tensorfile import listed
from elbowroom.store.checkpoint.voice import warn


def load(
    where: str | Path,
    what: str | None = None,
    *,
    step: int | None = None,
    keys: Iterable[str] | None = None,
    strip: str | tuple[str, ...] = (),
    names: Mapping[str, str] | None = None,
    into: nn.Module | None = None,
    strict: bool = True,
    storage_options: Options | None = None,
) -> dict[str, Any]:
    """The state of a checkpoint as a plain dict, or one object of it; that of a sharded run too.

    `keys` are names, or what they begin with up to a dot, of what is wanted. `strip` is taken off
    the beginning of names, as "module." of what was in DDP; then `names` says what a name, or its
    beginning up to a dot, is to be called. With `into`, a module is given what was found; without
    `strict`, what it has no place for, and what has another shape, is left out and told.
    """
    if into is not None and what is None:
        what = "model"
    store = Store.open(where, options=storage_options)
    with store.reading():
        name = find_checkpoint(store, step)
        try:
            found = read_state(store, store.manifest(name), what, options=storage_options)
        except CorruptData as error:
            older = [str(one.step) for one in store.names() if one.order < name.order]
            if step is not None or not older:
                raise
            raise CorruptData(
                f"{error}; step= names an older checkpoint: {listed(older[::-1])}"
            ) from error
    if not isinstance(found, dict):
        raise InvalidArgument(f"{what} is a {type(found).__name__} and no dict: load all of it")
    if keys is not None or strip or names:
        found = _renamed(found, keys, (strip,) if isinstance(strip, str) else strip, names or {})
    if into is not None:
        _give(into, found, strict=strict, where=f"{where}, step {name.step}")
    return found


def _renamed(
    state: dict[str, Any],
    keys: Iterable[str] | None,
    strip: tuple[str, ...],
    names: Mapping[str, str],
) -> dict[str, Any]:
    wanted = None if keys is None else [keys] if isinstance(keys, str) else list(keys)
    if wanted is not None:
        unknown = [key for key in wanted if not any(_begins(str(name), key) for name in state)]
        if unknown:
            raise InvalidArgument(
                f"the checkpoint has no {listed(unknown)}; it has: {listed(list(map(str, state)))}"
            )
    renamed: dict[str, Any] = {}
    for name, value in state.items():
        new = str(name) if strip or names else name
        if wanted is not None and not any(_begins(str(name), key) for key in wanted):
            continue
        while start := next((s for s in strip if s and str(new).startswith(s)), ""):
            new = str(new).removeprefix(start)
        # The longest that fits, so that one part can be called otherwise than the rest.
        old = max((one for one in names if _begins(str(new), one)), key=len, default=None)
        if old is not None:
            new = names[old] + str(new).removeprefix(old)
        if new in renamed:
            raise InvalidArgument(f"two things would be called {new!r}: give them other names")
        renamed[new] = value
    return renamed


def _begins(name: str, start: str) -> bool:
    return name == start or name.startswith(start if start.endswith(".") else f"{start}.")


def _give(module: nn.Module, state: dict[str, Any], *, strict: bool, where: str) -> None:
    there = module.state_dict()
    misfits = [
        f"{name} ({_say(value)} in place of {_say(there[name])})"
        for name, value in state.items()
        if name in there and _say(value) != _say(there[name])
    ]
    extra = [str(name) for name in state if name not in there]
    missing = [name for name in there if name not in state]
    problems = [
        f"{text} {listed(found)}"
        for text, found in (
            ("it lacks", missing),
            ("the model has no", extra),
            ("of another shape:", misfits),
        )
        if found
    ]
    if strict and problems:
        raise InvalidArgument(
            f"{where} does not fit the {type(module).__name__}: {'; '.join(problems)}: rename with "
            "strip= or names=, choose with keys=, or leave out what does not fit with strict=False"
        )
    fits = {n: v for n, v in state.items() if n in there and _say(v) == _say(there[n])}
    if not fits and there:
        raise InvalidArgument(
            f"{where} has nothing that fits the {type(module).__name__}: {'; '.join(problems)}: "
            "rename with strip= or names="
        )
    with torch.no_grad():
        module.load_state_dict(fits, strict=False)
    if problems:
        warn(f"{where} was loaded in part: {'; '.join(problems)}")


def _say(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
