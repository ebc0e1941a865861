"""What a benchmark shows: titled tables of text, and their Markdown."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Table:
    """A title, a line of headings, lines of cells and remarks; the first column is text."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = field(default=())

    def markdown(self) -> str:
        """Return the table as Markdown."""
        rule = ["---", *["---:"] * (len(self.headings) - 1)]
        lines = [f"| {' | '.join(cells)} |" for cells in [self.headings, rule, *self.rows]]
        remarks = [f"\n{remark}" for remark in self.remarks]
        return "\n".join([f"### {self.title}\n", *lines, *remarks, ""])


def short(number: float | None, digits: int = 3) -> str:
    """Write a number with a few significant digits, a dash for none."""
    if number is None:
        return "-"
    if not math.isfinite(number):
        return str(number)
    text = f"{number:.{digits}g}"
    return f"{number:.0f}" if "e+" in text else text


def plain(value: Any) -> Any:
    """Return nested values as JSON can say them: infinities and NaN become null."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
