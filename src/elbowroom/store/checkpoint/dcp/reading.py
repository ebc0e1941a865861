"""`Reader`: loads of torch.distributed.checkpoint from a store, on any number of ranks."""

import dataclasses
import io
import os
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from elbowroom.errors import CorruptData, ElbowroomError, InvalidArgument, StoreUnreachable
from elbowroom.host import available_bytes
from elbowroom.store.checkpoint.dcp.metadata import (
    FACT,
    Location,
    node_at,
    read_metadata,
    tensor_at,
)
from elbowroom.store.checkpoint.manifest import Manifest, Part
from elbowroom.store.checkpoint.naming import Name
from elbowroom.store.checkpoint.objects import Options
from elbowroom.store.checkpoint.reading import PartReader
from elbowroom.store.checkpoint.sources import CheckpointWarning
from elbowroom.store.checkpoint.state import unflatten
from elbowroom.store.checkpoint.store import Store


class Moved(CorruptData):
    """The checkpoints of a store have changed while one was being loaded."""


class Reader(StorageReader):
    """Reads a checkpoint of the store at `where`: the newest, or that of a step."""

    def __init__(
        self,
        where: str | os.PathLike[str],
        *,
        step: int | None = None,
        options: Options | None = None,
    ) -> None:
        self.where, self._step, self._options = os.fspath(where), step, options
        self._found: Manifest | None = None
        self._passed: list[str] = []
        self._metadata = Metadata({})
        self.problem: Exception | None = None

    @property
    def step(self) -> int | None:
        """Of the checkpoint that was found, once one was."""
        return None if self._found is None else self._found.step

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin anew; a `checkpoint_id` is another place of a store."""
        self._found = None
        if checkpoint_id is not None:
            self.where = os.fspath(checkpoint_id)

    # Had it kwargs, torch would go on to ask for the metadata of single ranks.
    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """What the checkpoint holds."""
        self._found, self._passed, self.problem = None, [], None
        try:
            return self._read_metadata()
        except (ElbowroomError, OSError) as error:
            # torch tells its text alone.
            self.problem = error
            raise

    def _read_metadata(self) -> Metadata:
        store = Store.open(self.where, options=self._options)
        with store.reading():
            for name in self._candidates(store):
                try:
                    manifest = store.manifest(name)
                    if FACT in manifest.facts:
                        found = read_metadata(manifest)
                        found.storage_meta = StorageMeta(self.where, load_id=str(name))
                        self._found = manifest
                        return found
                except StoreUnreachable:
                    raise
                except (CorruptData, OSError) as error:
                    self._passed.append(f"step {name.step}: {error}")
        if self._passed:
            raise CorruptData(f"no checkpoint in {self.where} is whole: {'; '.join(self._passed)}")
        raise InvalidArgument(
            f"the checkpoints in {self.where} were not saved through torch.distributed.checkpoint: "
            "give them to a Checkpointer, or take them out with elbowroom.load"
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Tell which checkpoints were passed over."""
        self._metadata = metadata
        if self._found is None:
            raise InvalidArgument("the metadata of a checkpoint has to be read before the rest")
        if is_coordinator and self._passed:
            warnings.warn(
                f"went back to step {self._found.step}, since newer checkpoints are damaged: "
                + "; ".join(self._passed),
                CheckpointWarning,
                stacklevel=2,
            )

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Tell which checkpoint it is for."""
        assert self._found is not None
        return dataclasses.replace(plan, storage_data=self._found.name)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """See that all ranks have found the same checkpoint."""
        names = sorted({str(plan.storage_data) for plan in plans})
        if len(names) > 1:
            raise Moved(
                f"ranks have found different checkpoints in {self.where}, since one was saved just "
                f"now: {', '.join(names)}; load again, or name a step"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what this rank needs, each stored tensor once, and compare it with its digests."""
        manifest = self._found
        assert manifest is not None
        store = Store.open(self.where, options=self._options)
        by_location: dict[Location, list[ReadItem]] = {}
        for item in plan.items:
            location = self._metadata.storage_data[item.storage_index]
            by_location.setdefault(location, []).append(item)
        with store.reading():
            name = Name(step=manifest.step, id=manifest.id)
            if name not in store.names():
                raise Moved(f"the checkpoint of step {name.step} was removed meanwhile: load again")
            try:
                readers = [store.reader(manifest, part) for part in manifest.parts]
                for location in sorted(by_location):
                    _read_items(manifest, readers, location, by_location[location], planner)
            except CorruptData as error:
                older = [str(other.step) for other in store.names() if other.order < name.order]
                if not older:
                    raise
                raise CorruptData(f"{error}; older checkpoints: step {', '.join(older)}") from error
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a path or an address."""
        return isinstance(os.fspath(checkpoint_id), str)

    def _candidates(self, store: Store) -> list[Name]:
        names = store.names()
        chosen = [name for name in reversed(names) if self._step in (None, name.step)]
        if not names:
            raise InvalidArgument(f"there is no checkpoint in {self.where}")
        if not chosen:
            there = ", ".join(str(name.step) for name in names)
            raise InvalidArgument(
                f"there is no checkpoint of step {self._step}; there are: {there}"
            )
        return chosen


@torch.no_grad()
def _read_items(
    manifest: Manifest,
    readers: list[PartReader],
    location: Location,
    items: list[ReadItem],
    planner: LoadPlanner,
) -> None:
    part, reader = manifest.parts[location.part], readers[location.part]
    if items[0].type == LoadItemType.BYTE_IO:
        tree = node_at(part, location.position)
        value = unflatten(tree, lambda number: _read_tensor(part, reader, number))
        for item in items:
            # The planner unpickles this: bytes that were made here from plain values, and never
            # any that come from a file.
            data = io.BytesIO()
            torch.save(value, data)
            data.seek(0)
            planner.load_bytes(item, data)
        return
    stored = _read_tensor(part, reader, tensor_at(part, location.position))
    for item in items:
        target = planner.resolve_tensor(item).detach()
        _copy_box(stored, item, target)
        planner.commit_tensor(item, target)


def _read_tensor(part: Part, reader: PartReader, number: int) -> Tensor:
    """A tensor that the memory has room for, whatever the manifest says of its size."""
    if isinstance(number, int) and 0 <= number < len(part.entries):
        entry = part.entries[number]
        needed = part.contents[entry.content].nbytes
        if needed > available_bytes():
            raise CorruptData(
                f"{entry.where} is said to have {needed:,} bytes, more than the "
                f"{available_bytes():,} of memory that are free"
            )
    return reader.tensor(number)


def _copy_box(stored: Tensor, item: ReadItem, target: Tensor) -> None:
    box = tuple(
        slice(offset, offset + length)
        for offset, length in zip(item.storage_offsets, item.lengths, strict=True)
    )
    source = stored[box]
    if source.shape != target.shape:
        raise InvalidArgument(
            f"{item.storage_index.fqn} has {tuple(source.shape)} to load, and the state has room "
            f"for {tuple(target.shape)}"
        )
    target.copy_(source)
