"""How fast arrays are encoded and decoded, ours beside memcpy, the peers and plain casts."""

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from elbowroom.bench.casts import GROUP, quantise4, restore4
from elbowroom.bench.peers import Peer, fold
from elbowroom.bench.race import Contender, Time, race
from elbowroom.bench.verification import Array, as_floats, extent, verify
from elbowroom.codec import Bound, decode, encode

# Peers at hundreds of MB/s would take minutes on a large array; their speed does not change.
CUT_BYTES = 32 * 10**6
OVERHEAD_ITEMS = 1024

EFFORTS: dict[Literal["block", "dense"], Literal["ratio", "speed"]] = {
    "block": "speed",
    "dense": "ratio",
}
MEMCPY = ("copyto", "memmove")
OPERATIONS = (
    "block encode",
    "block encode range",
    "block encode ratio",
    "block decode",
    "block decode new",
    "dense encode",
    "dense encode like",
    "dense decode",
    "dense decode new",
)


@dataclass(frozen=True, kw_only=True)
class SpeedCell:
    """All times of one array at one bound; names of ours end with the instruction set."""

    tensor: str
    raw_bytes: int
    bound: float  # of the range
    ratios: dict[str, float]
    times: dict[str, Time] = field(default_factory=dict)

    @property
    def memcpy(self) -> Time:
        """The faster of the two copies into warm memory."""
        return min((self.times[name] for name in MEMCPY), key=lambda time: time.seconds)

    def fastest(self, prefix: str, suffix: str) -> tuple[str, Time] | None:
        """Return the quickest contender whose name begins and ends so."""
        found = {
            name: best
            for name, best in self.times.items()
            if name.startswith(prefix) and name.endswith(suffix)
        }
        name = min(found, key=lambda name: found[name].seconds / found[name].nbytes, default=None)
        return None if name is None else (name.removesuffix(suffix).strip(), found[name])


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let torch's own operations use one thread, like everything else here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure_speed(
    name: str,
    x: Array,
    bound: float,
    *,
    isas: Sequence[str],
    peers: Sequence[Peer] = (),
    rounds: int = 7,
    threads: int = 1,
) -> SpeedCell:
    """Time one array at one bound, everything in turns; refuse to time what is wrong."""
    allowed = Bound.range_relative(bound).resolve(*extent(x))
    ours, ratios = _our_contenders(x, bound, allowed, isas, threads)
    contenders = [*_copies(x), *ours]
    if threads == 1:
        contenders += [*_peer_contenders(x, allowed, peers), *_cast_contenders(x)]
    with one_torch_thread():
        times = race(contenders, rounds=rounds)
    return SpeedCell(tensor=name, raw_bytes=x.nbytes, bound=bound, ratios=ratios, times=times)


def _copies(x: Array) -> list[Contender]:
    source, target = _patterns(x), _patterns(_warm_like(x))

    def move() -> None:
        ctypes.memmove(target.ctypes.data, source.ctypes.data, source.nbytes)

    return [
        Contender(name="copyto", call=lambda: np.copyto(target, source), nbytes=x.nbytes),
        Contender(name="memmove", call=move, nbytes=x.nbytes),
    ]


