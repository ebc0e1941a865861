"""What a folder of torch.distributed.checkpoint says of itself, read without running anything.

Its file `.metadata` is a pickle: a program for a machine with a stack. Here is a machine that knows
the few instructions and types that descriptions of tensors consist of, and refuses all others.
"""

import pickletools
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from elbowroom.errors import CorruptData, InvalidArgument

_KINDS = (
    *(metadata.Metadata, metadata.TensorStorageMetadata, metadata.TensorProperties),
    *(metadata.BytesStorageMetadata, metadata.ChunkStorageMetadata, metadata.StorageMeta),
    *(MetadataIndex, filesystem._StorageInfo),  # pyright: ignore[reportPrivateUsage]
)
_CLASSES = {(kind.__module__, kind.__name__): kind for kind in _KINDS}
_CALLS: dict[tuple[str, str], Any] = {
    (metadata.__name__, "_MEM_FORMAT_ENCODING"): metadata._MEM_FORMAT_ENCODING,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): {"torch.strided": torch.strided}.__getitem__,
    ("pathlib", "PosixPath"): lambda *parts: "/".join(map(str, parts)),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = frozenset(
    "BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8".split()
)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NEVER = "only descriptions of tensors are read from a pickle: save plain tensors"


def read_description(data: bytes, where: str) -> Metadata:
    """The metadata that a pickle makes; refuses one that would make anything else."""
    try:
        found = _Machine(where).run(data)
    except InvalidArgument:
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, RecursionError) as error:
        said = " ".join(str(error).split())[:200]
        raise CorruptData(f"{where} describes no checkpoint, or is damaged ({said})") from None
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
        raise CorruptData(f"{where} describes no checkpoint")
    return found


class _Machine:
    def __init__(self, where: str) -> None:
        self._where = where
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for code, argument, _ in pickletools.genops(data):
            if code.name == "STOP":
                return self._stack.pop()
            self._do(code.name, argument)
        raise ValueError("it ends too soon")

    def _do(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            stack.append({"EMPTY_DICT": {}, "EMPTY_LIST": [], "EMPTY_TUPLE": ()}[name])
        elif name in _TUPLES:
            stack.append(tuple(self._take(len(stack) - _TUPLES[name])))
        elif name == "TUPLE":
            stack.append(tuple(self._marked()))
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else self._marked()
            self._top(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._take(len(stack) - 2) if name == "SETITEM" else self._marked()
            for key, value in zip(items[::2], items[1::2], strict=True):
                if not isinstance(key, str | MetadataIndex):
                    raise TypeError(f"a key of type {type(key).__name__}")
                self._top(dict)[key] = value
        elif name == "GLOBAL":
            stack.append(self._find(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            stack.append(self._find(*self._take(len(stack) - 2)))
        elif name == "NEWOBJ":
            kind, arguments = self._take(len(stack) - 2)
            if kind not in _KINDS or arguments:
                raise TypeError("an object of no kind")
            stack.append(object.__new__(kind))
        elif name == "REDUCE":
            call, arguments = self._take(len(stack) - 2)
            if not any(call is one for one in _CALLS.values()):
                raise TypeError("a call of no function")
            stack.append(call(*arguments))
        elif name == "BUILD":
            self._build(stack.pop())
        else:
            raise InvalidArgument(f"{self._where} has an instruction {name}, and {_NEVER}")

    def _build(self, state: Any) -> None:
        made = self._stack[-1]
        if type(made) not in _KINDS:
            raise TypeError("a state of no object")
        if isinstance(made, metadata.TensorProperties):
            made.__setstate__(state)
        else:
            vars(made).update({str(name): value for name, value in state.items()})

    def _find(self, module: str, name: str) -> Any:
        found = _CLASSES.get((module, name), _CALLS.get((module, name)))
        dtype = getattr(torch, name, None) if module == "torch" else None
        if found is None and not isinstance(dtype, torch.dtype):
            raise InvalidArgument(f"{self._where} has a {f'{module}.{name}'[:80]!r}, and {_NEVER}")
        return dtype if found is None else found

    def _top(self, kind: type) -> Any:
        if type(self._stack[-1]) is not kind:
            raise TypeError(f"no {kind.__name__} to add to")
        return self._stack[-1]

    def _marked(self) -> list[Any]:
        return self._take(self._marks.pop())

    def _take(self, start: int) -> list[Any]:
        if start < 0:
            raise IndexError("too little on the stack")
        taken = self._stack[start:]
        del self._stack[start:]
        return taken
