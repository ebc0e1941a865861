"""Checkpoints beside one another: what each holds alone, and what differs between two."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from elbowroom.errors import CorruptData, IncompatibleFormat, InvalidArgument
from elbowroom.store.checkpoint.manifest import Entry, Manifest, Part
from elbowroom.store.checkpoint.naming import MANIFESTS, PACKS, PARTS, Name, is_ours
from elbowroom.store.checkpoint.outline import TENSORS, leaves_of, outline
from elbowroom.store.checkpoint.reading import PartReader
from elbowroom.store.checkpoint.store import Store
from elbowroom.store.checkpoint.tensorfile import listed

_SLICE_ITEMS = 1 << 20  # compared at a time, in float64


def find_checkpoint(store: Store, step: int | None = None) -> Name:
    """The newest checkpoint, or the newest of a step."""
    names = store.names()
    for name in reversed(names):
        if step in (None, name.step):
            return name
    if not names:
        raise InvalidArgument("there is no checkpoint in the store yet")
    there = listed([str(name.step) for name in reversed(names)])
    raise InvalidArgument(f"there is no checkpoint of step {step}; there are: {there}")


@dataclass(frozen=True, kw_only=True)
class Holding:
    """A checkpoint among others.

    `alone_bytes` are those of its manifest and of packs that no other checkpoint names: what its
    removal would free. `shared_bytes` are those of packs that others name as well. `problem` says
    what can be seen without opening a pack.
    """

    name: Name
    is_readable: bool
    problem: str | None = None
    created_s: float = math.nan
    ranks: int = 0
    tensors: int = 0
    state_bytes: int = 0
    alone_bytes: int = 0
    shared_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Survey:
    """All that a store has.

    Leftovers are files that no readable checkpoint names. Foreign ones are those that no run has
    written, going by their names: nobody removes these.
    """

    holdings: tuple[Holding, ...]
    files: int
    nbytes: int
    leftover_files: int
    leftover_bytes: int
    foreign: tuple[str, ...] = ()


def survey(store: Store) -> Survey:
    """Look at names, sizes and manifests, oldest first."""
    sizes = dict(_sizes_in(store))
    found = [_look_at(store, name, sizes) for name in store.names()]
    users = Counter(pack for _, packs in found for pack in packs)
    holdings: list[Holding] = []
    for holding, packs in found:
        alone = sizes.get(f"{MANIFESTS}/{holding.name}.json", 0)
        alone += sum(sizes.get(pack, 0) for pack in packs if users[pack] == 1)
        shared = sum(sizes.get(pack, 0) for pack in packs if users[pack] > 1)
        holdings.append(replace(holding, alone_bytes=alone, shared_bytes=shared))
    known = {f"{MANIFESTS}/{holding.name}.json" for holding in holdings} | users.keys()
    left = [size for file, size in sizes.items() if "/" in file and file not in known]
    return Survey(
        holdings=tuple(holdings),
        files=len(sizes),
        nbytes=sum(sizes.values()),
        leftover_files=len(left),
        leftover_bytes=sum(left),
        foreign=tuple(file for file in sizes if file not in known and not is_ours(file)),
    )


def _sizes_in(store: Store) -> Iterator[tuple[str, int]]:
    for folder in ("", MANIFESTS, PACKS, PARTS):
        for file in store.place.names(folder):
            name = f"{folder}/{file}" if folder else file
            try:
                yield name, store.place.size(name)
            except (CorruptData, OSError):
                continue  # a folder, or gone by now


def _look_at(store: Store, name: Name, sizes: dict[str, int]) -> tuple[Holding, set[str]]:
    try:
        manifest = store.manifest(name)
    except (CorruptData, IncompatibleFormat, OSError) as error:
        return Holding(name=name, is_readable=False, problem=str(error)), set()
    stated = {f"{PACKS}/{pack.name}": pack.nbytes for p in manifest.parts for pack in p.packs}
    broken = [pack for pack, nbytes in stated.items() if sizes.get(pack) != nbytes]
    problem = None
    if broken:
        problem = f"{broken[0]} is {'cut short or replaced' if broken[0] in sizes else 'missing'}"
        problem += f", and so are {len(broken) - 1} more packs" if broken[1:] else ""
    holding = Holding(
        name=name,
        is_readable=True,
        problem=problem,
        created_s=manifest.created_s,
        ranks=len(manifest.parts),
        tensors=sum(len(part.entries) for part in manifest.parts),
        state_bytes=state_bytes(manifest),
    )
    return holding, set(stated)


def state_bytes(manifest: Manifest) -> int:
    """Of all tensors of all ranks, as they are in memory."""
    return sum(p.contents[entry.content].nbytes for p in manifest.parts for entry in p.entries)


Status = Literal["changed", "new", "gone", "same"]
_STATUSES: tuple[Status, ...] = ("changed", "new", "gone", "same")
_NOTHING = Part(tree=None, packs=(), contents=(), entries=())  # of a rank that was not there


@dataclass(frozen=True, kw_only=True)
class Change:
    """What became of a tensor. Measures of values are of items that are finite in both."""

    where: str
    rank: int
    status: Status
    before: Entry | None
    after: Entry | None
    nbytes: int
    share: float | None = None  # of leaves that differ
    most_difference: float | None = None
    relative_norm: float | None = None  # of the difference, to what was there before
    nonfinite_items: int = 0  # that differ, and are infinite or NaN in one of the two
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class ValueChange:
    """What became of something that is no tensor."""

    where: str
    rank: int
    status: Status
    before: Any
    after: Any


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two checkpoints. Tensors that changed most come first; of other values those that differ."""

    tensors: tuple[Change, ...]
    values: tuple[ValueChange, ...]

    def count(self, status: Status) -> int:
        """How many tensors have become that."""
        return sum(change.status == status for change in self.tensors)


