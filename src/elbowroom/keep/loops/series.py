"""One tensor that every step of a loop saves anew: a film, of which few frames are encoded.

Frames at some distance are encoded (anchors), and those between them are interpolated in time by
the polynomial through up to four anchors. An interpolated frame is compared with the true one while
that is still there: if it is further off than the bound, it is encoded itself. The distance follows
what it is found to be good for.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from elbowroom.codec import Bound
from elbowroom.keep.activations.payloads import dense_form
from elbowroom.keep.loops.coders import Coded, Coder
from elbowroom.keep.versions import Watch

LONGEST = 16
_PATIENCE = 24
_NODES = 4
_CACHED = 5

# Of the bound, what anchors get: the weights of a cubic sum up to 1.63, so that errors of anchors
# alone may not use up what interpolation has.
ANCHOR_SHARE = 0.5

_INTERPOLATED = (torch.float32, torch.float64)


class Frame:
    """What autograd holds in place of one saved tensor."""

    __slots__ = (
        "__weakref__",
        "coded",
        "is_anchor",
        "layout",
        "nodes",
        "number",
        "raw",
        "series",
        "watch",
    )

    def __init__(self, tensor: Tensor, number: int, series: "Series") -> None:
        self.number, self.series = number, series
        self.watch = Watch(tensor)
        dense, self.layout = dense_form(tensor.detach())
        self.raw: Tensor | None = dense
        self.coded: Coded | None = None
        self.is_anchor = False
        self.nodes: tuple[tuple[Frame, float], ...] = ()

    def tensor(self) -> Tensor:
        """The values, within the bound."""
        self.watch.check()
        dense = self.raw if self.raw is not None else self.series.restore(self)
        return dense if self.layout is None else self.layout.apply(dense)


class Series:
    """Frames of the same shape from step to step."""

    def __init__(
        self,
        coder: Coder,
        relative: float,
        every: int | None,
        spend: Callable[[int], None],
        most_waiting_bytes: float = math.inf,
    ) -> None:
        """`every=None` finds the distance of anchors; `spend` is told what is held.

        No more than `most_waiting_bytes` are held as they are, as far as that is possible.
        """
        self._most_waiting = most_waiting_bytes
        self._coder, self._relative, self._spend = coder, relative, spend
        self._is_free = every is None
        self._distance = every or 2
        self._anchors: list[tuple[Frame, Tensor]] = []
        self._pending: list[Frame] = []
        self._cache: OrderedDict[int, tuple[Frame, Tensor]] = OrderedDict()
        self._patience = 0
        self.anchored = self.interpolated = self.alone = 0

    def tighten(self, by: int) -> None:
        """Room is short, or there is enough."""
        self._coder.tighten(by)

    def add(self, frame: Frame) -> None:
        """The next one."""
        assert frame.raw is not None
        self._spend(frame.raw.nbytes)
        if frame.raw.dtype not in _INTERPOLATED:
            self._encode_alone(frame)
            return
        if self._anchors and frame.number <= (self._pending or [self._anchors[-1][0]])[-1].number:
            self.flush()
        self._pending.append(frame)
        # Beside those that wait, as many are decoded as a polynomial has nodes.
        room = self._most_waiting / max(1, frame.raw.nbytes) - _NODES
        if not self._anchors or len(self._pending) >= min(self._distance, max(2, room)):
            self._anchor()

    def flush(self) -> None:
        """No more frames come, or none that follow."""
        if self._pending:
            self._anchor()
        self._spend(-sum(values.nbytes for _, values in self._anchors))
        self._anchors = []

    def restore(self, frame: Frame) -> Tensor:
        """Decode or interpolate."""
        if frame.coded is not None:
            # A neighbour in time may have asked for it, and others will.
            return self._decoded(frame) if frame.is_anchor else frame.coded.decode()
        return _combine([(self._decoded(node), weight) for node, weight in frame.nodes])

    def clear(self) -> None:
        """Let go of what was decoded."""
        self._cache.clear()
        self._anchors, self._pending = [], []

    def _decoded(self, frame: Frame) -> Tensor:
        """An anchor's values; neighbours in time ask for the same ones."""
        key = id(frame)
        found = self._cache.pop(key, None)
        if found is None:
            assert frame.coded is not None
            found = frame, frame.coded.decode()
        self._cache[key] = found
        while len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return found[1]

    def _anchor(self) -> None:
        """Make the last pending frame an anchor, and settle those before it."""
        *between, frame = self._pending
        self._pending = []
        assert frame.raw is not None
        bound, _ = self._bound(frame.raw, ANCHOR_SHARE if self._distance > 1 else 1.0)
        self._encode(frame, bound)
        frame.is_anchor = True
        self.anchored += 1
        if self._distance == 1:
            return
        assert frame.coded is not None
        values = frame.coded.decode()
        self._spend(values.nbytes if len(self._anchors) < _NODES else 0)
        self._anchors = [*self._anchors[-(_NODES - 1) :], (frame, values)]
        missed = sum(not self._interpolate(one) for one in between)
        self._adapt(len(between), missed)

    def _interpolate(self, frame: Frame) -> bool:
        """Try it; true if that is good enough."""
        assert frame.raw is not None
        times = [anchor.number for anchor, _ in self._anchors]
        weights = _weights(times, frame.number)
        guess = _combine(
            [(values, w) for (_, values), w in zip(self._anchors, weights, strict=True)]
        )
        error = float(guess.sub_(frame.raw).abs_().max()) if guess.numel() else 0.0
        allowed = self._bound(frame.raw, 1.0)[1]  # its own: that of its neighbours may be larger
        if not error <= allowed:  # NaN is not either
            self._encode_alone(frame)
            return False
        self._spend(-frame.raw.nbytes)
        frame.nodes = tuple((a, w) for (a, _), w in zip(self._anchors, weights, strict=True))
        frame.raw = None
        self.interpolated += 1
        return True

    def _adapt(self, count: int, missed: int) -> None:
        """Longer while all goes well, shorter when it does not, and then patient for a while."""
        if not self._is_free or len(self._anchors) < _NODES:
            return
        self._patience = max(0, self._patience - 1)
        if 4 * missed > count and self._distance > 2:
            self._distance //= 2
            self._patience = _PATIENCE
        elif not missed and not self._patience and self._distance < LONGEST:
            self._distance *= 2
            # Anchors of the old distance are too near to one another to tell how the new one does.
            self._patience = _NODES

    def _encode_alone(self, frame: Frame) -> None:
        assert frame.raw is not None
        self._encode(frame, self._bound(frame.raw, 1.0)[0])
        self.alone += 1

    def _encode(self, frame: Frame, bound: Bound) -> None:
        assert frame.raw is not None
        frame.coded = self._coder.encode(frame.raw, bound)
        self._spend(frame.coded.nbytes - frame.raw.nbytes)
        frame.raw = None

    def _bound(self, values: Tensor, share: float) -> tuple[Bound, float]:
        """A share of the bound, and what the frame may be off if it is interpolated."""
        if not values.is_floating_point() or values.numel() == 0:
            return Bound.lossless(), 0.0
        low, high = (float(v) for v in values.aminmax())
        most = self._relative * (high - low)
        if not math.isfinite(most) or not most * share > 0:
            return Bound.lossless(), 0.0
        return Bound.absolute(most * share), most


def _weights(times: Sequence[int], at: int) -> list[float]:
    """Lagrange's, for the polynomial through all of them."""
    found = []
    for node in times:
        others = [t for t in times if t != node]
        found.append(math.prod((at - t) / (node - t) for t in others))
    return found


def _combine(parts: Sequence[tuple[Tensor, float]]) -> Tensor:
    (first, weight), *rest = parts
    total = first * weight
    for values, weight in rest:
        total.add_(values, alpha=weight)
    return total
