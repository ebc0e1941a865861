"""The activation set: real tensors of trained networks, on which the benchmarks run."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from elbowroom.errors import CorruptData, InvalidArgument

FOLDER = Path(".cache/activations")
COMMAND = "python benchmarks/activation_set.py --out {folder} --large-mb 256"


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A named array that is read when it is needed."""

    name: str
    kind: str  # what it is in a network: post_relu, weights; "given" for a file of the user's
    read: Callable[[], np.ndarray | torch.Tensor]


def list_activations(folder: Path = FOLDER, *, large: bool = False) -> list[Tensor]:
    """Return the tensors of the set, or its few large ones."""
    where = folder / "large" if large else folder
    manifest = where / "manifest.json"
    if not manifest.exists():
        raise InvalidArgument(
            f"there is no activation set in {where}: make it with '{COMMAND.format(folder=folder)}'"
        )
    try:
        entries = [
            (str(entry["name"]), str(entry["kind"]), where / entry["file"])
            for entry in json.loads(manifest.read_text(encoding="utf-8"))
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{manifest} is damaged ({error}): make the set anew") from None
    return [
        Tensor(name=name, kind=kind, read=lambda path=path: np.load(path, allow_pickle=False))
        for name, kind, path in entries
    ]