def _patterns(x: Array) -> np.ndarray:
    """Return a view of the items that numpy has a type for, row-major."""
    if isinstance(x, torch.Tensor):
        x = x.contiguous()
        x = (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()
    return np.ascontiguousarray(x)


def _warm_like(x: Array) -> Array:
    """Return memory for the same array whose pages have been touched."""
    if isinstance(x, torch.Tensor):
        return torch.empty_like(x).fill_(1)
    out = np.empty_like(x)
    out.fill(1)
    return out


def _our_contenders(
    x: Array, relative: float, allowed: float, isas: Sequence[str], threads: int
) -> tuple[list[Contender], dict[str, float]]:
    absolute, ranged = Bound.absolute(allowed), Bound.range_relative(relative)
    out = _warm_like(x)
    ratios: dict[str, float] = {}
    calls: dict[str, Callable[[], Any]] = {}
    for codec, effort in EFFORTS.items():
        blob = encode(x, absolute, codec=codec, effort=effort, threads=threads)
        if not verify(x, decode(blob, threads=threads), absolute).holds:
            raise AssertionError(f"{codec} broke its bound: its speed means nothing")
        ratios[codec] = blob.ratio
        quick = partial(encode, x, codec=codec, effort=effort, threads=threads)
        calls[f"{codec} encode"] = partial(quick, absolute)
        calls[f"{codec} encode range"] = partial(quick, ranged)
        calls[f"{codec} encode ratio"] = partial(quick, absolute, effort="ratio")
        calls[f"{codec} encode like"] = partial(quick, absolute, like=blob)
        calls[f"{codec} decode"] = partial(decode, blob, out=out, threads=threads)
        calls[f"{codec} decode new"] = partial(decode, blob, threads=threads)
    contenders = [
        Contender(name=f"{name} {isa}", call=calls[name], nbytes=x.nbytes, isa=isa)
        for isa in isas
        for name in OPERATIONS
    ]
    return contenders, ratios


def _peer_contenders(x: Array, allowed: float, peers: Sequence[Peer]) -> list[Contender]:
    contenders: list[Contender] = []
    cut = _cut(x)
    for peer in peers if allowed and np.isfinite(cut).all() else ():
        encoded = peer.encode(cut, allowed)
        contenders += [
            Contender(
                name=f"{peer.name} encode",
                call=lambda peer=peer: peer.encode(cut, allowed),
                nbytes=cut.nbytes,
            ),
            Contender(
                name=f"{peer.name} decode",
                call=lambda peer=peer, encoded=encoded: peer.decode(encoded, cut, allowed),
                nbytes=cut.nbytes,
            ),
        ]
    return contenders


def _cut(x: Array) -> np.ndarray:
    """Return the first samples that make up CUT_BYTES, or everything that has fewer."""
    folded = fold(as_floats(x))
    rows = max(1, CUT_BYTES * len(folded) // max(1, folded.nbytes))
    return np.ascontiguousarray(folded[:rows])


def _cast_contenders(x: Array) -> list[Contender]:
    whole = x if isinstance(x, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(x))
    whole = whole.reshape(-1)
    items = whole.numel() // GROUP * GROUP
    if not items:
        return []
    flat = whole[:items]
    packed, half = quantise4(flat), flat.bfloat16()
    nbytes = flat.nbytes
    calls: dict[str, Callable[[], Any]] = {
        "torch 4-bit encode": lambda: quantise4(flat),
        "torch 4-bit decode": lambda: restore4(*packed),
        "bf16 encode": flat.bfloat16,
        "bf16 decode": half.float,
    }
    return [Contender(name=name, call=call, nbytes=nbytes) for name, call in calls.items()]


def measure_overhead(calls: int = 2000) -> dict[str, float]:
    """Return microseconds of one call on 4 KB, the best mean of five runs."""
    bound = Bound.absolute(1e-2)
    values = np.random.default_rng(0).standard_normal(OVERHEAD_ITEMS).astype(np.float32)
    found: dict[str, float] = {}
    for kind, x in {"numpy": values, "torch": torch.from_numpy(values)}.items():
        for codec in ("block", "dense"):
            blob = encode(x, bound, codec=codec, threads=1)
            out = decode(blob, threads=1)
            contenders: dict[str, Callable[[], Any]] = {
                "encode": lambda x=x, codec=codec: encode(x, bound, codec=codec, threads=1),
                "encode like": lambda x=x, codec=codec, blob=blob: encode(
                    x, bound, codec=codec, like=blob, threads=1
                ),
                "decode": lambda blob=blob: decode(blob, threads=1),
                "decode out": lambda blob=blob, out=out: decode(blob, out=out, threads=1),
            }
            for name, call in contenders.items():
                found[f"{kind} {codec} {name}"] = min(_mean_us(call, calls) for _ in range(5))
    return found


def _mean_us(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6
