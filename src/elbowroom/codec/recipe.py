"""The recipe: the 64 bytes that say how values became codes and codes became bytes.

docs/format.md, "Recipe" and "Chunks".
"""

import math
import struct
from dataclasses import dataclass
from enum import IntEnum

from elbowroom.errors import CorruptData, InvalidArgument

RECIPE_BYTES = 64

_LAYOUT = struct.Struct("<BBBBIdddBBHII4hBb10s")


class Codec(IntEnum):
    """How codes become bytes."""

    RAW = 0
    BLOCK = 1
    DENSE = 2


class Dtype(IntEnum):
    """Type of an item."""

    F16 = 1
    BF16 = 2
    F32 = 3
    F64 = 4
    I8 = 5
    U8 = 6
    I16 = 7
    U16 = 8
    I32 = 9
    U32 = 10
    I64 = 11
    U64 = 12
    BOOL = 13

    @property
    def item_bytes(self) -> int:
        """Bytes of one item."""
        return _ITEM_BYTES[self]

    @property
    def is_float(self) -> bool:
        """Whether a bound other than lossless makes sense."""
        return self <= Dtype.F64


_ITEM_BYTES = {
    Dtype.F16: 2,
    Dtype.BF16: 2,
    Dtype.F32: 4,
    Dtype.F64: 8,
    Dtype.I8: 1,
    Dtype.U8: 1,
    Dtype.I16: 2,
    Dtype.U16: 2,
    Dtype.I32: 4,
    Dtype.U32: 4,
    Dtype.I64: 8,
    Dtype.U64: 8,
    Dtype.BOOL: 1,
}


class Rule(IntEnum):
    """How a value becomes a code."""

    EXACT = 0
    PLAIN = 1
    SIGNS = 2
    DITHER = 3
    POINTWISE = 4


class Predictor(IntEnum):
    """Which neighbours predict a code of the block codec."""

    NONE = 0
    LEFT = 1
    ABOVE = 2
    PLANE = 3


