"""Comparisons: pairs of equal seeds alone, signs, errors, and trainings that came to nothing."""

import csv
import math
from pathlib import Path

import pytest

from elbowroom.study.drawing import render, write_page
from elbowroom.study.figures import make_figures
from elbowroom.study.summary import compare
from elbowroom.study.table import COLUMNS, write_table
from elbowroom.study.treatments import fixed, room

from .conftest import MakeRow

ROOM = room(0.1)
WIDE = fixed("norm", "range", 0.2)


def test_differences_are_taken_seed_by_seed(make_row: MakeRow) -> None:
    plain = {0: 0.5, 1: 0.7, 2: 0.9, 3: 0.1}
    treated = {0: 0.52, 1: 0.71, 2: 0.93, 7: 0.0}
    rows = [make_row(seed=seed, value=value) for seed, value in plain.items()]
    rows += [make_row(ROOM, seed, value, step_s=0.02) for seed, value in treated.items()]
    (found,) = compare(rows)
    gains = (0.02, 0.01, 0.03)
    assert found.seeds == 3
    assert found.gain == pytest.approx(0.02)
    assert found.plain == pytest.approx(0.7)
    spread = math.sqrt(sum((gain - 0.02) ** 2 for gain in gains) / 2)
    assert found.error == pytest.approx(spread / math.sqrt(3))
    assert found.slowdown == pytest.approx(2.0)
    assert found.verdict == "better by 3.5 standard errors"


def test_lower_may_be_better(make_row: MakeRow) -> None:
    rows = [make_row(seed=seed, value=2.0, higher_is_better=False) for seed in range(3)]
    values = (2.1, 2.2, 2.3)
    rows += [make_row(ROOM, s, v, higher_is_better=False) for s, v in enumerate(values)]
    (found,) = compare(rows)
    assert found.gain == pytest.approx(-0.2)
    assert found.verdict.startswith("worse by")


def test_what_is_alike_is_said_to_be(make_row: MakeRow) -> None:
    rows = [make_row(seed=seed, value=0.5) for seed in range(3)]
    rows += [make_row(ROOM, seed, value) for seed, value in enumerate((0.4, 0.5, 0.61))]
    assert compare(rows)[0].verdict == "within one standard error"
    assert compare(rows[:5])[0].verdict == "fewer than 3 pairs"
    assert compare(rows[3:])[0].verdict == "no pair"


def test_what_diverged_is_told_and_not_averaged(make_row: MakeRow) -> None:
    rows = [make_row(seed=seed, value=0.5) for seed in range(3)]
    rows += [make_row(ROOM, 0, 0.5), make_row(ROOM, 1, 0.5)]
    rows += [make_row(ROOM, 2, None, state="diverged", diverged_at=4)]
    (found,) = compare(rows)
    assert (found.diverged, found.seeds, found.verdict) == (1, 2, "diverged")
    assert found.gain == 0.0


def test_other_data_is_another_matter(make_row: MakeRow) -> None:
    rows = [make_row(seed=0), make_row(ROOM, 0, data_crc32=8)]
    assert compare(rows)[0].verdict == "no pair"


def test_other_data_has_a_section_of_its_own(make_row: MakeRow) -> None:
    alone = [make_row(), make_row(ROOM)]
    assert "checksum" not in render(compare(alone))
    both = [*alone, make_row(data_crc32=8), make_row(ROOM, data_crc32=8)]
    page = render(compare(both))
    assert page.count("<section>") == 2
    assert "300 steps, data of checksum 7<" in page and "data of checksum 8<" in page
    assert set(make_figures(compare(both))) == {"gain-0", "error-0", "gain-1", "error-1"}


def test_the_table_has_a_line_for_every_training(make_row: MakeRow, tmp_path: Path) -> None:
    rows = [make_row(), make_row(WIDE, 1, None, state="diverged"), make_row(ROOM, 0)]
    path = write_table(rows, tmp_path)
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert tuple(lines[0]) == COLUMNS
    assert [line["method"] for line in lines] == ["fixed", "plain", "room"]
    assert lines[0]["value"] == "" and lines[0]["bound"] == "0.2"
    assert {line["key"] for line in lines} == {row["key"] for row in rows}
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".csv"] == ["study.csv"]


def test_figures_leave_out_what_a_logarithm_cannot_show(make_row: MakeRow) -> None:
    rows = [make_row(), make_row(WIDE, gradient_error=0.0), make_row(ROOM, ratio=None)]
    figures = make_figures(compare(rows))
    assert set(figures) == {"gain-0"}
    assert [one["label"] for one in figures["gain-0"]["series"]] == ["norm"]


def test_the_page_stands_alone(make_row: MakeRow, tmp_path: Path) -> None:
    page = write_page([make_row(), make_row(ROOM)], tmp_path).read_text(encoding="utf-8")
    assert "http://" not in page.split("<script")[0] and 'data-figure="gain-0"' in page
    assert "room 0.1" in page and "</html>" in page
    assert "Nothing can be compared yet" in render([])
