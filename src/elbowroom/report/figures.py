"""The data of the charts: what the page's script draws, and nothing that it has to work out."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from elbowroom.report.model import Contender, Run, Step
from elbowroom.report.timeline import Kind, Stack, group_layers, stack
from elbowroom.report.wording import shorten

MOST_CURVE = 1500
MOST_POINTS = 6000  # of all curves of a chart
MOST_DOTS = 1600
MOST_GROUPS = 8

Figures = dict[str, Any]


def make_figures(run: Run, *, most_dots: int = MOST_DOTS) -> Figures:
    """Return every chart that the run has data for."""
    figures = {
        "memory": _memory(run),
        "loss": _loss(run),
        "score": _score(run),
        "error": _error(run, most_dots),
        "readings": _readings(run),
        "times": _times(run),
    }
    return {name: figure for name, figure in figures.items() if figure}


def stacks_of(run: Run) -> tuple[tuple[Contender, Stack], tuple[Contender, Stack]] | None:
    """The bytes saved over a step, before and after, in the same groups of layers.

    Before is a plain contender, or else what the ledger says that plain autograd would hold.
    """
    watched = [contender for contender in run.contenders if contender.timeline is not None]
    if not watched:
        return None
    plain = next((c for c in watched if not c.rows), watched[0])
    room = next((c for c in watched if c.rows), watched[-1])
    layers = [m.layer for c in (plain, room) if c.timeline for m in c.timeline.moments]
    groups = group_layers(layers)
    pairs: list[tuple[Contender, Stack]] = []
    kinds: tuple[tuple[Contender, Kind], ...] = ((plain, "plain"), (room, "held"))
    for contender, kind in kinds:
        assert contender.timeline is not None
        pairs.append((contender, stack(contender.timeline, kind, groups)))
    return pairs[0], pairs[1]


def _memory(run: Run) -> Figures | None:
    pair = stacks_of(run)
    if pair is None:
        return None
    panels = {}
    names = list(dict.fromkeys(name for _, curves in pair for name in curves.names))
    for name, (contender, curves) in zip(("before", "after"), pair, strict=True):
        timeline = contender.timeline
        assert timeline is not None
        panels[name] = {
            "at_ms": [round(at * 1e3, 3) for at in curves.at_s],
            "names": [shorten(name, 60) for name in curves.names],
            "tones": [names.index(name) for name in curves.names],
            "bytes": curves.bytes_of,
            "forward_ms": round(timeline.forward_s * 1e3, 3),
            "end_ms": round(curves.at_s[-1] * 1e3, 3),
            "peak_bytes": curves.peak_bytes,
        }
    return {**panels, "most_bytes": max(p["peak_bytes"] for p in panels.values()) * 1.05}


def _loss(run: Run) -> Figures | None:
    curves = [(c.label, [[s.step, s.loss] for s in c.steps]) for c in run.contenders if c.steps]
    return {"name": "loss", "series": _thin_all(curves), "baselines": []} if curves else None


def _score(run: Run) -> Figures | None:
    curves = [(c.label, [[s.step, s.value] for s in c.scores]) for c in run.contenders if c.scores]
    scores = [score for c in run.contenders for score in c.scores]
    if not scores:
        return None
    ends = [0, max(score.step for score in scores)]
    last = scores[-1]
    baselines = [
        {"label": name, "points": [[end, value] for end in ends]}
        for name, value in last.baselines.items()
    ]
    return {
        "name": last.name,
        "series": _thin_all(curves),
        "baselines": baselines,
        "higher_is_better": last.higher_is_better,
    }


def _error(run: Run, most_dots: int) -> Figures | None:
    rows = [
        row
        for contender in run.contenders
        for row in contender.rows
        if row.ratio and row.gradient_error > 0
    ]
    rows = sorted(rows, key=lambda row: -row.saved_bytes)[:most_dots]
    groups: dict[str, list[list[Any]]] = {}
    for row in rows:
        readers = sorted({reader.split(".")[0] for reader in row.readers})
        label = shorten(" + ".join(readers) or row.method, 60)
        point = [row.ratio, row.gradient_error, shorten(row.name, 100), row.saved_bytes]
        groups.setdefault(label, []).append(point)
    if not groups:
        return None
    ordered = sorted(groups.items(), key=lambda item: -sum(point[3] for point in item[1]))
    kept = [{"label": label, "points": points} for label, points in ordered[:MOST_GROUPS]]
    return {"groups": kept, "most_bytes": max(1, rows[0].saved_bytes)}


def _readings(run: Run) -> Figures | None:
    readings = [reading for c in run.contenders for reading in c.readings]
    if not readings:
        return None
    curves = [
        ("predicted", [[r.step, r.predicted] for r in readings]),
        ("measured", [[r.step, r.measured] for r in readings]),
    ]
    return {"series": _thin_all(curves)}


def _times(run: Run) -> Figures | None:
    contenders = [contender for contender in run.contenders if contender.steps]
    if not contenders:
        return None
    parts = {
        "forward": lambda s: s.forward_s - s.encode_s,
        "encode": lambda s: s.encode_s,
        "backward": lambda s: s.backward_s - s.decode_s,
        "decode": lambda s: s.decode_s,
        "optimizer": lambda s: s.optimizer_s,
        "other": lambda s: s.other_s,
    }
    return {
        "labels": [shorten(contender.label, 40) for contender in contenders],
        "parts": [
            {
                "label": label,
                "values_ms": [
                    round(1e3 * max(0.0, median(part(s) for s in _usual(c.steps))), 3)
                    for c in contenders
                ],
            }
            for label, part in parts.items()
        ],
    }


def _usual(steps: Sequence[Step]) -> Sequence[Step]:
    """All but the first, which also loads and allocates."""
    return steps[1:] or steps


def _thin_all(curves: Sequence[tuple[str, list[list[Any]]]]) -> list[Figures]:
    """As many points as can be told apart on a screen; the last one of each is among them."""
    most = min(MOST_CURVE, MOST_POINTS // len(curves))
    thinned: list[Figures] = []
    for label, points in curves:
        every = -(-len(points) // most)
        few = points if every <= 1 else [*points[:-1:every], points[-1]]
        thinned.append({"label": label, "points": few})
    return thinned
