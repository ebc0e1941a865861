"""The tree of a state says what is where and how it is stored, whoever wrote it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from elbowroom.errors import CorruptData
from elbowroom.store.checkpoint.outline import Node, describe, leaves_of, outline
from elbowroom.store.checkpoint.state import flatten

from .holders import save

LEAF_ITEMS = 1 << 12


def noise(leaves: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (leaves * LEAF_ITEMS,), generator=generator).int()


def find(node: Node, *keys: Any) -> Node:
    for key in keys:
        (node,) = [child for child in node.children if child.key == key]
    return node


def test_how_each_tensor_is_stored(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(30_000)]
    for _ in range(3):
        weights.append(weights[-1] * (1 + 1e-5 * torch.randn(30_000)))
    frozen, large = noise(4, 1), noise(8, 2)
    changed = large.clone()
    changed[:LEAF_ITEMS] = noise(1, 3)
    states = [
        {"w": w, "frozen": frozen, "large": large if number < 3 else changed, "e": torch.ones(0)}
        for number, w in enumerate(weights)
    ]
    states[3]["tied"] = weights[3]
    store = save(tmp_path, *states)
    model = find(describe(store.manifest(store.names()[-1])), "model")
    stored = {child.key: child.stored for child in model.children}
    assert all(child.kind == "tensor" and child.entry is not None for child in model.children)
    w, kept, part, empty, tied = (stored[k] for k in ("w", "frozen", "large", "e", "tied"))
    assert w and kept and part and empty and tied
    assert w.coding not in ("", "zstd") and w.depth == 3 and w.nbytes == 120_000
    assert w.new_bytes == w.held_bytes < w.nbytes / 1.5
    assert (kept.coding, kept.depth, kept.new_bytes) == ("", 0, 0)
    assert kept.held_bytes == kept.nbytes == frozen.nbytes
    assert (part.coding, part.held_bytes, part.new_bytes) == ("", large.nbytes, 4 * LEAF_ITEMS)
    assert (empty.nbytes, empty.held_bytes, empty.twin) == (0, 0, None)
    assert tied.twin == "state['model']['w']" and w.twin is None
    first = find(describe(store.manifest(store.names()[0])), "model", "w")
    assert first.stored and first.stored.depth == 0 and first.stored.new_bytes > 0


def test_kinds_keys_and_values(tmp_path: Path) -> None:
    state = {
        "groups": [{"lr": 0.5, "betas": (0.9, 0.99)}, torch.ones(2)],
        1: {"array": np.arange(4), "none": None, "bytes": b"ab", "nothing": {}},
        (2, "x"): torch.bfloat16,
    }
    tree, tensors = flatten(state, "state")
    root = outline(tree, len(tensors))
    assert (root.kind, root.key) == ("dict", "state")
    assert [child.key for child in root.children] == ["groups", 1, (2, "x")]
    betas = find(root, "groups", 0, "betas")
    assert (betas.kind, betas.value) == ("tuple", [0.9, 0.99])
    assert (find(root, "groups", 1).kind, find(root, "groups", 1).value) == ("tensor", 0)
    assert (find(root, 1, "array").kind, find(root, 1, "array").value) == ("array", 1)
    assert find(root, 1, "bytes").value == b"ab" and find(root, (2, "x")).value == torch.bfloat16
    places = dict(leaves_of(root))
    assert [where for where, _ in tensors] == ["state['groups'][1]", "state[1]['array']"]
    assert all(where in places for where, _ in tensors)
    assert places["state[1]['nothing']"].kind == "dict" and len(places) == 8
    save(tmp_path, state)


def test_trees_that_nobody_wrote_are_refused() -> None:
    deep: Any = {"tensor": 0}
    for _ in range(300):
        deep = [deep]
    for tree in (
        *({"tensor": 1}, {"tensor": -1}, {"tensor": None}, {"numpy": "<i2", "at": "0"}),
        *({"dict": [[1, 2, 3]]}, {"dict": None}, {"dict": [[{"tensor": 0}, 1]]}, {}, {"x": 1}),
        *({"tuple": 3}, {"float": "zz"}, deep),
    ):
        with pytest.raises(CorruptData, match="the checkpoint's state"):
            outline(tree, 1)
