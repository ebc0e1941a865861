"""Contents that a store holds, told by what they are: the memory that increments are made from."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from elbowroom.store.checkpoint.digests import HASHES, HashTree
from elbowroom.store.checkpoint.manifest import Content, Extent, Pack, Part

BLOB = "blob"  # the coding of what has lost something: one blob of the codec


@dataclass(frozen=True, kw_only=True)
class Span:
    """So many bytes from a place in a pack that is called by its name."""

    pack: str
    offset: int
    nbytes: int
    repeat: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Held:
    """A content, as `manifest.Content`, but free of the numbers of one manifest."""

    root: str
    nbytes: int
    spans: tuple[Span, ...]
    leaves: Span | None = None
    coding: str = ""
    item_bytes: int = 1
    base: "Held | None" = None
    tree: HashTree | None = None

    @property
    def depth(self) -> int:
        """How many others it builds on."""
        return 0 if self.base is None else 1 + self.base.depth

    @property
    def chain_bytes(self) -> int:
        """Of all differences that it is made of, which stay as long as it does."""
        if self.base is None:
            return 0
        return sum(span.nbytes for span in self.spans) + self.base.chain_bytes

    @property
    def packs(self) -> set[str]:
        """All that it lies in, with what it builds on."""
        spans = (*self.spans, *(() if self.leaves is None else (self.leaves,)))
        below = set() if self.base is None else self.base.packs
        return below | {span.pack for span in spans}


@dataclass(kw_only=True)
class Memory:
    """What the last checkpoint consists of."""

    by_root: dict[str, Held] = field(default_factory=dict)
    by_place: dict[str, Held] = field(default_factory=dict)
    pack_bytes: dict[str, int] = field(default_factory=dict)

    def add(self, where: str, held: Held) -> None:
        """Remember the content of a tensor."""
        self.by_place[where] = held
        self.by_root[held.root] = held

    def without(self, packs: Collection[str]) -> "Memory":
        """What is left if those packs are gone."""
        gone = set(packs)
        return Memory(
            by_root={root: one for root, one in self.by_root.items() if not one.packs & gone},
            by_place={place: one for place, one in self.by_place.items() if not one.packs & gone},
            pack_bytes={pack: n for pack, n in self.pack_bytes.items() if pack not in gone},
        )

    def sparse_packs(self) -> frozenset[str]:
        """Packs of which less than half is still in use."""
        used: dict[str, int] = {}
        seen: set[str] = set()
        for held in self.by_root.values():
            one: Held | None = held
            while one is not None and one.root not in seen:
                seen.add(one.root)
                for span in (*one.spans, *([] if one.leaves is None else [one.leaves])):
                    used[span.pack] = used.get(span.pack, 0) + span.nbytes
                one = one.base
        return frozenset(
            pack for pack, nbytes in used.items() if 2 * nbytes < self.pack_bytes[pack]
        )

    def places_of_leaves(
        self, leaf_bytes: int, without: frozenset[str]
    ) -> dict[bytes, tuple[str, int]]:
        """Where the bytes of every leaf lie that is stored as it is, but for those packs."""
        places: dict[bytes, tuple[str, int]] = {}
        for held in self.by_root.values():
            if held.tree is None or held.coding or held.nbytes < leaf_bytes:
                continue
            if any(span.pack in without for span in held.spans):
                continue
            digests = held.tree.leaves
            size = digests.shape[1]
            text = digests.tobytes()
            number = 0
            for pack, offset, nbytes in _unrolled(held.spans):
                for at in range(0, nbytes, leaf_bytes):
                    if nbytes - at >= leaf_bytes:
                        places[text[number * size : (number + 1) * size]] = (pack, offset + at)
                    number += 1
        return places


def _unrolled(spans: Iterable[Span]) -> Iterable[tuple[str, int, int]]:
    for span in spans:
        for _ in range(span.repeat):
            yield span.pack, span.offset, span.nbytes


def merge(spans: Iterable[tuple[str, int, int]]) -> tuple[Span, ...]:
    """Join what follows on in a pack, and count what repeats."""
    runs: list[Span] = []
    for pack, offset, nbytes in spans:
        if runs:
            last = runs[-1]
            if last.pack == pack and last.repeat == 1 and last.offset + last.nbytes == offset:
                runs[-1] = Span(pack=pack, offset=last.offset, nbytes=last.nbytes + nbytes)
                continue
            if (last.pack, last.offset, last.nbytes) == (pack, offset, nbytes):
                runs[-1] = Span(pack=pack, offset=offset, nbytes=nbytes, repeat=last.repeat + 1)
                continue
        runs.append(Span(pack=pack, offset=offset, nbytes=nbytes))
    return tuple(runs)


def number(
    held: Iterable[Held], pack_bytes: dict[str, int]
) -> tuple[tuple[Pack, ...], tuple[Content, ...], dict[str, int]]:
    """Packs and contents of a manifest, bases first, and the number of each root."""
    packs: dict[str, int] = {}
    contents: list[Content] = []
    numbers: dict[str, int] = {}

    def extent(span: Span) -> Extent:
        place = packs.setdefault(span.pack, len(packs))
        return Extent(pack=place, offset=span.offset, nbytes=span.nbytes, repeat=span.repeat)

    def add(one: Held) -> int:
        if one.root in numbers:
            return numbers[one.root]
        base = None if one.base is None else add(one.base)
        contents.append(
            Content(
                root=one.root,
                nbytes=one.nbytes,
                extents=tuple(extent(span) for span in one.spans),
                leaves=None if one.leaves is None else extent(one.leaves),
                coding=one.coding,
                item_bytes=one.item_bytes,
                base=base,
            )
        )
        numbers[one.root] = len(contents) - 1
        return numbers[one.root]

    for one in held:
        add(one)
    named = tuple(Pack(name=name, nbytes=pack_bytes[name]) for name in packs)
    return named, tuple(contents), numbers


def recall(part: Part, hash_name: str, leaf_bytes: int, read: Callable[[Extent], bytes]) -> Memory:
    """The memory of a part that lies in the store; `read` gives the bytes of an extent."""
    held: list[Held] = []

    def span(extent: Extent) -> Span:
        name = part.packs[extent.pack].name
        return Span(pack=name, offset=extent.offset, nbytes=extent.nbytes, repeat=extent.repeat)

    size = HASHES[hash_name][0]
    for content in part.contents:
        if content.leaves is None:
            digests = bytes.fromhex(content.root.partition("-")[2])
        else:
            digests = read(content.leaves)
        leaves = np.frombuffer(digests, np.uint8).reshape(-1, size)
        tree = HashTree(hash=hash_name, nbytes=content.nbytes, leaves=leaves, leaf_bytes=leaf_bytes)
        held.append(
            Held(
                root=content.root,
                nbytes=content.nbytes,
                spans=tuple(span(extent) for extent in content.extents),
                leaves=None if content.leaves is None else span(content.leaves),
                coding=content.coding,
                item_bytes=content.item_bytes,
                base=None if content.base is None else held[content.base],
                tree=tree if tree.root == content.root else None,
            )
        )
    memory = Memory(pack_bytes={pack.name: pack.nbytes for pack in part.packs})
    for one in held:
        memory.by_root[one.root] = one
    for entry in part.entries:
        memory.by_place[entry.where] = held[entry.content]
    return memory
