"""A folder of checkpoints: what is in it, whether it is whole, what may go.

    store.json            what this folder is
    manifests/*.json      one a checkpoint; it counts from the moment its file has this name
    packs/*.pack          bytes that manifests name
    parts/*.json          what ranks have written for a checkpoint that is being made
    writer, readers       locks: one writer at a time; nothing is removed while someone reads

Files are written aside, made durable and renamed, packs before the manifest that names them, and
never written again.
"""

import contextlib
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elbowroom.errors import BudgetUnreachable, CorruptData, IncompatibleFormat, InvalidArgument
from elbowroom.host import available_bytes
from elbowroom.store.checkpoint import manifest as manifests
from elbowroom.store.checkpoint.ahead import Ahead, OpenFiles
from elbowroom.store.checkpoint.contents import Memory, recall
from elbowroom.store.checkpoint.digests import HASHES, LEAF_BYTES, check_hash, digest_of
from elbowroom.store.checkpoint.manifest import Manifest, Part, split_name
from elbowroom.store.checkpoint.objects import place_at
from elbowroom.store.checkpoint.place import ASIDE, Place
from elbowroom.store.checkpoint.reading import PACKS, Damage, PartReader
from elbowroom.store.checkpoint.state import unflatten
from elbowroom.store.checkpoint.system import System

MANIFESTS, PARTS = "manifests", "parts"
MARK = "store.json"
_FORMAT = "elbowroom checkpoint store"
_MOST_ORDER = (1 << 31) - 1
_ID = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class Name:
    """A checkpoint as its file name tells it.

    The identity begins with a number that counts up, and ends with one drawn by chance: the first
    tells which checkpoint is newer, whatever their steps and whatever the clock says, the second
    that no name comes twice.
    """

    step: int
    id: str

    @property
    def order(self) -> int:
        """Larger for what was begun later."""
        return int(self.id[:8], 16)

    def __str__(self) -> str:
        return f"{self.step:012d}-{self.id}"


