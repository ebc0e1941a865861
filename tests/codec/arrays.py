"""Arrays and bounds of every kind, for the tests of the codec."""

import math
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from elbowroom import Blob, Bound, decode, encode
from elbowroom.codec.blob import largest_nbytes
from elbowroom.codec.bound import Array

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [
    *(torch.int8, torch.uint8, torch.int16, torch.uint16),
    *(torch.int32, torch.uint32, torch.int64, torch.uint64),
]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]
CONTENTS = ["smooth", "noisy", "special", "constant", "bits"]
LAYOUTS = ["rows", "permuted", "sliced", "expanded", "shifted"]

SPECIALS = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-310, 5e-324, 65504.0]
SPECIALS += [3.4028234663852886e38, -3.4028234663852886e38, 1.7976931348623157e308, 1e-30, 1.0]


def make_values(count: int, dtype: torch.dtype, content: str, seed: int) -> torch.Tensor:
    """Make items that are smooth, noisy, mixed with special ones, constant, or any bits at all."""
    rng = np.random.default_rng(seed)
    if dtype == torch.bool:
        return torch.from_numpy(rng.random(count) < 0.3)
    if content == "bits" or not dtype.is_floating_point:
        drawn = np.frombuffer(rng.bytes(count * dtype.itemsize), np.uint8).copy()
        if content in ("smooth", "constant"):  # small numbers: all but the lowest byte are zero
            drawn.reshape(-1, dtype.itemsize)[:, 1:] = 0
        return torch.from_numpy(drawn).view(dtype)
    if content == "constant":
        numbers = np.full(count, rng.standard_normal())
    elif content == "smooth":
        numbers = np.cumsum(rng.standard_normal(count)) * 0.01
    else:
        numbers = rng.standard_normal(count) * 10.0 ** rng.integers(-6, 6)
    if content == "special":
        numbers = np.where(rng.random(count) < 0.2, rng.choice(SPECIALS, count), numbers)
    return torch.from_numpy(numbers).to(dtype)


def lay_out(flat: torch.Tensor, shape: tuple[int, ...], layout: str, seed: int) -> torch.Tensor:
    """Give items a shape, and a place in memory that is not always one after another."""
    if not shape:
        return flat[:1].reshape(())
    axes = np.random.default_rng(seed).permutation(len(shape)).tolist()
    count = math.prod(shape)
    if layout == "permuted":
        inverse = np.argsort(axes).tolist()
        return flat[:count].reshape([shape[axis] for axis in axes]).permute(inverse)
    if layout == "sliced":
        wide = flat.repeat(2)[: 2 * count].reshape(*shape[:-1], 2 * shape[-1])
        return wide[..., ::2]
    if layout == "expanded":
        row = flat[: shape[-1]]
        return row.expand(shape)
    if layout == "shifted" and count:
        return flat.repeat(2)[1 : count + 1].reshape(shape)
    return flat[:count].reshape(shape)


@st.composite
def tensors(
    draw: st.DrawFn, dtypes: list[torch.dtype] | None = None, max_items: int = 600
) -> torch.Tensor:
    """Draw a tensor of any type, shape and layout."""
    dtype = draw(st.sampled_from(dtypes or DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    if draw(st.booleans()) and shape:
        shape = (*shape[:-1], draw(st.integers(1, max_items)))
    while math.prod(shape) > max_items:
        shape = shape[1:]
    seed = draw(st.integers(0, 2**16))
    flat = make_values(max(math.prod(shape), 1), dtype, draw(st.sampled_from(CONTENTS)), seed)
    return lay_out(flat, shape, draw(st.sampled_from(LAYOUTS)), seed)


@st.composite
def arrays(draw: st.DrawFn, max_items: int = 600) -> Array:
    """Draw a tensor or a numpy array, the latter also reversed or of the other byte order."""
    x = draw(tensors(max_items=max_items))
    if x.dtype == torch.bfloat16 or draw(st.booleans()):
        return x
    array = x.numpy()
    how = draw(st.sampled_from(["as it is", "reversed", "big-endian"]))
    if how == "reversed" and array.ndim:
        return array[::-1]
    return array.astype(array.dtype.newbyteorder(">")) if how == "big-endian" else array


def bounds() -> st.SearchStrategy[Bound]:
    """Draw a bound of any mode, from far too fine to far too coarse."""
    exponents = st.floats(-12, 4)
    sizes = exponents.map(lambda exponent: 10.0**exponent)
    extremes = st.sampled_from([0.0, 5e-324, 1e-300, 1e-38, 2.0**-100, 1e30, 1e38, 1e300])
    lengths = st.one_of(sizes, extremes)
    return st.one_of(
        st.just(Bound.lossless()),
        st.builds(Bound.absolute, lengths, keep_sign=st.booleans()),
        st.builds(Bound.range_relative, lengths, keep_sign=st.booleans()),
        st.builds(Bound.pointwise_relative, st.floats(-12, -0.01).map(lambda e: 10.0**e)),
    )


def same_bits(x: Array, y: Array) -> bool:
    """Whether two arrays are equal bit for bit, NaNs included."""
    return Bound.lossless().holds(x, y)


def native_order(x: Array) -> Array:
    return x if isinstance(x, torch.Tensor) else x.astype(x.dtype.newbyteorder("="))


def check(x: Array, bound: Bound, **options: Any) -> Blob:
    """Encode, decode, and hold the result against everything that is promised."""
    blob = encode(x, bound, **options)
    y = decode(blob)
    expected = native_order(x)
    assert type(y) is (torch.Tensor if isinstance(x, torch.Tensor) else np.ndarray)
    assert bound.holds(expected, y)
    assert blob.nbytes == len(blob.tobytes())
    assert blob.nbytes <= largest_nbytes(x.ndim, blob.item_count, expected.dtype.itemsize)
    assert (blob.shape, blob.dtype, blob.bound) == (tuple(x.shape), expected.dtype, bound)
    return blob
