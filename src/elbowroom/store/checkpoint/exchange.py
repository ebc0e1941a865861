"""Checkpoints to and from files of other programs."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elbowroom.errors import CorruptData, IncompatibleFormat, InvalidArgument
from elbowroom.store.checkpoint.comparison import find_checkpoint
from elbowroom.store.checkpoint.journal import Journal
from elbowroom.store.checkpoint.manifest import SHARDED, Manifest
from elbowroom.store.checkpoint.naming import Name
from elbowroom.store.checkpoint.objects import Options
from elbowroom.store.checkpoint.outline import TENSORS, leaves_of, outline
from elbowroom.store.checkpoint.ranks import Ranks
from elbowroom.store.checkpoint.retention import Keep
from elbowroom.store.checkpoint.snapshot import Buffer, Snapshot, copy_tensors, lay_out
from elbowroom.store.checkpoint.state import flatten, unflatten
from elbowroom.store.checkpoint.store import Store
from elbowroom.store.checkpoint.tensorfile import (
    check_memory,
    is_safetensors,
    listed,
    read_file,
    refuse_existing,
    write_file,
)

# In a file of the whole state, the states of ranks after the first. No object of a run can have
# this name, since it is an argument of Checkpointer.
PER_RANK = "per_rank"
_OWN_NAMES = {"steps", "randomness", PER_RANK}
_MOST_STEP = 10**15
# torch.load(weights_only=True) reads no integer of more bits.
_MOST_BITS = 8 * 255 - 1

# Called with the bytes that were read, and those that there are to read in all.
Tell = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written.

    `replaced` are places of what the file cannot hold as it was, and the type that stands for it;
    `left_out` are names of what is no tensor.
    """

    name: Name
    tensors: int
    tensor_bytes: int
    file_bytes: int
    replaced: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def export_file(
    where: str | Path,
    target: str | Path,
    *,
    step: int | None = None,
    what: str | None = "model",
    tensors_only: bool = False,
    replace: bool = False,
    tell: Tell = lambda nbytes, total: None,
) -> Exported:
    """Write one object of a checkpoint, or with `what=None` all of it, as one ordinary file.

    The ending of the file says how. Names are those of the object's state_dict. With
    `tensors_only`, what is no tensor is left out; else a .safetensors file of it is refused.
    """
    target = Path(target)
    is_flat = is_safetensors(target) or tensors_only
    refuse_existing(target, replace=replace)
    store = Store.open(where)
    with store.reading():
        name = find_checkpoint(store, step)
        held = read_state(store, store.manifest(name), what, tell)
    replaced: dict[str, str] = {}
    left_out: list[str] = []
    held = _plain(held, what or "state", replaced)
    if is_flat:
        held, left_out = _name_tensors(held)
        replaced = {place: word for place, word in replaced.items() if word == "Tensor"}
    if left_out and not tensors_only:
        raise InvalidArgument(
            f"{target} can hold nothing but tensors, and {what or 'the state'} has also "
            f"{listed(left_out)}: leave them out (tensors_only, --tensors-only), or write .pt"
        )
    file_bytes = write_file(held, target, replace=replace)
    tensors = flatten(held, "state")[1]
    return Exported(
        name=name,
        tensors=len(tensors),
        tensor_bytes=sum(tensor.nbytes for _, tensor in tensors),
        file_bytes=file_bytes,
        replaced=replaced,
        left_out=tuple(left_out),
    )


