"""The items that a rank saves through torch.distributed.checkpoint, into a pack."""

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from elbowroom.errors import CorruptData, ElbowroomError, InvalidArgument
from elbowroom.store.checkpoint.contents import Memory
from elbowroom.store.checkpoint.dcp.metadata import FACT, read_metadata
from elbowroom.store.checkpoint.dcp.staging import is_wrapper
from elbowroom.store.checkpoint.layout import Layout, layout_of
from elbowroom.store.checkpoint.manifest import Manifest, Part
from elbowroom.store.checkpoint.naming import PACKS, Name
from elbowroom.store.checkpoint.reading import PartReader
from elbowroom.store.checkpoint.snapshot import Buffer, Piece, Snapshot
from elbowroom.store.checkpoint.state import flatten
from elbowroom.store.checkpoint.store import Store
from elbowroom.store.checkpoint.writing import PartWriter

_Bytes = NDArray[np.uint8]

# Copies in host memory of what lies elsewhere: a tensor is asked for when it is hashed and again
# when it is written, with two others in between.
_COPIES = 3


@dataclass(frozen=True, kw_only=True)
class Written:
    """Where an item went, for the coordinator; the first of a rank brings all that it names."""

    position: int
    part: Part | None = None


def write_items(
    store: Store, items: Sequence[WriteItem], planner: SavePlanner, rank: int, name: Name
) -> list[WriteResult]:
    """Write a pack of that name, with what the store does not have yet."""
    if not items:
        return []
    newest = next((one for one in store.newest() if isinstance(one, Manifest)), None)
    past = _Past() if newest is None else _recall(store, newest, items, rank)
    done = PartWriter(
        create=lambda pack: store.place.create(f"{PACKS}/{pack}"),
        name=f"{name}-r{rank}",
        hash_name=store.hash,
        memory=past.memory,
        read_before=past.read,
    ).write(_gather(items, planner, name.step))
    return [
        WriteResult(
            index=item.index,
            size_in_bytes=item.tensor_storage_size() or 0,
            storage_data=Written(position=position, part=None if position else done.part),
        )
        for position, item in enumerate(items)
    ]


@dataclass(kw_only=True)
class _Past:
    """What the last checkpoint has of this rank's items, whichever ranks have written it."""

    memory: Memory = field(default_factory=Memory)
    places: dict[str, tuple[PartReader, int]] = field(default_factory=dict)

    def read(self, piece: Piece) -> _Bytes | None:
        """The bytes that a tensor had; nothing if they are damaged."""
        if piece.where not in self.places:
            return None
        reader, content = self.places[piece.where]
        out = np.empty(piece.layout.nbytes, np.uint8)
        try:
            reader.read(content, piece.where, out)
        except (CorruptData, OSError):
            return None
        return out


def _recall(store: Store, manifest: Manifest, items: Sequence[WriteItem], rank: int) -> _Past:
    past = _Past()
    for number in _parts_of(manifest, items, rank):
        part = manifest.parts[number]
        try:
            memory = store.memory(manifest, number)
        except (CorruptData, OSError):
            continue
        # Nothing is built on a pack that is gone or cut short.
        memory = memory.without(store.lost_packs(memory))
        past.memory.by_root |= memory.by_root
        past.memory.by_place |= memory.by_place
        past.memory.pack_bytes |= memory.pack_bytes
        reader = store.reader(manifest, part)
        past.places |= {entry.where: (reader, entry.content) for entry in part.entries}
    return past


def _parts_of(manifest: Manifest, items: Sequence[WriteItem], rank: int) -> list[int]:
    """The parts that have something of these items: with as many ranks as before, this rank's."""
    found = {rank} if rank < len(manifest.parts) else set()
    if FACT not in manifest.facts:
        return sorted(found)
    try:
        metadata = read_metadata(manifest)
    except ElbowroomError:
        return sorted(found)
    for item in items:
        known = metadata.state_dict_metadata.get(item.index.fqn)
        if isinstance(known, TensorStorageMetadata) and item.tensor_data is not None:
            found |= {
                metadata.storage_data[MetadataIndex(item.index.fqn, chunk.offsets)].part
                for chunk in known.chunks
                if _overlap(chunk, item.tensor_data.chunk)
            }
    return sorted(found)


def _overlap(one: ChunkStorageMetadata, other: ChunkStorageMetadata) -> bool:
    if len(one.offsets) != len(other.offsets):
        return False
    return all(
        a < b + length_b and b < a + length_a
        for a, length_a, b, length_b in zip(
            one.offsets, one.sizes, other.offsets, other.sizes, strict=True
        )
    )


