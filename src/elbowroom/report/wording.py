"""Numbers and texts as the page shows them."""

import html

from elbowroom.report.model import Contender


def escape(text: object) -> str:
    """Text that is safe anywhere in the page, attributes included."""
    return html.escape(make_writable(str(text)), quote=True)


def make_writable(text: str) -> str:
    """Put a ? for half characters, such as names of files may have: no encoding has them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def shorten(text: str, most: int = 160) -> str:
    """The beginning of a long text."""
    return text if len(text) <= most else text[: most - 1] + "…"


def say_bytes(nbytes: int | float | None) -> str:
    """Three digits or so and a unit."""
    if nbytes is None:
        return "–"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(nbytes) >= size:
            value = nbytes / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{nbytes:.0f} B"


def say_seconds(seconds: float | None) -> str:
    """Milliseconds below one second."""
    if seconds is None:
        return "–"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def say_number(value: float | None, digits: int = 3) -> str:
    """A number of few digits, or a dash."""
    return "–" if value is None else f"{value:.{digits}g}"


def say_ratio(value: float | None) -> str:
    """How many times smaller."""
    return "–" if value is None else f"{value:.1f}×" if value < 100 else f"{value:.0f}×"


def say_excess(contender: Contender) -> str:
    """Say what it means where more error was measured than was to be tolerated, and what helps."""
    measured, tolerance = contender.measured_error, contender.tolerance
    if measured is None or tolerance is None or measured <= tolerance:
        return ""
    return (
        f"{shorten(contender.label)}: the measured gradient error {say_number(measured)} exceeds "
        f"the tolerance {say_number(tolerance)}. While a model learns fast its gradient moves from "
        "step to step, and the estimate of its variance takes that for variance: it comes out too "
        "large, and so do the bounds, until that has calmed. More steps bring the two together, "
        "and a smaller tolerance makes the error smaller."
    )
