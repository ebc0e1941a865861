"""The blob: an encoded array that describes itself, in memory and as bytes.

docs/format.md, "Header" and "Recipe".
"""

import math
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elbowroom.codec.bound import Bound, Mode
from elbowroom.codec.buffers import Bytes, Segment, Writable, bytes_of
from elbowroom.codec.checksum import checksum
from elbowroom.codec.float_env import default_float_env, in_default_float_env, is_default
from elbowroom.codec.layout import (
    ITEM_BYTES,
    MAX_NDIM,
    NUMPY,
    NUMPY_TYPES,
    TORCH,
    TORCH_TYPES,
    strides_in,
)
from elbowroom.codec.opaque import opaque
from elbowroom.codec.recipe import Codec, Model, Recipe, Rule
from elbowroom.errors import CorruptData, IncompatibleFormat, InvalidArgument

MAGIC = b"ELBR"
ARCHIVE_MAGIC = b"ELBA"  # of the other format, docs/archive.md
VERSION = 1
RAW_CHUNK_ITEMS = 4194304

_FIXED = struct.Struct("<4sHBBBBHI8sQ64s")
_VALUE = struct.Struct("<d")
_CLOSING = struct.Struct("<II")
_KINDS = {1: TORCH, 2: NUMPY}
_KIND_NUMBERS = {name: number for number, name in _KINDS.items()}
_KEEP_SIGN = 1
_CODEC_NAMES = {int(codec): codec.name.lower() for codec in Codec}


class Blob:
    """An encoded array. Made by `encode` or `Blob.frombytes`, undone by `decode`.

    `device` is where a tensor was and will be again; it is not part of the bytes.
    """

    __slots__ = (
        "_directory",
        "_exponent",
        "_order",
        "_recipe",
        "_segments",
        "bound",
        "device",
        "item_count",
        "kind",
        "payload_nbytes",
        "shape",
    )

    def __init__(
        self,
        recipe: bytes,
        bound: Bound,
        kind: str,
        shape: tuple[int, ...],
        order: tuple[int, ...],
        item_count: int,
        directory: NDArray[np.uint32],
        segments: tuple[Segment, ...],
        payload_nbytes: int,
        device: torch.device | None = None,
        exponent: int | None = None,
    ) -> None:
        self._recipe = recipe
        self._order = order
        self._directory = directory
        self._segments = segments
        self.bound = bound
        self.kind = kind
        self.shape = shape
        self.item_count = item_count
        self.payload_nbytes = payload_nbytes
        self.device = device
        # Of the largest value in the encoder's sample, for blobs that are encoded like this one.
        self._exponent = exponent

    @property
    @in_default_float_env
    def recipe(self) -> Recipe:
        """How values became codes and codes bytes."""
        return Recipe.unpack(self._recipe)

    @property
    def codec(self) -> str:
        """Name of the codec: raw, block or dense."""
        return _CODEC_NAMES[self._recipe[0]]

    @property
    def dtype(self) -> torch.dtype | np.dtype[Any]:
        """Element type of the array."""
        types = TORCH_TYPES if self.kind == TORCH else NUMPY_TYPES
        return types[self._recipe[1]]

    @property
    def axis_order(self) -> tuple[int, ...]:
        """Axes from outermost to innermost in memory."""
        return self._order

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the array, in items."""
        return strides_in(self.shape, self._order)

    @property
    def directory(self) -> NDArray[np.uint32]:
        """Bytes and checksum of every chunk; read-only, for decoding trusts it."""
        view = self._directory.view()
        view.flags.writeable = False
        return view

    @property
    def segments(self) -> tuple[Bytes, ...]:
        """The payload, in pieces that lie apart in memory."""
        return tuple(segment.data for segment in self._segments)

    @property
    def nbytes(self) -> int:
        """Bytes of the blob as a whole."""
        return header_nbytes(len(self.shape), len(self._directory)) + self.payload_nbytes

    @property
    def raw_nbytes(self) -> int:
        """Bytes of the array."""
        return self.item_count * ITEM_BYTES[self._recipe[1]]

    @property
    def ratio(self) -> float:
        """How many times smaller the blob is than the array."""
        return self.raw_nbytes / self.nbytes

    def __repr__(self) -> str:
        return (
            f"<Blob {self.codec} of {self.kind} {str(self.dtype).removeprefix('torch.')} "
            f"{list(self.shape)}, {self.bound!r}, {self.raw_nbytes:,} to {self.nbytes:,} bytes>"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Blob):
            return NotImplemented
        return self._header() == other._header() and self._payload() == other._payload()

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> "Blob":
        return self._duplicate(self._directory, self._segments)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Blob":
        copies = tuple(segment._replace(data=segment.data.copy()) for segment in self._segments)
        return self._duplicate(self._directory.copy(), copies)

    def _duplicate(self, directory: NDArray[np.uint32], segments: tuple[Segment, ...]) -> "Blob":
        return Blob(
            self._recipe,
            self.bound,
            self.kind,
            self.shape,
            self._order,
            self.item_count,
            directory,
            segments,
            self.payload_nbytes,
            self.device,
            self._exponent,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # As bytes, so that a blob that was pickled is checked on arrival like any other.
        return restore, (self.tobytes(), self.device)

    @opaque
    def tobytes(self) -> bytes:
        """The blob as bytes, readable by every version that knows the format's version."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[memoryview]:
        """The bytes in the pieces in which they lie in memory: the header, then the segments."""
        yield memoryview(self._header())
        for segment in self._segments:
            yield segment.data.data

    def write(self, file: Writable) -> int:
        """Write the bytes to a binary file, without joining them first; return their number."""
        for view in self.pieces():
            while view:
                written = file.write(view)
                view = view[len(view) if written is None else written :]
        return self.nbytes

    @classmethod
    @opaque
    def frombytes(cls, buffer: Any) -> "Blob":
        """Read a blob from bytes, bytearray, memoryview, mmap or a numpy array of uint8.

        The payload is not copied: it stays a view of the buffer. Header and directory are checked
        here, the chunks when they are decoded. Only sizes that the buffer's own length accounts
        for are believed.
        """
        if not is_default():
            with default_float_env():
                return cls.frombytes(buffer)
        return _read(cls, bytes_of(buffer))

    def _payload(self) -> bytes:
        return b"".join(segment.data.data for segment in self._segments)

    def _header(self) -> bytes:
        ndim = len(self.shape)
        head = _FIXED.pack(
            MAGIC,
            VERSION,
            _KIND_NUMBERS[self.kind],
            ndim,
            self.bound.mode,
            _KEEP_SIGN if self.bound.keep_sign else 0,
            0,
            len(self._directory),
            _VALUE.pack(self.bound.value),
            self.payload_nbytes,
            self._recipe,
        )
        axes = struct.pack(f"<{ndim}Q{ndim}B", *self.shape, *self._order)
        checked = b"".join((head, axes, bytes(-len(axes) % 8), self._directory.tobytes()))
        return checked + _CLOSING.pack(checksum(checked), 0)


