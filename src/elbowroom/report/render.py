"""Renders a run as one HTML file."""

from elbowroom.report.document import make_document, read_asset
from elbowroom.report.figures import make_figures
from elbowroom.report.model import Run
from elbowroom.report.sections import make_sections


def render(run: Run) -> str:
    """Return the page."""
    figures = make_figures(run)
    return make_document(
        maker="report",
        title=run.title,
        body=make_sections(run, figures),
        data=figures,
        script=read_asset("report", "report.js"),
    )
