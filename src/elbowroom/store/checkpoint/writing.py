"""A snapshot into a pack: of every tensor only what the store does not have yet."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from elbowroom.codec import decode, encode
from elbowroom.store.checkpoint.coding import encode_frame, frames_of, possible_codings
from elbowroom.store.checkpoint.contents import BLOB, Held, Memory, Span, merge, number
from elbowroom.store.checkpoint.digests import LEAF_BYTES, HashTree
from elbowroom.store.checkpoint.layout import DTYPES
from elbowroom.store.checkpoint.lossy import BoundOf
from elbowroom.store.checkpoint.manifest import Entry, Part
from elbowroom.store.checkpoint.place import Sink
from elbowroom.store.checkpoint.snapshot import Piece, Snapshot

HEAD = b"elbowroom pack 1" + bytes(48)
# Differences upon differences: all of them stay as long as the last. After so many, or once they
# weigh twice what they describe, a content is written whole again.
MOST_DEPTH, _MOST_CHAIN = 8, 2.0
_SAMPLES, _SAMPLE_BYTES = 8, 1 << 15
# Coding takes time, now and at every reading. Where much of a state has changed a little, disks are
# what fills, and a tenth is worth it; a whole state is written fastest as it is.
_WORTH_AGAIN, _WORTH_FIRST = 0.9, 0.7
_LEAST_BYTES = 1 << 12

_Bytes = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Increment:
    """How a part came to be: bytes of the state, and bytes that had to be written for it."""

    part: Part
    memory: Memory
    state_bytes: int
    written_bytes: int


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
    ) -> None:
        self._create, self._name, self._hash = create, name, hash_name
        self._memory, self._read_before, self._bound_of = memory, read_before, bound_of
        self._blobs: dict[str, bytes] = {}
        self._sparse = memory.sparse_packs()
        self._places = memory.places_of_leaves(LEAF_BYTES, self._sparse)
        self._now = Memory(pack_bytes=dict(memory.pack_bytes))
        self._sinks: dict[str, Sink] = {}
        self._open("")

    def write(self, snapshot: Snapshot) -> Increment:
        """Write it all and make it durable."""
        try:
            held = []
            for piece, tree in self._trees(snapshot):
                one = self._find(piece, snapshot.bytes_of(piece), tree)
                self._now.add(piece.where, one)
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

    def _find(self, piece: Piece, data: _Bytes, tree: HashTree) -> Held:
        if (one := self._now.by_root.get(tree.root)) is not None:
            return one
        if (one := self._memory.by_root.get(tree.root)) is None:
            return self._store(piece, data, tree)
        if not any(span.pack in self._sparse for span in one.spans):
            return one if one.tree is not None else replace(one, tree=tree)
        self._open("-s")
        try:
            return self._store_raw(data, tree, [])
        finally:
            self._open("")

    def _finish(self, snapshot: Snapshot, held: list[Held]) -> Increment:
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
            part=part, memory=self._now, state_bytes=snapshot.nbytes, written_bytes=size
        )

    def _trees(self, snapshot: Snapshot) -> Iterator[tuple[Piece, HashTree]]:
        """Hash a piece while the one before it is written."""

        def tree_of(piece: Piece) -> HashTree:
            self._round(snapshot, piece)
            return HashTree.of(snapshot.bytes_of(piece).data, self._hash)

        with ThreadPoolExecutor(1, "elbowroom hash") as pool:
            waiting: list[tuple[Piece, Future[HashTree]]] = []
            for piece in snapshot.pieces:
                waiting.append((piece, pool.submit(tree_of, piece)))
                if len(waiting) > 2:
                    first, future = waiting.pop(0)
                    yield first, future.result()
            for first, future in waiting:
                yield first, future.result()

    def _round(self, snapshot: Snapshot, piece: Piece) -> None:
        """Give a tensor that may lose something the values that it will come back with.

        From here on they are its values: digests are theirs, and differences are taken to them.
        """
        bound = self._bound_of(piece)
        if bound is not None:
            values = snapshot.buffer.tensor(piece)
            blob = encode(values, bound)
            values.copy_(decode(blob))
            self._blobs[piece.where] = blob.tobytes()

    def _store(self, piece: Piece, data: _Bytes, tree: HashTree) -> Held:
        known = self._known_leaves(piece, tree)
        new_bytes = min(len(data), LEAF_BYTES * known.count(None)) if known else len(data)
        coded = self._store_coded(piece, data, tree, new_bytes)
        return coded if coded is not None else self._store_raw(data, tree, known)

    def _store_raw(self, data: _Bytes, tree: HashTree, known: list[tuple[str, int] | None]) -> Held:
        if len(data) >= 16 * LEAF_BYTES:
            self._sink.align()
        if not known:
            at = self._sink.append(data.data)
            spans = merge([(self._pack, at, len(data))] if len(data) else [])
        else:
            spans = merge(self._write_leaves(data, known))
        return self._with_leaves(Held(root=tree.root, nbytes=len(data), spans=spans, tree=tree))

    def _known_leaves(self, piece: Piece, tree: HashTree) -> list[tuple[str, int] | None]:
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

    def _store_coded(
        self, piece: Piece, data: _Bytes, tree: HashTree, new_bytes: int
    ) -> Held | None:
        blob = self._blobs.pop(piece.where, b"")
        if blob and len(blob) < new_bytes:
            at = self._sink.append(memoryview(blob))
            span = Span(pack=self._pack, offset=at, nbytes=len(blob))
            held = Held(root=tree.root, nbytes=len(data), spans=(span,), coding=BLOB, tree=tree)
            return self._with_leaves(held)
        if new_bytes < _LEAST_BYTES:
            return None
        item_bytes = _width(piece)
        base, old = self._memory.by_place.get(piece.where), None
        if base is not None and base.nbytes == len(data) and base.depth < MOST_DEPTH:
            old = self._read_before(piece)
        if old is not None and base is not None and base.chain_bytes > _MOST_CHAIN * len(data):
            old = None
        coding, share = estimate(data, old, item_bytes)
        if share * len(data) > (_WORTH_FIRST if old is None else _WORTH_AGAIN) * new_bytes:
            return None
        spans = []
        for frame in frames_of(len(data)):
            before = None if old is None else old[frame]
            coded = encode_frame(coding, item_bytes, data[frame], before)
            at = self._sink.append(memoryview(coded))
            spans.append(Span(pack=self._pack, offset=at, nbytes=len(coded)))
        return self._with_leaves(
            Held(
                root=tree.root,
                nbytes=len(data),
                spans=tuple(spans),
                coding=coding,
                item_bytes=item_bytes,
                base=None if coding == "zstd" else base,
                tree=tree,
            )
        )

    def _with_leaves(self, held: Held) -> Held:
        """Write the digests of its leaves behind it."""
        assert held.tree is not None
        if len(held.tree.leaves) < 2:
            return held
        table = np.ascontiguousarray(held.tree.leaves).reshape(-1)
        at = self._sink.append(table.data)
        span = Span(pack=self._pack, offset=at, nbytes=len(table))
        return replace(held, leaves=span)


def estimate(data: _Bytes, old: _Bytes | None, item_bytes: int) -> tuple[str, float]:
    """The best coding, and which share of the bytes it would leave, going by samples."""
    starts = np.linspace(0, max(len(data) - _SAMPLE_BYTES, 0), _SAMPLES).astype(np.int64)
    starts = np.unique(starts // _SAMPLE_BYTES * _SAMPLE_BYTES)
    spans = [slice(int(at), min(int(at) + _SAMPLE_BYTES, len(data))) for at in starts]
    total = sum(span.stop - span.start for span in spans)
    best = ("zstd", 1.0)
    for coding in possible_codings(item_bytes, builds_on=old is not None):
        coded = sum(
            len(encode_frame(coding, item_bytes, data[s], None if old is None else old[s]))
            for s in spans
        )
        # What builds on nothing leaves nothing behind: a difference has to be a tenth smaller.
        if coded / total < best[1] * (1.0 if coding == "zstd" or best[0] != "zstd" else 0.9):
            best = (coding, coded / total)
    return best


def _width(piece: Piece) -> int:
    dtype = DTYPES[piece.layout.dtype]
    return dtype.itemsize // 2 if dtype.is_complex else min(dtype.itemsize, 8)
