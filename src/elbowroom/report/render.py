"""Renders a run as one HTML file that needs nothing else: no network, no other file."""

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any

from elbowroom.report.figures import make_figures
from elbowroom.report.model import Run
from elbowroom.report.sections import make_sections
from elbowroom.report.wording import escape

CHARTS = "echarts.common.min.js"

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="elbowroom report">
<title>{title}</title>
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


def render(run: Run) -> str:
    """Return the page."""
    figures = make_figures(run)
    charts, script = _read(CHARTS), _read("report.js")
    return _PAGE.format(
        hashes=" ".join(_hash(text) for text in (charts, script)),
        title=escape(run.title),
        style=_read("report.css"),
        body=make_sections(run, figures),
        data=_embed(figures),
        charts=charts,
        script=script,
    )


def _read(name: str) -> str:
    return files("elbowroom.report").joinpath("page", name).read_text(encoding="utf-8")


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
