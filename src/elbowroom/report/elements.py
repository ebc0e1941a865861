"""Pieces that every section of the page is made of."""

from elbowroom.report.wording import escape


def chart(figure: str, title: str, told: str, *, low: bool = False) -> str:
    """The place of a chart, with what it shows for those who do not see it."""
    label = f"{title}: {told}" if told else title
    return (
        f'<figure style="margin:0;min-width:0"><h3>{escape(title)}</h3>'
        + (f'<p class="caption">{escape(told)}</p>' if told else "")
        + f'<div class="chart{" low" if low else ""}" data-figure="{figure}" role="img" '
        f'aria-label="{escape(label)}"></div></figure>'
    )


def scroll(name: str, table: str, *, tall: bool = False) -> str:
    """A table that scrolls by itself, with the keyboard too, where the page is narrow."""
    kind = "scroll tall" if tall else "scroll"
    return f'<div class="{kind}" tabindex="0" role="region" aria-label="{name}">{table}</div>'
