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
from elbowroom.codec.recipe import Codec, Dtype, Rule
from elbowroom.codec.threads import thread_count
from elbowroom.errors import InvalidArgument

# Below this many items the tables of the dense codec cost more than they save.
SMALL_ITEMS = 8192

# Below this many bytes a better choice is not worth looking for.
_SMALL_PAYLOAD = 4096

_AUTO = -1
_CODECS = {
    "auto": _AUTO,
    "raw": int(Codec.RAW),
    "block": int(Codec.BLOCK),
    "dense": int(Codec.DENSE),
}
_EFFORTS = {"ratio", "balanced", "speed"}

# Bytes of a dense chunk that justify what it says of itself: shorter ones let threads share.
_WORTH = {"ratio": 512 << 10, "balanced": 48 << 10, "speed": 48 << 10}
_DENSE = int(Codec.DENSE)
_BLOCK = int(Codec.BLOCK)
_RAW = int(Codec.RAW)
_EXACT = int(Rule.EXACT)
_WIDEST_FLOAT = int(Dtype.F64)

# A recipe: what the quantiser settles and the method, then columns and rows, then the rest of
# the choices, whose meaning is the kernels' business.
_FRONT = struct.Struct("<BBB?IdddB3x")
_LIMIT = slice(24, 32)
_GEOMETRY = slice(36, 44)
_REST = bytes(20)


@opaque
def encode(
    x: Array,
    bound: Bound,
    *,
    codec: Literal["auto", "block", "dense", "raw"] = "auto",
    effort: Literal["ratio", "balanced", "speed"] = "ratio",
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
        effort: "ratio" looks for the smallest blob, "speed" for the fastest way; "balanced" is
            "ratio" in parts that threads can share, for one percent of the bytes.
        dither: A seed. The error then is uniform noise that does not depend on the value, which
            keeps averages unbiased.
        like: A blob of a similar array, such as the same tensor one step earlier: its choices are
            taken over, which saves looking for them. Where the result shows that they no longer
            fit, they are made anew.
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
    if like is not None and not _resembles(like, dtype, layout.geometry):
        like = None
    number = alone = _RAW if items == 0 else number
    if number == _AUTO:
        number = alone = _BLOCK if effort == "speed" or items < SMALL_ITEMS else _DENSE
        if like is not None:
            number = like._recipe[0]

    recipe, exponent = _choices(number, source, bound, dither, effort, like, count)
    segments, directory = program.encode(recipe, pointer, items, count)
    payload = _size(segments)
    if like is not None and not (
        _fits_still(like, recipe, items, payload)
        and _smaller(payload, len(directory), items, raw_nbytes)
    ):
        fresh, exponent = _choices(alone, source, bound, dither, effort, None, count)
        if fresh != recipe:
            segments = ()
            number, recipe = alone, fresh
            segments, directory = program.encode(recipe, pointer, items, count)
            payload = _size(segments)
    if number != _RAW and not _smaller(payload, len(directory), items, raw_nbytes):
        # Freed before anything else is tried: the peak of the memory is the array and one result.
        segments = ()
        if recipe[2] != _EXACT and effort != "speed":
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


def _resembles(like: Blob, dtype: int, geometry: bytes) -> bool:
    """Whether choices were made for the blob, and for arrays of this type and shape of rows."""
    known = like._recipe
    return known[0] != _RAW and known[1] == dtype and known[_GEOMETRY] == geometry


def _fits_still(like: Blob, recipe: bytes, items: int, payload: int) -> bool:
    """Whether a result is about what the earlier blob promises, or too small to matter.

    What takes more than one and a half times the bits of an item, or less than the inverse of
    that, is another array under choices made for the earlier one: a shift that makes every code
    escape, weights for neighbours that no longer resemble. A bound that is n bits tighter may take
    n bits more. All in integers, so that every machine comes to the same.
    """
    known = like._recipe
    if payload < _SMALL_PAYLOAD or recipe[:3] != known[:3] or not like.item_count:
        return True
    tighter = looser = 0
    if recipe[_LIMIT] != known[_LIMIT]:
        # Exponents of two limits tell their ratio up to a factor of two.
        steps = _exponent(known[_LIMIT]) - _exponent(recipe[_LIMIT])
        tighter, looser = max(0, 1 + steps), max(0, 1 - steps)
    now, before = 8 * payload * like.item_count, 8 * like.payload_nbytes * items
    bit = items * like.item_count
    return 2 * (before - looser * bit) <= 3 * now and 2 * (now - tighter * bit) <= 3 * before


def _exponent(double: bytes) -> int:
    return (int.from_bytes(double, "little") >> 52) & 0x7FF


def _choices(
    codec: int,
    source: Source,
    bound: Bound,
    dither: int | None,
    effort: str,
    like: Blob | None,
    threads: int,
) -> tuple[bytes, int | None]:
    """The recipe, and the exponent that its quantiser was settled with."""
    quantiser, exponent = EXACT, None
    if codec != _RAW and source.dtype <= _WIDEST_FLOAT and bound.mode != Mode.LOSSLESS:
        quantiser, exponent = _quantiser(source, bound, dither, like, threads)
    return _recipe(codec, source, quantiser, effort, like), exponent


def _quantiser(
    source: Source, bound: Bound, dither: int | None, like: Blob | None, threads: int
) -> tuple[Quantiser, int]:
    """The quantiser, and the exponent of the largest value that a small sample has shown."""
    dtype, items, pointer = source.dtype, source.layout.items, source.pointer
    if bound.mode == Mode.RANGE_RELATIVE:
        low, high, finite = _native.extent(dtype, pointer, items, threads)
        bound = Bound.absolute(bound.resolve(low, high) if finite else 0, keep_sign=bound.keep_sign)
    if like is not None and like._exponent is not None and like._recipe[2] != _EXACT:
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
        # The choices suit one codec and one rule.
        if known[:3] == recipe[:3]:
            return b"".join((recipe[:32], known[32:]))
    items = source.layout.items
    if codec == _DENSE or (effort != "speed" and items >= SMALL_ITEMS):
        return _native.choose(recipe, source.pointer, items, _WORTH[effort])
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
    return InvalidArgument(
        f"effort must be 'ratio', 'balanced' or 'speed', got {effort!r}: leave it out"
    )
