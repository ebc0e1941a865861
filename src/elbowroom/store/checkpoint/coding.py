"""Bytes of a tensor made smaller without loss: differences to what was there before, by planes.

Items are integers of their width here, whatever they mean. Of two checkpoints of a weight the
upper bytes hardly differ; so the difference is taken, its sign moved to the lowest bit, and equal
bytes of all items are laid side by side, as planes. Frames decode alone. A frame is

    factor   8 bytes, a float of 64 bits; only of the coding "scale"
    lengths  4 bytes a plane: how many it takes
    planes   one behind the other, the one of the lowest bytes first

with the lowest byte of a number first. A plane that takes as many bytes as there are items is there
as it is; one that takes fewer is a zstd frame, which tells its size. The codings:

    zstd      the items
    xor       new ^ old
    subtract  zigzag(new - old), with zigzag(d) = 2 d for d >= 0 and -2 d - 1 below
    scale     zigzag(new - bits(factor * float(old))), for items of 4 and 8 bytes

Adam's moments of a weight without gradient only decay, every step by the same factor: under "scale"
hardly anything is left of those. The product is rounded to the width of the item, to nearest and
even; where old is infinite or no number it is old. With a factor of one it is always old.
"""

import struct
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from elbowroom import _native
from elbowroom.errors import CorruptData, InvalidArgument

FRAME_BYTES = 1 << 22
# No frame is smaller than its bytes by more: zstd takes some 130 bytes for four megabytes of zeros.
# What claims to be is a small file that was made to fill the memory.
MOST_RATIO = 1 << 16
CODINGS = ("zstd", "xor", "subtract", "scale")  # the native side knows them by their places

_WIDTHS = (1, 2, 4, 8)
_FLOATS = {4: np.float32, 8: np.float64}
_LEAST_FACTOR, _MOST_FACTOR = 2.0**-20, 2.0**20
_LEAST_ROOM = 1 << 16
_SAMPLE_ITEMS = 4096  # that a factor is chosen by
_SAMPLE_BYTES = 1 << 14  # of a plane, that its compressor is chosen by
# A plane that zstd makes smaller by less is kept as it is: there is nothing to undo then.
_WORTH = 0.9
# Repeats that are looked up take twice as long to undo as bytes that are counted.
_WORTH_REPEATS = 0.9
_Bytes = NDArray[np.uint8]


class _Desk(threading.local):
    """What a thread codes with: zstd's contexts are not for two at once."""

    def __init__(self) -> None:
        # Few bytes of a difference repeat those before them, and short repeats cost more than they
        # save: what counts is how often each byte occurs. The smallest table of places and the
        # longest least repeat leave little but the count, two to four times faster than level 1.
        parameters = zstandard.ZstdCompressionParameters(
            strategy=zstandard.STRATEGY_FAST,
            window_log=22,
            hash_log=6,
            chain_log=6,
            search_log=1,
            min_match=7,
            target_length=0,
            write_content_size=True,
        )
        self.counting = zstandard.ZstdCompressor(compression_params=parameters)
        self.repeating = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()
        self._rooms: dict[str, _Bytes] = {}

    def room(self, name: str, nbytes: int) -> _Bytes:
        """Memory that the next call gets again: fresh pages cost as much as what is done there."""
        held = self._rooms.get(name)
        if held is None or len(held) < nbytes:
            held = self._rooms[name] = np.empty(max(nbytes, _LEAST_ROOM), np.uint8)
        return held[:nbytes]


_desk = _Desk()


def frames_of(nbytes: int) -> Iterator[slice]:
    """The parts that are coded by themselves."""
    for start in range(0, nbytes, FRAME_BYTES):
        yield slice(start, min(start + FRAME_BYTES, nbytes))


def possible_codings(item_bytes: int, *, builds_on: bool) -> tuple[str, ...]:
    """The codings worth trying: `scale` can do what `subtract` does, where it is possible."""
    if not builds_on:
        return ("zstd",)
    return ("zstd", "xor", "scale" if item_bytes in _FLOATS else "subtract")