def restore(data: bytes, device: torch.device | None) -> Blob:
    """Read a blob that was pickled."""
    blob = Blob.frombytes(data)
    blob.device = device
    return blob


def header_nbytes(ndim: int, chunks: int) -> int:
    """Bytes of everything before the payload."""
    return _FIXED.size + (9 * ndim + 7) // 8 * 8 + 8 * chunks + _CLOSING.size


def largest_nbytes(ndim: int, items: int, item_bytes: int) -> int:
    """No blob of such an array has more bytes than this."""
    chunks = (items + RAW_CHUNK_ITEMS - 1) // RAW_CHUNK_ITEMS
    return header_nbytes(ndim, chunks) + items * item_bytes


def _require(holds: bool, field: str, found: object) -> None:
    if not holds:
        raise CorruptData(f"the blob's header is damaged or forged: {field}: {found}")


def _read(cls: type[Blob], data: Bytes) -> Blob:
    begin = data[:4].tobytes()
    if begin == ARCHIVE_MAGIC:
        raise IncompatibleFormat(
            "an archive of named blobs, not a single blob: open it with "
            "elbowroom.codec.archive.Archive(file) and read a blob by its name, or decode the "
            "file with 'elbowroom decode'"
        )
    if begin != MAGIC:
        raise CorruptData(f"not a blob: magic: {MAGIC!r} was expected, found {begin!r}")
    if data.size >= 6 and (version := int.from_bytes(data[4:6].tobytes(), "little")) != VERSION:
        raise IncompatibleFormat(
            f"version: this release reads blobs of version {VERSION}, found {version}: "
            "use the release that wrote it, or a newer one"
        )
    smallest = header_nbytes(0, 0)
    if data.size < smallest:
        raise CorruptData(f"the blob is cut off: {smallest} bytes at least, found {data.size}")
    fields = _FIXED.unpack(data[: _FIXED.size].tobytes())
    _, _, kind, ndim, mode, flags, reserved, chunks, value, payload, packed = fields
    _require(ndim <= MAX_NDIM, "ndim", f"{ndim}, expected at most {MAX_NDIM}")
    start = header_nbytes(ndim, chunks)
    if data.size < start:
        raise CorruptData(f"the blob is cut off: chunks: header of {start} bytes, {data.size} left")
    closing = start - _CLOSING.size
    expected, tail = _CLOSING.unpack(data[closing:start].tobytes())
    _require(expected == checksum(data[:closing]), "header checksum", "it does not match")
    _require(kind in _KINDS, "kind", f"{kind} is not known")
    _require(reserved == 0 and tail == 0, "reserved", "expected zeros")
    bound = _read_bound(mode, flags, value)
    recipe = _read_recipe(packed, bound)
    numpy_has_it = recipe.dtype in NUMPY_TYPES
    _require(_KINDS[kind] == TORCH or numpy_has_it, "kind", f"numpy array of {recipe.dtype.name}")
    axes = data[_FIXED.size : _FIXED.size + 9 * ndim].tobytes()
    shape = struct.unpack(f"<{ndim}Q", axes[: 8 * ndim])
    order = tuple(axes[8 * ndim :])
    _require(sorted(order) == list(range(ndim)), "axis order", list(order))
    directory_start = closing - 8 * chunks
    padding = data[_FIXED.size + 9 * ndim : directory_start]
    _require(not padding.any(), "padding", "expected zeros")
    # Zero lengths aside, so that strides fit in 63 bits as well.
    spread = math.prod(max(length, 1) for length in shape) * recipe.item_bytes
    _require(spread < 2**63, "shape", f"{list(shape)} is beyond any memory")
    items = math.prod(shape)
    wanted = recipe.chunk_count(items)
    _require(chunks == wanted, "chunks", f"{chunks}, the shape needs {wanted}")
    # Copied: decoding relies on what is checked here, and the buffer may be writable.
    directory = data[directory_start:closing].copy().view("<u4").reshape(chunks, 2)
    directory = directory.astype(np.uint32, copy=False)
    _check_sizes(recipe, items, directory[:, 0])
    total = int(directory[:, 0].sum(dtype=np.uint64))
    _require(payload == total, "payload bytes", f"{payload}, the directory has {total}")
    if data.size != start + payload:
        raise CorruptData(
            f"the blob is cut off or followed by something else: {start + payload} bytes "
            f"were expected, found {data.size}"
        )
    segments = (Segment(data[start:], 0, chunks),) if chunks else ()
    return cls(packed, bound, _KINDS[kind], shape, order, items, directory, segments, payload)


