"""What a step leaves behind in Python, taken away again where a step was only tried out."""

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

_MOST_ITEMS = 256


class Traces:
    """Contents of lists and dictionaries, and where generators stand that are not torch's own."""

    def __init__(self, values: Iterable[Any]) -> None:
        """`values` are what names of a step name."""
        self._puts: list[Callable[[], object]] = [_python(), _numpy()]
        for value in values:
            put = _put_back(value)
            if put is not None:
                self._puts.append(put)

    def take_away(self) -> None:
        """Everything is as it was."""
        for put in self._puts:
            put()


def _python() -> Callable[[], object]:
    state = random.getstate()
    return lambda: random.setstate(state)


def _numpy() -> Callable[[], object]:
    state = np.random.get_state()  # noqa: NPY002
    return lambda: np.random.set_state(state)  # noqa: NPY002


def _put_back(value: Any) -> Callable[[], object] | None:
    if isinstance(value, torch.Generator):
        place = value.get_state()
        return lambda: value.set_state(place)
    if isinstance(value, np.random.Generator):
        bits = value.bit_generator
        inner = bits.state
        return lambda: setattr(bits, "state", inner)
    if isinstance(value, np.random.RandomState):
        legacy = value.get_state()
        return lambda: value.set_state(legacy)
    if isinstance(value, random.Random):
        own = value.getstate()
        return lambda: value.setstate(own)
    if type(value) in (list, dict, set, deque) and len(value) <= _MOST_ITEMS:
        return _content(value)
    if isinstance(value, np.ndarray) and value.flags.writeable and value.nbytes <= 1 << 20:
        numbers = value.copy()
        return lambda: np.copyto(value, numbers)
    return None


def _content(value: Any) -> Callable[[], object]:
    before = value.copy()

    def put() -> None:
        if len(value) == len(before) and _are_the_same(value, before):
            return
        value.clear()
        value.update(before) if hasattr(value, "update") else value.extend(before)

    return put


def _are_the_same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(k in other and v is other[k] for k, v in one.items())
    if isinstance(one, set):
        return one == other
    return all(a is b for a, b in zip(one, other, strict=True))
