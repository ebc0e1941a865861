"""The tidy table of a study: one line a cell, one column a setting or an outcome."""

import csv
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from elbowroom.study.journal import Row

NAME = "study.csv"

SETTINGS = ("method", "tolerance", "rule", "codec", "mode", "bound", "kind", "dithered")
OUTCOMES = (
    *("state", "diverged_at", "metric", "value", "higher_is_better", "loss", "ratio"),
    *("saved_bytes", "kept_bytes", "gradient_error", "step_s", "threads", "data_crc32"),
)
COLUMNS = ("network", "steps", *SETTINGS, "seed", *OUTCOMES, "baseline", "version", "key")


def flatten(row: Row) -> dict[str, Any]:
    """Return a row of the journal as one of the table."""
    settings, outcome = row["settings"], row["outcome"]
    baselines = [value for value in outcome["baselines"].values() if value is not None]
    best = max if outcome["higher_is_better"] else min
    return {
        "network": settings["network"],
        "steps": settings["recipe"]["schedule"]["steps"],
        **{name: settings["treatment"][name] for name in SETTINGS},
        "seed": settings["seed"],
        **{name: outcome.get(name) for name in OUTCOMES},
        "baseline": best(baselines) if baselines else None,
        "version": settings["version"],
        "key": row["key"],
    }


def write_table(rows: Iterable[Row], folder: Path) -> Path:
    """Write the table anew, whole or not at all."""
    lines = sorted((flatten(row) for row in rows), key=_place)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return write_whole(folder / NAME, text.getvalue())


def write_whole(path: Path, text: str) -> Path:
    """Write a file aside and put it in place at once."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def _place(line: dict[str, Any]) -> tuple[Any, ...]:
    settings = (line[name] for name in ("network", "steps", *SETTINGS, "seed"))
    return tuple((value is not None, str(type(value)), value) for value in settings)
