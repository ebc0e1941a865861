"""One HTML file that needs nothing else: no network, no other file."""

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any

from elbowroom.report.wording import escape

CHARTS = "echarts.common.min.js"

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="elbowroom {maker}">
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


def make_document(*, maker: str, title: str, body: str, data: Any, script: str) -> str:
    """Return the page: the body, and a script that draws its data with the charts' library."""
    charts = read_asset("report", CHARTS)
    return _PAGE.format(
        hashes=" ".join(_hash(text) for text in (charts, script)),
        maker=maker,
        title=escape(title),
        style=read_asset("report", "report.css"),
        body=body,
        data=_embed(data),
        charts=charts,
        script=script,
    )


def read_asset(package: str, name: str) -> str:
    """Return a file of a package's folder `page`."""
    return files(f"elbowroom.{package}").joinpath("page", name).read_text(encoding="utf-8")


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