class Store:
    """Checkpoints in one place."""

    def __init__(self, place: Place, mark: dict[str, Any]) -> None:
        self.place = place
        self.id: str = mark["id"]
        self.hash: str = check_hash(mark["hash"])
        self._last: tuple[str, bytes, Manifest] | None = None  # what was read last, and from what

    @classmethod
    def open(cls, where: str | Path, system: System | None = None) -> "Store":
        """A store that is there."""
        place = place_at(where, system)
        return cls(place, _read_mark(place, str(where)))

    @classmethod
    def make(
        cls, place: Place, hash_name: str = "xxh3-128", *, identity: str | None = None
    ) -> "Store":
        """The store of that place, which is made if there is none, with that identity or a new."""
        digest_of(check_hash(hash_name), b"")  # that its package is missing is told here
        refuse_foreign(place)
        place.make(MANIFESTS, PACKS, PARTS)
        mark = _missing_mark(place)
        if mark is not None:
            said = {"format": _FORMAT, "version": 1, "hash": hash_name, **mark}
            said.setdefault("id", identity or secrets.token_hex(16))
            # What manifests say as well need not be written, if it cannot be.
            with contextlib.suppress(*([OSError] if mark else [])):
                place.remove(MARK + ASIDE)
                place.remove(MARK)
                publish(place, MARK, manifests.seal(json.dumps(said)))
        store = cls(place, _read_mark(place, str(place.root)))
        if identity not in (None, store.id):
            raise InvalidArgument(
                f"{place.root} has checkpoints of another run than its other tier: name a new one"
            )
        if store.hash != hash_name:
            raise InvalidArgument(
                f"{place.root} is hashed with {store.hash}, not {hash_name}: use that, or another "
                "folder"
            )
        return store

    def names(self) -> list[Name]:
        """All checkpoints, oldest first."""
        found = []
        for file in self.place.names(MANIFESTS):
            name, _, ending = file.rpartition(".")
            split = split_name(name) if ending == "json" else None
            one = Name(step=split[0], id=split[1]) if split else None
            # No store has written such a number of checkpoints, or such zeros: it is not ours.
            if one is not None and str(one) == name and one.order <= _MOST_ORDER:
                found.append(one)
        return sorted(found, key=lambda name: name.id)

    def manifest(self, name: Name) -> Manifest:
        """What a checkpoint consists of; its own digest is verified, those of its tensors not."""
        file, data = self._read(name)
        if self._last is not None and self._last[:2] == (file, data):
            return self._last[2]
        found = manifests.read(data, file)
        self._check_origin(name, found.step, found.id, found.store)
        self._last = file, data, found
        return found

    def packs(self, name: Name) -> frozenset[str]:
        """The packs that a checkpoint needs, in a fraction of the time of its whole manifest."""
        file, data = self._read(name)
        head, packs = manifests.read_packs(data, file)
        self._check_origin(name, head["step"], head["id"], head["store"])
        return packs

    def _read(self, name: Name) -> tuple[str, bytes]:
        file = f"{MANIFESTS}/{name}.json"
        try:
            return file, self.place.read(file, manifests.MOST_BYTES)
        except FileNotFoundError:
            raise CorruptData(f"{file} is missing") from None

    def _check_origin(self, name: Name, step: int, identity: str, store: str) -> None:
        if (step, identity) != (name.step, name.id):
            raise CorruptData(f"{MANIFESTS}/{name}.json is of step {step}: it was renamed")
        if store != self.id:
            raise CorruptData(f"{MANIFESTS}/{name}.json belongs to another store: it was copied")

    def commit(self, manifest: Manifest) -> Name:
        """From here on the checkpoint is there: all that it names must be durable by now."""
        data = manifests.write(manifest)
        if len(data) > manifests.MOST_BYTES:
            raise InvalidArgument(
                f"the checkpoint of step {manifest.step} has a manifest of {len(data):,} bytes, "
                f"and none of more than {manifests.MOST_BYTES:,} is read: save fewer tensors in one"
            )
        publish(self.place, f"{MANIFESTS}/{manifest.name}.json", data)
        return Name(step=manifest.step, id=manifest.id)

    def state(self, manifest: Manifest, rank: int = 0) -> Any:
        """The state that a rank has saved, every byte verified."""
        part = manifest.parts[rank]
        needed = sum(part.contents[entry.content].nbytes for entry in part.entries)
        if needed > available_bytes():
            raise BudgetUnreachable(
                f"the checkpoint of step {manifest.step} needs {needed:,} bytes of memory, more "
                f"than the {available_bytes():,} that are free: read it on a larger machine"
            )
        try:
            with (
                OpenFiles(self.place) as files,
                Ahead(PartReader(files, manifest, part), len(part.entries)) as ahead,
            ):
                state = unflatten(part.tree, ahead.tensor)
                ahead.check_end()
                return state
        except RecursionError:
            raise CorruptData("the checkpoint's state is nested too deep to be read") from None
        except (IndexError, SyntaxError, Warning) as error:  # numpy's, of types that are none
            raise CorruptData(f"the checkpoint's state cannot be read: {error}") from error

    def reader(self, manifest: Manifest, part: Part) -> PartReader:
        """Reads the tensors of a part."""
        return PartReader(self.place, manifest, part)

    def memory(self, manifest: Manifest, rank: int = 0) -> Memory:
        """What the next increment can build on."""
        part = manifest.parts[rank]
        if (manifest.hash, manifest.leaf_bytes) != (self.hash, LEAF_BYTES):
            return Memory()  # its digests are not those of what will be written
        try:
            return recall(part, manifest.hash, LEAF_BYTES, self.reader(manifest, part).digests_at)
        except ValueError as error:
            raise CorruptData(f"{manifest.name} has digests that are none: {error}") from error

    def lost_packs(self, memory: Memory) -> list[str]:
        """Those of a memory that are no longer there, or not as long as they were."""
        lost: list[str] = []
        for pack, nbytes in memory.pack_bytes.items():
            try:
                is_there = self.place.size(f"{PACKS}/{pack}") == nbytes
            except (CorruptData, OSError):
                is_there = False
            if not is_there:
                lost.append(pack)
        return lost

    def shared_packs(self, memory: Memory) -> frozenset[str]:
        """Those of a memory that another store has as well."""
        packs = memory.pack_bytes
        return frozenset(pack for pack in packs if self.place.is_shared(f"{PACKS}/{pack}"))

    def verify(self, name: Name, tell: Callable[[int], None] = lambda nbytes: None) -> list[Damage]:
        """Read all of a checkpoint; return what is wrong with it."""
        file = f"{MANIFESTS}/{name}.json"
        try:
            manifest = self.manifest(name)
        except (CorruptData, IncompatibleFormat, OSError) as error:
            return [Damage(where="manifest", file=file, what=str(error))]
        found: list[Damage] = []
        for part in manifest.parts:
            reader = self.reader(manifest, part)
            for number, entry in enumerate(part.entries):
                try:
                    tell(reader.tensor(number).nbytes)
                except (CorruptData, OSError) as error:
                    packs = reader.files(number)
                    blamed = ", ".join(p for p in packs if p in str(error)) or ", ".join(packs)
                    damage = Damage(where=entry.where, file=blamed or file, what=str(error))
                    found.append(damage)
        return found

    def newest(self) -> Iterator[Manifest | Damage]:
        """Manifests from the newest back, and why one is passed over."""
        for name in reversed(self.names()):
            try:
                yield self.manifest(name)
            except (CorruptData, IncompatibleFormat, OSError) as error:
                yield Damage(where="manifest", file=f"{MANIFESTS}/{name}.json", what=str(error))

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Nothing is removed inside of the block."""
        deadline = time.monotonic() + 60
        while True:
            with self.place.lock("readers", shared=True) as is_held:
                if is_held:
                    yield
                    return
            if time.monotonic() > deadline:
                raise InvalidArgument(
                    f"checkpoints are being removed from {self.place}: try again in a moment"
                )
            time.sleep(0.05)

    def collect(
        self, keep: Iterable[Name], *, upto: int | None = None, dry: bool = False
    ) -> "Collected":
        """Remove all checkpoints but these, and every pack that none of those left names.

        With `upto`, what belongs to a checkpoint of a higher order is left: it is being made.
        To be called by the one who holds the writer's lock. A manifest that cannot be read is
        left, and with it every pack: it may be what someone will want to mend.
        """
        kept, names = set(keep), self.names()
        going = [name for name in names if name not in kept and _is_old(str(name), upto)]
        named: set[str] = set()
        for name in names:
            if name not in going:
                try:
                    named |= self.packs(name)
                except (CorruptData, IncompatibleFormat, OSError):
                    return Collected(names=(), files=0, nbytes=0)
        orphans = [file for file in self.place.names(PACKS) if file not in named]
        files = [f"{PACKS}/{file}" for file in orphans if _is_old(file, upto)]
        files += [f"{PARTS}/{file}" for file in self.place.names(PARTS) if _is_old(file, upto)]
        ending = f".json{ASIDE}"
        sides = [f for f in self.place.names(MANIFESTS) if f.endswith(ending)]
        files += [f"{MANIFESTS}/{f}" for f in sides if _is_old(f.removesuffix(ending), upto)]
        first = {f"{MANIFESTS}/{name}.json" for name in going}
        sizes: dict[str, int] = {}
        for file in (*first, *files):
            with contextlib.suppress(CorruptData, OSError):  # what is no file is not ours
                sizes[file] = self.place.size(file)
        nbytes = sum(sizes.values())
        if dry:
            return Collected(names=tuple(going), files=len(sizes), nbytes=nbytes)
        with self.place.lock("readers") as is_held:
            if not is_held:
                return Collected(names=(), files=0, nbytes=0)
            # Manifests first, durably: none may ever name a pack that is gone. Some may have been
            # removed by a run that was killed before it could see to that.
            for file in first:
                self.place.remove(file)
            if sizes:
                self.place.sync(MANIFESTS)
            for file in sizes.keys() - first:
                self.place.remove(file)
        return Collected(names=tuple(going), files=len(sizes), nbytes=nbytes)


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What was removed."""

    names: tuple[Name, ...]
    files: int
    nbytes: int


