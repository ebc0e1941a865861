"""What a checkpoint consists of: a JSON file with its own digest, which names everything else."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from elbowroom.errors import CorruptData, IncompatibleFormat
from elbowroom.store.checkpoint.digests import HASHES, digest_of

FORMAT = "elbowroom checkpoint"
VERSION = 1
MOST_BYTES = 1 << 30
# Among the facts of what torch.distributed.checkpoint has saved; the module that puts it there
# takes a second to import.
SHARDED = "dcp"
_SEAL = "xxh3-128"
_NAME = re.compile(r"(\d{12,18})-([0-9a-f]{16})")
_MOST = 1 << 60  # of any size or place: far above what a disk holds, far below what overflows
_MOST_CHAIN = 64  # contents that build on one another: more than were ever written, few to follow
_LEAST_LEAF = 256
_MOST_CODED_MORE = 1 << 22  # by which coded bytes may be more than twice the bytes


@dataclass(frozen=True, kw_only=True)
class Extent:
    """So many bytes from a place in a pack, one or more times in a row."""

    pack: int
    offset: int
    nbytes: int
    repeat: int = 1

    @property
    def total_bytes(self) -> int:
        """With every repetition."""
        return self.nbytes * self.repeat


@dataclass(frozen=True, kw_only=True)
class Content:
    """Bytes of a tensor, and where they are: as they are in extents, or coded in one.

    `coding` is empty for bytes as they are. A coded content may build on another one of the same
    manifest (`base`), which stands before it. Digests of the leaves are in the extent `leaves`,
    unless there is but one, whose digest is the root.
    """

    root: str
    nbytes: int
    extents: tuple[Extent, ...]
    leaves: Extent | None = None
    coding: str = ""
    item_bytes: int = 1
    base: int | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A tensor: its place in the state, its type, and which content it has."""

    where: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    content: int


@dataclass(frozen=True, kw_only=True)
class Pack:
    """A file with bytes."""

    name: str
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one rank has saved."""

    tree: Any
    packs: tuple[Pack, ...]
    contents: tuple[Content, ...]
    entries: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One checkpoint."""

    step: int
    id: str
    store: str
    created_s: float
    hash: str
    leaf_bytes: int
    parts: tuple[Part, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the file, without its ending."""
        return f"{self.step:012d}-{self.id}"


def split_name(name: str) -> tuple[int, str] | None:
    """Step and identity of a manifest's file name, without ending; None of any other name."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def seal(text: str) -> bytes:
    """Add the digest by which damage is found."""
    body = text.encode()
    return body + f"\n{_SEAL} {digest_of(_SEAL, body).hex()}\n".encode()


def unseal(data: bytes, name: str) -> Any:
    """What was sealed; refuses what differs from it in any bit."""
    body, _, last = data.rstrip(b"\n").rpartition(b"\n")
    if seal_of(body) != last or data[-1:] != b"\n" or data[-2:] == b"\n\n":
        raise CorruptData(f"{name} does not match its own digest: it is damaged or cut short")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"{name} is no JSON: {error}") from error


def seal_of(body: bytes) -> bytes:
    """The last line of a sealed file."""
    return f"{_SEAL} {digest_of(_SEAL, body).hex()}".encode()


def write_part(part: Part) -> dict[str, Any]:
    """As JSON holds it: contents and entries as rows, since there are many."""
    return {
        "tree": part.tree,
        "packs": [asdict(pack) for pack in part.packs],
        "contents": [
            [
                content.root,
                content.nbytes,
                [_write_extent(extent) for extent in content.extents],
                None if content.leaves is None else _write_extent(content.leaves),
                *([content.coding, content.item_bytes, content.base] if content.coding else []),
            ]
            for content in part.contents
        ],
        "entries": [[e.where, e.dtype, e.shape, e.stride, e.content] for e in part.entries],
    }


def _write_extent(extent: Extent) -> list[int]:
    row = [extent.pack, extent.offset, extent.nbytes]
    return row if extent.repeat == 1 else [*row, extent.repeat]


def write(manifest: Manifest) -> bytes:
    """The whole file."""
    held = {
        "format": FORMAT,
        "version": VERSION,
        **{name: getattr(manifest, name) for name in _HEAD},
        "facts": manifest.facts,
        "parts": [write_part(part) for part in manifest.parts],
    }
    return seal(json.dumps(held, separators=(",", ":"), allow_nan=False))


_HEAD: dict[str, Callable[[Any], bool]] = {
    "step": lambda value: _is_count(value),  # noqa: PLW0108  defined below
    "id": lambda value: isinstance(value, str) and bool(re.fullmatch("[0-9a-f]{16}", value)),
    "store": lambda value: isinstance(value, str) and bool(re.fullmatch("[0-9a-f]{32}", value)),
    "created_s": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "hash": lambda value: isinstance(value, str) and value in HASHES,
    "leaf_bytes": lambda value: _is_count(value) and _LEAST_LEAF <= value <= 1 << 30,
}


def read(data: bytes, name: str) -> Manifest:
    """Check everything that can be checked without the packs."""
    held = unseal(data, name)
    try:
        return _read(held, name)
    except RecursionError:
        raise CorruptData(f"{name} is nested deeper than any that was ever written") from None


