"""State of any shape as typed JSON with places for tensors, and back: nothing in it can run."""

import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elbowroom.errors import CorruptData, InvalidArgument

# Deeper than any state that people make, and far from the interpreter's own limit.
MOST_DEPTH = 64
# Of what is read: more than was ever written, and less than Python's own limit, whatever that is.
MOST_DEPTH_READ = 2 * MOST_DEPTH
# Larger integers take time that grows with their square to print and to read.
MOST_DIGITS = 4000
# Of keys that are all different; -1 and -2 have one, and few others that anybody uses.
MOST_OF_ONE_HASH = 64

_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}
_FACTORIES: dict[str, Callable[[], Any]] = {"int": int, "float": float, "list": list, "dict": dict}


def flatten(state: object, where: str) -> tuple[Any, list[tuple[str, Tensor]]]:
    """Return what JSON can hold of a state, and its tensors with the places they come from."""
    tensors: list[tuple[str, Tensor]] = []
    return _pack(state, where, tensors, ()), tensors


def unflatten(tree: object, tensor_at: Callable[[int], Tensor]) -> Any:
    """The state again; `tensor_at` gives the tensor of a number."""
    return _unpack(tree, tensor_at, 0)


def _pack(value: Any, where: str, tensors: list[tuple[str, Tensor]], above: tuple[int, ...]) -> Any:
    if len(above) > MOST_DEPTH:
        raise InvalidArgument(
            f"{where[:80]}... is nested more than {MOST_DEPTH} levels deep, which a checkpoint "
            "cannot hold: make it flatter"
        )
    if id(value) in above:
        raise InvalidArgument(f"{where} contains itself, which a checkpoint cannot hold")
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return _pack_integer(value, where)
    if kind is float:
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if isinstance(value, Tensor):
        tensors.append((where, value))
        return {"tensor": len(tensors) - 1}
    above = (*above, id(value))

    def inside(item: Any, name: object) -> Any:
        return _pack(item, f"{where}[{name!r}]", tensors, above)

    if kind is list:
        return [inside(item, number) for number, item in enumerate(value)]
    if kind is tuple or kind is torch.Size or kind is deque:
        name = {tuple: "tuple", torch.Size: "size", deque: "deque"}[kind]
        return {
            name: [inside(item, number) for number, item in enumerate(value)],
            **({"most": value.maxlen} if kind is deque else {}),
        }
    if kind is set or kind is frozenset:
        name = "set" if kind is set else "frozenset"
        _check_keys(value, where)
        # Sorted by what is written, so that equal sets give equal bytes.
        return {name: sorted((inside(item, "an item") for item in value), key=repr)}
    if kind in (dict, OrderedDict, Counter, defaultdict):
        return _pack_mapping(value, where, inside)
    return _pack_scalar(value, where, tensors)


def check_hashes(keys: Iterable[Any]) -> None:
    """Refuse keys of which very many have one hash: a dict of them takes the square of the time."""
    hashes = sorted(map(hash, keys))
    for at in range(len(hashes) - MOST_OF_ONE_HASH):
        if hashes[at] == hashes[at + MOST_OF_ONE_HASH]:
            raise ValueError(f"more than {MOST_OF_ONE_HASH} keys have one hash")


def _pack_integer(value: int, where: str) -> int:
    if value.bit_length() > 3 * MOST_DIGITS:
        raise InvalidArgument(
            f"{where} is an integer of {value.bit_length()} bits, which a checkpoint cannot hold: "
            "keep it as bytes"
        )
    return value


def _check_keys(keys: Iterable[Any], where: str) -> None:
    try:
        check_hashes(keys)
    except ValueError as error:
        raise InvalidArgument(
            f"{where} cannot be kept in a checkpoint, since {error}: use other keys"
        ) from None


def _pack_mapping(
    value: Mapping[Any, Any], where: str, inside: Callable[[Any, object], Any]
) -> dict[str, Any]:
    _check_keys(value, where)
    packed: dict[str, Any] = {
        type(value).__name__: [
            [inside(key, f"key {key!r}"), inside(item, key)] for key, item in value.items()
        ]
    }
    if hasattr(value, "_metadata"):
        # Versions of modules, by which load_state_dict knows what older ones have to be told.
        packed["metadata"] = inside(value._metadata, "_metadata")  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, defaultdict):
        made_by = value.default_factory
        names = [name for name, factory in _FACTORIES.items() if factory is made_by]
        if made_by is not None and not names:
            raise InvalidArgument(
                f"{where} is a defaultdict of {made_by!r}, which a checkpoint cannot hold: "
                "return a plain dict from state_dict"
            )
        packed["factory"] = names[0] if names else None
    return packed


