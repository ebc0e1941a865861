"""The writer's side of a store: increments, ranks that wait for one another, what may go."""

import contextlib
import json
import math
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elbowroom.errors import CorruptData, ElbowroomError, InvalidArgument
from elbowroom.store.checkpoint import manifest as manifests
from elbowroom.store.checkpoint.clearing import Clearing
from elbowroom.store.checkpoint.collector import let_collector_wait
from elbowroom.store.checkpoint.contents import Memory
from elbowroom.store.checkpoint.digests import LEAF_BYTES
from elbowroom.store.checkpoint.drain import Drain, bring_back, find_identity
from elbowroom.store.checkpoint.forking import Forked, LiveBuffer
from elbowroom.store.checkpoint.holding import hold_writer
from elbowroom.store.checkpoint.lossy import BoundOf
from elbowroom.store.checkpoint.manifest import Entry, Manifest, Part
from elbowroom.store.checkpoint.mark import publish, refuse_foreign
from elbowroom.store.checkpoint.naming import PACKS, PARTS, Name
from elbowroom.store.checkpoint.objects import ObjectPlace, Options, place_at
from elbowroom.store.checkpoint.place import Place
from elbowroom.store.checkpoint.ranks import Ranks
from elbowroom.store.checkpoint.reaching import PATIENCE_S
from elbowroom.store.checkpoint.reading import PartReader
from elbowroom.store.checkpoint.retention import Keep
from elbowroom.store.checkpoint.snapshot import Buffer, Piece, Snapshot
from elbowroom.store.checkpoint.store import Store
from elbowroom.store.checkpoint.system import System
from elbowroom.store.checkpoint.thrift import allows_chains
from elbowroom.store.checkpoint.writing import PartWriter

RANKS_S = 600.0  # how long the first rank waits for the others' parts
GOING_S = 2.0  # how long a new run waits for one that is being killed
HURRY_S = 10.0  # and how long when the run is ending in an error