class Model(IntEnum):
    """What the dense codec codes, and which context chooses its table."""

    CODE = 0
    FLAT = 1
    ALONG = 2
    ACROSS = 3
    BOTH = 4
    GRID = 5
    SPARSE = 6


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything a chunk's decoder has to know besides the chunk."""

    codec: Codec
    dtype: Dtype
    rule: Rule = Rule.EXACT
    negative_zero: bool = False
    seed: int = 0
    step: float = 0.0
    inverse: float = 0.0
    limit: float = 0.0
    method: int = 0
    columns: int = 0
    rows: int = 0
    weights: tuple[int, int, int, int] = (0, 0, 0, 0)
    shift: int = 0
    gain: int = 0
    chunk: int = 0
    """Items of a dense chunk in 4096s; 0 stands for the longest."""

    @property
    def item_bytes(self) -> int:
        """Bytes of one item."""
        return self.dtype.item_bytes

    @property
    def has_word_planes(self) -> bool:
        """Whether an item has two codes: those of 8 bytes under the rule exact."""
        return self.rule == Rule.EXACT and self.item_bytes == 8

    @property
    def chunk_items(self) -> int:
        """Items of every chunk but the last."""
        if self.codec == Codec.RAW:
            return 4194304
        if self.codec == Codec.BLOCK:
            return 32768 if self.has_word_planes else 65536
        most = 1015808 if self.has_word_planes else 2031616
        most = min(most, 4096 * self.chunk) if self.chunk else most
        longest = most * (2 if self.has_word_planes else 1) // 64
        group = 64 * next(
            size for size in (self.columns * self.rows, self.columns, 1) if 1 <= size <= longest
        )
        return most // group * group or most

    def chunk_count(self, item_count: int) -> int:
        """Number of chunks that `item_count` items make."""
        return -(-item_count // self.chunk_items)

    def fault(self) -> str | None:
        """Name the first field that the format does not allow, and say why; None if all is well."""
        if not 0 <= self.seed < 2**32 or (self.seed != 0 and self.rule != Rule.DITHER):
            return f"seed: {self.seed} with the rule {self.rule.name.lower()}"
        if self.rule == Rule.EXACT:
            if self.negative_zero:
                return "flags: negative zero under the rule exact"
            for name in ("step", "inverse", "limit"):
                if struct.pack("<d", getattr(self, name)) != bytes(8):
                    return f"{name}: {getattr(self, name)!r} under the rule exact, expected 0"
        else:
            if not self.dtype.is_float:
                return f"rule: {self.rule.name.lower()} on {self.dtype.name.lower()} items"
            for name in ("step", "inverse", "limit"):
                fault = self._number_fault(getattr(self, name))
                if fault:
                    return f"{name}: {fault}"
            if self.rule == Rule.POINTWISE:
                # More than the patterns of one octave would be no relative bound any more.
                most = 2**52 if self.dtype == Dtype.F64 else 2**23
                if self.step > most or self.step != int(self.step):
                    return f"step: {self.step!r}, expected an integer up to {most}"
        return self._geometry_fault()

    def _number_fault(self, value: float) -> str | None:
        if not (math.isfinite(value) and value > 0):
            return f"{value!r} is not a positive number"
        if self.dtype != Dtype.F64:
            try:
                narrowed = struct.unpack("<f", struct.pack("<f", value))[0]
            except OverflowError:
                narrowed = math.inf
            if narrowed != value:
                return f"{value!r} is not representable in f32"
        return None

    def _geometry_fault(self) -> str | None:
        methods = {Codec.RAW: 1, Codec.BLOCK: len(Predictor), Codec.DENSE: len(Model)}[self.codec]
        if not 0 <= self.method < methods:
            return f"method: {self.method} of the codec {self.codec.name.lower()}"
        for name in ("columns", "rows"):
            if not 0 <= getattr(self, name) < 2**32:
                return f"{name}: {getattr(self, name)}"
        if self.codec == Codec.BLOCK:
            if self.method in (Predictor.ABOVE, Predictor.PLANE) and self.columns == 0:
                return "columns: 0, and the predictor needs rows"
            if self.method == Predictor.PLANE and self.rows == 0:
                return "rows: 0, and the predictor needs planes"
        if len(self.weights) != 4 or not all(-(2**15) <= w < 2**15 for w in self.weights):
            return f"weights: {self.weights}"
        predicts = self.codec == Codec.DENSE and self.method != Model.SPARSE
        if not predicts and any(self.weights):
            return f"weights: {self.weights} where nothing is predicted, expected 0"
        most = 22 if predicts else 0
        if not 0 <= self.shift <= most:
            return f"shift: {self.shift}, at most {most} can be"
        most = 20 if self.codec == Codec.DENSE and self.method == Model.GRID else 0
        if not -most <= self.gain <= most:
            return f"gain: {self.gain}, at most {most} either way can be"
        if self.chunk and (self.codec != Codec.DENSE or not 16 <= self.chunk <= 495):
            return f"chunk: {self.chunk}, expected 0 or, of the codec dense, 16 to 495"
        return None

    def pack(self) -> bytes:
        """The recipe's 64 bytes."""
        fault = self.fault()
        if fault:
            raise InvalidArgument(f"a recipe is to be packed that the format forbids: {fault}")
        return _LAYOUT.pack(
            self.codec,
            self.dtype,
            self.rule,
            int(self.negative_zero),
            self.seed,
            self.step,
            self.inverse,
            self.limit,
            self.method,
            0,
            self.chunk,
            self.columns,
            self.rows,
            *self.weights,
            self.shift,
            self.gain,
            bytes(10),
        )

    @classmethod
    def unpack(cls, data: bytes) -> "Recipe":
        """Read a recipe; CorruptData names the field that no writer could have written."""
        if len(data) != RECIPE_BYTES:
            raise CorruptData(f"recipe: expected {RECIPE_BYTES} bytes, found {len(data)}")
        (
            codec,
            dtype,
            rule,
            flags,
            seed,
            step,
            inverse,
            limit,
            method,
            gap,
            chunk,
            columns,
            rows,
            *weights,
            shift,
            gain,
            tail,
        ) = _LAYOUT.unpack(data)
        for name, kind, value in (
            ("codec", Codec, codec),
            ("dtype", Dtype, dtype),
            ("rule", Rule, rule),
        ):
            if value not in set(kind):
                raise CorruptData(f"recipe: {name}: {value} is not known")
        if flags > 1:
            raise CorruptData(f"recipe: flags: {flags:#x} is not known")
        if gap or any(tail):
            raise CorruptData("recipe: reserved: expected zeros")
        left, above, above_left, above_right = weights
        recipe = cls(
            codec=Codec(codec),
            dtype=Dtype(dtype),
            rule=Rule(rule),
            negative_zero=flags == 1,
            seed=seed,
            step=step,
            inverse=inverse,
            limit=limit,
            method=method,
            columns=columns,
            rows=rows,
            weights=(left, above, above_left, above_right),
            shift=shift,
            gain=gain,
            chunk=chunk,
        )
        fault = recipe.fault()
        if fault:
            raise CorruptData(f"recipe: {fault}")
        return recipe
