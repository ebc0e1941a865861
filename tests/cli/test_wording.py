"""Numbers and names in sentences."""

import pytest

from elbowroom.cli.wording import compared, counted, listed


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 chunks"), (1, "1 chunk"), (2, "2 chunks"), (12345, "12,345 chunks")],
)
def test_nouns_follow_their_number(number: int, text: str) -> None:
    assert counted(number, "chunk") == text


def test_long_lists_are_cut() -> None:
    assert listed(["a", "it's"]) == "'a', \"it's\""
    assert listed(str(number) for number in range(20)).endswith("'7', ...")
    assert listed([]) == ""


def test_only_what_is_smaller_is_called_so() -> None:
    assert compared(10, 25) == "2.50 times smaller"
    assert compared(10, 10) == compared(11, 10) == compared(20, 0) == "not smaller"
