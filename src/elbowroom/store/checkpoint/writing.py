"""A snapshot into a pack: of every tensor only what the store does not have yet."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec import decode, encode
from elbowroom.store.checkpoint.choosing import Coded, can_build_on, choose
from elbowroom.store.checkpoint.contents import BLOB, Held, Memory, Span, merge, number
from elbowroom.store.checkpoint.digests import LEAF_BYTES, HashTree
from elbowroom.store.checkpoint.lossy import BoundOf
from elbowroom.store.checkpoint.manifest import Entry, Part
from elbowroom.store.checkpoint.place import Sink
from elbowroom.store.checkpoint.snapshot import Piece, Snapshot
from elbowroom.store.checkpoint.thrift import Allows

HEAD = b"elbowroom pack 1" + bytes(48)
_AHEAD = 2  # tensors that are prepared while another is written

_Bytes = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Increment:
    """How a part came to be: bytes of the state, and bytes that had to be written for it."""

    part: Part
    memory: Memory
    state_bytes: int
    written_bytes: int
    least_share: float  # of the state, that would have to be written if all could be differences


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """A tensor with all that has to be computed before it is written."""

    piece: Piece
    data: _Bytes
    tree: HashTree
    known: list[tuple[str, int] | None] = field(default_factory=list)
    coded: Coded | None = None


class PartWriter:
    """Writes a pack; and a second one for what does not change, if it lies among what is dead.

    A pack stays as long as one of its contents is in use. What stays for long is therefore moved to
    packs of its own once less than half of the pack that it was first written to is needed.
    """

    def __init__(
        self,
        *,
        create: Callable[[str], Sink],
        name: str,
        hash_name: str,
        memory: Memory,
        read_before: Callable[[Piece], _Bytes | None],
        bound_of: BoundOf = lambda piece: None,
        shared: frozenset[str] = frozenset(),
        allows: Allows = lambda base, share: True,
    ) -> None:
        self._allows = allows
        self._least_bytes = 0.0
        self._create, self._name, self._hash = create, name, hash_name
        self._memory, self._read_before, self._bound_of = memory, read_before, bound_of
        self._homes: dict[str, str] = {}
        self._done: dict[str, Held] = {}
        self._settled: dict[str, Held] = {}
        # What another store keeps as well is not freed by moving out of it.
        self._sparse = memory.sparse_packs() - shared
        self._places = memory.places_of_leaves(LEAF_BYTES, self._sparse)
        self._now = Memory(pack_bytes=dict(memory.pack_bytes))
        self._sinks: dict[str, Sink] = {}
        self._open("")

    def write(self, snapshot: Snapshot) -> Increment:
        """Write it all and make it durable."""
        try:
            held = []
            for ready in self._prepared(snapshot):
                one = self._find(ready)
                self._now.add(ready.piece.where, one)
                held.append(one)
            return self._finish(snapshot, held)
        except BaseException:
            for sink in self._sinks.values():
                sink.abandon()
            raise

    def _open(self, kind: str) -> None:
        """Have what comes next go to the pack of that kind."""
        self._pack = f"{self._name}{kind}.pack"
        if self._pack not in self._sinks:
            self._sinks[self._pack] = self._create(self._pack)
            self._sinks[self._pack].append(memoryview(HEAD))
        self._sink = self._sinks[self._pack]

    def _find(self, ready: _Ready) -> Held:
        root = ready.tree.root
        if (one := self._now.by_root.get(root)) is not None:
            return one
        if (one := self._memory.by_root.get(root)) is None:
            return self._store(ready)
        if not any(span.pack in self._sparse for span in one.spans):
            return one if one.tree is not None else replace(one, tree=ready.tree)
        self._open("-s")
        try:
            return self._store_raw(ready.data, ready.tree, [])
        finally:
            self._open("")

    def _finish(self, snapshot: Snapshot, held: list[Held]) -> Increment:
        held = [self._settle(self._with_leaves(one)) for one in held]
        for piece, one in zip(snapshot.pieces, held, strict=True):
            self._now.add(piece.where, one)
        pack_bytes = self._now.pack_bytes
        for pack, sink in self._sinks.items():
            pack_bytes[pack] = sink.commit()
        size = sum(pack_bytes[pack] for pack in self._sinks)
        packs, contents, numbers = number(held, pack_bytes)
        entries = tuple(
            Entry(
                where=piece.where,
                dtype=piece.layout.dtype,
                shape=piece.layout.shape,
                stride=piece.layout.stride,
                content=numbers[one.root],
            )
            for piece, one in zip(snapshot.pieces, held, strict=True)
        )
        self._now.pack_bytes = {pack.name: pack.nbytes for pack in packs}
        part = Part(tree=snapshot.tree, packs=packs, contents=contents, entries=entries)
        return Increment(
            part=part,
            memory=self._now,
            state_bytes=snapshot.nbytes,
            written_bytes=size,
            least_share=self._least_bytes / max(snapshot.nbytes, 1),
        )

    def _prepared(self, snapshot: Snapshot) -> Iterator[_Ready]:
        """Digests and differences of a piece are computed while those before it are written."""
        with ThreadPoolExecutor(1, "elbowroom prepare") as pool:
            waiting: list[Future[_Ready]] = []
            for piece in snapshot.pieces:
                waiting.append(pool.submit(self._prepare, snapshot, piece))
                if len(waiting) > _AHEAD:
                    yield waiting.pop(0).result()
            for future in waiting:
                yield future.result()

    def _prepare(self, snapshot: Snapshot, piece: Piece) -> _Ready:
        blob = self._round(snapshot, piece)
        data = snapshot.bytes_of(piece)
        tree = HashTree.of(data.data, self._hash)
        if tree.root in self._memory.by_root:
            return _Ready(piece=piece, data=data, tree=tree)
        known = self._known_leaves(tree)
        new_bytes = min(len(data), LEAF_BYTES * known.count(None)) if known else len(data)
        if blob and len(blob) < new_bytes:
            coded = Coded(coding=BLOB, item_bytes=1, base=None, frames=[blob])
        else:
            base = self._memory.by_place.get(piece.where)
            old = self._read_before(piece) if can_build_on(base, len(data)) else None
            coded, least = choose(piece, data, base, old, new_bytes, self._allows)
            if base is not None and base.base is not None and old is None:
                # At the end of a chain: a further difference would weigh what the last one does.
                least = min(least, sum(span.nbytes for span in base.spans))
            self._least_bytes += least
        return _Ready(piece=piece, data=data, tree=tree, known=known, coded=coded)

    def _round(self, snapshot: Snapshot, piece: Piece) -> bytes:
        """Give a tensor that may lose something the values that it will come back with.

        From here on they are its values: digests are theirs, and differences are taken to them.
        """
        bound = self._bound_of(piece)
        if bound is None:
            return b""
        values = snapshot.buffer.tensor(piece)
        blob = encode(values, bound)
        values.copy_(decode(blob))
        return blob.tobytes()

    def _store(self, ready: _Ready) -> Held:
        data, tree, coded = ready.data, ready.tree, ready.coded
        if coded is None:
            return self._store_raw(data, tree, ready.known)
        spans = []
        for frame in coded.frames:
            at = self._sink.append(memoryview(frame))
            spans.append(Span(pack=self._pack, offset=at, nbytes=len(frame)))
        return self._note(
            Held(
                root=tree.root,
                nbytes=len(data),
                spans=tuple(spans),
                coding=coded.coding,
                item_bytes=coded.item_bytes,
                base=coded.base,
                tree=tree,
            )
        )

    def _store_raw(self, data: _Bytes, tree: HashTree, known: list[tuple[str, int] | None]) -> Held:
        if len(data) >= 16 * LEAF_BYTES:
            self._sink.align()
        if not known:
            at = self._sink.append(data.data)
            spans = merge([(self._pack, at, len(data))] if len(data) else [])
        else:
            spans = merge(self._write_leaves(data, known))
        return self._note(Held(root=tree.root, nbytes=len(data), spans=spans, tree=tree))

    def _known_leaves(self, tree: HashTree) -> list[tuple[str, int] | None]:
        """Where each leaf lies already; nothing at all if none does."""
        if not self._places or tree.nbytes < LEAF_BYTES:
            return []
        size = tree.leaves.shape[1]
        text = tree.leaves.tobytes()
        found = [self._places.get(text[at : at + size]) for at in range(0, len(text), size)]
        return found if any(place is not None for place in found) else []

    def _write_leaves(
        self, data: _Bytes, known: list[tuple[str, int] | None]
    ) -> Iterator[tuple[str, int, int]]:
        for at, place in enumerate(known):
            leaf = data[at * LEAF_BYTES : (at + 1) * LEAF_BYTES]
            if place is None:
                place = self._pack, self._sink.append(leaf.data)
            yield *place, len(leaf)

    def _note(self, held: Held) -> Held:
        self._homes[held.root] = self._pack
        return held

    def _settle(self, held: Held) -> Held:
        """The one copy of a content that the manifest names, and the memory may build on.

        The same content may be held twice: by itself, and below a difference. The pack of the copy
        that no manifest names is removed.
        """
        if held.root not in self._settled:
            base = None if held.base is None else self._settle(held.base)
            if base is not held.base:
                held = replace(held, base=base)
            self._settled.setdefault(held.root, held)
        return self._settled[held.root]

    def _with_leaves(self, held: Held) -> Held:
        """Write the digests of its leaves to the end of the pack that it was written to.

        Not behind each: contents that follow one another on whole pages need not be gathered.
        """
        if held.root in self._done:
            return self._done[held.root]
        pack = self._homes.get(held.root)
        if pack is not None and held.tree is not None and len(held.tree.leaves) > 1:
            table = np.ascontiguousarray(held.tree.leaves).reshape(-1)
            at = self._sinks[pack].append(table.data)
            held = replace(held, leaves=Span(pack=pack, offset=at, nbytes=len(table)))
        self._done[held.root] = held
        return held
