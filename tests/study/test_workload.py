"""How much work is left, and how long it takes at the pace of what is done."""

from elbowroom.study.cells import Cell
from elbowroom.study.treatments import Treatment, room
from elbowroom.study.workload import count_steps, estimate_seconds

from .conftest import MakeRow

PLAIN = Cell(network="cms-perceptron", treatment=Treatment(), seed=5, steps=10)
ROOM = Cell(network="cms-perceptron", treatment=room(0.5), seed=5, steps=20)
OTHER = Cell(network="gpt-mini", treatment=Treatment(), seed=0)


def test_steps_are_those_of_the_network_unless_they_are_given() -> None:
    assert OTHER.length == 700
    assert count_steps([PLAIN, ROOM, OTHER]) == 730


def test_time_follows_from_rows_of_the_network_and_method(make_row: MakeRow) -> None:
    rows = [make_row(step_s=0.1), make_row(seed=1, step_s=0.3), make_row(seed=2, step_s=0.2)]
    assert estimate_seconds([PLAIN], rows) == 10 * 0.2
    assert estimate_seconds([ROOM], rows) == 20 * 0.2
    assert estimate_seconds([ROOM], [*rows, make_row(room(0.1), step_s=0.5)]) == 20 * 0.5
    assert estimate_seconds([PLAIN, OTHER], rows) is None
    assert estimate_seconds([], []) == 0.0
