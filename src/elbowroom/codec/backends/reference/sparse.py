"""A chunk of the dense codec's model sparse: failure count, decisions about codes, failures."""

import struct

import numpy as np

from elbowroom.codec.backends.reference.codes import decode_codes, encode_codes
from elbowroom.codec.backends.reference.decisions import Coder, Decoder, Encoder
from elbowroom.codec.backends.reference.failed import check_failed_count, pack_failed, place_failed
from elbowroom.codec.backends.reference.numbers import NUMPY_TYPES, Items, wrap
from elbowroom.codec.recipe import Recipe
from elbowroom.errors import CorruptData

_POSITION = "<u4"
_POSITION_BYTES = 4
_BLOCK = 64
_PIECE = 16
_MOST_COLUMNS = 31744


def _length(value: int, most: int = 32) -> int:
    return min(value.bit_length(), most)


def _step(code: int) -> int:
    return min(abs(code), 2)


def _sign(code: int) -> int:
    return (code > 0) + 2 * (code < 0)


class Walk:
    """Goes through a chunk's codes; what it knows are those before."""

    def __init__(self, coder: Coder, columns: int) -> None:
        self.coder, self.columns = coder, columns
        self.period = -(-_BLOCK // columns) * columns if columns else 0
        self.codes: list[int] = []
        self.counts = [0]  # of the non-zero codes before each
        self.mean = 0
        self.densities: list[int] = []

    def _count(self, begin: int, end: int) -> int:
        return self.counts[max(end, 0)] - self.counts[max(begin, 0)]

    def _count_above(self, i: int, window: int) -> int:
        if not self.columns:
            return 0
        return self._count(i - self.columns, min(i - self.columns + window, i))

    def _code(self, i: int) -> int:
        return max(-127, min(127, self.codes[i])) if i >= 0 else 0

    def _above(self, i: int) -> int:
        return self._code(i - self.columns) if self.columns else 0

    def _density(self, i: int) -> int:
        return self.densities[i - self.period] if i >= self.period else 0

    def _append(self, code: int) -> None:
        if self.columns:
            v = self._density(len(self.codes))
            self.densities.append(v + (255 - v >> 4) if code else v - (v >> 4))
        self.counts.append(self.counts[-1] + (code != 0))
        self.codes.append(code)

    def run(self, given: list[int]) -> list[int]:
        """Code as many codes as are given; a decoder is given zeros. Return what they are."""
        for begin in range(0, len(given), _BLOCK):
            self._run_block(given[begin : begin + _BLOCK])
            self.mean += (256 * self._count(begin, len(self.codes)) - self.mean) >> 3
        return self.codes

    def _run_block(self, given: list[int]) -> None:
        i = len(self.codes)
        last, above = self._count(i - 64, i), _length(self._count_above(i, _BLOCK), 5)
        before = self._count(i - 128, i - 64)
        sharp = _length(last, 4), above, _length(before, 3)
        broad = _length(self.mean >> 6), above, _length(last, 2)
        some = self.coder.decide("block", sharp, broad, any(given))
        found = False
        for begin in range(0, len(given), _PIECE):
            piece = given[begin : begin + _PIECE]
            clear = not found and begin + _PIECE >= len(given)
            if some and (clear or self._has_some(piece, found)):
                found = True
                self._run_piece(piece)
            else:
                for _ in piece:
                    self._append(0)

    def _has_some(self, given: list[int], found: bool) -> bool:
        i = len(self.codes)
        above = self._count_above(i, _PIECE)
        sharp = _length(self._count(i - 16, i), 5), _length(above, 5), found
        recent = _length(self._count(i - 64, i), 6)
        broad = recent, _length(self.mean >> 6), _length(above, 2), found
        return self.coder.decide("piece", sharp, broad, any(given))

    def _run_piece(self, given: list[int]) -> None:
        found = False
        for index, code in enumerate(given):
            clear = not found and index + 1 == len(given)
            if clear or self._is_nonzero(code, found):
                found = True
                self._append(self._run_nonzero(code))
            else:
                self._append(0)

    def _is_nonzero(self, given: int, found: bool) -> bool:
        i = len(self.codes)
        left, second = _step(self._code(i - 1)), _step(self._code(i - 2))
        many = _length(self._count(i - 32, i))
        if self.columns:
            above, v = _step(self._above(i)), self._density(i)
            sides = _step(self._above(i - 1)) + _step(self._above(i + 1))
            sharp = left, second, above, sides, _length(v >> 4, 3), found
            broad = many, _length(v >> 1), left + above, found
        else:
            sharp = left, second, _length(self._count(i - 10, i - 2), 3), found
            broad = many, _length(self.mean >> 7), left, found
        return self.coder.decide("code", sharp, broad, given != 0)

    def _run_nonzero(self, given: int) -> int:
        i = len(self.codes)
        left, second = self._code(i - 1), self._code(i - 2)
        above, above_left, above_right = self._above(i), self._above(i - 1), self._above(i + 1)
        around = 2 * abs(left) + 2 * abs(above) + abs(second) + abs(above_left) + abs(above_right)
        near, many = (_length(abs(left)), _length(abs(above))), _length(self._count(i - 32, i))
        wanted = abs(given)
        length = 1
        while length < 32:
            j = min(length, 15)
            broad = j, _length(around), many
            if not self.coder.decide("length", (j, near), broad, wanted.bit_length() > length):
                break
            length += 1
        m = 1
        for below in reversed(range(length - 1)):
            bit = bool(wanted >> below & 1)
            if below >= length - 3:
                bit = self.coder.decide("bit", (length, m), (length, m), bit)
            else:
                bit = self.coder.decide_plainly(bit)
            m = 2 * m + bit
        signs = _sign(left), _sign(above), _sign(second), _sign(above_right)
        negative = self.coder.decide("sign", signs[:2], signs, given < 0)
        return int(wrap(np.array(-m if negative else m)))


def _columns(recipe: Recipe) -> int:
    has_rows = 2 <= recipe.columns <= _MOST_COLUMNS and not recipe.has_word_planes
    return recipe.columns if has_rows else 0


def encode_chunk(recipe: Recipe, items: Items, first: int) -> bytes:
    """The bytes of one chunk, whose first item has index `first` in the array."""
    codes, positions = encode_codes(recipe, items, first, len(items))
    encoder = Encoder()
    Walk(encoder, _columns(recipe)).run(codes.tolist())
    failed = pack_failed(items, positions, _POSITION)
    return struct.pack("<I", len(positions)) + encoder.finish() + failed


def decode_chunk(recipe: Recipe, chunk: bytes, first: int, item_count: int) -> Items:
    """The items of one chunk; CorruptData if its bytes are not a chunk of `item_count` items."""
    if len(chunk) < 4:
        raise CorruptData(f"size: {len(chunk)} bytes, 4 for the failed count alone")
    failed_count = struct.unpack_from("<I", chunk)[0]
    check_failed_count(recipe, failed_count, item_count)
    end = len(chunk) - failed_count * (_POSITION_BYTES + recipe.item_bytes)
    if end < 4:
        raise CorruptData(f"size: {len(chunk)} bytes, too few for {failed_count} failed items")
    n = item_count * (2 if recipe.has_word_planes else 1)
    decoder = Decoder(chunk[4:end])
    codes = Walk(decoder, _columns(recipe)).run([0] * n)
    decoder.finish()
    items = decode_codes(recipe, np.array(codes, dtype=np.int32), first)
    items = items.astype(NUMPY_TYPES[recipe.dtype], copy=True)
    place_failed(recipe, items, chunk[end:], failed_count, _POSITION)
    return items
