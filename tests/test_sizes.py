"""Sizes as people write them."""

import pytest

from elbowroom.errors import InvalidArgument
from elbowroom.host import whole_bytes
from elbowroom.sizes import parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6 GB", 6_000_000_000),
        ("6G", 6_000_000_000),
        ("6GiB", 6 << 30),
        ("512MiB", 2**29),
        ("700m", 700_000_000),
        ("1.5 gb", 1_500_000_000),
        ("60 kB", 60_000),
        (1234, 1234),
        ("2e3", 2000),
    ],
)
def test_sizes(text: object, expected: int) -> None:
    assert parse_bytes(text) == expected


def test_a_percentage_is_a_share_of_the_machine_or_of_what_is_given() -> None:
    assert parse_bytes("80%", 1000) == 800
    assert parse_bytes("100 %") == whole_bytes() > 1 << 20


@pytest.mark.parametrize("bad", ["", "six GB", "5 parsecs", -1, 0, float("nan"), True, None, [1]])
def test_sizes_that_make_no_sense(bad: object) -> None:
    with pytest.raises(InvalidArgument, match="memory must be a size"):
        parse_bytes(bad)


@pytest.mark.parametrize("bad", ["0%", "120%"])
def test_a_percentage_lies_between_nothing_and_all(bad: str) -> None:
    with pytest.raises(InvalidArgument, match="memory must be a size"):
        parse_bytes(bad)


@pytest.mark.parametrize(("bad", "meant"), [(6, "6 GB"), ("6", "6 GB"), (0.8, "80%")])
def test_a_unit_that_was_forgotten_is_asked_for(bad: object, meant: str) -> None:
    with pytest.raises(InvalidArgument, match=f'did you mean "{meant}"'):
        parse_bytes(bad)