def _pack_scalar(value: Any, where: str, tensors: list[tuple[str, Tensor]]) -> Any:
    kind = type(value)
    if kind is bytes or kind is bytearray:
        return {kind.__name__: value.hex()}
    if kind is complex:
        return {"complex": struct.pack(">dd", value.real, value.imag).hex()}
    if kind is torch.dtype:
        return {"dtype": str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {"device": str(value)}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, np.generic) and _is_told_by_text(value.dtype):
        return {"numpy": value.dtype.str, "scalar": value.tobytes().hex()}
    if kind is np.ndarray and _is_told_by_text(value.dtype):
        whole = np.ascontiguousarray(value)
        tensors.append((where, torch.from_numpy(whole.reshape(-1).view(np.uint8).copy())))
        return {"numpy": value.dtype.str, "shape": list(value.shape), "at": len(tensors) - 1}
    items = f" of {value.dtype}" if isinstance(value, np.ndarray | np.generic) else ""
    raise InvalidArgument(
        f"{where} is a {kind.__module__}.{kind.__qualname__}{items}, which a checkpoint cannot "
        "hold: return tensors, plain arrays, numbers, strings, lists and dicts of them from "
        "state_dict"
    )


def _is_told_by_text(dtype: np.dtype[Any]) -> bool:
    """Whether its short name says all: that of types with fields, or of others' types, does not."""
    return not dtype.hasobject and np.dtype(dtype.str) == dtype


def _unpack(tree: Any, tensor_at: Callable[[int], Tensor], depth: int) -> Any:
    if depth > MOST_DEPTH_READ:
        raise CorruptData("the checkpoint's state is nested deeper than any that was ever written")
    if tree is None or isinstance(tree, bool | str | int | float):
        return tree

    def inside(items: Any) -> list[Any]:
        if not isinstance(items, list):
            raise CorruptData(f"the checkpoint's state has {str(items)[:40]} in place of a list")
        return [_unpack(item, tensor_at, depth + 1) for item in items]

    if isinstance(tree, list):
        return inside(tree)
    if not isinstance(tree, dict) or not tree:
        raise CorruptData(f"the checkpoint's state has {str(tree)[:40]}, which means nothing")
    name = next(iter(tree))
    value = tree[name]
    try:
        if name == "tensor":
            return tensor_at(value)
        if name in _SEQUENCES:
            items = inside(value)
            if name in ("set", "frozenset"):
                check_hashes(items)
            return _SEQUENCES[name](items)
        if name == "deque":
            return deque(inside(value), tree["most"])
        if name in _MAPPINGS:
            made = _unpack_mapping(tree, name, [inside(pair) for pair in value])
            if "metadata" in tree:
                made._metadata = _unpack(tree["metadata"], tensor_at, depth + 1)
            return made
        if name == "numpy":
            return _unpack_numpy(tree, tensor_at)
        if name in _SCALARS:
            return _SCALARS[name](value)
    except (
        TypeError,
        ValueError,
        KeyError,
        OverflowError,
        RuntimeError,
        AttributeError,
        struct.error,
    ) as error:
        raise CorruptData(f"the checkpoint's state has a broken {name}: {error}") from error
    raise CorruptData(f"the checkpoint's state has a {str(name)[:40]!r}, which means nothing")


def _unpack_mapping(tree: dict[str, Any], name: str, pairs: list[list[Any]]) -> Any:
    check_hashes(key for key, _ in pairs)
    if name == "defaultdict":
        factory = tree["factory"]
        return defaultdict(None if factory is None else _FACTORIES[factory], dict(pairs))
    # A Counter counts what it is given in pairs; as a dict it takes them for counts.
    return _MAPPINGS[name](dict(pairs))


def _unpack_numpy(tree: dict[str, Any], tensor_at: Callable[[int], Tensor]) -> Any:
    dtype = np.dtype(tree["numpy"])
    if dtype.hasobject:
        raise CorruptData("the checkpoint's state has an array of Python objects")
    if "scalar" in tree:
        return np.frombuffer(bytes.fromhex(tree["scalar"]), dtype)[0]
    shape = tuple(int(size) for size in tree["shape"])
    return tensor_at(tree["at"]).numpy().copy().view(dtype).reshape(shape)


def _dtype(name: str) -> torch.dtype:
    return _DTYPES[name]


_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "size": torch.Size,
    "set": set,
    "frozenset": frozenset,
}
_MAPPINGS: dict[str, Callable[[dict[Any, Any]], Any]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": Counter,
    "defaultdict": dict,
}
_SCALARS: dict[str, Callable[[Any], Any]] = {
    "float": lambda text: struct.unpack(">d", bytes.fromhex(text))[0],
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda text: complex(*struct.unpack(">dd", bytes.fromhex(text))),
    "dtype": _dtype,
    "device": torch.device,
    "range": lambda ends: range(*ends),
}