def _is_old(file: str, upto: int | None) -> bool:
    """Whether it was written by a run, and for no checkpoint that is still being made."""
    split = split_name("-".join(file.split("-")[:2]))
    return split is not None and (upto is None or int(split[1][:8], 16) <= upto)


def is_ours(file: str) -> bool:
    """Whether a run writes files of that name."""
    folder, _, name = file.rpartition("/")
    if not folder:
        return name in {MARK, MARK + ASIDE, "writer", "readers"}
    return _is_old(name.removesuffix(ASIDE).removesuffix(".json"), None)


def refuse_foreign(place: Place) -> None:
    """Refuse a folder with something else in it, before anything is put there."""
    names = set(place.names(""))
    others = {name for name in names if not name.startswith(MARK)}
    others -= {MANIFESTS, PACKS, PARTS, "writer", "readers"}
    if MARK in names or (not others and not place.names(MANIFESTS)):
        return
    if not _missing_mark(place):
        raise InvalidArgument(
            f"{place.root} is no store of checkpoints and not empty (it has "
            f"{min(others, default=MANIFESTS)}): name a new folder"
        )


def publish(place: Place, name: str, data: bytes) -> None:
    """A small file, whole and durable or not there."""
    sink = place.create(name)
    try:
        sink.append(memoryview(data))
        sink.commit()
    except BaseException:
        sink.abandon()
        raise


