"""A sharded checkpoint as one state, in one process: from a store, or from a folder of torch's.

Nothing that is read can run, though folders of torch's consist of pickles.
"""

import dataclasses
import io
import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, metadata
from torch.distributed.checkpoint.default_planner import (
    _EmptyStateDictLoadPlanner,  # pyright: ignore[reportPrivateUsage]
)
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import (
    _load_state_dict,  # pyright: ignore[reportPrivateUsage]
)
from torch.distributed.checkpoint.storage import StorageReader

from elbowroom.errors import CorruptData, ElbowroomError, InvalidArgument
from elbowroom.host import available_bytes
from elbowroom.store.checkpoint.dcp import plain_errors
from elbowroom.store.checkpoint.dcp.description import read_description
from elbowroom.store.checkpoint.dcp.reading import Reader
from elbowroom.store.checkpoint.objects import Options

_METADATA = ".metadata"


def read_sharded(
    where: str | Path, *, step: int | None = None, options: Options | None = None
) -> dict[str, Any]:
    """All that a store has of a sharded run, put together on the host."""
    reader = Reader(where, step=step, options=options)
    with plain_errors(reader):
        return _read(reader, str(where))


def is_torch_folder(folder: Path) -> bool:
    """Whether torch.distributed.checkpoint has written it."""
    return (folder / _METADATA).is_file()


def read_torch_folder(folder: Path) -> dict[str, Any]:
    """All that torch.distributed.checkpoint has saved in a folder."""
    try:
        reader = _FolderReader(folder)
        reader.read_metadata()  # what is wrong with it is told in its own words
        with plain_errors():
            return _read(reader, str(folder))
    except (ElbowroomError, MemoryError):
        raise
    except Exception as error:  # of many types, for a file can be anything
        said = " ".join(str(error).split())[:200]
        raise CorruptData(
            f"{folder} is no folder of torch.distributed.checkpoint, or a damaged one ({said})"
        ) from None


def _read(reader: StorageReader, where: str) -> dict[str, Any]:
    state: dict[str, Any] = {}
    planner = _Planner(where, is_ours=isinstance(reader, Reader))
    _load_state_dict(state, storage_reader=reader, planner=planner, no_dist=True)
    return state


class _Planner(_EmptyStateDictLoadPlanner):
    """Makes the state from what the metadata says, after a look at how large it is."""

    def __init__(self, where: str, *, is_ours: bool) -> None:
        super().__init__()
        self._where, self._is_ours = where, is_ours

    def set_up_planner(
        self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        assert metadata is not None
        items = metadata.state_dict_metadata.values()
        nbytes = sum(
            item.size.numel() * item.properties.dtype.itemsize
            for item in items
            if isinstance(item, _TENSOR)
        )
        if nbytes > available_bytes():
            raise InvalidArgument(
                f"{self._where} holds {nbytes:,} bytes of tensors, more than the "
                f"{available_bytes():,} of memory that are free: read it on a larger machine"
            )
        super().set_up_planner(state_dict, metadata, is_coordinator)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Take an object that is no tensor, if reading it runs nothing."""
        if self._is_ours:  # made of what was read, a moment ago
            super().load_bytes(read_item, value)
            return
        name = read_item.dest_index.fqn
        try:
            found = torch.load(value, map_location="cpu", weights_only=True)
        except Exception:
            raise InvalidArgument(
                f"{self._where} has an object {name!r} that torch loads only by running code: save "
                "tensors, numbers, strings, lists and dicts of them"
            ) from None
        again = io.BytesIO()
        torch.save(found, again)  # what torch reads from here on is what was found
        again.seek(0)
        super().load_bytes(read_item, again)


_TENSOR = metadata.TensorStorageMetadata


class _FolderReader(FileSystemReader):
    """A folder of torch's, whose metadata can run nothing and name no file outside."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """What the folder holds."""
        del args, options
        where = f"{self._folder}/{_METADATA}"
        found = read_description((self._folder / _METADATA).read_bytes(), where)
        for place in (found.storage_data or {}).values():
            path = self._folder / str(place.relative_path)
            if os.path.basename(place.relative_path) != place.relative_path or path.is_symlink():
                raise CorruptData(
                    f"{self._folder}/{_METADATA} names {str(place.relative_path)[:80]!r}, which is "
                    "no file in that folder"
                )
        return dataclasses.replace(found, storage_meta=metadata.StorageMeta())
