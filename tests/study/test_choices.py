"""Options become treatments; what has no effect or means nothing is refused."""

import pytest

from elbowroom.errors import InvalidArgument
from elbowroom.study.choices import Choices, make_treatments


def label(**options: str | bool) -> tuple[list[str], list[str]]:
    made, misfits = make_treatments(Choices(**options))  # type: ignore[arg-type]
    return [treatment.label for treatment in made], misfits


def test_options_are_combined_and_plain_comes_first() -> None:
    assert label() == ([], [])
    assert label(tolerance="0.1, 0.2", rule="variance,comet", share="0.5")[0] == [
        *("plain", "room 0.1", "room 0.1, comet", "room 0.2", "room 0.2, comet"),
        "0.5 of the batch",
    ]
    assert label(bound="0.1", mode="range,pointwise", kind="norm")[0] == [
        *("plain", "norm: dense, range 0.1 dithered", "norm: dense, pointwise 0.1"),
    ]
    assert label(bound="0.1", dither=False)[0] == ["plain", "all: dense, range 0.1"]


def test_pairs_that_do_not_fit_are_left_out_and_named() -> None:
    made, misfits = label(bound="2,0.1", codec="dense,group", mode="range,bits")
    assert made == [
        *("plain", "all: dense, range 2 dithered", "all: dense, range 0.1 dithered"),
        "all: group, 2 bits",
    ]
    assert misfits == [
        *("dense with bits 2", "dense with bits 0.1", "group with range 2"),
        *("group with range 0.1", "group with bits 0.1"),
    ]
    with pytest.raises(InvalidArgument, match="bits belong to the codec group"):
        label(bound="2", codec="group")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rule": "comet"}, "--rule belongs to --tolerance, which is not given"),
        ({"kind": "norm"}, "--kind belongs to --bound, which is not given"),
        ({"codec": "carpet"}, "--codec belongs to --bound"),
        ({"mode": "range", "tolerance": "0.1"}, "--mode belongs to --bound"),
        ({"dither": False}, "--dither belongs to --bound"),
        ({"tolerance": ","}, "--tolerance takes one or several, .* got ','"),
        ({"bound": ""}, "--bound takes one or several"),
        ({"bound": "0.1", "kind": " , "}, "--kind takes one or several"),
        ({"bound": "0.1,-1"}, "a bound must be finite and positive, got -1"),
        ({"bound": "0.1", "mode": "range,vague"}, "a mode is one of"),
        ({"share": "0"}, "a share of the batch must be above 0 and below 1, got 0"),
        ({"tolerance": "1e300"}, "a tolerance must be a share from 0"),
    ],
)
def test_what_means_nothing_is_refused(options: dict[str, str | bool], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        label(**options)
