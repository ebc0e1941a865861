"""Manifests that someone has made up: refused before anything is done that they ask for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from elbowroom.errors import CorruptData, ElbowroomError, IncompatibleFormat
from elbowroom.store.checkpoint import manifest as manifests
from elbowroom.store.checkpoint.dcp import Reader, load, save

Change = Callable[[dict[str, Any]], Any]


def forge(folder: Path, change: Change) -> None:
    """Change a manifest, and give it the digest that it needs."""
    (path,) = (folder / "manifests").iterdir()
    held = manifests.unseal(path.read_bytes(), path.name)
    change(held)
    path.write_bytes(manifests.seal(json.dumps(held)))


def state() -> dict[str, Any]:
    return {"w": torch.arange(12.0).reshape(3, 4), "n": 5, "l": [torch.ones(2), {"x": (1, 2)}]}


def items(held: dict[str, Any]) -> dict[str, Any]:
    return held["facts"]["dcp"]["items"]


def put(*path: Any) -> Change:
    """Set a value, the last of the path, in what the facts say."""

    def change(held: dict[str, Any]) -> None:
        at = held["facts"]["dcp"]
        for key in path[:-2]:
            at = at[key]
        at[path[-2]] = path[-1]

    return change


CHANGES: dict[str, Change] = {
    "no items": lambda held: held["facts"]["dcp"].pop("items"),
    "items of a list": put("items", []),
    "no facts": lambda held: held["facts"].update(dcp=7),
    "a type that there is not": put("items", "w", "dtype", "object"),
    "a type of many types": put("items", "w", "dtype", ["float32"]),
    "a size below nothing": put("items", "w", "size", [-3, 4]),
    "a size beyond all": put("items", "w", "size", [1 << 80, 4]),
    "a size of text": put("items", "w", "size", "34"),
    "a size of too many": put("items", "w", "size", [1] * 1000),
    "a chunk outside": put("items", "w", "chunks", 0, 0, [1, 0]),
    "a chunk that was not saved": put("items", "w", "chunks", 0, 1, [2, 4]),
    "a chunk of other dimensions": put("items", "w", "chunks", 0, 1, [12]),
    "a chunk of no numbers": put("items", "w", "chunks", 0, 1, [3.0, 4.0]),
    "a part that there is not": put("items", "w", "chunks", 0, 2, 1),
    "a part from the end": put("items", "w", "chunks", 0, 2, -1),
    "a place that there is not": put("items", "w", "chunks", 0, 3, 99),
    "a place that is true": put("items", "w", "chunks", 0, 3, True),
    "a tensor that is an object": put("items", "w", "chunks", 0, 3, 1),
    "an object nowhere": put("items", "n", [0]),
    "an object far off": put("items", "n", [0, 10**30]),
    "a flag that is none": put("items", "w", "pin_memory", "yes"),
    "a format that there is not": put("items", "w", "format", "__class__"),
    "paths of a list": put("paths", []),
    "an empty path": put("paths", "w", []),
    "a path of text": put("paths", "w", "w"),
    "a path that begins with a number": put("paths", "l.0", [0, 0]),
    "a path that fills the memory": put("paths", "l.0", ["l", 1 << 40]),
    "a path from the end": put("paths", "l.0", ["l", -1]),
    "a path of paths": put("paths", "l.0", [["l"], 0]),
    "a tree of a list": lambda held: held["parts"][0].update(tree=[]),
    "a tree that is nothing": lambda held: held["parts"][0].update(tree=None),
    "an item without a value": lambda held: held["parts"][0]["tree"].update(dict=[["w"]] * 9),
    "a tensor that there is not": lambda held: held["parts"][0]["tree"]["dict"][0].__setitem__(
        1, {"tensor": 77}
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_metadata_that_makes_no_sense_is_refused(tmp_path: Path, name: str) -> None:
    save(state(), tmp_path)
    forge(tmp_path, CHANGES[name])
    with pytest.raises(CorruptData):
        load(state(), tmp_path)
    with pytest.raises(ElbowroomError):
        Reader(tmp_path).read_metadata()


OBJECTS: dict[str, Any] = {
    "a function": {"function": "os.system"},
    "a pickle": {"pickle": "63706f7369780a"},
    "a set of lists": {"set": [[1]]},
    "an array of objects": {"numpy": "|O", "scalar": "00"},
    "a tensor of another": {"tuple": [{"tensor": 10**9}]},
    "a deep nest": None,
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_that_are_none_are_refused(tmp_path: Path, name: str) -> None:
    save(state(), tmp_path)
    value = OBJECTS[name]
    for _ in range(400 if value is None else 0):
        value = [value]

    def change(held: dict[str, Any]) -> None:
        position = items(held)["n"][1]
        held["parts"][0]["tree"]["dict"][position][1] = value

    forge(tmp_path, change)
    with pytest.raises(CorruptData):
        load(state(), tmp_path)


def test_another_version_is_told(tmp_path: Path) -> None:
    save(state(), tmp_path)
    forge(tmp_path, put("version", 2))
    with pytest.raises(IncompatibleFormat, match="its version is 2, and this one reads 1"):
        Reader(tmp_path).read_metadata()


def test_unforged_metadata_makes_a_state_by_itself(tmp_path: Path) -> None:
    save(state(), tmp_path)
    forge(tmp_path, lambda held: None)
    made: dict[str, Any] = {}
    _load_state_dict(made, Reader(tmp_path), no_dist=True, planner=_EmptyStateDictLoadPlanner())
    assert torch.equal(made["w"], state()["w"])
    assert torch.equal(made["l"][0], torch.ones(2))
    assert made["n"] == 5
    assert made["l"][1]["x"] == (1, 2)
