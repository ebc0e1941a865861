"""Treatments refuse what means nothing, and say themselves in a few words."""

from typing import Any

import pytest

from elbowroom.errors import InvalidArgument
from elbowroom.study.treatments import Treatment, fixed, room, smaller

FIXED: dict[str, Any] = {
    "method": "fixed",
    "codec": "dense",
    "mode": "range",
    "bound": 0.1,
    "kind": "all",
    "dithered": True,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "magic"}, "plain, room, fixed, batch"),
        ({"codec": "zip"}, "codec is one of block, dense, group"),
        ({"mode": "vague"}, "mode is one of absolute"),
        ({"kind": "carpet"}, "kind is one of all, convolution"),
        ({"bound": 0.0}, "finite and positive"),
        ({"bound": float("nan")}, "finite and positive"),
        ({"bound": None}, "fixed needs bound"),
        ({"tolerance": 0.1}, "fixed has no tolerance"),
        ({"codec": "group"}, "bits belong to the codec group"),
        ({"mode": "bits", "bound": 2.0}, "bits belong to the codec group"),
        ({"codec": "group", "mode": "bits", "bound": 2.5}, "whole number from 1 to 8"),
        ({"codec": "group", "mode": "bits", "bound": 9.0}, "whole number from 1 to 8"),
        ({"mode": "pointwise", "bound": 1.0, "dithered": False}, "share below 1"),
        ({"mode": "pointwise", "bound": 0.5}, "cannot be dithered"),
    ],
)
def test_what_means_nothing_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        Treatment(**{**FIXED, **changes})


def test_a_room_has_a_tolerance_that_is_a_number() -> None:
    assert room(0.0).tolerance == 0.0
    for value in (-0.1, 1e300, float("nan")):
        with pytest.raises(InvalidArgument, match=r"tolerance must be a share from 0 .* to 1, got"):
            room(value)
    for value in (0.0, 1.0, float("nan")):
        with pytest.raises(InvalidArgument, match="share of the batch must be above 0 and below 1"):
            smaller(value)
    with pytest.raises(InvalidArgument, match="rule is one of variance, comet, certified"):
        room(0.1, "hope")  # type: ignore[arg-type]


def test_labels_tell_treatments_apart() -> None:
    made = [
        Treatment(),
        room(0.1),
        room(0.1, "comet"),
        smaller(0.5),
        fixed("all", "range", 0.1),
        fixed("all", "range", 0.1, dithered=False),
        fixed("all", "range", 0.1, codec="block"),
        fixed("norm", "range", 0.1),
        fixed("all", "pointwise", 0.1),
        fixed("all", "bits", 2, codec="group"),
    ]
    assert len({treatment.label for treatment in made}) == len(made)
    assert not fixed("all", "pointwise", 0.1).dithered