def import_file(
    where: str | Path,
    source: str | Path,
    *,
    step: int = 0,
    what: str = "model",
    key: str | None = None,
    add: bool = False,
) -> Name:
    """Make a checkpoint whose one object, by the name of `what`, is what a file holds.

    Of a file with several objects, that under `key` is taken, or under the name of `what`. A store
    that has checkpoints is added to only with `add`: a run would resume from the one that came
    last.
    """
    if what in _OWN_NAMES or not what.isidentifier():
        raise InvalidArgument(f"an object of a run cannot be named {what!r}: choose another name")
    if not 0 <= step <= _MOST_STEP:
        raise InvalidArgument(f"step must be from 0 to {_MOST_STEP}, got {step}")
    held = _pick(_read_source(Path(source)), str(source), what, key)
    if not flatten(held, what)[1]:
        raise InvalidArgument(f"{source} holds no tensor: check the name")
    # A run that resumes goes on drawing where a checkpoint says; here, where this process is.
    state = {"steps": step, what: held}
    tree, tensors = flatten(state, "state")
    pieces, nbytes = lay_out(tensors)
    check_memory(nbytes, str(source))
    journal = Journal(where, ranks=Ranks(), keep=Keep(last=None), hash_name=_hash_of(where))
    try:
        if (there := journal.store.names()) and not add:
            raise InvalidArgument(
                f"{where} has checkpoints already, the last of step {there[-1].step}, and a run "
                "would resume from this one: name a new folder, or add to it (add=True, --add)"
            )
        _build_on_newest(journal)
        buffer = Buffer()
        buffer.reserve(nbytes)
        copy_tensors(tensors, pieces, buffer)
        facts = {"id": f"{journal.next_id():016x}", "torch": torch.__version__}
        journal.write(Snapshot(step=step, tree=tree, facts=facts, pieces=pieces, buffer=buffer))
    finally:
        journal.close()
    return Name(step=step, id=facts["id"])


def _read_source(source: Path) -> Any:
    if not source.is_dir():
        return read_file(source)
    from elbowroom.store.checkpoint.dcp.whole import is_torch_folder, read_torch_folder

    if not is_torch_folder(source):
        raise InvalidArgument(
            f"{source} is a folder and none of torch.distributed.checkpoint, which has a .metadata "
            "in it: name a file, or branch from a store"
        )
    return read_torch_folder(source)


def _pick(held: Any, source: str, what: str, key: str | None) -> Any:
    """The object that is meant, of all that a training script has saved in a file."""
    inner = held if isinstance(held, dict) else {}
    if key is not None:
        if key not in inner:
            raise InvalidArgument(
                f"{source} has no {key!r}; it has: {listed([str(name) for name in inner])}"
            )
        return inner[key]
    if isinstance(inner.get(what), dict):
        return inner[what]
    objects = [str(name) for name, one in inner.items() if _has_tensor(one)]
    # The state of a module is flat.
    is_flat = any(isinstance(one, Tensor) for one in inner.values())
    if what == "model" and objects and not is_flat:
        raise InvalidArgument(
            f"{source} has no {what!r} and several objects, {listed(objects)}: say which one is "
            "the model (key=, --key)"
        )
    return held


def _has_tensor(value: Any) -> bool:
    inside = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        return any(_has_tensor(item) for item in inside)
    return isinstance(value, Tensor)


def _hash_of(where: str | Path) -> str:
    try:
        return Store.open(where).hash
    except InvalidArgument:
        return "xxh3-128"  # there is no store yet


def _build_on_newest(journal: Journal) -> None:
    for name in reversed(journal.store.names()):
        try:
            journal.build_on(name)
        except (CorruptData, IncompatibleFormat, OSError):
            continue
        return


def read_state(
    store: Store,
    manifest: Manifest,
    what: str | None,
    tell: Tell = lambda nbytes, total: None,
    options: Options | None = None,
) -> Any:
    """One object of a checkpoint, or with `what=None` all of it, verified."""
    if SHARDED in manifest.facts:
        return _read_sharded(store, manifest, what, options)
    trees = [part.tree for part in manifest.parts]
    if what is not None:
        trees = [find_object(manifest, what)]
    nbytes = 0
    for part, tree in zip(manifest.parts, trees, strict=False):
        for _, leaf in leaves_of(outline(tree, len(part.entries))):
            if leaf.kind in TENSORS:
                nbytes += part.contents[part.entries[leaf.value].content].nbytes
    check_memory(nbytes, f"the checkpoint of step {manifest.step}")
    states: list[Any] = []
    for part, tree in zip(manifest.parts, trees, strict=False):
        reader = store.reader(manifest, part)

        def read(number: int, read_tensor: Callable[[int], Tensor] = reader.tensor) -> Tensor:
            found = read_tensor(number)
            tell(found.nbytes, nbytes)
            return found

        states.append(unflatten(tree, read))
    if len(states) > 1:
        if not isinstance(states[0], dict):
            raise CorruptData(f"the checkpoint of step {manifest.step} holds no state of a run")
        states[0][PER_RANK] = dict(enumerate(states[1:], start=1))
    return states[0]


