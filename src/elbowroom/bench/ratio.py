"""How small arrays become, ours beside the peers, at bounds relative to their range."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from elbowroom.bench.activations import Tensor
from elbowroom.bench.peers import Peer, encoded_bytes, fold
from elbowroom.bench.tables import Table, plain, short
from elbowroom.bench.verification import Array, as_floats, extent, verify
from elbowroom.codec import Bound, decode, encode

BOUNDS = (1e-1, 1e-2, 1e-3)
OURS = ("dense", "block")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Size and largest error, as a share of the bound, of one compressor on one cell."""

    nbytes: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One array at one bound."""

    tensor: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    bound: float  # of the range
    allowed: float  # absolute
    raw_bytes: int
    holds: bool  # ours, both codecs
    ours: dict[str, Outcome] = field(default_factory=dict)
    peers: dict[str, Outcome] = field(default_factory=dict)

    @property
    def best_peer(self) -> str | None:
        """The peer with the fewest bytes, whether or not it kept the bound."""
        return min(self.peers, key=lambda name: self.peers[name].nbytes, default=None)

    @property
    def gain(self) -> float | None:
        """How many times smaller the dense codec's is than the best peer's."""
        best = self.best_peer
        return None if best is None else self.peers[best].nbytes / self.ours["dense"].nbytes


class SizeCache:
    """Peers' outcomes by content, bound and version: they take minutes and never change."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, list[float]] = {}
        if path is not None and path.exists():
            try:
                self._known = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                self._known = {}

    def fetch(self, key: str, measure: Callable[[], Outcome]) -> Outcome:
        """Return what is known under the key, or measure it."""
        if key not in self._known:
            found = measure()
            self._known[key] = [found.nbytes, found.share]
        nbytes, share = self._known[key]
        return Outcome(nbytes=int(nbytes), share=share)

    def save(self) -> None:
        """Write what was learned, if there is a file for it."""
        if self._path is not None:
            write_text(self._path, json.dumps(self._known, indent=0, sort_keys=True))


