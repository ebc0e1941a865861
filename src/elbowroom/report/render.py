"""Renders a run as one HTML file."""

from elbowroom.report.document import make_document, read_asset
from elbowroom.report.figures import make_figures
from elbowroom.report.model import Run
from elbowroom.report.sections import make_sections
from elbowroom.report.trimming import trim

MOST_BYTES = 3_000_000
# Of all ledgers together. What else there is has limits that leave room; names of hostile length
# and characters can make eight hundred rows too long even so, and then fewer are shown.
MOST_ROWS = (800, 400, 200, 100, 50, 0)


def render(run: Run) -> str:
    """Return the page, of three megabytes at most; what does not fit is said to be left out."""
    run, left = trim(run)
    page = ""
    for most_rows in MOST_ROWS:
        figures = make_figures(run, most_dots=2 * most_rows)
        page = make_document(
            maker="report",
            title=run.title,
            body=make_sections(run, figures, left, most_rows=most_rows),
            data=figures,
            script=read_asset("report", "report.js"),
        )
        if len(page.encode()) <= MOST_BYTES:
            break
    return page
