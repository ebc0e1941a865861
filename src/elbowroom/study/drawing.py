"""Renders a study as one HTML file that needs nothing else, in the style of the report."""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from elbowroom.report.wording import escape, say_number, say_ratio
from elbowroom.study.figures import Figures, group_networks, make_figures
from elbowroom.study.journal import Row
from elbowroom.study.summary import Comparison, compare
from elbowroom.study.table import write_whole

NAME = "study.html"

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="elbowroom study">
<title>Impact study</title>
<link rel="icon" href="data:,">
<style>
{style}
</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/json" id="data">{data}</script>
<script>{charts}</script>
<script>{script}</script>
</body>
</html>
"""

_HEADINGS = (
    *("treatment", "pairs", "diverged", "plain", "treated", "gain", "± error", "verdict"),
    *("smaller", "gradient error"),
)


def write_page(rows: Iterable[Row], folder: Path) -> Path:
    """Write the page, whole or not at all."""
    return write_whole(folder / NAME, render(compare(rows)))


def render(comparisons: Sequence[Comparison]) -> str:
    """Return the page."""
    figures = make_figures(comparisons)
    charts = _read("report", "echarts.common.min.js")
    script = _read("study", "study.js")
    return _PAGE.format(
        hashes=" ".join(_hash(text) for text in (charts, script)),
        style=_read("report", "report.css"),
        body=_make_body(comparisons, figures),
        data=_embed(figures),
        charts=charts,
        script=script,
    )


def _make_body(comparisons: Sequence[Comparison], figures: Figures) -> str:
    parts = [
        "<header><h1>Impact study</h1>"
        '<p class="lead">What errors in kept tensors do to what a network learns.</p>'
        '<p class="caption">Gain is the mean difference to plain training over pairs of equal '
        "seeds, positive where the treatment is better; bars and ± are one standard error of that "
        "mean. Gradient error is a share of the gradient's own variance from batch to batch.</p>"
        "<noscript><p>The charts need JavaScript; every table is here without it.</p></noscript>"
        "</header>"
    ]
    if not comparisons:
        parts.append("<section><p>Nothing can be compared yet.</p></section>")
    for number, group in enumerate(group_networks(comparisons)):
        parts.append(_make_section(number, group, figures))
    parts.append("<footer>Made by elbowroom study; study.csv has every training.</footer>")
    return "\n".join(parts)


def _make_section(number: int, group: Sequence[Comparison], figures: Figures) -> str:
    first = group[0]
    titles = {"gain": "What it learns", "error": "What happens to the gradient"}
    drawn = "".join(
        f'<div><h3>{titles[sort]}</h3><div class="chart" role="img" '
        f'aria-label="{titles[sort]}: every number is in the table below" '
        f'data-figure="{sort}-{number}"></div></div>'
        for sort in titles
        if f"{sort}-{number}" in figures
    )
    better = "higher is better" if first.higher_is_better else "lower is better"
    heads = "".join(
        f'<th scope="col"{_text(head)}><button type="button">{head}</button></th>'
        for head in _HEADINGS
    )
    lines = "".join(_make_line(one) for one in group)
    return (
        f"<section><h2>{escape(first.network)}, {first.steps} steps</h2>"
        f'<p class="caption">{escape(first.metric)}, {better}.</p>'
        f'<div class="pair">{drawn}</div>'
        f'<div class="scroll" tabindex="0"><table class="wide"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div></section>"
    )


def _text(head: str) -> str:
    return ' class="text"' if head in ("treatment", "verdict") else ""


def _make_line(one: Comparison) -> str:
    numbers = (
        (one.seeds, str(one.seeds)),
        (one.diverged, str(one.diverged)),
        (one.plain, say_number(one.plain, 4)),
        (one.value, say_number(one.value, 4)),
        (one.gain, "–" if one.gain is None else f"{one.gain:+.2g}"),
        (one.error, say_number(one.error, 2)),
        (None, one.verdict),
        (one.ratio, say_ratio(one.ratio)),
        (one.gradient_error, say_number(one.gradient_error, 2)),
    )
    cells = "".join(_make_cell(value, shown, shown == one.verdict) for value, shown in numbers)
    return f'<tr><th scope="row" class="text">{escape(one.treatment.label)}</th>{cells}</tr>'


def _make_cell(value: float | None, shown: str, is_text: bool) -> str:
    sorted_by = "" if value is None else f' data-value="{value}"'
    style = ' class="text"' if is_text else ""
    return f"<td{sorted_by}{style}>{escape(shown)}</td>"


def _read(part: str, name: str) -> str:
    return files(f"elbowroom.{part}").joinpath("page", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """What the content security policy lets run: these scripts, and none that a text brings in."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _embed(value: Any) -> str:
    """JSON in which no text can end the element that it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
