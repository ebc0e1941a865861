"""How much work a study is: its steps, and the time they take where some have been timed."""

from collections.abc import Iterable, Sequence
from statistics import median

from elbowroom.study.cells import Cell
from elbowroom.study.journal import Row


def count_steps(cells: Iterable[Cell]) -> int:
    """Return the steps of all trainings together."""
    return sum(cell.length for cell in cells)


def estimate_seconds(cells: Sequence[Cell], rows: Iterable[Row]) -> float | None:
    """Return how long one job needs at the pace of earlier rows; None where there are none.

    A step of a room costs more than a plain one, so that rows of the same method are preferred.
    """
    times: dict[tuple[str, str | None], list[float]] = {}
    for row in rows:
        settings, step_s = row["settings"], row["outcome"].get("step_s")
        if step_s is not None:
            for method in (settings["treatment"]["method"], None):
                times.setdefault((settings["network"], method), []).append(step_s)
    total = 0.0
    for cell in cells:
        known = times.get((cell.network, cell.treatment.method)) or times.get((cell.network, None))
        if not known:
            return None
        total += cell.length * median(known)
    return total
