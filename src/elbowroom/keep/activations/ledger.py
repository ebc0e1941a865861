"""The ledger: who saved what, how, how many bytes, at what error and time."""

import json
from dataclasses import asdict, dataclass, field, replace

VERSION = 2
"""Of the JSON: the first had neither versions nor reasons."""

MOST_REASONS = 4
"""In the line that people read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One saved tensor of the last pass."""

    name: str
    readers: tuple[str, ...]
    """Nodes and slots that read it in backward."""

    error_class: str
    """W: errors stay in a weight's gradient; P: they travel on; M: a mask is read; E: exact."""

    method: str
    """keep, encode, bits, sign, window, free, derive or share."""

    shape: tuple[int, ...]
    saved_bytes: int
    kept_bytes: int
    bound: float
    gradient_error: float
    """Predicted share of the gradient's variance."""

    encode_s: float
    decode_s: float
    """So far: all of it when backward is over."""

    reason: str = ""
    """Why it is kept as it is, where it is."""

    @property
    def layer(self) -> str:
        """The module that saved it."""
        return layer_of(self.name)

    @property
    def ratio(self) -> float | None:
        """How many times smaller it is; None where nothing is held for it."""
        return self.saved_bytes / self.kept_bytes if self.kept_bytes else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The meter against the prediction, at one pass."""

    step: int
    predicted: float
    measured: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Why some tensors of a pass are kept as they are, and their bytes."""

    reason: str
    kept_bytes: int
    tensors: int


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Totals of the last pass, its rows, and what the meter has read so far."""

    step: int = 0
    saved_bytes: int = 0
    """What plain autograd would hold: every storage once, without what the user holds anyway."""

    kept_bytes: int = 0
    """What is held instead. With several backwards inside of one pass both are sums over them."""

    peak_bytes: int = 0
    """Most that was held at once, tensors made again for backward included."""

    gradient_error: float = 0.0
    """Predicted share of the gradient's own variance that the errors add."""

    encode_s: float = 0.0
    decode_s: float = 0.0
    rows: tuple[Row, ...] = ()
    readings: tuple[Reading, ...] = ()
    events: tuple[str, ...] = field(default=())
    overhead: float | None = None
    """What a step may take more than plain, as a share; None: as long as it takes."""

    slowdown: float | None = None
    """What the last steps took more than plain, measured; None before one was."""

    @property
    def ratio(self) -> float:
        """How many times smaller the kept tensors are."""
        return self.saved_bytes / self.kept_bytes if self.kept_bytes else 1.0

    @property
    def kept_because(self) -> tuple[Reason, ...]:
        """Why tensors are kept as they are, the most bytes first."""
        found: dict[str, Reason] = {}
        for row in self.rows:
            if row.reason and row.kept_bytes:
                known = found.get(row.reason, Reason(reason=row.reason, kept_bytes=0, tensors=0))
                found[row.reason] = replace(
                    known, kept_bytes=known.kept_bytes + row.kept_bytes, tensors=known.tensors + 1
                )
        return tuple(sorted(found.values(), key=lambda reason: -reason.kept_bytes))

    def brief(self) -> str:
        """One line: how far it is, what is held of how much, at which error."""
        if self.step == 0:
            return "no pass yet"
        held = f"{say_bytes(self.saved_bytes)} saved as {say_bytes(self.kept_bytes)}"
        error = "no error predicted"
        if self.gradient_error:
            error = f"gradient error {self.gradient_error:.2g} of its variance"
        return f"step {self.step}, {held} ({self.ratio:.1f}x), {error}"

    def to_json(self) -> str:
        """All of it, as one JSON object."""
        because = [asdict(reason) for reason in self.kept_because]
        found = {"version": VERSION, **asdict(self), "ratio": self.ratio, "kept_because": because}
        return json.dumps(found)

    def __str__(self) -> str:
        if self.step == 0:
            return "no pass yet"
        lines = [
            f"step {self.step}: {say_bytes(self.saved_bytes)} saved, "
            f"{say_bytes(self.kept_bytes)} kept ({self.ratio:.1f}x), "
            f"peak {say_bytes(self.peak_bytes)}",
            f"gradient error {self.gradient_error:.3g} of the gradient's own variance; "
            f"encode {self.encode_s * 1e3:.0f} ms, decode {self.decode_s * 1e3:.0f} ms",
        ]
        if self.slowdown is not None:
            asked = (
                "" if self.overhead is None else f" (asked: at most {100 * self.overhead:.0f} %)"
            )
            lines.append(f"time: {100 * self.slowdown:.0f} % more than plain{asked}")
        if self.kept_because:
            lines.append(_say_reasons(self.kept_because))
        groups: dict[tuple[str, str, str], list[Row]] = {}
        for row in self.rows:
            key = (" + ".join(sorted(row.readers)), row.error_class, row.method)
            groups.setdefault(key, []).append(row)
        table = [("read by", "class", "how", "tensors", "saved", "kept", "ratio", "error")]
        for (readers, error_class, method), rows in sorted(
            groups.items(), key=lambda item: -sum(r.saved_bytes for r in item[1])
        ):
            saved = sum(row.saved_bytes for row in rows)
            kept = sum(row.kept_bytes for row in rows)
            table.append(
                (
                    readers if len(readers) <= 44 else readers[:43] + "…",
                    error_class,
                    method,
                    str(len(rows)),
                    say_bytes(saved),
                    say_bytes(kept),
                    f"{saved / kept:.1f}" if kept else "-",
                    f"{sum(row.gradient_error for row in rows):.2g}",
                )
            )
        widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
        for line in table:
            cells = [
                cell.ljust(width) if place < 3 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        if self.readings:
            last = self.readings[-1]
            lines.append(
                f"meter at step {last.step}: measured {last.measured:.3g}, "
                f"predicted {last.predicted:.3g}"
            )
        lines.extend(self.events[-3:])
        return "\n".join(lines)


def _say_reasons(reasons: tuple[Reason, ...]) -> str:
    shown = [f"{say_bytes(each.kept_bytes)} {each.reason}" for each in reasons[:MOST_REASONS]]
    rest = sum(each.kept_bytes for each in reasons[MOST_REASONS:])
    if rest:
        shown.append(f"{say_bytes(rest)} for other reasons")
    total = sum(each.kept_bytes for each in reasons)
    return f"{say_bytes(total)} kept as they are: {', '.join(shown)}"


def layer_of(name: str) -> str:
    """The module in the name of a saved tensor, such as "encoder.0: conv2d[0]"."""
    return name.split(": ", 1)[0]


def say_bytes(nbytes: int) -> str:
    """For people: three digits or so and a unit."""
    if nbytes < 1e5:
        return f"{nbytes / 1e3:.1f} kB"
    return f"{nbytes / 1e6:.1f} MB" if nbytes < 1e9 else f"{nbytes / 1e9:.2f} GB"
