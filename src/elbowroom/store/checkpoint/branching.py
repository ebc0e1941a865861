"""A new run from a checkpoint of another: what both have lies on the disk once.

Files of a store are never written again, so two of them may share one: it gets a second name (a
hard link), and is there until neither needs it. Where the file system has no such names, or the new
run is on another, it is copied.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.store.checkpoint.comparison import find_checkpoint
from elbowroom.store.checkpoint.contents import number, recall
from elbowroom.store.checkpoint.drain import copy_file
from elbowroom.store.checkpoint.exchange import find_object
from elbowroom.store.checkpoint.journal import Journal
from elbowroom.store.checkpoint.local import LocalPlace
from elbowroom.store.checkpoint.manifest import Manifest, Part
from elbowroom.store.checkpoint.naming import PACKS, Name
from elbowroom.store.checkpoint.outline import outline
from elbowroom.store.checkpoint.ranks import Ranks
from elbowroom.store.checkpoint.retention import Keep
from elbowroom.store.checkpoint.store import Store


@dataclass(frozen=True, kw_only=True)
class Branched:
    """What the new run begins with, and how much of it the two have in common on the disk."""

    name: Name
    origin: Name
    tensors: int
    linked_bytes: int
    copied_bytes: int


def branch(
    source: str | Path, where: str | Path, *, step: int | None = None, what: str | None = None
) -> Branched:
    """Make the first checkpoint of a store that is new, of one that another has.

    All of it, with which the new run goes on from that step; or with `what` that one object, with
    which it begins at step 0.
    """
    store = Store.open(source)
    with store.reading():
        origin = find_checkpoint(store, step)
        manifest = store.manifest(origin)
        if what is not None:
            manifest = replace(manifest, step=0, parts=(_pick(store, manifest, what),), facts={})
        journal = Journal(where, ranks=Ranks(), keep=Keep(last=None), hash_name=store.hash)
        try:
            if there := journal.store.names():
                raise InvalidArgument(
                    f"{where} has checkpoints already, the last of step {there[-1].step}: name a "
                    "new folder"
                )
            return _write(store, manifest, origin, journal)
        finally:
            journal.close()


def _write(store: Store, manifest: Manifest, origin: Name, journal: Journal) -> Branched:
    new = journal.store
    linked = copied = 0
    for pack in dict.fromkeys(pack for part in manifest.parts for pack in part.packs):
        file = f"{PACKS}/{pack.name}"
        if _link(store, new, file):
            linked += pack.nbytes
        else:
            copy_file(store.place, new.place, file, pack.nbytes)
            copied += pack.nbytes
    new.place.sync(PACKS)
    # Packs tell for which checkpoint they were written: the new ones come after all of these.
    journal.begin_after(origin)
    identity = f"{journal.next_id():016x}"
    facts = {key: value for key, value in manifest.facts.items() if key != "id"}
    name = new.commit(
        replace(
            manifest,
            id=identity,
            store=new.id,
            created_s=time.time(),
            facts={**facts, "id": identity},
        )
    )
    return Branched(
        name=name,
        origin=origin,
        tensors=sum(len(part.entries) for part in manifest.parts),
        linked_bytes=linked,
        copied_bytes=copied,
    )


def _link(store: Store, new: Store, file: str) -> bool:
    old_place, new_place = store.place, new.place
    if not isinstance(old_place, LocalPlace) or not isinstance(new_place, LocalPlace):
        return False
    return new_place.link(old_place, file)


def _pick(store: Store, manifest: Manifest, what: str) -> Part:
    """The part of a run whose one object is that, with no more packs than it needs."""
    part = manifest.parts[0]
    found = find_object(manifest, what)
    outline(found, len(part.entries))  # what makes no sense is refused
    numbers: list[int] = []
    subtree = _renumber(found, numbers)
    try:
        reader = store.reader(manifest, part)
        memory = recall(part, manifest.hash, manifest.leaf_bytes, reader.bytes_of)
    except ValueError as error:
        raise CorruptData(f"{manifest.name} has digests that are none: {error}") from error
    entries = [part.entries[old] for old in numbers]
    packs, contents, places = number(
        [memory.by_place[entry.where] for entry in entries], memory.pack_bytes
    )
    return Part(
        tree={"dict": [["steps", 0], [what, subtree]]},
        packs=packs,
        contents=contents,
        entries=tuple(
            replace(entry, content=places[part.contents[entry.content].root]) for entry in entries
        ),
    )


def _renumber(tree: Any, numbers: list[int]) -> Any:
    """The same with its tensors counted from 0 on, and what they were counted as before."""
    if isinstance(tree, list):
        return [_renumber(item, numbers) for item in tree]
    if not isinstance(tree, dict):
        return tree
    word = next(iter(tree), None)
    key = "tensor" if word == "tensor" else "at" if word == "numpy" and "at" in tree else None
    if key is None:
        return {name: _renumber(item, numbers) for name, item in tree.items()}
    numbers.append(tree[key])
    return {**tree, key: len(numbers) - 1}