@dataclass(frozen=True, kw_only=True)
class _Side:
    """What a rank has in one of the two."""

    part: Part
    reader: PartReader
    numbers: dict[str, int]

    def entry(self, where: str) -> Entry | None:
        return self.part.entries[self.numbers[where]] if where in self.numbers else None

    def tensor(self, where: str) -> Tensor:
        return self.reader.tensor(self.numbers[where])


def compare(
    store: Store,
    before: Manifest,
    after: Manifest,
    *,
    values: bool = False,
    tell: Callable[[int, int], None] = lambda nbytes, total: None,
) -> Comparison:
    """Compare by hash trees, and with `values` also what tensors hold that are not the same."""
    total = state_bytes(after)
    tensors: list[Change] = []
    others: list[ValueChange] = []
    for rank in range(max(len(before.parts), len(after.parts))):
        old, new = _side(store, before, rank), _side(store, after, rank)
        for where in {**old.numbers, **new.numbers}:
            change = _compare_tensors(rank, where, old, new)
            if values and change.status == "changed" and change.problem is None:
                change = _measure(change, old, new)
            tell(change.nbytes if change.after else 0, total)
            tensors.append(change)
        others += _compare_values(rank, old, new)
    return Comparison(tensors=tuple(sorted(tensors, key=_order)), values=tuple(others))


def _side(store: Store, manifest: Manifest, rank: int) -> _Side:
    part = manifest.parts[rank] if rank < len(manifest.parts) else _NOTHING
    numbers = {entry.where: number for number, entry in enumerate(part.entries)}
    return _Side(part=part, reader=store.reader(manifest, part), numbers=numbers)


def _compare_tensors(rank: int, where: str, old: _Side, new: _Side) -> Change:
    before, after = old.entry(where), new.entry(where)
    side, entry = (new, after) if after is not None else (old, before)
    assert entry is not None
    change = Change(
        where=where,
        rank=rank,
        status="changed",
        before=before,
        after=after,
        nbytes=side.part.contents[entry.content].nbytes,
    )
    if before is None or after is None:
        return replace(change, status="new" if before is None else "gone")
    a, b = old.part.contents[before.content], new.part.contents[after.content]
    is_alike = (before.dtype, before.shape, before.stride) == (
        *(after.dtype, after.shape),
        after.stride,
    )
    if a.root == b.root and is_alike:
        return replace(change, status="same", share=0.0)
    try:
        mine, theirs = new.reader.leaves(after.content), old.reader.leaves(before.content)
    except (CorruptData, OSError) as error:
        return replace(change, problem=str(error))
    if not len(mine.leaves) or mine.leaf_bytes != theirs.leaf_bytes:
        return replace(change, share=1.0)
    return replace(change, share=len(mine.changed(theirs)) / len(mine.leaves))


def _measure(change: Change, old: _Side, new: _Side) -> Change:
    assert change.before is not None and change.after is not None
    if change.before.shape != change.after.shape:
        return change
    try:
        a, b = old.tensor(change.where), new.tensor(change.where)
    except (CorruptData, OSError) as error:
        return replace(change, problem=str(error))
    if not a.dtype.is_floating_point or not b.dtype.is_floating_point:
        return change
    if torch.float4_e2m1fn_x2 in (a.dtype, b.dtype):
        return change  # two numbers an item, which nothing can take apart yet
    most, squares, base, odd = 0.0, 0.0, 0.0, 0
    a, b = a.reshape(-1), b.reshape(-1)
    for start in range(0, len(a), _SLICE_ITEMS):
        x, y = (t[start : start + _SLICE_ITEMS].to(torch.float64) for t in (a, b))
        finite = x.isfinite() & y.isfinite()
        equal = (x == y) | (x.isnan() & y.isnan())
        odd += int((~finite & ~equal).sum())
        gap = torch.where(finite, y - x, 0)
        most = max(most, float(gap.abs().max()))
        squares += float(gap.square().sum())
        base += float(torch.where(finite, x, 0).square().sum())
    ratio = math.sqrt(squares / base) if 0 < base < math.inf and squares < math.inf else None
    return replace(change, most_difference=most, relative_norm=ratio, nonfinite_items=odd)


def _compare_values(rank: int, old: _Side, new: _Side) -> Iterator[ValueChange]:
    before, after = _values_of(old.part), _values_of(new.part)
    for where in {**before, **after}:
        a, b = before.get(where), after.get(where)
        if repr(a) != repr(b):  # 1, 1.0 and True are not the same here, and NaN is
            status: Status = "new" if a is None else "gone" if b is None else "changed"
            yield ValueChange(
                where=where,
                rank=rank,
                status=status,
                before=None if a is None else a[1],
                after=None if b is None else b[1],
            )


def _values_of(part: Part) -> dict[str, tuple[str, Any]]:
    if part is _NOTHING:
        return {}
    found = leaves_of(outline(part.tree, len(part.entries)))
    return {where: (node.kind, node.value) for where, node in found if node.kind not in TENSORS}


def _order(change: Change) -> tuple[int, float, float, str]:
    return (
        _STATUSES.index(change.status),
        -(change.share if change.share is not None else 2.0),
        -(change.relative_norm or 0.0),
        change.where,
    )
