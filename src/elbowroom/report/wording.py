"""Numbers and texts as the page shows them."""

import html


def escape(text: object) -> str:
    """Text that is safe anywhere in the page, attributes included."""
    return html.escape(str(text), quote=True)


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
