"""Random arrays, bounds and options: whatever is drawn, everything that is promised holds."""

import math
import random
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from elbowroom import Blob, Bound, _native, decode, encode
from elbowroom.codec.blob import largest_nbytes
from elbowroom.codec.bound import Array
from elbowroom.errors import CorruptData, IncompatibleFormat
from tests.codec.arrays import CONTENTS, DTYPES, FLOATS, LAYOUTS, lay_out, make_values, native_order
from tests.codec.mutations import mutated

# The reference takes a millisecond for some dozen items.
REFERENCE_ITEMS = 1500
SIZES = [0, 1, 2, 7, 63, 64, 65, 300, 1000, 8191, 8192, 20000, 65535, 65536, 65537, 200_000]
LARGE_SIZES = [2_031_616, 2_031_617, 4_194_305]


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One example; the same seed draws the same."""

    x: Array
    bound: Bound
    options: dict[str, Any]

    def __str__(self) -> str:
        x = self.x
        strides = x.stride() if isinstance(x, torch.Tensor) else x.strides
        return f"{x.dtype} {tuple(x.shape)} strides {strides}, {self.bound!r}, {self.options}"


def draw(seed: str) -> Draw:
    """Draw an example."""
    rng = random.Random(seed)
    dtype = rng.choice(DTYPES if rng.random() < 0.4 else FLOATS)
    count = rng.choice(LARGE_SIZES) if rng.random() < 0.01 else rng.choice(SIZES)
    shape = _shape(rng, count)
    content = rng.choice(CONTENTS)
    number = rng.randrange(2**32)
    flat = make_values(max(math.prod(shape), 1), dtype, content, number)
    x: Array = lay_out(flat, shape, rng.choice(LAYOUTS), number)
    if dtype != torch.bfloat16 and rng.random() < 0.3:
        x = x.numpy()
        if rng.random() < 0.2:
            x = x.astype(x.dtype.newbyteorder(">"))
        if rng.random() < 0.2 and x.ndim:
            x = x[::-1]
    bound = _bound(rng)
    options: dict[str, Any] = {
        "codec": rng.choice(["auto", "block", "dense", "raw"]),
        "effort": rng.choice(["ratio", "balanced", "speed"]),
        "threads": rng.choice([None, 1, 2, 3]),
    }
    if bound.mode in (1, 2) and not bound.keep_sign and rng.random() < 0.3:
        options["dither"] = rng.randrange(2**32)
    return Draw(x=x, bound=bound, options=options)


def _shape(rng: random.Random, count: int) -> tuple[int, ...]:
    """A shape of about so many items, with axes of any length."""
    if count == 0:
        return rng.choice([(0,), (3, 0), (0, 5, 2)])
    shape: list[int] = []
    left = count
    while left > 1 and len(shape) < 5 and rng.random() < 0.6:
        axis = min(left, rng.choice([1, 2, 3, 5, 16, 17, 64, 100, 257, 1000]))
        shape.append(axis)
        left //= axis
    shape.insert(rng.randint(0, len(shape)), left)
    return tuple(shape) if rng.random() < 0.98 else ()


def _bound(rng: random.Random) -> Bound:
    value = 10.0 ** rng.uniform(-9, 3)
    if rng.random() < 0.1:
        value = rng.choice([5e-324, 1e-300, 1e-38, 2.0**-100, 1e30, 1e38, 1e300])
    keep_sign = rng.random() < 0.3
    return rng.choice(
        [
            Bound.lossless(),
            Bound.absolute(value, keep_sign=keep_sign),
            Bound.absolute(value, keep_sign=keep_sign),
            Bound.range_relative(min(value, 10.0), keep_sign=keep_sign),
            Bound.pointwise_relative(10.0 ** rng.uniform(-9, -0.01)),
        ]
    )


def fault(seed: str) -> str | None:
    """Run one example and the damage of its blob; say what is wrong, if anything is."""
    example = draw(seed)
    try:
        return _fault(seed, example)
    except Exception:
        return f"{traceback.format_exc()}: {example}"


def _fault(seed: str, example: Draw) -> str | None:
    x, bound = example.x, example.bound
    rng = random.Random(f"{seed} levels")
    before = _native.isa()
    try:
        _native.set_isa(rng.choice(_native.isa_levels()))
        blob = encode(x, bound, **example.options)
        data = blob.tobytes()
        _native.set_isa(rng.choice(_native.isa_levels()))
        alone: dict[str, Any] = {**example.options, "threads": 1}
        # Whether the host flushes denormals must not matter either.
        torch.set_flush_denormal(rng.random() < 0.3)
        again = encode(x, bound, **alone).tobytes()
        torch.set_flush_denormal(False)
        if again != data:
            return f"other bytes at another level, with one thread or without denormals: {example}"
        y = decode(Blob.frombytes(data), threads=rng.choice([None, 1, 3]))
        expected = native_order(x)
        if type(y) is not (torch.Tensor if isinstance(x, torch.Tensor) else np.ndarray):
            return f"came back as {type(y)}: {example}"
        if not bound.holds(expected, y):
            return f"the bound is broken: {example}"
        if len(data) > largest_nbytes(x.ndim, blob.item_count, expected.dtype.itemsize):
            return f"{len(data)} bytes are too many: {example}"
        for other in (expected, _changed(expected, rng)):
            if not bound.holds(other, decode(encode(other, bound, like=blob))):
                return f"the bound is broken with like=: {example}"
        if blob.item_count <= REFERENCE_ITEMS:
            return _reference_fault(example, blob, rng)
    finally:
        torch.set_flush_denormal(False)
        _native.set_isa(before)
    return None


def _changed(x: Array, rng: random.Random) -> Array:
    """The array much larger or smaller, as far as its type allows."""
    factor = rng.choice([1e-3, 3, 1000, 1e6])
    if isinstance(x, torch.Tensor):
        return x * factor if x.is_floating_point() else x
    with np.errstate(all="ignore"):
        return np.asarray(x * x.dtype.type(factor)) if x.dtype.kind == "f" else x


def _reference_fault(example: Draw, blob: Blob, rng: random.Random) -> str | None:
    """Whether the reference writes and reads the same, also where bytes are damaged."""
    options: dict[str, Any] = {**example.options, "backend": "reference"}
    if encode(example.x, example.bound, **options).tobytes() != blob.tobytes():
        return f"the reference writes other bytes: {example}"
    data = blob.tobytes()
    for _ in range(3):
        damaged = mutated(data, rng, repair=True)
        results = [outcome(damaged, backend) for backend in ("native", "reference")]
        if results[0] != results[1]:
            return (
                f"native and reference read damaged bytes differently: {example}, {damaged.hex()}"
            )
    return None


def outcome(data: bytes, backend: Any) -> bytes | None:
    """The bits of what some bytes decode to; None if they are refused."""
    try:
        y = decode(data, backend=backend)
    except (CorruptData, IncompatibleFormat):
        return None
    if isinstance(y, torch.Tensor):
        y = (y.view(torch.int16) if y.dtype == torch.bfloat16 else y).numpy()
    return y.tobytes()
