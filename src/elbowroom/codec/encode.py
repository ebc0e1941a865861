"""Array and bound to blob.

The guarantee is made below this module: the kernels check every value against the bound in the
arithmetic of the decoder, and store what would break it as it is. Here the array is looked at,
the quantiser and the codec are chosen, and what did not get smaller is stored raw.
"""

import math
import struct
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from elbowroom import _native
from elbowroom.codec.backends import backend_named
from elbowroom.codec.blob import RAW_CHUNK_ITEMS, Blob
from elbowroom.codec.bound import Array, Bound, Mode
from elbowroom.codec.float_env import default_float_env, is_default
from elbowroom.codec.layout import Source, source_of
from elbowroom.codec.opaque import opaque
from elbowroom.codec.quantise import EXACT, Quantiser, settle
from elbowroom.codec.recipe import Codec, Dtype
from elbowroom.codec.threads import thread_count
from elbowroom.errors import InvalidArgument

# Below this many items the tables of the dense codec cost more than they save.
SMALL_ITEMS = 8192

_AUTO = -1
_CODECS = {
    "auto": _AUTO,
    "raw": int(Codec.RAW),
    "block": int(Codec.BLOCK),
    "dense": int(Codec.DENSE),
}
_EFFORTS = {"ratio", "speed"}
_DENSE = int(Codec.DENSE)
_BLOCK = int(Codec.BLOCK)
_RAW = int(Codec.RAW)
_WIDEST_FLOAT = int(Dtype.F64)

# A recipe: what the quantiser settles and the method, then columns and rows, then the rest of
# the choices, whose meaning is the kernels' business.
_FRONT = struct.Struct("<BBB?IdddB3x")
_GEOMETRY = slice(36, 44)
_REST = bytes(20)


@opaque
def encode(
    x: Array,
    bound: Bound,
    *,
    codec: Literal["auto", "block", "dense", "raw"] = "auto",
    effort: Literal["ratio", "speed"] = "ratio",
    dither: int | None = None,
    like: Blob | None = None,
    threads: int | None = None,
    backend: Literal["native", "reference"] | None = None,
) -> Blob:
    """Encode an array so that no value moves further than the bound.

    Args:
        x: A torch tensor or numpy array of floats, integers or bools, of any shape. A dense array
            is read in the order in which it lies in memory and comes back with the same strides;
            any other is copied first and comes back row-major. Gradients are ignored. A tensor on
            another device is copied to the host, and decoding takes it back there.
        bound: How far a value may move, such as `Bound.absolute(1e-3)`.
        codec: "block" is fast, "dense" is small, "raw" only stores; "auto" decides by effort and
            size.
        effort: "ratio" looks for the smallest blob, "speed" for the fastest way.
        dither: A seed. The error then is uniform noise that does not depend on the value, which
            keeps averages unbiased.
        like: A blob of a similar array, such as the same tensor one step earlier: its choices are
            taken over, which saves looking for them.
        threads: By default ELBOWROOM_THREADS or torch's number, and one for small arrays.
        backend: "reference" is the slow oracle.

    Returns:
        A blob, at most a header larger than the array.
    """
    if not is_default():
        with default_float_env():
            return encode(
                x,
                bound,
                codec=codec,
                effort=effort,
                dither=dither,
                like=like,
                threads=threads,
                backend=backend,
            )
    number = _CODECS.get(codec)
    if type(bound) is not Bound or number is None or effort not in _EFFORTS:
        raise _wrong_option(bound, codec, effort)
    if dither is not None:
        _check_dither(dither, bound)
    if like is not None and not isinstance(like, Blob):
        raise InvalidArgument(
            f"like must be a blob, got {type(like).__name__}: pass what encode returned before"
        )
    program = backend_named(backend)
    source = source_of(x)
    kind, dtype, item_bytes, shape, layout, pointer, device, _owner = source
    items = layout.items
    raw_nbytes = items * item_bytes
    count = thread_count(threads, raw_nbytes)
    if number == _AUTO:
        number = _BLOCK if effort == "speed" or items < SMALL_ITEMS else _DENSE
        if like is not None and like._recipe[0] != _RAW:
            number = like._recipe[0]
    if items == 0:
        number = _RAW

    quantiser, exponent = EXACT, None
    if number != _RAW and dtype <= _WIDEST_FLOAT and bound.mode != Mode.LOSSLESS:
        quantiser, exponent = _quantiser(source, bound, dither, like, count)
    recipe = _recipe(number, source, quantiser, effort, like)
    segments, directory = program.encode(recipe, pointer, items, count)
    payload = _size(segments)
    if number != _RAW and not _smaller(payload, len(directory), items, raw_nbytes):
        # Freed before anything else is tried: the peak of the memory is the array and one result.
        segments = ()
        if quantiser is not EXACT and effort == "ratio":
            recipe = _recipe(number, source, EXACT, effort, None)
            segments, directory = program.encode(recipe, pointer, items, count)
            payload = _size(segments)
        if not segments or not _smaller(payload, len(directory), items, raw_nbytes):
            segments = ()
            recipe = _recipe(_RAW, source, EXACT, effort, None)
            segments, directory = program.encode(recipe, pointer, items, count)
            payload = raw_nbytes
    return Blob(
        recipe,
        bound,
        kind,
        shape,
        layout.order,
        items,
        directory,
        segments,
        payload,
        device,
        exponent,
    )