def encode_frame(coding: str, item_bytes: int, new: _Bytes, old: _Bytes | None) -> bytes:
    """One frame; `old` is what it builds on, of the same size."""
    _check_request(coding, item_bytes, new, old)
    new = np.ascontiguousarray(new)
    before = None if old is None or coding == "zstd" else np.ascontiguousarray(old)
    factor = 1.0
    if coding == "scale" and before is not None:
        factor = _choose_factor(item_bytes, new, before)
    count = len(new) // item_bytes
    planes = _desk.room("planes", len(new))
    _native.split_planes(
        CODINGS.index(coding),
        item_bytes,
        factor,
        new.ctypes.data,
        0 if before is None else before.ctypes.data,
        count,
        planes.ctypes.data,
    )
    coded = [_shrink(plane.data, coding) for plane in planes.reshape(item_bytes, count)]
    numbers = ([factor] if coding == "scale" else []) + [len(piece) for piece in coded]
    return b"".join([_head(coding, item_bytes).pack(*numbers), *coded])


def room_for_frame(item_bytes: int, coded_bytes: int, nbytes: int) -> memoryview:
    """Memory to read a frame of so many bytes into, until the next one of this thread."""
    if coded_bytes > nbytes + 8 + 4 * item_bytes:
        raise CorruptData(f"a frame has {coded_bytes} bytes, more than the {nbytes} it is made of")
    return _desk.room("coded", coded_bytes).data


def decode_frame(coding: str, item_bytes: int, coded: bytes | memoryview, out: _Bytes) -> None:
    """Undo a frame in place: `out` holds what it builds on, and then what it was."""
    if not _is_sensible(coding, item_bytes) or len(out) % item_bytes:
        raise CorruptData(
            f"bytes are coded as {coding[:20]!r} of {item_bytes}, which means nothing"
        )
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise InvalidArgument("a frame is decoded into contiguous memory that can be written")
    count = len(out) // item_bytes
    factor, pieces = _take_apart(coding, item_bytes, memoryview(coded).cast("B"), count)
    # Named until they have been read: addresses keep nothing alive.
    room = _desk.room("planes", len(out)).reshape(item_bytes, count)
    planes = [_expand(piece, place) for piece, place in zip(pieces, room, strict=True)]
    _native.join_planes(
        CODINGS.index(coding),
        item_bytes,
        factor,
        [plane.ctypes.data for plane in planes],
        count,
        out.ctypes.data,
    )


def _is_sensible(coding: str, item_bytes: int) -> bool:
    widths = _FLOATS if coding == "scale" else _WIDTHS
    return coding in CODINGS and item_bytes in widths


def _check_request(coding: str, item_bytes: int, new: _Bytes, old: _Bytes | None) -> None:
    if not _is_sensible(coding, item_bytes):
        raise InvalidArgument(f"there is no coding {coding!r} of items of {item_bytes} bytes")
    if len(new) % item_bytes or len(new) > FRAME_BYTES:
        raise InvalidArgument(
            f"a frame has whole items of {item_bytes} bytes, {FRAME_BYTES} bytes at most, "
            f"got {len(new)}"
        )
    if coding != "zstd" and (old is None or len(old) != len(new)):
        raise InvalidArgument(f"{coding!r} builds on bytes of the same size")


def _head(coding: str, item_bytes: int) -> struct.Struct:
    return struct.Struct(f"<{'d' if coding == 'scale' else ''}{item_bytes}I")


def _take_apart(
    coding: str, item_bytes: int, coded: memoryview, count: int
) -> tuple[float, list[memoryview]]:
    """The factor, and the bytes of each plane."""
    head = _head(coding, item_bytes)
    if len(coded) < head.size:
        raise CorruptData(f"a frame has {len(coded)} bytes, less than its head")
    numbers = head.unpack_from(coded)
    factor, lengths = (numbers[0], numbers[1:]) if coding == "scale" else (1.0, numbers)
    if not _LEAST_FACTOR <= factor <= _MOST_FACTOR:
        raise CorruptData(f"a frame is scaled by {factor}, which no frame is")
    if head.size + sum(lengths) != len(coded) or max(lengths) > count:
        raise CorruptData("the planes of a frame do not have the lengths that its head tells")
    ends = np.cumsum([head.size, *lengths]).tolist()
    return factor, [coded[start:end] for start, end in pairwise(ends)]


