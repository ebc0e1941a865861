"""Numbers and names in sentences."""

from collections.abc import Iterable

SHOWN_NAMES = 8


def counted(number: int, noun: str) -> str:
    """Return 1 chunk, 2 chunks or 3,000 chunks."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: object) -> str:
    """Text in which nothing commands the terminal: names come from files that anyone may write."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def listed(names: Iterable[str]) -> str:
    """Return the first few names, quoted."""
    words = [repr(name) for name in names]
    return ", ".join(words[:SHOWN_NAMES]) + (", ..." if words[SHOWN_NAMES:] else "")


def compared(size: int, raw_size: int) -> str:
    """Say how many times smaller a size is, if it is."""
    if size < raw_size:
        return f"{raw_size / size:.2f} times smaller"
    return "not smaller"