def _quantiser(
    source: Source, bound: Bound, dither: int | None, like: Blob | None, threads: int
) -> tuple[Quantiser, int]:
    """The quantiser, and the exponent of the largest value that a small sample has shown."""
    dtype, items, pointer = source.dtype, source.layout.items, source.pointer
    if bound.mode == Mode.RANGE_RELATIVE:
        low, high, finite = _native.extent(dtype, pointer, items, threads)
        bound = Bound.absolute(bound.resolve(low, high) if finite else 0, keep_sign=bound.keep_sign)
    if like is not None and like._exponent is not None and like._recipe[1] == dtype:
        exponent, negative_zero = like._exponent, like._recipe[3] != 0
    else:
        largest, negative_zero = _native.sample(dtype, pointer, items)
        exponent = math.frexp(largest)[1]
    return settle(bound, dtype, exponent, negative_zero, dither), exponent


def _recipe(
    codec: int, source: Source, quantiser: Quantiser, effort: str, like: Blob | None
) -> bytes:
    front = _FRONT.pack(codec, source.dtype, *quantiser, 0)
    geometry = source.layout.geometry
    recipe = b"".join((front, geometry, _REST))
    if codec == _RAW:
        return recipe
    if like is not None:
        known = like._recipe
        # The choices suit arrays of one type and shape of rows, under one rule.
        if known[:3] == recipe[:3] and known[_GEOMETRY] == geometry:
            return b"".join((recipe[:32], known[32:]))
    items = source.layout.items
    if codec == _DENSE or (effort == "ratio" and items >= SMALL_ITEMS):
        return _native.choose(recipe, source.pointer, items)
    return recipe


def _size(segments: tuple[tuple[NDArray[np.uint8], int, int], ...]) -> int:
    return sum(segment[0].size for segment in segments)


def _smaller(payload: int, chunks: int, items: int, raw_nbytes: int) -> bool:
    """Whether a blob beats raw storage, entries of the directory included."""
    return payload + 8 * chunks < raw_nbytes + 8 * (-(-items // RAW_CHUNK_ITEMS))


def _check_dither(dither: Any, bound: Bound) -> None:
    if isinstance(dither, bool) or not isinstance(dither, int) or not 0 <= dither < 2**32:
        raise InvalidArgument(
            f"dither must be a seed from 0 to 2^32 - 1, got {dither!r}: pass an integer or None"
        )
    if bound.keep_sign:
        raise InvalidArgument(
            f"dither moves values across zero and {bound!r} forbids that: leave out one of the two"
        )
    if bound.mode == Mode.POINTWISE_RELATIVE:
        raise InvalidArgument(
            f"dither needs an absolute or range-relative bound, got {bound!r}: leave dither out"
        )


def _wrong_option(bound: object, codec: object, effort: object) -> InvalidArgument:
    if isinstance(bound, int | float) and not isinstance(bound, bool):
        return InvalidArgument(
            f"bound must say what it is relative to, got {bound!r}: "
            f"pass Bound.absolute({bound!r}), Bound.range_relative({bound!r}) or another"
        )
    if not isinstance(bound, Bound):
        return InvalidArgument(
            f"bound must be a Bound, got {type(bound).__name__}: pass Bound.absolute(1e-3)"
        )
    if codec not in _CODECS:
        return InvalidArgument(
            f"codec must be 'auto', 'block', 'dense' or 'raw', got {codec!r}: leave it out to let "
            "Elbowroom choose"
        )
    return InvalidArgument(f"effort must be 'ratio' or 'speed', got {effort!r}: leave it out")