def _shrink(plane: memoryview, coding: str) -> bytes | memoryview:
    if not len(plane):
        return plane
    compressor = _desk.counting
    if coding == "zstd":
        # Masks, tokens and tables do repeat.
        sample = plane[len(plane) // 2 :][:_SAMPLE_BYTES]
        counted, repeated = (len(c.compress(sample)) for c in (_desk.counting, _desk.repeating))
        compressor = _desk.repeating if repeated < _WORTH_REPEATS * counted else _desk.counting
    shrunk = compressor.compress(plane)
    return shrunk if len(shrunk) < _WORTH * len(plane) else plane


def _expand(piece: memoryview, room: _Bytes) -> _Bytes:
    """A plane: where it is, or decompressed to the room for it."""
    if len(piece) == len(room):
        return np.frombuffer(piece, np.uint8) if len(piece) else room
    try:
        # Asked first: memory is taken for what a frame says that it holds.
        told = zstandard.get_frame_parameters(piece)
        if told.content_size != len(room):
            raise CorruptData(f"a plane has {told.content_size} bytes in place of {len(room)}")
        if _length_of(piece, has_checksum=told.has_checksum) != len(piece):
            raise CorruptData("a plane does not end where its blocks do")
        with _desk.decompressor.stream_reader(piece) as reader:
            done = reader.readinto(room.data)
    except zstandard.ZstdError as error:
        raise CorruptData(f"a plane cannot be decompressed: {error}") from error
    if done != len(room):
        raise CorruptData(f"a plane has {done} bytes in place of {len(room)}")
    return room


def _length_of(piece: memoryview, *, has_checksum: bool) -> int:
    """How long the zstd frame is that begins here, going by its blocks; 0 if it does not end."""
    at, is_last = zstandard.frame_header_size(piece), False
    while not is_last:
        if at + 3 > len(piece):
            return 0
        head = int.from_bytes(piece[at : at + 3], "little")
        is_last = bool(head & 1)
        is_repeated = head >> 1 & 3 == 1  # one byte, so many times
        at += 3 + (1 if is_repeated else head >> 3)
    return at + 4 * has_checksum


def _choose_factor(item_bytes: int, new: _Bytes, old: _Bytes) -> float:
    """What leaves the least to tell of a sample: one, or the commonest or lowest ratio."""
    kind = _FLOATS[item_bytes]
    # Odd, so that it does not fall into step with the rows of a matrix.
    step = len(new) // item_bytes // _SAMPLE_ITEMS | 1
    now, before = (np.ascontiguousarray(part.view(kind)[::step]) for part in (new, old))
    with np.errstate(all="ignore"):
        ratios = now.astype(np.float64) / before
    ratios = ratios[(ratios >= _LEAST_FACTOR) & (ratios <= _MOST_FACTOR)]
    if not len(ratios):
        return 1.0
    # As wide as what rounding at some hundred steps makes of one and the same decay.
    bins = np.round(np.log2(ratios) * 2**15)
    values, counts = np.unique(bins, return_counts=True)
    common = np.median(ratios[bins == values[counts.argmax()]])
    # Of a mean of squares nothing falls below the decay: all differences to it have one sign.
    candidates = {factor: _bits_left(now, before, factor) for factor in (common, ratios.min())}
    best = min(candidates, key=candidates.__getitem__)
    # Less may be the chance of the sample.
    worth = _bits_left(now, before, 1.0) - len(now) / 32
    return float(best) if candidates[best] < worth else 1.0


def _bits_left(now: NDArray[Any], before: NDArray[Any], factor: float) -> float:
    """The entropy of the planes, each by itself."""
    planes = np.empty((now.itemsize, len(now)), np.uint8)
    _native.split_planes(
        *(CODINGS.index("scale"), now.itemsize, factor, now.ctypes.data, before.ctypes.data),
        *(len(now), planes.ctypes.data),
    )
    symbols = planes + 256 * np.arange(len(planes))[:, None]
    counts = np.bincount(symbols.reshape(-1), minlength=256 * len(planes))
    counts = counts[counts > 0]
    return planes.size * np.log2(len(now)) - float((counts * np.log2(counts)).sum())
