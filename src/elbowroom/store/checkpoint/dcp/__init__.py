"""Checkpoints of sharded runs: a store behind torch.distributed.checkpoint.

    save({"model": ..., "optim": ...}, "checkpoints", step=1000)
    load(state, "checkpoints")

or, with torch's own functions, `dcp.save(state, storage_writer=Writer("checkpoints"))`,
`dcp.async_save(state, storage_writer=Writer("checkpoints"), async_stager=stager)` and
`dcp.load(state, storage_reader=Reader("checkpoints"))`. Every rank writes a pack of what is new,
the coordinator commits all of them at once, and any number of ranks can load. On several ranks,
async_save needs a process group that nothing else uses, as `dist.new_group(backend="gloo")`.
"""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import StorageMeta

from elbowroom.errors import ElbowroomError, InvalidArgument
from elbowroom.store.checkpoint.dcp.reading import Moved, Reader
from elbowroom.store.checkpoint.dcp.staging import Stager
from elbowroom.store.checkpoint.dcp.writing import Writer
from elbowroom.store.checkpoint.retention import Keep

__all__ = ["Reader", "Stager", "Writer", "load", "save"]

_TRIES = 3


def save(
    state_dict: dict[str, Any],
    where: str | os.PathLike[str],
    *,
    step: int | None = None,
    keep: int | Keep | None = 3,
    hash: str = "xxh3-128",
    **options: Any,
) -> int:
    """Save a state of all ranks; return its step. Further options are those of torch's `save`."""
    writer = Writer(where, step=step, keep=keep, hash=hash)
    with contextlib.closing(writer), plain_errors():
        metadata = torch_dcp.save(state_dict, storage_writer=writer, **options)
    assert isinstance(metadata.storage_meta, StorageMeta)
    return int(str(metadata.storage_meta.save_id).partition("-")[0])


def load(
    state_dict: dict[str, Any],
    where: str | os.PathLike[str],
    *,
    step: int | None = None,
    **options: Any,
) -> int:
    """Load into a state, in place; return the step. Further options are those of torch's `load`.

    What is damaged raises CorruptData; the state may then hold some of it already.
    """
    reader = Reader(where, step=step)
    for left in reversed(range(_TRIES)):
        try:
            with plain_errors(reader):
                torch_dcp.load(state_dict, storage_reader=reader, **options)
            break
        except Moved:
            if not left:
                raise
    assert reader.step is not None
    return reader.step


@contextlib.contextmanager
def plain_errors(reader: Reader | None = None) -> Iterator[None]:
    """Raise what went wrong in place of torch's exception, which `except Exception` would miss."""
    with warnings.catch_warnings():
        # A single process is meant where there is but one.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        # What it logs with a traceback is raised.
        logging.getLogger().addFilter(_is_news)
        try:
            yield
        except CheckpointException as wrapped:
            if reader is not None and reader.problem is not None:
                raise reader.problem from wrapped
            failures = sorted(wrapped.failures.items(), key=lambda pair: pair[0])
            ours = [pair for pair in failures if isinstance(pair[1][0], ElbowroomError | OSError)]
            rank, (error, _) = (ours or failures)[0]
            if isinstance(error, RuntimeError | ValueError | AssertionError) and not ours:
                # A name or a size that is not in the checkpoint, or metadata that another rank
                # could not read.
                error = InvalidArgument(f"{error} (rank {rank})")
            raise error from wrapped
        finally:
            logging.getLogger().removeFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Global metadata is not found")