# What was read before need not be checked again; a failure is not remembered.
@lru_cache(maxsize=256)
def _read_bound(mode: int, flags: int, packed: bytes) -> Bound:
    (value,) = _VALUE.unpack(packed)
    _require(mode <= max(Mode), "bound mode", f"{mode} is not known")
    _require(flags in (0, _KEEP_SIGN), "bound flags", f"{flags:#x} is not known")
    try:
        bound = Bound(Mode(mode), value, flags == _KEEP_SIGN)
    except InvalidArgument as error:
        raise CorruptData(f"the blob's header is damaged or forged: bound value: {error}") from None
    same = bound.mode == mode and _VALUE.pack(bound.value) == packed
    _require(same, "bound value", f"{value!r} in the mode {Mode(mode).name.lower()}")
    _require(bound.keep_sign == bool(flags), "bound flags", f"{flags:#x} in this mode")
    return bound


@lru_cache(maxsize=256)
def _read_recipe(packed: bytes, bound: Bound) -> Recipe:
    """A lossy rule must be one that the bound leads to."""
    recipe = Recipe.unpack(packed)
    if recipe.rule == Rule.EXACT:
        return recipe
    if bound.mode == Mode.LOSSLESS:
        fits = False
    elif bound.mode == Mode.POINTWISE_RELATIVE:
        fits = recipe.rule == Rule.POINTWISE
    elif bound.keep_sign:
        fits = recipe.rule == Rule.SIGNS
    else:
        fits = recipe.rule in (Rule.PLAIN, Rule.DITHER)
    _require(fits, "rule", f"{recipe.rule.name.lower()} with {bound!r}")
    if bound.mode != Mode.RANGE_RELATIVE:
        _require(recipe.limit <= bound.value, "limit", f"{recipe.limit!r} with {bound!r}")
    return recipe


def _check_sizes(recipe: Recipe, items: int, sizes: NDArray[np.uint32]) -> None:
    """Every chunk must have room for what a chunk of so many items holds at the least."""
    for first, part, count in (
        (0, sizes[:-1], recipe.chunk_items),
        (len(sizes) - 1, sizes[-1:], (items - 1) % recipe.chunk_items + 1),
    ):
        if recipe.codec == Codec.RAW:
            wrong = part != count * recipe.item_bytes
        else:
            wrong = part < _smallest_chunk(recipe, count)
        if wrong.any():
            chunk = int(np.flatnonzero(wrong)[0])
            _require(False, f"directory: chunk {first + chunk}", f"{part[chunk]} bytes")


def _smallest_chunk(recipe: Recipe, items: int) -> int:
    if recipe.codec == Codec.DENSE:
        if recipe.method == Model.SPARSE:
            return 4  # the number of failed items
        return 24 + 8 + 64  # fields, mask of the tables, states of 16 lanes
    blocks = -(-items * (2 if recipe.has_word_planes else 1) // 64)
    return 4 + (blocks + 3) // 4 * 4
