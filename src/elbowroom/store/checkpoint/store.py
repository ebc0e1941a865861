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
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elbowroom.errors import (
    BudgetUnreachable,
    CorruptData,
    IncompatibleFormat,
    InvalidArgument,
    StoreUnreachable,
)
from elbowroom.host import available_bytes
from elbowroom.store.checkpoint import manifest as manifests
from elbowroom.store.checkpoint.ahead import Ahead, OpenFiles
from elbowroom.store.checkpoint.contents import Memory, recall
from elbowroom.store.checkpoint.digests import LEAF_BYTES, check_hash, digest_of
from elbowroom.store.checkpoint.manifest import Manifest, Part
from elbowroom.store.checkpoint.mark import FORMAT, missing_mark, publish, read_mark, refuse_foreign
from elbowroom.store.checkpoint.naming import (
    MANIFESTS,
    MARK,
    PACKS,
    PARTS,
    Name,
    is_old,
    is_upload,
    names_in,
)
from elbowroom.store.checkpoint.objects import Options, place_at
from elbowroom.store.checkpoint.place import ASIDE, Place
from elbowroom.store.checkpoint.reading import Damage, PartReader
from elbowroom.store.checkpoint.state import unflatten
from elbowroom.store.checkpoint.system import System


class Store:
    """Checkpoints in one place."""

    def __init__(self, place: Place, mark: dict[str, Any]) -> None:
        self.place = place
        self.id: str = mark["id"]
        self.hash: str = check_hash(mark["hash"])
        self._last: tuple[str, bytes, Manifest] | None = None  # what was read last, and from what
        self._packs: dict[Name, frozenset[str]] = {}  # of what was read or written here

    @classmethod
    def open(
        cls, where: str | Path, system: System | None = None, options: Options | None = None
    ) -> "Store":
        """A store that is there."""
        place = place_at(where, system, options)
        return cls(place, read_mark(place, str(where)))

    @classmethod
    def make(
        cls, place: Place, hash_name: str = "xxh3-128", *, identity: str | None = None
    ) -> "Store":
        """The store of that place, which is made if there is none, with that identity or a new."""
        digest_of(check_hash(hash_name), b"")  # that its package is missing is told here
        refuse_foreign(place)
        place.make(MANIFESTS, PACKS, PARTS)
        mark = missing_mark(place)
        if mark is not None:
            said = {"format": FORMAT, "version": 1, "hash": hash_name, **mark}
            said.setdefault("id", identity or secrets.token_hex(16))
            # What manifests say as well need not be written, if it cannot be.
            with contextlib.suppress(*([OSError] if mark else [])):
                place.remove(MARK + ASIDE)
                place.remove(MARK)
                publish(place, MARK, manifests.seal(json.dumps(said)))
        store = cls(place, read_mark(place, str(place.root)))
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
        return names_in(self.place.names(MANIFESTS))

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
        """The packs that a checkpoint needs, in a fraction of the time of its whole manifest.

        A manifest is never written again, so that it is read once.
        """
        if name not in self._packs:
            file, data = self._read(name)
            head, packs = manifests.read_packs(data, file)
            self._check_origin(name, head["step"], head["id"], head["store"])
            self._packs[name] = packs
        return self._packs[name]

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
        self.place.check_claim()
        publish(self.place, f"{MANIFESTS}/{manifest.name}.json", data)
        name = Name(step=manifest.step, id=manifest.id)
        self._packs[name] = frozenset(pack.name for part in manifest.parts for pack in part.packs)
        return name

    def state(self, manifest: Manifest, rank: int = 0) -> Any:
        """The state that a rank has saved, every byte verified."""
        part = manifest.parts[rank]
        needed = self.reader(manifest, part).held_bytes()
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
        there = self.place.sizes(PACKS, memory.pack_bytes)
        return [pack for pack, nbytes in memory.pack_bytes.items() if there.get(pack) != nbytes]

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
            seen = dict[tuple[object, ...], int]()
            for number, entry in enumerate(part.entries):
                look = entry.content, entry.dtype, entry.shape, entry.stride
                try:
                    # The same content as the same tensor is as whole as it was.
                    if look not in seen:
                        seen[look] = reader.tensor(number).nbytes
                    tell(seen[look])
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
            except StoreUnreachable:
                raise
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
        self,
        keep: Iterable[Name] | Callable[[list[Name]], Iterable[Name]],
        *,
        upto: int | None = None,
        dry: bool = False,
        uploads: bool = True,
        is_over: Callable[[], bool] = lambda: False,
    ) -> "Collected":
        """Remove all checkpoints but these, and every pack that none of those left names.

        With `upto`, what belongs to a checkpoint of a higher order is left: it is being made.
        To be called by the one who holds the writer's lock. A manifest that cannot be read is
        left, and with it every pack: it may be what someone will want to mend. Once `is_over`, the
        rest is left to the next time.
        """
        nothing = Collected(names=(), files=0, nbytes=0)
        listed = self.place.names(MANIFESTS)
        names = names_in(listed)
        kept = set(keep(names) if callable(keep) else keep)
        going = [name for name in names if name not in kept and is_old(str(name), upto)]
        gone, named = set(going), set[str]()
        for name in names:
            if name not in gone:
                try:
                    named |= self.packs(name)
                except (CorruptData, IncompatibleFormat, OSError):
                    return nothing
        ending = f".json{ASIDE}"
        found = {
            PACKS: [f for f in self.place.names(PACKS) if f not in named and is_old(f, upto)],
            PARTS: [f for f in self.place.names(PARTS) if is_old(f, upto)],
            MANIFESTS: [f"{name}.json" for name in going]
            + [f for f in listed if f.endswith(ending) and is_old(f.removesuffix(ending), upto)],
        }
        # What is no file is not ours, and has no size.
        sizes = {
            f"{folder}/{file}": nbytes
            for folder, files in found.items()
            if files
            for file, nbytes in self.place.sizes(folder, files).items()
        }
        nbytes = sum(sizes.values())
        if dry:
            return Collected(names=tuple(going), files=len(sizes), nbytes=nbytes)
        with self.place.lock("readers") as is_held:
            if not is_held or is_over():
                return nothing
            # Manifests first, durably: none may ever name a pack that is gone. Some may have been
            # removed by a run that was killed before it could see to that.
            first = [f"{MANIFESTS}/{name}.json" for name in going]
            self.place.remove_all(first)
            for name in going:
                self._packs.pop(name, None)
            if sizes:
                self.place.sync(MANIFESTS)
            if not is_over():
                self.place.remove_all(sizes.keys() - set(first))
        if uploads:
            self.place.abort_uploads(lambda file: is_upload(file, upto))
        return Collected(names=tuple(going), files=len(sizes), nbytes=nbytes)


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What was removed."""

    names: tuple[Name, ...]
    files: int
    nbytes: int
