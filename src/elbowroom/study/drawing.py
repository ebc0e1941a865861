"""Renders a study as one HTML file that needs nothing else, in the style of the report."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from elbowroom.report.document import make_document, read_asset
from elbowroom.report.wording import escape, say_number, say_ratio
from elbowroom.study.figures import Figures, group_networks, make_figures
from elbowroom.study.journal import Row
from elbowroom.study.summary import Comparison, compare
from elbowroom.study.table import write_whole

NAME = "study.html"

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
    return make_document(
        maker="study",
        title="Impact study",
        body=_make_body(comparisons, figures),
        data=figures,
        script=read_asset("study", "study.js"),
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
    groups = group_networks(comparisons)
    for number, group in enumerate(groups):
        parts.append(_make_section(number, group, figures, _tell_apart(group[0], groups)))
    parts.append("<footer>Made by elbowroom study; study.csv has every training.</footer>")
    return "\n".join(parts)


def _tell_apart(first: Comparison, groups: Sequence[Sequence[Comparison]]) -> str:
    """Name data and version where the network and its steps stand in more than one section."""
    alike = [one[0] for one in groups if one[0].network == first.network]
    alike = [one for one in alike if one.steps == first.steps]
    told = ""
    if len({one.data_crc32 for one in alike}) > 1:
        told += f", data of checksum {first.data_crc32}"
    if len({one.version for one in alike}) > 1:
        told += f", version {first.version}"
    return told


def _make_section(number: int, group: Sequence[Comparison], figures: Figures, apart: str) -> str:
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
        f"<section><h2>{escape(first.network)}, {first.steps} steps{escape(apart)}</h2>"
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