class Journal:
    """Writes checkpoints into a store that nobody else writes to."""

    @let_collector_wait()
    def __init__(
        self,
        where: str | Path,
        *,
        ranks: Ranks,
        keep: Keep,
        far: str | Path | None = None,
        keep_far: Keep | None = None,
        hash_name: str = "xxh3-128",
        bound_of: BoundOf = lambda piece: None,
        system: System | None = None,
        options: Options | None = None,
    ) -> None:
        self.where, self._ranks, self._bound_of = where, ranks, bound_of
        self._keep = keep
        self._least_share: float | None = None
        place = place_at(where, system, options)
        beyond = None if far is None else place_at(far, options=options)
        self._places = [one for one in (place, beyond) if isinstance(one, ObjectPlace)]
        self._drain: Drain | None = None
        self.far: Store | None = None
        self.told: list[str] = []
        self.changed: float | None = None
        self._held = contextlib.ExitStack()
        self.recycle: Callable[[Buffer], None] = lambda buffer: None
        self._memory = Memory()
        self._before: Snapshot | None = None
        self._pieces: dict[str, Piece] = {}
        self._built_on: tuple[PartReader, dict[str, Entry]] | None = None
        self._order = 0
        self.newest: Name | None = None  # of those that are known to be there
        self._give_up_at = math.inf
        problem: Exception | None = None
        if ranks.is_first:
            try:
                self._hold(place)
                if beyond is not None:
                    if str(beyond.root) == str(place.root):
                        raise InvalidArgument(
                            f"far= is {far}, where the checkpoints are already: leave it out, or "
                            "name another place"
                        )
                    self._hold(beyond)
                self.store = Store.make(place, hash_name, identity=find_identity(beyond))
                self.clearing = Clearing(self.store, keep, has_parts=ranks.size > 1)
                if beyond is not None:
                    self.far = Store.make(beyond, hash_name, identity=self.store.id)
                    newest = max((name.order for name in self.store.names()), default=0)
                    bring_back(self.store, self.far, lambda name: name.order > newest)
                    self._drain = Drain(
                        *(self.store, self.far, keep_far or keep),
                        tell=self.told.append,
                        # Nothing is removed near while something is on its way.
                        then=self.clearing.clear,
                        is_over=self.clearing.must_end,
                    )
                self.newest = max(self.store.names(), key=lambda name: name.order, default=None)
                self._order = 0 if self.newest is None else self.newest.order
                # What a killed run has left behind. Checkpoints stay: the newest may be damaged.
                for store in (self.store, self.far):
                    if store is not None:
                        with contextlib.suppress(OSError):
                            store.collect(lambda names: names)
            except (OSError, ElbowroomError) as error:
                problem = error
        (is_broken,) = ranks.most(int(problem is not None))
        if problem is not None:
            self._held.close()
            raise problem
        if is_broken:
            raise InvalidArgument(f"the first rank could not open {where}")
        if not ranks.is_first:
            self.store = Store.open(where, system, options)
            self.clearing = Clearing(self.store, keep)
            self.far = None if far is None else Store.open(far, options=options)

    def next_id(self) -> int:
        """The identity of the next checkpoint, as a number."""
        self._order += 1
        return int(f"{self._order:08x}{secrets.token_hex(4)}", 16)

    def begin_after(self, name: Name) -> None:
        """Give the next checkpoint a higher order than that one has."""
        self._order = max(self._order, name.order)

    def build_on(self, name: Name | None) -> None:
        """Make the next checkpoint an increment to that one; None: to none."""
        if name is None:
            self._forget_before()
            self._memory = Memory()
            return
        manifest = self.store.manifest(name)
        self.clearing.build_on(name)
        self._forget_before()
        self._memory = Memory()
        if self._ranks.rank < len(manifest.parts):
            part = manifest.parts[self._ranks.rank]
            with contextlib.suppress(CorruptData, OSError):
                self._memory = self.store.memory(manifest, self._ranks.rank)
            entries = {entry.where: entry for entry in part.entries}
            self._built_on = self.store.reader(manifest, part), entries

    def bring(self, name: Name) -> None:
        """Have a checkpoint in the far tier as well, if there is one."""
        if self._drain is not None:
            self._drain.push(name)

    def fetch(self, step: int | None) -> bool:
        """Have a checkpoint near that is only far: the newest, or that of a step; False: none."""
        far = self.far
        return far is not None and bring_back(
            self.store, far, lambda name: step in (None, name.step)
        )

    def steps(self) -> list[int]:
        """Of all checkpoints that could be restored."""
        names = {*self.store.names(), *(() if self.far is None else self.far.names())}
        return [name.step for name in sorted(names, key=lambda name: name.id)]

    def put(self, snapshot: Snapshot) -> Memory:
        """Have the checkpoint durable, and leave it to the caller to remember that."""
        name = Name(step=snapshot.step, id=snapshot.facts["id"])
        try:
            memory, part = self._write_part(snapshot, name)
            self._commit(snapshot, name, part)
        except BaseException as error:
            self.clearing.note_leftovers()
            if not self._ranks.is_first:
                self._tell_first(name, error)
            raise
        self.newest = name
        return memory

    def adopt(self, forked: Forked) -> None:
        """Wait for the process that writes a checkpoint, and go on from what it has written."""
        try:
            forked.wait()
        except BaseException:
            self.clearing.note_leftovers()
            raise
        self.newest = name = Name(step=forked.step, id=forked.facts["id"])
        self.build_on(name)
        self.bring(name)

    def write(self, snapshot: Snapshot) -> None:
        """Have the checkpoint durable, or raise; then remove what need not stay."""
        self.record(snapshot)
        self.tidy()

    def record(self, snapshot: Snapshot) -> None:
        """Have the checkpoint durable, or raise and leave everything as it was."""
        name = Name(step=snapshot.step, id=snapshot.facts["id"])
        is_live = isinstance(snapshot.buffer, LiveBuffer)
        try:
            memory = self.put(snapshot)
        except BaseException:
            if not is_live:
                self.recycle(snapshot.buffer)
            raise
        self.clearing.build_on(name)
        self._forget_before()
        self._memory = memory
        if not is_live:
            self._before = snapshot
            self._pieces = {piece.where: piece for piece in snapshot.pieces}
        elif self._ranks.is_first:
            self.build_on(name)  # memory goes on changing: what it was is on the disk alone
        if self._ranks.is_first:
            self.bring(name)

    def tidy(self) -> None:
        """What need not stay after the last commit goes."""
        if self._ranks.is_first and self.newest is not None:
            self.clearing.clear(self.newest.order)

    def wait_for_stores(self, *, is_patient: bool) -> None:
        """Whether to go on asking what does not answer: for the way back, but not to save."""
        for place in self._places:
            place.reach.patience_s = PATIENCE_S if is_patient else 0.0

    def close(self) -> None:
        """Bring what is left to the far tier, and let another writer in."""
        if self._drain is not None:
            self._drain.close()
            self._drain = None
        self._held.close()

    def hurry(self) -> None:
        """The run is ending in an error: other ranks may be gone, and are not waited for long."""
        self._give_up_at = min(self._give_up_at, time.monotonic() + HURRY_S)
        self.leave_rest()

    def leave_rest(self) -> None:
        """The process has little time: what could be removed is left to the next run."""
        self.clearing.is_over = lambda: True

    def _hold(self, place: Place) -> None:
        refuse_foreign(place)
        place.make()
        # A process that a killed run has forked takes a moment to be killed with it.
        self._held.enter_context(hold_writer(place, GOING_S))

    def _write_part(self, snapshot: Snapshot, name: Name) -> tuple[Memory, Part]:
        # Someone may have tidied up: scratch disks are cleared of what is old, and what never
        # changes is. No checkpoint may name what is not there.
        lost = self.store.lost_packs(self._memory)
        if lost:
            self._memory = self._memory.without(lost)
        done = PartWriter(
            create=lambda pack: self.store.place.create(f"{PACKS}/{pack}"),
            name=f"{name}-r{self._ranks.rank}",
            hash_name=self.store.hash,
            memory=self._memory,
            read_before=self._read_before,
            bound_of=self._bound_of,
            shared=self.store.shared_packs(self._memory),
            allows=allows_chains(self._keep, self._least_share),
        ).write(snapshot)
        if lost:
            self.told.append(
                f"{PACKS}/{lost[0]} {'and others are' if lost[1:] else 'is'} gone or cut short: "
                "what was in it was written again, and checkpoints before this one are damaged"
            )
        if self._memory.by_place:
            self._least_share = done.least_share
        self.changed = done.written_bytes / max(done.state_bytes, 1)
        return done.memory, done.part

    def _commit(self, snapshot: Snapshot, name: Name, part: Part) -> None:
        parts = (part,)
        if self._ranks.size > 1:
            file = f"{PARTS}/{name}-r{self._ranks.rank}.json"
            if not self._ranks.is_first:
                held = manifests.write_part(part)
                publish(self.store.place, file, manifests.seal(json.dumps(held)))
                return
            parts = (part, *(self._await(name, rank) for rank in range(1, self._ranks.size)))
        self.store.commit(
            Manifest(
                step=name.step,
                id=name.id,
                store=self.store.id,
                created_s=time.time(),
                hash=self.store.hash,
                leaf_bytes=LEAF_BYTES,
                parts=parts,
                facts=snapshot.facts,
            )
        )

    def _await(self, name: Name, rank: int) -> Part:
        file = f"{PARTS}/{name}-r{rank}.json"
        deadline = time.monotonic() + RANKS_S
        while True:
            try:
                data = self.store.place.read(file, manifests.MOST_BYTES)
            except FileNotFoundError:
                if time.monotonic() > min(deadline, self._give_up_at):
                    raise TimeoutError(
                        f"rank {rank} has not saved its part of step {name.step} in time"
                    ) from None
                time.sleep(0.02)
                continue
            held = manifests.unseal(data, file)
            if isinstance(held, dict) and "failed" in held:
                raise OSError(f"rank {rank} could not save its part: {str(held['failed'])[:500]}")
            return manifests.read_part(held, file)

    def _tell_first(self, name: Name, error: BaseException) -> None:
        """Have the first rank not wait for what will not come, if that much can be written."""
        held = json.dumps({"failed": str(error)})
        with contextlib.suppress(OSError, ElbowroomError):
            file = f"{PARTS}/{name}-r{self._ranks.rank}.json"
            publish(self.store.place, file, manifests.seal(held))

    def _read_before(self, piece: Piece) -> NDArray[np.uint8] | None:
        """The bytes that a tensor had in the checkpoint before, from memory or from the disk."""
        if self._before is not None:
            found = self._pieces.get(piece.where)
            return None if found is None else self._before.bytes_of(found)
        if self._built_on is None or piece.where not in self._built_on[1]:
            return None
        reader, entries = self._built_on
        out = np.empty(piece.layout.nbytes, np.uint8)
        try:
            reader.read(entries[piece.where].content, piece.where, out)
        except (CorruptData, OSError):
            return None
        return out

    def _forget_before(self) -> None:
        if self._before is not None:
            self.recycle(self._before.buffer)
        self._before = self._built_on = None
        self._pieces = {}
