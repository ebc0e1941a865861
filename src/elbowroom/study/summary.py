"""What a study says: each treatment beside plain training, seed by seed."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median, stdev
from typing import Any

from elbowroom.study.journal import Row
from elbowroom.study.table import SETTINGS, flatten
from elbowroom.study.treatments import Treatment

FEWEST = 3  # pairs whose spread says something
MOST_ERRORS = 99.9


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A treatment against plain training of the same network, on the seeds that both have."""

    network: str
    steps: int
    version: str
    data_crc32: int | None
    treatment: Treatment
    metric: str
    higher_is_better: bool
    seeds: int  # compared in pairs
    diverged: int
    plain: float | None  # mean over the pairs
    value: float | None
    gain: float | None  # mean difference; positive is better than plain, whatever the metric
    error: float | None  # standard error of that mean; None for a single pair
    spread: float | None  # standard deviation of plain training from seed to seed
    ratio: float | None
    gradient_error: float | None
    slowdown: float | None  # step time over plain's

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.diverged:
            return "diverged"
        if self.gain is None:
            return "no pair"
        if self.error is None or self.seeds < FEWEST:
            return f"fewer than {FEWEST} pairs"
        if abs(self.gain) <= self.error:
            return "within one standard error"
        told = "better" if self.gain > 0 else "worse"
        # Differences that are all alike have an error of nought, or of a rounding.
        size = min(MOST_ERRORS, abs(self.gain) / max(self.error, 1e-300))
        return f"{told} by {size:.1f} standard errors"

    def record(self) -> dict[str, Any]:
        """For programs."""
        fields = {name: value for name, value in asdict(self).items() if name != "treatment"}
        return {**fields, **self.treatment.columns(), "verdict": self.verdict}


def compare(rows: Iterable[Row]) -> list[Comparison]:
    """Return one comparison for every treatment but plain, in the order of the rows."""
    groups: dict[tuple[Any, ...], dict[Treatment, dict[int, dict[str, Any]]]] = {}
    for row in rows:
        line = flatten(row)
        place = (line["network"], line["steps"], line["version"], line["data_crc32"])
        treatment = Treatment(**{name: line[name] for name in SETTINGS})
        cells = groups.setdefault(place, defaultdict(dict))
        cells[treatment][line["seed"]] = line
    found: list[Comparison] = []
    for cells in groups.values():
        plain = cells.get(Treatment(), {})
        for treatment, lines in cells.items():
            if treatment.method != "plain":
                found.append(_compare(treatment, plain, lines))
    return found


def _compare(
    treatment: Treatment,
    plain: dict[int, dict[str, Any]],
    lines: dict[int, dict[str, Any]],
) -> Comparison:
    any_line = next(iter(lines.values()))
    sign = 1 if any_line["higher_is_better"] else -1
    pairs = [
        (plain[seed], line)
        for seed, line in lines.items()
        if seed in plain and plain[seed]["state"] == line["state"] == "finished"
    ]
    before = [one["value"] for one, _ in pairs]
    after = [other["value"] for _, other in pairs]
    gains = [sign * (b - a) for a, b in zip(before, after, strict=True)]
    plains = [one["value"] for one in plain.values() if one["state"] == "finished"]
    finished = [line for line in lines.values() if line["state"] == "finished"]
    return Comparison(
        network=any_line["network"],
        steps=any_line["steps"],
        version=any_line["version"],
        data_crc32=any_line["data_crc32"],
        treatment=treatment,
        metric=any_line["metric"],
        higher_is_better=any_line["higher_is_better"],
        seeds=len(pairs),
        diverged=len(lines) - len(finished),
        plain=_mean(before),
        value=_mean(after),
        gain=_mean(gains),
        error=stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else None,
        spread=stdev(plains) if len(plains) > 1 else None,
        ratio=_mean([line["ratio"] for line in finished]),
        gradient_error=_mean([line["gradient_error"] for line in finished]),
        slowdown=_slowdown(pairs),
    )


def _slowdown(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> float | None:
    shares = [b["step_s"] / a["step_s"] for a, b in pairs if a["step_s"] and b["step_s"]]
    return median(shares) if shares else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
