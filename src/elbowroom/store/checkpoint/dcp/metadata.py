"""What torch.distributed.checkpoint has to know of a checkpoint, as JSON in its manifest.

    items   by name: of a tensor its type, its size and its chunks, each with the box it fills and
            the location of its bytes; of any other object the location
    paths   by name: the keys that lead to it in the nested state that was saved

A location is the number of a part, and of an item in that part's tree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from elbowroom.errors import CorruptData, IncompatibleFormat, InvalidArgument
from elbowroom.store.checkpoint.layout import DTYPES
from elbowroom.store.checkpoint.manifest import SHARDED, Manifest, Part

FACT = SHARDED  # under this name it is among the facts of a manifest
_VERSION = 1
_FORMATS = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "preserve": torch.preserve_format,
}
_MOST = 1 << 60  # of any size: far above what a disk holds, far below what overflows
_MOST_DIMENSIONS = 64
# Lists of a state are made as long as a path says. Nobody keeps a million tensors in one list.
_MOST_LENGTH = 1 << 20


@dataclass(frozen=True, kw_only=True, order=True)
class Location:
    """Where an item lies: in which part, and at which position of that part's tree."""

    part: int
    position: int


def write_metadata(
    metadata: Metadata, locations: Mapping[MetadataIndex, Location]
) -> dict[str, Any]:
    """As JSON holds it; refuses what was not written, and what could not be read again."""
    items: dict[str, Any] = {}
    for name, item in metadata.state_dict_metadata.items():
        if isinstance(item, TensorStorageMetadata):
            items[name] = _write_tensor(name, item, locations)
        else:
            items[name] = _row(name, MetadataIndex(name), locations)
    paths = metadata.planner_data
    if paths is not None and not _are_paths(paths):
        raise InvalidArgument(
            "the planner keeps data of its own with a checkpoint, which a store cannot hold: use a "
            "planner that keeps names and the paths to them, as DefaultSavePlanner does"
        )
    return {
        "version": _VERSION,
        "items": items,
        "paths": None if paths is None else {name: list(path) for name, path in paths.items()},
    }


def read_metadata(manifest: Manifest) -> Metadata:
    """What was written, every number of it checked; `storage_data` leads to locations."""
    file = f"manifests/{manifest.name}.json"
    held = manifest.facts.get(FACT)
    if isinstance(held, dict) and held.get("version") != _VERSION:
        raise IncompatibleFormat(
            f"{file} was written by another release: its version is "
            f"{str(held.get('version'))[:20]}, and this one reads {_VERSION}"
        )
    items: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    locations: dict[MetadataIndex, Location] = {}
    try:
        for name, item in held["items"].items():  # pyright: ignore[reportOptionalSubscript]
            if isinstance(item, list):
                items[name] = BytesStorageMetadata()
                locations[MetadataIndex(name)] = _read_location(item, manifest)
            else:
                items[name] = _read_tensor(name, item, manifest, locations)
        paths = held["paths"]  # pyright: ignore[reportOptionalSubscript]
        if paths is not None:
            paths = {name: tuple(p) if isinstance(p, list) else () for name, p in paths.items()}
            if not _are_paths(paths):
                raise ValueError("a path of no keys")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CorruptData(
            f"{file} describes its items in a way that makes no sense: {error}"
        ) from error
    return Metadata(items, planner_data=paths, storage_data=locations)


def node_at(part: Part, position: int) -> Any:
    """The item of a part's tree at a position."""
    tree = part.tree
    rows = tree.get("dict") if isinstance(tree, dict) else None
    if not isinstance(rows, list) or not 0 <= position < len(rows):
        raise CorruptData(f"a part of the checkpoint has no item {position}")
    row = rows[position]
    if not isinstance(row, list) or len(row) != 2:
        raise CorruptData(f"item {position} of a part of the checkpoint is none")
    return row[1]


def tensor_at(part: Part, position: int) -> int:
    """The number of the tensor that the item at a position is."""
    node = node_at(part, position)
    number = node.get("tensor") if isinstance(node, dict) else -1
    if not isinstance(number, int) or not 0 <= number < len(part.entries):
        raise CorruptData(f"item {position} of a part of the checkpoint is no tensor")
    return number


def _write_tensor(
    name: str, item: TensorStorageMetadata, locations: Mapping[MetadataIndex, Location]
) -> dict[str, Any]:
    properties = item.properties
    formats = [text for text, value in _FORMATS.items() if value == properties.memory_format]
    return {
        "dtype": str(properties.dtype).removeprefix("torch."),
        "format": formats[0] if formats else "contiguous",
        "requires_grad": properties.requires_grad,
        "pin_memory": properties.pin_memory,
        "size": list(item.size),
        "chunks": [
            [
                list(chunk.offsets),
                list(chunk.sizes),
                *_row(name, MetadataIndex(name, chunk.offsets), locations),
            ]
            for chunk in item.chunks
        ],
    }


def _row(name: str, index: MetadataIndex, locations: Mapping[MetadataIndex, Location]) -> list[int]:
    if index not in locations:
        at = "" if index.offset is None else f" at {list(index.offset)}"
        raise InvalidArgument(f"no rank has written {name}{at}, which the plan says is saved")
    found = locations[index]
    return [found.part, found.position]


def _read_tensor(
    name: str, item: Any, manifest: Manifest, locations: dict[MetadataIndex, Location]
) -> TensorStorageMetadata:
    size = _read_sizes(item["size"])
    chunks: list[ChunkStorageMetadata] = []
    for row in item["chunks"]:
        offsets, sizes = _read_sizes(row[0]), _read_sizes(row[1])
        if not len(offsets) == len(sizes) == len(size) or any(
            offset + length > whole
            for offset, length, whole in zip(offsets, sizes, size, strict=True)
        ):
            raise ValueError(f"{name[:80]} has a chunk that lies outside of it")
        location = _read_location(row[2:], manifest)
        part = manifest.parts[location.part]
        if part.entries[tensor_at(part, location.position)].shape != tuple(sizes):
            raise ValueError(f"{name[:80]} has a chunk that was saved in another shape")
        chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=sizes))
        locations[MetadataIndex(name, offsets)] = location
    flags = item["requires_grad"], item["pin_memory"]
    if not all(isinstance(flag, bool) for flag in flags):
        raise TypeError(f"{name[:80]} has properties that there are not")
    properties = TensorProperties(
        dtype=DTYPES[item["dtype"]],
        requires_grad=flags[0],
        memory_format=_FORMATS[item["format"]],
        pin_memory=flags[1],
    )
    return TensorStorageMetadata(properties=properties, size=size, chunks=chunks)


def _read_sizes(values: Any) -> torch.Size:
    if not isinstance(values, list) or len(values) > _MOST_DIMENSIONS:
        raise TypeError(f"{str(values)[:40]} are no sizes")
    if not all(_is_count(value) and value <= _MOST for value in values):
        raise ValueError(f"{str(values)[:40]} are no sizes")
    return torch.Size(values)


def _read_location(row: Any, manifest: Manifest) -> Location:
    part, position = row
    if not _is_count(part) or not _is_count(position):
        raise ValueError(f"{str(row)[:40]} is no location")
    node_at(manifest.parts[part], position)
    return Location(part=part, position=position)


def _are_paths(paths: Any) -> bool:
    return isinstance(paths, dict) and all(
        isinstance(name, str)
        and isinstance(path, tuple)
        and path
        # The first key is one of the state itself, which is a dict.
        and isinstance(path[0], str)
        and all(isinstance(key, str) or (_is_count(key) and key < _MOST_LENGTH) for key in path)
        for name, path in paths.items()
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