@dataclass(frozen=True, kw_only=True)
class _Items(Snapshot):
    """Items of a plan as a snapshot that is nowhere else: each is fetched when it is asked for.

    A piece's start is its number here.
    """

    sources: Mapping[int, Callable[[], Tensor]]
    lock: threading.Lock = field(default_factory=threading.Lock)
    copies: OrderedDict[int, _Bytes] = field(default_factory=OrderedDict)

    def bytes_of(self, piece: Piece) -> _Bytes:
        """The bytes of a tensor, in host memory."""
        with self.lock:
            found = self.copies.get(piece.start)
            if found is None:
                found = _bytes_of(self.sources[piece.start](), piece.layout)
                self.copies[piece.start] = found
                if len(self.copies) > _COPIES:
                    self.copies.popitem(last=False)
        return found


def _gather(items: Sequence[WriteItem], planner: SavePlanner, step: int) -> _Items:
    values: dict[str, Any] = {}
    tensors: dict[int, tuple[Tensor, Layout, WriteItem]] = {}
    for item in items:
        name = _name_of(item)
        while name in values:
            name += "'"
        if item.type == WriteItemType.BYTE_IO:
            values[name] = _object_of(item, planner)
        else:
            # What the planner gives may have been made for this; it is not kept until its turn.
            mark = torch.empty(0)
            tensors[id(mark)] = mark, _layout_of(planner.resolve_data(item), item), item
            values[name] = mark
    tree, found = flatten(values, "state")
    pieces, sources = [], {}
    for number, (where, tensor) in enumerate(found):
        if id(tensor) in tensors:
            _, layout, item = tensors[id(tensor)]
            sources[number] = partial(planner.resolve_data, item)
        else:
            layout = _plain_layout(tensor, where)
            sources[number] = partial(Tensor.detach, tensor)
        pieces.append(Piece(where=where, layout=layout, start=number))
    return _Items(
        step=step, tree=tree, facts={}, pieces=tuple(pieces), buffer=Buffer(), sources=sources
    )


def _name_of(item: WriteItem) -> str:
    data = item.tensor_data
    if data is None or data.chunk.sizes == data.size:
        return item.index.fqn
    box = zip(data.chunk.offsets, data.chunk.sizes, strict=True)
    return f"{item.index.fqn}[{', '.join(f'{start}:{start + size}' for start, size in box)}]"


def _object_of(item: WriteItem, planner: SavePlanner) -> Any:
    """What is to be saved that is no tensor: itself, or what a planner has made bytes of."""
    if isinstance(planner, DefaultSavePlanner) and all(
        getattr(type(planner), name) is getattr(DefaultSavePlanner, name)
        for name in ("resolve_data", "transform_object")
    ):
        return planner.lookup_object(item.index)
    data = planner.resolve_data(item)
    assert isinstance(data, io.BytesIO)
    data.seek(0)
    try:
        return torch.load(data, weights_only=True)
    except Exception as error:
        raise InvalidArgument(
            f"{item.index.fqn} is an object that torch loads only by running code, which a "
            "checkpoint cannot hold: keep tensors, numbers, strings, lists and dicts in the state"
        ) from error


def _layout_of(tensor: Any, item: WriteItem) -> Layout:
    layout = _plain_layout(tensor, item.index.fqn)
    if item.tensor_data is not None and layout.shape != tuple(item.tensor_data.chunk.sizes):
        raise InvalidArgument(
            f"{item.index.fqn} is planned as {tuple(item.tensor_data.chunk.sizes)}, and the "
            f"planner gives {layout.shape}"
        )
    return layout


def _plain_layout(tensor: Tensor, where: str) -> Layout:
    if is_wrapper(tensor):
        raise InvalidArgument(
            f"{where} is a {type(tensor).__name__} where a checkpoint holds plain tensors: keep "
            "DTensors in dicts and lists of the state, and other kinds as what they are made of"
        )
    return layout_of(tensor, where)


def _bytes_of(tensor: Tensor, layout: Layout) -> _Bytes:
    if not layout.nbytes:
        return np.empty(0, np.uint8)
    source = tensor.detach().resolve_conj().resolve_neg().cpu()
    if source.stride() != layout.stride:
        source = torch.empty_strided(layout.shape, layout.stride, dtype=source.dtype).copy_(source)
    return source.as_strided((source.numel(),), (1,)).view(torch.uint8).numpy()
