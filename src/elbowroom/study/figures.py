"""The figures of a study: what is lost and what it does to the gradient, over the bytes saved."""

from collections.abc import Sequence
from typing import Any

from elbowroom.study.summary import Comparison
from elbowroom.study.treatments import Treatment

USUAL_MODE = "range"

Figures = dict[str, dict[str, Any]]


def make_figures(comparisons: Sequence[Comparison]) -> Figures:
    """Return the data of every chart by name: for each network and length two."""
    figures: Figures = {}
    for number, group in enumerate(group_networks(comparisons)):
        for sort in ("gain", "error"):
            figure = _make_figure(group, sort)
            if figure is not None:
                figures[f"{sort}-{number}"] = figure
    return figures


def group_networks(comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
    """Return the comparisons by what makes them comparable: network, steps, version and data."""
    groups: dict[tuple[Any, ...], list[Comparison]] = {}
    for one in comparisons:
        place = (one.network, one.steps, one.version, one.data_crc32)
        groups.setdefault(place, []).append(one)
    return list(groups.values())


def _make_figure(group: Sequence[Comparison], sort: str) -> dict[str, Any] | None:
    series: dict[str, list[list[Any]]] = {}
    for one in group:
        height = one.gain if sort == "gain" else one.gradient_error
        # A logarithmic axis has no place for nought.
        if one.ratio is None or height is None or (sort == "error" and height <= 0):
            continue
        told = f"{one.treatment.label}: {one.ratio:.3g} times smaller, {height:.3g}"
        error = one.error if sort == "gain" else None
        series.setdefault(_series_of(one.treatment), []).append([one.ratio, height, told, error])
    if not series:
        return None
    series = _shorten(series)
    ratios = [point[0] for points in series.values() for point in points]
    return {
        "sort": sort,
        "name": f"{group[0].metric}: gain over plain",
        "ends": [min(ratios), max(ratios)],
        "series": [
            {"label": label, "points": sorted(points, key=lambda point: point[0])}
            for label, points in series.items()
        ],
    }


def _shorten(series: dict[str, list[list[Any]]]) -> dict[str, list[list[Any]]]:
    """Leave out the sort of bound where it is the same everywhere."""
    tail = f", {USUAL_MODE}"
    if not all(label.endswith(tail) for label in series):
        return series
    return {label.removesuffix(tail): points for label, points in series.items()}


def _series_of(treatment: Treatment) -> str:
    if treatment.method == "room":
        return "room" if treatment.rule == "variance" else f"room, {treatment.rule}"
    if treatment.method == "batch":
        return "smaller batch"
    if treatment.codec == "group":
        return f"{treatment.kind}, group of 256"
    plain = "" if treatment.dithered or treatment.mode == "pointwise" else ", not dithered"
    codec = "" if treatment.codec == "dense" else f", {treatment.codec}"
    return f"{treatment.kind}, {treatment.mode}{plain}{codec}"