def read_packs(data: bytes, name: str) -> tuple[dict[str, Any], frozenset[str]]:
    """The head of a manifest, and the names of its packs; what else it says is not looked at."""
    held = _check_head(unseal(data, name), name)
    try:
        packs = [pack["name"] for part in held["parts"] for pack in part["packs"]]
        return held, frozenset(map(_pack_name, packs))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"{name} describes its packs in a way that makes no sense") from error


def _read(held: Any, name: str) -> Manifest:
    held = _check_head(held, name)
    return Manifest(
        **{key: held[key] for key in _HEAD},
        facts=held["facts"],
        parts=tuple(read_part(part, name) for part in held["parts"]),
    )


def _check_head(held: Any, name: str) -> dict[str, Any]:
    if not isinstance(held, dict) or held.get("format") != FORMAT:
        raise CorruptData(f"{name} is no manifest of a checkpoint")
    if held.get("version") != VERSION:
        raise IncompatibleFormat(
            f"{name} is of version {str(held.get('version'))[:20]}, and this release reads "
            f"version {VERSION}: read it with a newer elbowroom"
        )
    for key, is_right in _HEAD.items():
        if key not in held or not is_right(held[key]):
            raise CorruptData(f"{name} has a {key} of {str(held.get(key))[:40]!r}")
    parts, facts = held.get("parts"), held.get("facts")
    if not isinstance(parts, list) or not parts or not isinstance(facts, dict):
        raise CorruptData(f"{name} has no parts")
    return held


def read_part(held: Any, name: str) -> Part:
    """Check a rank's part: every number within its limits, every reference backwards."""
    try:
        packs = tuple(
            Pack(name=_pack_name(p["name"]), nbytes=_count(p["nbytes"])) for p in held["packs"]
        )
        contents: list[Content] = []
        chains: list[int] = []
        for row in held["contents"]:
            contents.append(_read_content(row, packs, contents))
            base = contents[-1].base
            chains.append(0 if base is None else chains[base] + 1)
        if max(chains, default=0) > _MOST_CHAIN:
            raise ValueError(f"more than {_MOST_CHAIN} contents build on one another")
        entries = tuple(_read_entry(row, contents) for row in held["entries"])
        # What nothing uses, nothing verifies.
        used = {entry.content for entry in entries} | {content.base for content in contents}
        if len(used - {None}) != len(contents):
            raise ValueError("there are contents that no tensor has")
        return Part(tree=held["tree"], packs=packs, contents=tuple(contents), entries=entries)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CorruptData(
            f"{name} describes its parts in a way that makes no sense: {error}"
        ) from error


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _count(value: Any) -> int:
    if not _is_count(value):
        raise ValueError(f"{str(value)[:40]} is no size or place")
    return value


def _pack_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-z-]{1,64}\.pack", value):
        raise ValueError(f"{str(value)[:40]!r} is no name of a pack")
    return value


def _read_extent(row: Any, packs: tuple[Pack, ...]) -> Extent:
    pack, offset, nbytes, *rest = (_count(value) for value in row)
    (repeat,) = rest or (1,)
    if offset + nbytes > packs[pack].nbytes:
        raise ValueError(f"an extent ends beyond {packs[pack].name}")
    if repeat != 1 and (repeat == 0 or nbytes < _LEAST_LEAF):
        raise ValueError(f"an extent of {nbytes} bytes comes {repeat} times")
    return Extent(pack=pack, offset=offset, nbytes=nbytes, repeat=repeat)


def _read_content(row: Any, packs: tuple[Pack, ...], before: list[Content]) -> Content:
    root, nbytes, extents, leaves, *rest = row
    coding, item_bytes, base = rest if rest else ("", 1, None)
    if not isinstance(root, str) or not isinstance(coding, str):
        raise TypeError("a content without a root")
    if base is not None and (_count(base) >= len(before) or before[base].nbytes != nbytes):
        raise ValueError("a content builds on one of another size, or on none before it")
    found = tuple(_read_extent(extent, packs) for extent in extents)
    held = sum(extent.total_bytes for extent in found)
    if not coding and held != _count(nbytes):
        raise ValueError("extents do not add up to their content")
    if coding and held > 2 * _count(nbytes) + _MOST_CODED_MORE:
        raise ValueError(f"{nbytes} bytes are coded as {held}")
    digests = None if leaves is None else _read_extent(leaves, packs)
    if digests is not None and digests.total_bytes > nbytes // 8 + 32:
        raise ValueError(f"{nbytes} bytes have {digests.total_bytes} of digests")
    return Content(
        root=root,
        nbytes=_count(nbytes),
        extents=found,
        leaves=digests,
        coding=coding,
        item_bytes=_count(item_bytes),
        base=base,
    )


def _read_entry(row: Any, contents: list[Content]) -> Entry:
    where, dtype, shape, stride, content = row
    if not isinstance(where, str) or not isinstance(dtype, str):
        raise TypeError("an entry without a name")
    sizes, steps = tuple(map(_count, shape)), tuple(map(_count, stride))
    # Torch multiplies sizes also where one of them is zero.
    count = math.prod(max(size, 1) for size in sizes[:64])
    if (
        len(sizes) != len(steps)
        or len(sizes) > 64
        or count > _MOST
        or _count(content) >= len(contents)
    ):
        raise ValueError(f"{where[:80]} has a shape of its own")
    return Entry(where=where, dtype=dtype, shape=sizes, stride=steps, content=content)
