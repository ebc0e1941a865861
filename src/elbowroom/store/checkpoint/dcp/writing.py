"""`Writer`: saves of torch.distributed.checkpoint into a store, one checkpoint of all ranks."""

import contextlib
import os
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.store.checkpoint.dcp.items import Written, write_items
from elbowroom.store.checkpoint.dcp.metadata import FACT, Location, read_metadata, write_metadata
from elbowroom.store.checkpoint.digests import LEAF_BYTES, check_hash
from elbowroom.store.checkpoint.holding import hold_writer
from elbowroom.store.checkpoint.manifest import Manifest, Part
from elbowroom.store.checkpoint.naming import PACKS, Name
from elbowroom.store.checkpoint.objects import place_at
from elbowroom.store.checkpoint.place import Place
from elbowroom.store.checkpoint.retention import Keep, read_keep
from elbowroom.store.checkpoint.store import Store

_EMPTY = Part(tree={"dict": []}, packs=(), contents=(), entries=())


class Writer(StorageWriter):
    """Writes checkpoints into the store at `where`.

    Without a step, a checkpoint has the one after that of the last. One object may serve any number
    of saves, one after another.
    """

    def __init__(
        self,
        where: str | os.PathLike[str],
        *,
        step: int | None = None,
        keep: int | Keep | None = 3,
        hash: str = "xxh3-128",
    ) -> None:
        if step is not None and (type(step) is not int or not 0 <= step < 10**18):
            raise InvalidArgument(f"step must be a number from 0 on, got {step!r}")
        self.where, self.step = os.fspath(where), step
        self._keep, self._hash = read_keep(keep), check_hash(hash)
        self._rank = 0
        self._turn: Turn | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin anew; a `checkpoint_id` is another place for the store."""
        self.close()
        if checkpoint_id is not None:
            self.where = os.fspath(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Keep other writers out until the checkpoint is there."""
        self.close()
        if not kwargs.get("use_collectives", True):
            raise InvalidArgument(
                "use_collectives=False makes a checkpoint of every rank, and a store has one of "
                "all: leave it out"
            )
        self._rank = kwargs.get("rank") or 0
        if is_coordinator:
            self._turn = Turn(self.where, self._hash, self.step)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """As they are."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Have this rank's items on the disk, and tell the coordinator what it has to name."""
        future: Future[list[WriteResult]] = Future()
        try:
            store = Store.open(self.where)
            # Other ranks' packs have names of their own: manifests say which are whose, and plans
            # that torch keeps from an earlier save would bring an earlier name.
            name = next_name(store, self.step) if self._turn is None else self._turn.name
            future.set_result(write_items(store, plan.items, planner, self._rank, name))
        except BaseException:
            self.close()
            raise
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit what all ranks have written; from here on it is the newest checkpoint."""
        turn = self._turn
        if turn is None:
            raise InvalidArgument("a Writer serves one save at a time: have another for this one")
        try:
            manifest = self._describe(turn, metadata, results)
            # What could not be read again is refused now.
            locations = read_metadata(manifest).storage_data
            _check_packs(turn.store, manifest)
            turn.store.commit(manifest)
            metadata.storage_data = locations
            metadata.storage_meta = StorageMeta(self.where, str(turn.name))
            turn.collect(self._keep)
        finally:
            self.close()

    def _describe(
        self, turn: "Turn", metadata: Metadata, results: list[list[WriteResult]]
    ) -> Manifest:
        locations: dict[MetadataIndex, Location] = {}
        parts = [_EMPTY] * len(results)
        for rank, written in enumerate(results):
            for result in written:
                told: Written = result.storage_data
                locations[result.index] = Location(part=rank, position=told.position)
                parts[rank] = told.part or parts[rank]
        return Manifest(
            step=turn.name.step,
            id=turn.name.id,
            store=turn.store.id,
            created_s=time.time(),
            hash=turn.store.hash,
            leaf_bytes=LEAF_BYTES,
            parts=tuple(parts),
            facts={"torch": torch.__version__, FACT: write_metadata(metadata, locations)},
        )

    def close(self) -> None:
        """Let others write; a save that was under way is given up."""
        if self._turn is not None:
            self._turn.end()
            self._turn = None

    def storage_meta(self) -> StorageMeta:
        """Where it goes."""
        return StorageMeta(checkpoint_id=self.where)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a path or an address."""
        return isinstance(os.fspath(checkpoint_id), str)

    def __getstate__(self) -> dict[str, Any]:
        # To a process that saves in the background goes all but what is under way here.
        return {**vars(self), "_turn": None}


