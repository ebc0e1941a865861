"""The table of everything that a room keeps, and what happened to it."""

import math
import re

from elbowroom.keep.activations.ledger import Row
from elbowroom.report.elements import scroll
from elbowroom.report.model import Contender
from elbowroom.report.wording import (
    escape,
    say_bytes,
    say_number,
    say_ratio,
    say_seconds,
    shorten,
)

MOST_WORD = 40

_HEADS = (
    *("tensor", "read by", "class", "how", "shape"),
    *("saved", "kept", "ratio", "error", "encode", "decode"),
)
_TEXT = {"tensor", "read by", "class", "how", "shape"}


def make_ledger(contender: Contender, number: int, most_rows: int) -> str:
    """Return the section of one contender's rows, the largest first."""
    rows = sorted(contender.rows, key=lambda row: -row.saved_bytes)
    shown = rows[:most_rows]
    head = "".join(
        f'<th scope="col"{" class=text" if name in _TEXT else ""}'
        f"{' aria-sort=descending' if name == 'saved' else ''}>"
        f'<button type="button">{name}</button></th>'
        for name in _HEADS
    )
    left = (
        f" The {len(shown)} largest of {len(rows):,} are shown, so that the page stays small."
        if len(shown) < len(rows)
        else ""
    )
    # The first keeps the plain name, for links from outside.
    name = f"ledger{number or ''}"
    table = (
        f'<table class="wide" id="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(_make_line(row) for row in shown)}</tbody></table>"
    )
    events = "".join(f"<li>{escape(event)}</li>" for event in contender.events)
    return (
        f'<section class="long"><h2>The ledger of {escape(contender.label)}</h2>'
        '<p class="caption">Every tensor that autograd saved in the last step recorded. Classes: '
        "W, an error stays in one weight's gradient; P, it travels on; M, only a mask is read; "
        f"E, exact.{left} A heading sorts.</p>"
        f'<p class="sorted caption" aria-live="polite"></p>'
        f"{scroll('Ledger', table, tall=True)}"
        + (f"<h3>Events</h3><ul>{events}</ul>" if events else "")
        + "</section>"
    )


def _make_line(row: Row) -> str:
    # What is not known sorts with the largest.
    error = row.gradient_error if math.isfinite(row.gradient_error) else None
    cells: tuple[tuple[str, float], ...] = (
        (say_bytes(row.saved_bytes), row.saved_bytes),
        (say_bytes(row.kept_bytes), row.kept_bytes),
        (say_ratio(row.ratio), row.ratio or 1e18),
        (say_number(error), 1e18 if error is None else error),
        (say_seconds(row.encode_s), row.encode_s),
        (say_seconds(row.decode_s), row.decode_s),
    )
    shape = "×".join(str(size) for size in row.shape) or "scalar"
    return (
        f'<tr><td class="name">{_break_name(shorten(row.name))}</td>'
        f'<td class="name">{_break_name(shorten(", ".join(row.readers)))}</td>'
        f'<td class="text">{escape(shorten(row.error_class, MOST_WORD))}</td>'
        f'<td class="text">{escape(shorten(row.method, MOST_WORD))}</td>'
        f'<td class="text">{shorten(shape, 60)}</td>'
        + "".join(f'<td data-value="{value:.9g}">{said}</td>' for said, value in cells)
        + "</tr>"
    )


def _break_name(name: str) -> str:
    """Let a long name go on in the next line at its dots, not within a word."""
    return "<wbr>".join(escape(part) for part in re.split(r"(?<=\.)(?=\w)", name))
