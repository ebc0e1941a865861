"""The state of a checkpoint as a tree: what is where, and how each tensor is stored."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from elbowroom.errors import CorruptData
from elbowroom.store.checkpoint.manifest import Entry, Manifest
from elbowroom.store.checkpoint.state import MOST_DEPTH_READ, unflatten

_MAPPINGS = ("dict", "OrderedDict", "Counter", "defaultdict")
_SEQUENCES = ("tuple", "size", "set", "frozenset", "deque")
TENSORS = ("tensor", "array")  # kinds of nodes that have an entry


@dataclass(frozen=True, kw_only=True)
class Stored:
    """How the bytes of a tensor lie in the store.

    `held_bytes` are in packs, without those of the content it builds on; `new_bytes` of them were
    written for this checkpoint. `depth` counts the contents below it. `twin` is an earlier tensor
    of the same bytes.
    """

    nbytes: int
    held_bytes: int
    new_bytes: int
    coding: str
    depth: int
    twin: str | None


@dataclass(frozen=True, kw_only=True)
class Node:
    """A place in a state: a container, a tensor, or any other value.

    Of a tensor, or of an array of numpy, `value` is the number of its entry.
    """

    key: Any
    kind: str
    children: tuple["Node", ...] = ()
    value: Any = None
    entry: Entry | None = None
    stored: Stored | None = None


def describe(manifest: Manifest, rank: int = 0) -> Node:
    """The state of a rank, from the manifest alone."""
    part = manifest.parts[rank]
    stored = _describe_entries(manifest, rank)

    def place(node: Node) -> Node:
        if node.kind in TENSORS:
            return replace(node, entry=part.entries[node.value], stored=stored[node.value])
        return replace(node, children=tuple(map(place, node.children)))

    return place(outline(part.tree, len(part.entries)))


def _describe_entries(manifest: Manifest, rank: int) -> list[Stored]:
    part = manifest.parts[rank]
    depths: list[int] = []
    for content in part.contents:
        depths.append(0 if content.base is None else depths[content.base] + 1)
    is_new = [_order_of(pack.name) >= _order_of(manifest.name) for pack in part.packs]
    first: dict[int, str] = {}
    found: list[Stored] = []
    for entry in part.entries:
        content = part.contents[entry.content]
        twin = first.setdefault(entry.content, entry.where)
        found.append(
            Stored(
                nbytes=content.nbytes,
                held_bytes=sum(extent.nbytes for extent in content.extents),
                new_bytes=sum(extent.nbytes for extent in content.extents if is_new[extent.pack]),
                coding=content.coding,
                depth=depths[entry.content],
                twin=twin if twin != entry.where and content.nbytes else None,
            )
        )
    return found


def _order_of(name: str) -> str:
    """Of the checkpoint that a file was written for: larger for what was begun later."""
    return "".join(name.split("-")[1:2])[:8]


def outline(tree: Any, entries: int) -> Node:
    """The tree of a state that has so many tensors; what makes no sense is refused."""
    return _outline(tree, "state", entries, 0)


def leaves_of(node: Node, where: str = "state") -> Iterator[tuple[str, Node]]:
    """All that holds nothing else, with its place, written as entries write theirs."""
    if not node.children:
        yield where, node
    for child in node.children:
        yield from leaves_of(child, f"{where}[{child.key!r}]")


def _outline(tree: Any, key: Any, entries: int, depth: int) -> Node:
    if depth > MOST_DEPTH_READ:
        raise CorruptData("the checkpoint's state is nested deeper than any that was ever written")
    word = next(iter(tree), None) if isinstance(tree, dict) else None
    if word == "tensor" or (word == "numpy" and "at" in tree):
        number = tree["tensor" if word == "tensor" else "at"]
        if not isinstance(number, int) or not 0 <= number < entries:
            raise CorruptData(f"the checkpoint's state asks for a tensor {str(number)[:20]}")
        return Node(key=key, kind="tensor" if word == "tensor" else "array", value=int(number))
    if word in _MAPPINGS:
        children = tuple(
            _outline(item, _value_of(name), entries, depth + 1) for name, item in _pairs(tree[word])
        )
        return Node(key=key, kind=word, children=children)
    items = tree if isinstance(tree, list) else tree[word] if word in _SEQUENCES else None
    if not isinstance(items, list):
        return Node(key=key, kind="value", value=_value_of(tree))
    kind = word or "list"
    if all(item is None or isinstance(item, bool | int | float | str) for item in items):
        # One line for a list of numbers: the state of a generator has hundreds.
        return Node(key=key, kind=kind, value=items)
    children = tuple(_outline(item, at, entries, depth + 1) for at, item in enumerate(items))
    return Node(key=key, kind=kind, children=children)


def _pairs(held: Any) -> list[Any]:
    if not isinstance(held, list) or not all(isinstance(p, list) and len(p) == 2 for p in held):
        raise CorruptData(f"the checkpoint's state has {str(held)[:40]} in place of a mapping")
    return held


def _value_of(tree: Any) -> Any:
    def refuse(number: int) -> Tensor:
        raise CorruptData(f"the checkpoint's state has tensor {str(number)[:20]} for a key")

    return unflatten(tree, refuse)