def _missing_mark(place: Place) -> dict[str, Any] | None:
    """What the mark has to say if it has to be written: nothing yet, or what it said."""
    if MARK not in place.names(""):
        return _recall_mark(place)
    try:
        manifests.unseal(place.read(MARK, 1 << 16), MARK)
    except CorruptData:
        return _recall_mark(place) or None
    return None


def _recall_mark(place: Place) -> dict[str, Any]:
    """What the mark must have said, going by manifests: no single file may cost all of them."""
    for file in reversed(place.names(MANIFESTS)):
        try:
            found = manifests.read(place.read(f"{MANIFESTS}/{file}", manifests.MOST_BYTES), file)
        except (CorruptData, IncompatibleFormat, OSError):
            continue
        return {"id": found.store, "hash": found.hash}
    return {}


def _read_mark(place: Place, where: str) -> dict[str, Any]:
    try:
        held = manifests.unseal(place.read(MARK, 1 << 16), MARK)
    except (FileNotFoundError, NotADirectoryError, CorruptData) as error:
        if found := _recall_mark(place):
            return found
        if isinstance(error, CorruptData):
            raise
        raise InvalidArgument(f"{where} is no store of checkpoints: it has no {MARK}") from None
    if not isinstance(held, dict) or held.get("format") != _FORMAT:
        raise CorruptData(f"{where}/{MARK} is not that of a store of checkpoints")
    if held.get("version") != 1:
        raise IncompatibleFormat(
            f"{where} is of version {str(held.get('version'))[:20]}, and this release reads "
            "version 1: read it with a newer elbowroom"
        )
    id = held.get("id")
    if not isinstance(id, str) or not _ID.fullmatch(id) or not isinstance(held.get("hash"), str):
        raise CorruptData(f"{where}/{MARK} lacks its identity")
    if held["hash"] not in HASHES:
        raise IncompatibleFormat(
            f"{where} is hashed with {held['hash'][:20]!r}, which this release does not know: read "
            "it with a newer elbowroom"
        )
    return held