def _check_packs(store: Store, manifest: Manifest) -> None:
    """Refuse to commit what names a pack that is not there: ranks may not share a file system."""
    packs = {pack.name: pack.nbytes for part in manifest.parts for pack in part.packs}
    for name, nbytes in packs.items():
        try:
            found = store.place.size(f"{PACKS}/{name}")
        except FileNotFoundError:
            found = None
        if found != nbytes:
            raise CorruptData(
                f"{PACKS}/{name} was written by a rank with {nbytes} bytes, and here it "
                + ("is missing" if found is None else f"has {found}")
                + ": all ranks need the same folder"
            )


@dataclass
class _Hold:
    """The writer's lock of a store, for all saves of this process that are under way."""

    stack: contextlib.ExitStack
    turns: int = 0
    order: int = 0


_HOLDS: dict[tuple[int, str], _Hold] = {}
_GUARD = threading.RLock()  # a turn may end while another begins, when garbage is collected


class Turn:
    """The coordinator's right to write a checkpoint: nobody outside of this process has it then.

    torch tells no writer that a save has failed, so that a turn may be left over until its Writer
    goes or is used again. Further saves of this process go on all the same.
    """

    _key: tuple[int, str] = (-1, "")

    def __init__(self, where: str, hash_name: str, step: int | None) -> None:
        place = place_at(where)
        # One folder may have several paths.
        root = os.path.realpath(place.root) if isinstance(place.root, Path) else place.root
        self._key = os.getpid(), root
        self._is_over = True
        with _GUARD:
            is_first = self._key not in _HOLDS
            if is_first:
                _HOLDS[self._key] = _hold(place)
            hold = _HOLDS[self._key]
            hold.turns += 1
            self._is_over = False
            try:
                self.store = Store.make(place, hash_name)
                self.name = next_name(self.store, step, hold.order)
                hold.order = self.name.order
                if is_first:
                    # What saves that failed have left behind.
                    self.store.collect(self.store.names())
            except BaseException:
                self.end()
                raise

    def collect(self, keep: Keep) -> None:
        """Remove what need not stay, unless another save may be building on it."""
        with _GUARD:
            if _HOLDS[self._key].turns == 1:
                # What cannot be removed now can be removed next time.
                with contextlib.suppress(OSError):
                    kept = keep.choose(self.store.names())
                    self.store.collect(kept, upto=self.name.order)

    def end(self) -> None:
        """Give it up."""
        with _GUARD:
            if self._is_over:
                return
            self._is_over = True
            hold = _HOLDS[self._key]
            hold.turns -= 1
            if hold.turns == 0:
                del _HOLDS[self._key]
                hold.stack.close()

    def __del__(self) -> None:
        if os.getpid() == self._key[0]:
            self.end()


def _hold(place: Place) -> _Hold:
    place.make()
    return _Hold(hold_writer(place))


def next_name(store: Store, step: int | None, order: int = 0) -> Name:
    """A name for a checkpoint that is newer than all, and of a higher order than that."""
    names = store.names()
    last = names[-1] if names else Name(step=-1, id="0" * 16)
    identity = f"{max(order, last.order) + 1:08x}{secrets.token_hex(4)}"
    return Name(step=last.step + 1 if step is None else step, id=identity)
