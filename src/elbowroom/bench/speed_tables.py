"""The tables of the speed benchmark."""

from collections.abc import Mapping, Sequence
from typing import Any

from elbowroom.bench.memory import Peak
from elbowroom.bench.race import Time
from elbowroom.bench.speed import MEMCPY, OPERATIONS, SpeedCell
from elbowroom.bench.tables import Table, short

COLUMNS = {
    "block encode": "block enc",
    "block encode range": "block enc, range bound",
    "block encode ratio": "block enc, for ratio",
    "block decode": "block dec",
    "block decode new": "block dec, new memory",
    "dense encode": "dense enc",
    "dense encode like": "dense enc, like=",
    "dense decode": "dense dec",
    "dense decode new": "dense dec, new memory",
}


def speed_tables(cells: Sequence[SpeedCell], isas: Sequence[str], threads: int = 1) -> list[Table]:
    """Return ours beside memcpy for every instruction set, then everybody else's."""
    word = "one thread" if threads == 1 else f"{threads} threads"
    ours = Table(
        title=f"GB/s of float input, {word} (and as a share of memcpy)",
        headings=["tensor", "MB", "bound", "isa", "memcpy", *COLUMNS.values(), "ratios"],
        rows=[_our_row(cell, isa) for cell in cells for isa in isas],
        remarks=[
            "memcpy: the faster of np.copyto and ctypes.memmove into memory that is there. "
            "Ratios: block, dense."
        ],
    )
    others = [row for cell in cells if (row := _other_row(cell, isas[0]))]
    if not others:
        return [ours]
    headings = ["tensor", "MB", "bound", "SZ3 enc", "SZ3 dec", "next enc", "next dec"]
    headings += ["4-bit enc", "4-bit dec", "bf16 enc", "bf16 dec"]
    headings += ["block / SZ3 enc", "block / SZ3 dec", "dense / SZ3 enc", "dense / SZ3 dec"]
    theirs = Table(
        title="GB/s of the others, one thread",
        headings=headings,
        rows=others,
        remarks=[
            "SZ3: its fastest algorithm, on at most the first 32 MB. Next: the fastest of zfp, "
            "pcodec, zstd and blosc2. 4-bit: groups of 256 in plain torch, no bound.",
            f"Ours at {isas[0]}; dense with like=.",
        ],
    )
    return [ours, theirs]


def _our_row(cell: SpeedCell, isa: str) -> list[str]:
    copy = cell.memcpy.gb_per_s
    row = [cell.tensor, f"{cell.raw_bytes / 1e6:.0f}", f"{cell.bound:g}", isa, short(copy)]
    for name in COLUMNS:
        speed = cell.times[f"{name} {isa}"].gb_per_s
        row.append(f"{short(speed)} ({speed / copy:.2f})")
    return [*row, ", ".join(short(ratio) for ratio in cell.ratios.values())]


def _other_row(cell: SpeedCell, isa: str) -> list[str]:
    mine = {f"{name} {level}" for name in OPERATIONS for level in isas_of(cell)} | set(MEMCPY)
    theirs = [name for name in cell.times if name not in mine]
    if not theirs:
        return []
    row = [cell.tensor, f"{cell.raw_bytes / 1e6:.0f}", f"{cell.bound:g}"]
    sz3 = {way: cell.fastest("sz3 ", f" {way}") for way in ("encode", "decode")}
    row += [_named(found, "sz3 ") for found in sz3.values()]
    for way in ("encode", "decode"):
        found = [cell.fastest(peer, f" {way}") for peer in ("zfp", "pcodec", "zstd", "blosc2")]
        best = max((f for f in found if f), key=lambda pair: pair[1].gb_per_s, default=None)
        row.append(_named(best))
    for name in ("torch 4-bit encode", "torch 4-bit decode", "bf16 encode", "bf16 decode"):
        row.append(short(cell.times[name].gb_per_s) if name in cell.times else "-")
    for operation in ("block encode", "block decode", "dense encode like", "dense decode"):
        peer = sz3["encode" if "encode" in operation else "decode"]
        mine_speed = cell.times[f"{operation} {isa}"].gb_per_s
        row.append(f"{mine_speed / peer[1].gb_per_s:.1f}x" if peer else "-")
    return row


def isas_of(cell: SpeedCell) -> list[str]:
    """Return the instruction sets that a cell was timed at."""
    prefix = f"{OPERATIONS[-1]} "
    return [name.removeprefix(prefix) for name in cell.times if name.startswith(prefix)]


def _named(found: tuple[str, Time] | None, prefix: str = "") -> str:
    if found is None:
        return "-"
    return f"{short(found[1].gb_per_s)} ({found[0].removeprefix(prefix)})"


def thread_table(one: Sequence[SpeedCell], two: Sequence[SpeedCell], isa: str) -> Table:
    """Return how much two threads gain on the same arrays."""
    names = ("block encode", "block decode", "dense encode like", "dense decode")
    rows: list[list[str]] = []
    for single, double in zip(one, two, strict=True):
        row = [single.tensor, f"{single.raw_bytes / 1e6:.0f}", f"{single.bound:g}"]
        for name in names:
            first = single.times[f"{name} {isa}"].gb_per_s
            second = double.times[f"{name} {isa}"].gb_per_s
            row.append(f"{short(second)} ({second / first:.2f}x)")
        rows.append(row)
    return Table(
        title=f"GB/s with two threads (and gain over one), {isa}",
        headings=["tensor", "MB", "bound", *[COLUMNS[name] for name in names]],
        rows=rows,
    )


def overhead_table(overhead: Mapping[str, float]) -> Table:
    """Return the cost of a call on 4 KB."""
    rows = [[name, f"{microseconds:.1f}"] for name, microseconds in overhead.items()]
    return Table(title="A call on 4 KB", headings=["call", "µs"], rows=rows)


def memory_table(peaks: Sequence[tuple[str, Peak]]) -> Table:
    """Return the peak memory of encode and decode."""
    rows = [
        [
            tensor,
            f"{peak.codec} {peak.operation}",
            f"{peak.raw_bytes / 1e6:.1f}",
            f"{peak.output_bytes / 1e6:.1f}",
            f"{peak.peak_bytes / 1e6:.1f}",
            f"{peak.scratch_bytes / 1e6:.1f}",
            f"{peak.scratch_bytes / max(1, peak.raw_bytes):.3f}",
        ]
        for tensor, peak in peaks
    ]
    headings = ["tensor", "operation", "array MB", "result MB", "peak MB", "scratch MB"]
    return Table(
        title="Peak memory beyond the input",
        headings=[*headings, "scratch / array"],
        rows=rows,
    )


def speed_record(cells: Sequence[SpeedCell]) -> list[dict[str, Any]]:
    """Return the cells as plain values for JSON."""
    return [
        {
            "tensor": cell.tensor,
            "raw_bytes": cell.raw_bytes,
            "bound": cell.bound,
            "ratios": cell.ratios,
            "memcpy_gb_per_s": cell.memcpy.gb_per_s,
            "gb_per_s": {name: best.gb_per_s for name, best in cell.times.items()},
            "seconds": {name: best.seconds for name, best in cell.times.items()},
        }
        for cell in cells
    ]
