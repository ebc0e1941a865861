"""Every state comes back as it was, and what cannot be held is refused by name."""

import json
import math
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.store.checkpoint.state import MOST_DEPTH, MOST_DEPTH_READ, flatten, unflatten


def there_and_back(state: Any) -> Any:
    tree, tensors = flatten(state, "state")
    return unflatten(json.loads(json.dumps(tree, allow_nan=False)), lambda n: tensors[n][1])


def same(a: Any, b: Any) -> bool:
    """Equal in type and value, NaN included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor | np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=True)
        return len(a) == len(b) and all(same(k, m) and same(v, w) for (k, v), (m, w) in pairs)
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
KEYS = st.text() | st.integers() | st.booleans() | st.tuples(st.integers(), st.text())
STATES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(deque)
        | st.dictionaries(KEYS, inner)
        | st.dictionaries(KEYS, inner).map(OrderedDict)
    ),
    max_leaves=20,
)


@given(STATES)
def test_any_state_comes_back(state: Any) -> None:
    assert same(state, there_and_back(state))


@pytest.mark.parametrize(
    "state",
    [
        random.Random(1).getstate(),
        np.random.RandomState(1).get_state(legacy=False),
        torch.Generator().manual_seed(1).get_state(),
        Counter({3: 2, 9: 1}),
        {1, 2, (3, "x")},
        frozenset("ab"),
        deque([1, 2], maxlen=2),
        range(3, 9, 2),
        complex(1, -0.0),
        torch.Size([2, 3]),
        torch.bfloat16,
        np.float32(1.5),
        np.arange(6, dtype=">i2").reshape(2, 3),
        np.zeros((0, 3)),
        -0.0,
        math.inf,
        10**100,
        bytearray(b"abc"),
    ],
)
def test_types_that_states_of_training_have(state: Any) -> None:
    back = there_and_back({"x": [state]})["x"][0]
    assert type(back) is type(state) and str(back) == str(state)
    if isinstance(state, deque):
        assert back.maxlen == state.maxlen


def test_defaults_devices_and_versions_of_modules() -> None:
    counts = defaultdict(list, {"a": [1]})
    back = there_and_back(counts)
    assert back["new"] == [] and back["a"] == [1]
    assert there_and_back(torch.device("cpu")) == torch.device("cpu")
    state = nn.BatchNorm1d(3).state_dict()
    assert vars(there_and_back(state)) == vars(state) != {}


def test_what_cannot_be_held_is_named() -> None:
    for state, said in [
        ({"a": [object()]}, r"state\['a'\]\[0\] is a builtins.object, which a checkpoint cannot"),
        ({"f": print}, r"state\['f'\] is a builtins"),
        (defaultdict(lambda: 1), "defaultdict of <function"),
        ({"a": np.array([object()])}, "numpy.ndarray of object"),
        # Their short names are those of bytes without fields, which would come back in their place.
        ({"a": np.zeros(2, [("x", "i4")])}, r"numpy.ndarray of \[\('x', '<i4'\)\], which"),
        ({"a": np.zeros(2, [("x", "i4")])[0]}, "numpy.void of"),
        ({"n": 1 << 100_000}, "an integer of 100001 bits"),
    ]:
        with pytest.raises(InvalidArgument, match=said):
            flatten(state, "state")
    deep: Any = 1
    for _ in range(MOST_DEPTH + 2):
        deep = [deep]
    with pytest.raises(InvalidArgument, match="nested more than"):
        flatten(deep, "state")
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidArgument, match="contains itself"):
        flatten(loop, "state")


@pytest.mark.parametrize("limit", [1000, 20_000])
def test_depth_is_refused_whatever_python_allows(
    limit: int, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(sys.setrecursionlimit, sys.getrecursionlimit()))
    sys.setrecursionlimit(limit)
    deepest: Any = 1
    for number in range(MOST_DEPTH):
        deepest = [deepest] if number % 2 else {"a": deepest}
    tree, _ = flatten(deepest, "state")
    assert unflatten(tree, lambda number: torch.empty(0)) == deepest
    forged: Any = 1
    for _ in range(MOST_DEPTH_READ + 1):
        forged = {"dict": [["a", forged]]}
    with pytest.raises(CorruptData, match="nested deeper"):
        unflatten(forged, lambda number: torch.empty(0))


WORDS = (
    "tensor tuple dict numpy scalar shape at float complex deque most defaultdict factory Counter "
    "set size range x"
).split()
JSON = st.recursive(
    PLAIN.filter(lambda value: not isinstance(value, bytes)),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(WORDS),
            inner,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_hostile_trees_are_refused_or_read(tree: Any) -> None:
    def tensor_at(number: Any) -> torch.Tensor:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2:
            raise CorruptData("no such tensor")
        return torch.zeros(8, dtype=torch.uint8)

    try:
        unflatten(tree, tensor_at)
    except CorruptData:
        pass


def test_trees_deeper_than_any_are_refused() -> None:
    tree: Any = 1
    for _ in range(1000):
        tree = {"tuple": [tree]}
    with pytest.raises(CorruptData, match="nested deeper"):
        unflatten(tree, lambda number: torch.zeros(1))


@pytest.mark.parametrize("kind", ["dict", "set", "frozenset", "Counter", "defaultdict"])
def test_keys_of_one_hash_are_refused(kind: str) -> None:
    """Integers that differ by 2**61 - 1 have one hash: a megabyte of them took half a minute."""
    keys = [1 + number * (2**61 - 1) for number in range(30_000)]
    items = keys if kind.endswith("set") else [[key, 1] for key in keys]
    tree: dict[str, Any] = {kind: items, **({"factory": None} if kind == "defaultdict" else {})}
    with pytest.raises(CorruptData, match="more than 64 keys have one hash"):
        unflatten(tree, torch.zeros)
    few = {key: 1 for key in keys[:60]}
    packed, _ = flatten(few, "x")
    assert unflatten(packed, torch.zeros) == few
    with pytest.raises(InvalidArgument, match=r"x cannot be kept .* more than 64 keys"):
        flatten({key: 1 for key in keys[:70]}, "x")
