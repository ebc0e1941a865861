"""Coders that predict a frame from few whole numbers and encode what is left under the bound.

A frame is measured in units of its bound, cut into patches, and described by whole numbers (codes),
from which a model predicts it. Prediction and residual together are as near to the frame as the
bound asks for, however bad the prediction. A decoder must predict the very same bits: models
therefore calculate with whole numbers that float64 represents exactly, sums included (all below
2^53), so that neither the number of threads nor the order of a sum can matter.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from elbowroom.codec import Blob, Bound, decode, encode
from elbowroom.codec.bound import Mode
from elbowroom.errors import InvalidArgument
from elbowroom.keep.loops.coders import Coded, PlainCoder
from elbowroom.keep.loops.patches import SIDES, VALUES, Tiling

# Of a code's size, so that sums of products stay exact; see the models.
MOST_CODE = 2**20

# Values of a frame below which the numbers of a model would not pay.
_LEAST_VALUES = 4096

# Of how many frames one is encoded both ways, and for how many a model that lost is left alone: at
# first, and at most.
_TRIAL_EVERY, _FIRST_PAUSE, _LONGEST_PAUSE = 16, 4, 256

# Of a frame's largest value in units of the bound.
_MOST_UNITS = 2.0**22

# Bounds near the least numbers of a type: thread settings may flush those to zero.
_LEAST_UNIT = {torch.float32: 1e-30, torch.float64: 1e-290}

# How many of the first planes of codes are dense, that is encoded as a field and not as a sparse
# array: whichever was smallest in the last trial.
_HEADS = (0, 4, 8, 16)

# To which the codes of a patch are filled up with zeros. These take next to nothing, and make the
# codec take its model for sparse arrays. To it each code is a column, of which it learns how often
# it is not zero, and the patch before is the row above.
_WIDTH = 4 * VALUES


class Model(Protocol):
    """Describes patches by codes."""

    @property
    def nbytes(self) -> int:
        """Of what a decoder needs."""
        ...

    def analyse(self, patches: Tensor) -> Tensor:
        """Codes, whole numbers as float64: batch x counts x any number."""
        ...

    def predict(self, codes: Tensor) -> Tensor:
        """Patches; the same bits everywhere."""
        ...


@dataclass(frozen=True, slots=True)
class Codes:
    """Whole numbers, encoded without loss."""

    head: Blob | None
    tail: Blob
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """That they take."""
        return self.tail.nbytes + (0 if self.head is None else self.head.nbytes)

    @property
    def head_planes(self) -> int:
        """How many are encoded as a field."""
        return 0 if self.head is None else self.head.shape[0]

    @classmethod
    def of(cls, codes: Tensor, head: int, like: "Codes | None" = None) -> "Codes":
        """Encode; the first `head` planes as a field."""
        head = min(head, codes.shape[-1])
        first = None
        if head:
            known = None if like is None else like.head
            planes = codes[..., :head].movedim(-1, 0).to(torch.float32).contiguous()
            # Off by less than a half, so that rounding gives the number back.
            first = encode(planes, Bound.absolute(0.49), like=known)
        rest = codes[..., head:]
        is_short = not rest.numel() or _size(rest) < 2**15
        dtype = torch.int16 if is_short else torch.int32
        padded = torch.zeros((*rest.shape[:-1], _WIDTH), dtype=dtype)
        padded[..., : rest.shape[-1]] = rest
        known = None if like is None else like.tail
        return cls(first, encode(padded, Bound.lossless(), like=known), tuple(codes.shape))

    def decode(self) -> Tensor:
        """The numbers, as float64."""
        count = self.shape[-1]
        rest = decode(self.tail)[..., : count - self.head_planes].to(torch.float64)
        if self.head is None:
            return rest
        return torch.cat([decode(self.head).to(torch.float64).round().movedim(0, -1), rest], -1)


@dataclass(frozen=True, slots=True)
class Predicted:
    """A frame as codes of a model and a residual; it holds all that decoding needs."""

    model: Model
    tiling: Tiling
    dtype: torch.dtype
    unit: float
    codes: Codes
    residual: Blob | None
    model_bytes: int = 0
    """Of the model, for the first frame that uses it."""

    @property
    def nbytes(self) -> int:
        """That it takes, the model counted once a series."""
        residual = 0 if self.residual is None else self.residual.nbytes
        return self.codes.nbytes + residual + self.model_bytes

    @torch.no_grad()
    def decode(self) -> Tensor:
        """The frame, each value within the bound."""
        patches = self.model.predict(self.codes.decode())
        frame = _scaled(patches, self.tiling, self.unit, self.dtype)
        return frame if self.residual is None else frame.add_(decode(self.residual))


class PredictiveCoder:
    """Uses a model where it makes frames smaller than the plain coder does.

    `counts` says how many frames were encoded how: "plain", "model", and "trials" for those that
    were encoded both ways to find out.
    """

    def __init__(self, dims: int | None = None) -> None:
        """`dims`: how many of the last axes form a grid; found by their lengths if left out."""
        if dims is not None and dims not in SIDES:
            raise InvalidArgument(
                f"dims is how many of the last axes form a grid, 1, 2 or 3, got {dims!r}"
            )
        self._dims = dims
        self._plain = PlainCoder()
        self._model: Model | None = None
        self._is_charged = False
        self._codes: Codes | None = None
        self._residual: Blob | None = None
        self._head = 0
        self._until_trial = 0
        self._pause = 0
        self._next_pause = _FIRST_PAUSE
        self.counts: Counter[str] = Counter()

    @property
    def model(self) -> Model | None:
        """The one in use."""
        return self._model

    @torch.no_grad()
    def encode(self, frame: Tensor, bound: Bound) -> Coded:
        """Encode a frame."""
        tiling = self._tiling(frame, bound)
        if tiling is None:
            return self._as_plain(frame, bound)
        if self._pause:
            self._pause -= 1
            return self._as_plain(frame, bound)
        if self._model is None:
            self.learn(tiling.cut(frame / bound.value), tiling)
            if self._model is None:
                return self._as_plain(frame, bound)
        if self._until_trial == 0:
            return self._try_both(frame, bound, tiling)
        self._until_trial -= 1
        found = self._predicted(frame, bound, tiling, (self._head,))
        return self._as_plain(frame, bound) if found is None else self._charge(found)

    def tighten(self, by: int) -> None:
        """Of frames that are not predicted."""
        self._plain.tighten(by)

    def learn(self, patches: Tensor, tiling: Tiling) -> None:
        """Look at patches, in units of the bound; call `adopt` once enough was seen."""
        raise NotImplementedError

    def lost(self) -> None:
        """The plain coder was smaller; nothing is asked of the model for a while."""

    def adopt(self, model: Model) -> None:
        """Use a model from now on. Frames encoded with another one hold that."""
        self._model, self._is_charged = model, False
        self._codes = self._residual = None
        self._until_trial = 0

    def drop(self) -> None:
        """Let go of the model."""
        self._model = self._codes = self._residual = None

    def _tiling(self, frame: Tensor, bound: Bound) -> Tiling | None:
        """None for what is left to the plain coder."""
        if frame.dtype not in _LEAST_UNIT or frame.numel() < _LEAST_VALUES or not frame.is_cpu:
            return None
        if bound.mode != Mode.ABSOLUTE or bound.keep_sign or not frame.is_contiguous():
            return None
        # With more units than that, codes and differences lose digits: and NaN compares false.
        if (
            not bound.value >= _LEAST_UNIT[frame.dtype]
            or not _size(frame) <= _MOST_UNITS * bound.value
        ):
            return None
        return Tiling.of(tuple(frame.shape), self._dims)

    def _as_plain(self, frame: Tensor, bound: Bound) -> Coded:
        self.counts["plain"] += 1
        return self._plain.encode(frame, bound)

    def _charge(self, found: Predicted) -> Coded:
        self.counts["model"] += 1
        if self._is_charged:
            return found
        self._is_charged = True
        return replace(found, model_bytes=found.model.nbytes)

    def _try_both(self, frame: Tensor, bound: Bound, tiling: Tiling) -> Coded:
        self.counts["trials"] += 1
        self._codes = None
        found = self._predicted(frame, bound, tiling, _HEADS)
        plain = self._plain.encode(frame, bound)
        if found is not None and found.nbytes < plain.nbytes:
            self._until_trial, self._next_pause = _TRIAL_EVERY, _FIRST_PAUSE
            return self._charge(found)
        self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _LONGEST_PAUSE)
        self._until_trial = 0
        self.lost()
        self.counts["plain"] += 1
        return plain

    def _predicted(
        self, frame: Tensor, bound: Bound, tiling: Tiling, heads: tuple[int, ...]
    ) -> Predicted | None:
        """None where codes are too large, or rounding would take up too much of the bound."""
        assert self._model is not None
        unit = bound.value
        numbers = self._model.analyse(tiling.cut(frame / unit))
        if not _size(numbers) <= MOST_CODE:
            return None
        guess = _scaled(self._model.predict(numbers), tiling, unit, frame.dtype)
        rest = frame - guess
        # Two roundings, of the difference and of the sum: each is half a unit in the last place of
        # a number no larger than these together. As much again is left for the check below.
        rounding = torch.finfo(frame.dtype).eps * (_size(frame) + _size(guess) + _size(rest))
        left = unit - 2 * rounding
        if not left > unit / 2:
            return None
        codes = min(
            (Codes.of(numbers, head, self._codes) for head in heads), key=lambda one: one.nbytes
        )
        residual = None
        if _size(rest) > left:
            residual = encode(rest, Bound.absolute(left), like=self._residual)
            guess += decode(residual)
        if not _size(guess.sub_(frame)) <= unit - rounding:
            return None
        self._codes, self._residual, self._head = (
            codes,
            residual or self._residual,
            codes.head_planes,
        )
        return Predicted(self._model, tiling, frame.dtype, unit, codes, residual)


def _size(values: Tensor) -> float:
    """The largest magnitude; NaN where there is one."""
    low, high = values.aminmax()
    return float(torch.maximum(high, -low))


def _scaled(patches: Tensor, tiling: Tiling, unit: float, dtype: torch.dtype) -> Tensor:
    """One product and one rounding for each value, so that there is one result."""
    return tiling.join(patches.mul(unit).to(dtype))