def _read_sharded(
    store: Store, manifest: Manifest, what: str | None, options: Options | None
) -> Any:
    from elbowroom.store.checkpoint.dcp.whole import read_sharded

    state = read_sharded(store.place.root, step=manifest.step, options=options)
    if what is None:
        return state
    if what not in state:
        there = listed(list(map(str, state)))
        # A state that was saved as it is has no objects: it is a model's own.
        if what == "model" and any(isinstance(value, Tensor) for value in state.values()):
            return state
        raise InvalidArgument(
            f"the checkpoint of step {manifest.step} has no {what!r}; it has: {there}"
        )
    return state[what]


def find_object(manifest: Manifest, what: str) -> Any:
    """One object of the state of a run, as its manifest has it."""
    tree = manifest.parts[0].tree
    pairs = tree.get("dict") if isinstance(tree, dict) else None
    if not isinstance(pairs, list):
        raise CorruptData(f"the checkpoint of step {manifest.step} holds no state of a run")
    for pair in pairs:
        if isinstance(pair, list) and len(pair) == 2 and pair[0] == what:
            return pair[1]
    there = [str(pair[0]) for pair in pairs if isinstance(pair, list) and pair]
    raise InvalidArgument(
        f"the checkpoint of step {manifest.step} has no {what!r}; it has: {listed(there)}"
    )


def _plain(value: Any, where: str, replaced: dict[str, str]) -> Any:
    """The same in types that torch.load(weights_only=True) takes, or the nearest to it."""
    kind = type(value)

    def inside(item: Any, name: object) -> Any:
        return _plain(item, f"{where}[{name!r}]", replaced)

    if isinstance(value, dict):
        items = {_plain_key(key, where): inside(item, key) for key, item in value.items()}
        made: Any = kind(items) if kind in (OrderedDict, Counter) else items
        if kind is not dict and hasattr(value, "_metadata"):
            made._metadata = inside(value._metadata, "_metadata")  # pyright: ignore[reportAttributeAccessIssue]
    elif kind in (list, tuple, deque):
        made = [inside(item, number) for number, item in enumerate(value)]
        made = tuple(made) if kind is tuple else made
    elif kind is bytes:
        made = value or bytearray()  # which of all bytes torch.load does not read
    elif isinstance(value, np.ndarray):
        made = _plain_array(value, where)
    else:
        made = _plain_key(value, where)
    if type(made) is not kind:
        replaced[where] = type(made).__name__
    return made


def _plain_key(value: Any, where: str) -> Any:
    """Of what can be a key or in a set: it still can be."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (tuple, frozenset):
        return tuple(_plain_key(item, where) for item in value)
    if type(value) is set:
        return {_plain_key(item, where) for item in value}
    if type(value) is range:
        return value.start, value.stop, value.step
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise InvalidArgument(f"{where} has an integer that torch.load cannot read: leave it out")
    return value


def _plain_array(value: np.ndarray, where: str) -> Tensor:
    try:
        return torch.from_numpy(value.astype(value.dtype.newbyteorder("=")))
    except TypeError:
        raise InvalidArgument(
            f"{where} is an array of {value.dtype}, which is no type of torch: leave it out"
        ) from None


def _name_tensors(held: Any) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors by their names with dots between, and the names of all that is none."""
    found: dict[str, Tensor] = {}
    others: list[str] = []

    def walk(value: Any, name: str) -> None:
        if isinstance(value, Tensor):
            if name in found:
                raise InvalidArgument(f"two tensors have the name {name!r}: write all of it to .pt")
            found[name] = value
        elif isinstance(value, dict | list | tuple):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                walk(item, f"{name}.{key}" if name else str(key))
        else:
            others.append(repr(name))

    walk(held, "")
    return found, others
