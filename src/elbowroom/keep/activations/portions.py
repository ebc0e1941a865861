"""The gradient's noise from one batch: the gradients of its parts.

For samples that are independent, the gradients of parts of a batch differ as those of batches do.
While a model learns fast, the mean gradient moves, and a running estimate takes that movement for
noise; all parts of a batch are taken at the same weights.

Every node that hands a gradient to a parameter shows that of each part of the batch, on a few
coordinates: some rows of a weight, some channels of a normalisation. The result is a share of the
squared gradient on the same coordinates.

Parts are cut along the first axis. Rows of a flattened tensor are cut between samples where
samples come first. Where time comes first, parts hold the same samples; what these have in common
is left out, and the variance comes out too small: bounds are tighter than they need be. A batch of
one sample tells nothing.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from elbowroom.keep.activations.journey import Passage, energy
from elbowroom.keep.activations.needs import OF_PARAMETERS, RESHAPES

# Portions of a batch.
PARTS = 8
# Of a weight: rows that are looked at, at most and at least, and no more than this share of them.
ROWS, LEAST, SHARE = 8, 4, 16
# Elements of a row, or of anything that is no weight, and channels of a convolution's input.
COLUMNS, CHANNELS = 128, 32
# Of those of its weight's rows fewer are enough.
READ = 16
# Rows of a gradient by which those of the weight are chosen.
LOOKED_AT = 256
# A sum whose square is smaller than this beside those of its terms is zero but for rounding.
ROUNDING = 1e-6


class Portions:
    """Collects them over one backward; a parameter that is used several times adds its uses up."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._shapes = {id(parameter): tuple(parameter.shape) for parameter in parameters}
        self._parts: dict[int, Tensor] = {}
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}
        self._batches: dict[int, int] = {}
        self._terms: dict[int, float] = {}
        self._unknown: set[int] = set()

    def note(self, passage: Passage) -> None:
        """A node has its gradients: those of its parameters, part by part."""
        record = passage.record
        if record.kind in RESHAPES and record.following and passage.gradient().dim() > 2:
            # The node behind gets it as rows.
            self._batches[record.following[0][0]] = len(passage.gradient())
        if record.kind in OF_PARAMETERS:
            # On the way to a parameter: the node that it is for has been noted.
            return
        leaves = {
            place: leaf
            for place, (_, leaf) in enumerate(record.following)
            if leaf in self._shapes and leaf not in self._unknown
        }
        if not leaves:
            return
        found = dict(_RULES.get(record.kind, _broadcast)(self, passage, leaves))
        for place, leaf in leaves.items():
            parts, known = found.get(place), self._parts.get(leaf)
            if parts is None or (known is not None and known.shape != parts.shape):
                self._unknown.add(leaf)
            else:
                self._parts[leaf] = parts if known is None else known + parts

    def shares(self) -> dict[int, float]:
        """The variance of each parameter's gradient over its squared norm, by the parameter's id.

        Parameters that some node uses in an unknown way are left out.
        """
        found: dict[int, float] = {}
        for leaf, parts in self._parts.items():
            if leaf in self._unknown:
                continue
            count, size = len(parts), energy(parts.sum(0))
            noise = energy(parts - parts.mean(0)) * count / (count - 1)
            if 0 < noise < float("inf") and 0 < size < float("inf"):
                found[leaf] = noise / size
        return found

    def cancelled(self) -> set[int]:
        """Parameters whose gradient is zero but for rounding: its terms cancel."""
        return {
            leaf
            for leaf, terms in self._terms.items()
            if leaf in self._parts and energy(self._parts[leaf].sum(0)) < ROUNDING * terms
        }

    def add_terms(self, leaf: int, terms: Tensor) -> None:
        """What a parameter's gradient is the sum of, on the coordinates that are looked at."""
        self._terms[leaf] = self._terms.get(leaf, 0.0) + energy(terms)

    def shape_of(self, leaf: int) -> tuple[int, ...]:
        """The parameter's own."""
        return self._shapes[leaf]

    def batch_of(self, passage: Passage, rows: int) -> int:
        """How many samples the rows of a flattened tensor belong to."""
        batch = self._batches.get(passage.record.number, rows)
        return batch if rows % batch == 0 else rows

    def rows(self, leaf: int, g: Tensor) -> tuple[Tensor, Tensor]:
        """Some of a weight's rows and what they count, the same for all its uses in this backward.

        Where a gradient is large they lie close: of many classes few may come.
        """
        if leaf not in self._rows:
            few = few_of(g.shape[-1])
            sizes = g[:: max(1, len(g) // LOOKED_AT)].abs().sum(0, dtype=torch.float32)
            total = sizes.cumsum(0)
            steps = (torch.arange(few, device=g.device) + 0.5) / few
            places = (
                torch.searchsorted(total, steps * total[-1]).clamp_(max=len(total) - 1).unique()
            )
            self._rows[leaf] = places, (total[-1] / sizes[places].clamp_min(1e-30)).sqrt()
        return self._rows[leaf]

    def choose_rows(self, leaf: int, among: Tensor) -> tuple[Tensor, Tensor]:
        """The same for a weight of which most rows are not used: some of those that are."""
        if leaf not in self._rows:
            used = among.unique()
            few = min(COLUMNS, used.numel())
            places = used[torch.arange(few, device=among.device) * used.numel() // few]
            self._rows[leaf] = places, torch.ones(few, device=among.device)
        return self._rows[leaf]


def few_of(count: int) -> int:
    """How many of a weight's rows are looked at."""
    return min(count, ROWS, max(LEAST, count // SHARE))


_Found = Iterator[tuple[int, Tensor]]
_Rule = Callable[[Portions, Passage, dict[int, int]], _Found]


def cut(rows: int, batch: int) -> list[slice]:
    """Equal parts of a batch, as many as leave out few of its samples; none of one sample."""
    if batch < 2:
        return []
    count = max(range(2, min(PARTS, batch) + 1), key=lambda n: (n * (batch // n), n))
    each = batch // count * (rows // batch)
    return [slice(place * each, (place + 1) * each) for place in range(count)]


def _each(
    place: int, rows: int, gradient: Callable[[slice], Tensor], batch: int | None = None
) -> _Found:
    parts = cut(rows, rows if batch is None else batch)
    if parts:
        yield place, torch.stack([gradient(some) for some in parts])


def _sums(place: int, terms: Tensor, batch: int | None = None) -> _Found:
    return _each(place, len(terms), lambda some: terms[some].sum(0), batch)


def _product(first: str, place: int) -> _Rule:
    """A weight whose rows are the columns of the result, `place` among the node's inputs."""

    def rule(known: Portions, p: Passage, leaves: dict[int, int]) -> _Found:
        g, x = p.gradient(), p.values(first)
        batch = known.batch_of(p, len(g))
        if place in leaves and x is not None:
            rows, weights = known.rows(leaves[place], g)
            few = g[:, rows] * weights.to(g.dtype)
            x = x[:, :COLUMNS]
            yield from _each(place, len(g), lambda some: few[some].mT @ x[some], batch)
        if 0 in leaves and place == 2:
            known.add_terms(leaves[0], g[:, :COLUMNS])
            yield from _sums(0, g[:, :COLUMNS], batch)

    return rule


def _batched_product(known: Portions, p: Passage, leaves: dict[int, int]) -> _Found:
    """The second factor is a weight: one matrix for each mode of a spectral convolution."""
    x = p.values("self")
    if 1 in leaves and x is not None:
        step = -(-len(x) // COLUMNS)
        g, x = p.gradient()[::step, :, :ROWS], x[::step, :, :ROWS].conj()
        yield from _each(1, x.shape[1], lambda some: x[:, some].mT @ g[:, some])


def _convolution(known: Portions, p: Passage, leaves: dict[int, int]) -> _Found:
    g, x, weight = p.gradient(), p.values("input"), p.values("weight")
    details = p.record.details
    if 1 in leaves and x is not None and weight is not None:
        groups, is_transposed = details["groups"], details["transposed"]
        # Whole groups; without groups some channels of the input and of the output.
        kept = max(1, groups * few_of(len(weight)) // len(weight)) if groups > 1 else 1
        rows = len(weight) // groups * kept if groups > 1 else few_of(len(weight))
        columns = weight.shape[1] if groups > 1 else min(weight.shape[1], READ)
        of_x, of_g = (rows, columns * kept) if is_transposed else (columns * kept, rows)

        def gradient(some: slice) -> Tensor:
            return torch.ops.aten.convolution_backward(
                g[some, :of_g],
                x[some, :of_x],
                weight[:rows, :columns],
                None,
                list(details["stride"]),
                list(details["padding"]),
                list(details["dilation"]),
                is_transposed,
                list(details["output_padding"]),
                kept,
                [False, True, False],
            )[1]

        yield from _each(1, len(g), gradient)
    if 2 in leaves:
        few = g[:, :COLUMNS]
        known.add_terms(leaves[2], few)
        yield from _sums(2, few.flatten(2).sum(2) if few.dim() > 2 else few)


def _row_norm(known: Portions, p: Passage, leaves: dict[int, int]) -> _Found:
    """The weights of a LayerNorm."""
    g, x = p.gradient(), p.values("input")
    mean, scale = p.values("result1"), p.values("result2")
    shape = known.shape_of(next(iter(leaves.values())))
    if x is None or mean is None or scale is None or len(shape) > 1:
        return
    batch = len(g) if g.dim() > 2 else known.batch_of(p, len(g))
    g, x = (t.flatten(0, -2)[:, :COLUMNS] for t in (g, x))
    some = (x - mean.reshape(-1, 1)) * scale.reshape(-1, 1)
    for place, terms in ((1, g * some), (2, g)):
        if place in leaves:
            yield from _sums(place, terms, batch)


def _channel_norm(known: Portions, p: Passage, leaves: dict[int, int]) -> _Found:
    """The weights of a BatchNorm or a GroupNorm."""
    g, x = p.gradient(), p.values("input")
    mean, scale = p.values("result1"), p.values("result2")
    if x is None or mean is None or scale is None or not scale.numel():
        return
    channels, few = x.shape[1], min(x.shape[1], CHANNELS)
    if p.record.kind == "NativeGroupNorm":
        each = channels // (scale.numel() // len(x))
        mean, scale = (t.reshape(len(x), -1).repeat_interleave(each, 1) for t in (mean, scale))
    elif scale.numel() == channels:
        mean, scale = mean[None], scale[None]
    else:
        return
    g = g[:, :few].flatten(2) if g.dim() > 2 else g[:, :few, None]
    x = x[:, :few].reshape(g.shape)
    some = (x - mean[:, :few, None]) * scale[:, :few, None]
    for place, terms in ((1, g * some), (2, g)):
        if place in leaves:
            yield from _sums(place, terms.sum(2))


def _embedding(known: Portions, p: Passage, leaves: dict[int, int]) -> _Found:
    index, g = p.values("indices"), p.gradient()
    if 0 not in leaves or index is None or index.dim() == 0:
        return
    rows, weights = known.choose_rows(leaves[0], index)
    order = rows.argsort()
    batch, index = len(index), index.reshape(-1)
    g = g.reshape(len(index), -1)[:, :COLUMNS]
    place = torch.searchsorted(rows[order], index).clamp_(max=len(rows) - 1)
    is_there = rows[order][place] == index

    def gradient(some: slice) -> Tensor:
        chosen = is_there[some]
        total = torch.zeros(len(rows), g.shape[1], dtype=g.dtype, device=g.device)
        total.index_add_(0, order[place[some][chosen]], g[some][chosen])
        return total * weights.to(g.dtype).unsqueeze(1)

    yield from _each(0, len(index), gradient, batch)


def _broadcast(known: Portions, p: Passage, leaves: dict[int, int]) -> _Found:
    """A parameter that is repeated along the batch: its gradient before it is summed."""
    for place, leaf in leaves.items():
        shape, found = known.shape_of(leaf), _unsummed(p, place)
        if found is None or type(found) is not Tensor or found.layout != torch.strided:
            continue
        shape = [1] * (found.dim() - len(shape)) + list(shape)
        if len(shape) > 1 and shape[-1] > COLUMNS:
            found, shape = found[..., :COLUMNS], [*shape[:-1], COLUMNS]
        is_fitting = len(shape) == found.dim() > 0 and all(
            a in (1, b) for a, b in zip(shape, found.shape, strict=True)
        )
        if not is_fitting or shape[0] != 1:
            continue
        axes = [axis for axis in range(1, found.dim()) if shape[axis] == 1 != found.shape[axis]]
        known.add_terms(leaf, found)
        batch = known.batch_of(p, len(found)) if found.dim() == 2 else None
        yield from _sums(place, found.sum(axes) if axes else found, batch)


def _unsummed(p: Passage, place: int) -> Tensor | None:
    kind = p.record.kind
    if kind in ("Add", "Sub"):
        return p.gradient()
    if kind == "Mul":
        other, g = p.values("other" if place == 0 else "self"), p.gradient()
        return None if other is None or other.shape != g.shape else g * other.conj()
    return p.inputs[place] if place < len(p.inputs) else None


_RULES: dict[str, _Rule] = {
    "Convolution": _convolution,
    "Addmm": _product("mat1", 2),
    "Mm": _product("self", 1),
    "Bmm": _batched_product,
    "NativeBatchNorm": _channel_norm,
    "NativeLayerNorm": _row_norm,
    "NativeGroupNorm": _channel_norm,
    "Embedding": _embedding,
}