def write_text(path: Path, text: str) -> None:
    """Write aside and rename: a benchmark that is interrupted leaves no half file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    aside.unlink(missing_ok=True)
    with aside.open("x", encoding="utf-8") as file:
        file.write(text)
    aside.replace(path)


def measure_ratios(
    tensors: Iterable[Tensor],
    bounds: Sequence[float] = BOUNDS,
    *,
    peers: Sequence[Peer] = (),
    cache: SizeCache | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Cell]:
    """Encode every tensor at every bound with everything; check what ours gives back."""
    cache = cache or SizeCache(None)
    cells: list[Cell] = []
    for tensor in tensors:
        x = tensor.read()
        low, high = extent(x)
        content = _digest(x)
        for bound in bounds:
            tell(f"{tensor.name} at {bound:g} of its range")
            allowed = Bound.range_relative(bound).resolve(low, high)
            ours, holds = _measure_ours(x, bound)
            cells.append(
                Cell(
                    tensor=tensor.name,
                    kind=tensor.kind,
                    dtype=str(x.dtype).removeprefix("torch."),
                    shape=tuple(x.shape),
                    bound=bound,
                    allowed=allowed,
                    raw_bytes=x.nbytes,
                    holds=holds,
                    ours=ours,
                    peers=_measure_peers(x, allowed, content, peers, cache),
                )
            )
        cache.save()
    return cells


def _measure_ours(x: Array, bound: float) -> tuple[dict[str, Outcome], bool]:
    outcomes: dict[str, Outcome] = {}
    holds = True
    for codec in OURS:
        blob = encode(x, Bound.range_relative(bound), codec=codec)
        verdict = verify(x, decode(blob), Bound.range_relative(bound))
        holds = holds and verdict.holds
        outcomes[codec] = Outcome(nbytes=blob.nbytes, share=verdict.share)
    return outcomes, holds


def _measure_peers(
    x: Array,
    allowed: float,
    content: str,
    peers: Sequence[Peer],
    cache: SizeCache,
) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    # With nothing allowed to move a lossy peer has nothing to do.
    if not peers or not allowed or 0 in x.shape:
        return outcomes
    values = fold(as_floats(x))
    finite = bool(np.isfinite(values).all())
    for peer in peers:
        if peer.finite_only and not finite:
            continue

        def measure(peer: Peer = peer) -> Outcome:
            encoded = peer.encode(values, allowed)
            back = peer.decode(encoded, values, allowed).reshape(values.shape)
            verdict = verify(values, back, Bound.absolute(allowed))
            return Outcome(nbytes=encoded_bytes(encoded), share=verdict.share)

        key = f"{content} {allowed!r} {peer.name} {peer.package} {peer.version}"
        try:
            outcomes[peer.name] = cache.fetch(key, measure)
        except OverflowError:
            continue  # codes beyond 64 bits: the plain quantiser cannot go there
    return outcomes


def _digest(x: Array) -> str:
    values = np.ascontiguousarray(as_floats(x))
    total = hashlib.sha256(values.reshape(-1).view(np.uint8).data)
    total.update(f"{x.dtype} {tuple(x.shape)}".encode())
    return total.hexdigest()[:32]


def ratio_tables(cells: Sequence[Cell]) -> list[Table]:
    """Return the table of all cells, and the summary by kind when peers took part."""
    headings = ["tensor", "bound", "raw bytes", *OURS, "dense ratio", "error / bound"]
    rows: list[list[str]] = []
    compared = any(cell.peers for cell in cells)
    if compared:
        headings += ["best peer", "its bytes", "its ratio", "dense / best"]
    for cell in cells:
        worst = max(result.share for result in cell.ours.values())
        row = [cell.tensor, f"{cell.bound:g}", str(cell.raw_bytes)]
        row += [str(cell.ours[name].nbytes) for name in OURS]
        row += [
            short(cell.raw_bytes / cell.ours["dense"].nbytes),
            f"{worst:.4f}" + ("" if cell.holds else " BROKEN"),
        ]
        best = cell.best_peer
        if compared and best is not None:
            theirs = cell.peers[best].nbytes
            row += [best, str(theirs), short(cell.raw_bytes / theirs), f"{cell.gain or 0:.3f}"]
        elif compared:
            row += ["-"] * 4
        rows.append(row)
    tables = [
        Table(
            title="Bytes at bounds relative to the range",
            headings=headings,
            rows=rows,
            remarks=_remarks(cells),
        )
    ]
    if compared:
        tables.append(_summary(cells))
    return tables


def _remarks(cells: Sequence[Cell]) -> list[str]:
    broken = sum(not cell.holds for cell in cells)
    text = f"Bound kept in {len(cells) - broken} of {len(cells)} cells, checked in float64."
    loose: dict[str, int] = {}
    for cell in cells:
        for name, outcome in cell.peers.items():
            if outcome.share > 1:
                loose[name] = loose.get(name, 0) + 1
    if loose:
        text += " Peers beyond it: " + ", ".join(f"{n} in {c}" for n, c in loose.items()) + "."
    return [text]


def _summary(cells: Sequence[Cell]) -> Table:
    groups: dict[str, list[Cell]] = {"all": list(cells)}
    for cell in cells:
        groups.setdefault(f"bound {cell.bound:g}", []).append(cell)
    for cell in cells:
        groups.setdefault(cell.kind, []).append(cell)
    rows: list[list[str]] = []
    for name, members in groups.items():
        gains = [cell.gain for cell in members if cell.gain is not None]
        if not gains:
            continue
        won = sum(gain >= 1 for gain in gains)
        mean = math.exp(sum(map(math.log, gains)) / len(gains))
        row = [name, f"{won} of {len(gains)}", f"{won / len(gains):.0%}", f"{mean:.3f}"]
        rows.append([*row, f"{min(gains):.3f}", f"{max(gains):.3f}"])
    return Table(
        title="Ratio of the dense codec / ratio of the best peer",
        headings=["cells", "at least equal", "share", "geometric mean", "least", "most"],
        rows=rows,
    )


def ratio_record(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return the cells as plain values for JSON."""
    return [plain({**asdict(c), "best_peer": c.best_peer, "gain": c.gain}) for c in cells]
