"""Readings against predictions: what is corrected, and when somebody is told."""

import pytest

from elbowroom.keep.activations.correction import Correction
from elbowroom.keep.activations.meter import Measured
from elbowroom.keep.activations.sites import Site


class Told:
    """A correction that keeps what it has told."""

    def __init__(self, *, is_tight: bool = True) -> None:
        self.events: list[str] = []
        self.correction = Correction(0.1, self.events.append, is_tight=is_tight)
        self.site = Site(("layer", "linear", 0, 0), 0)
        self.step = 0

    def read(self, share: float, *, predicted: float = 0.05, is_part: bool = True) -> None:
        self.site.bound, self.site.share, self.site.part_share = 1.0, predicted, predicted
        self.step += 1
        self.correction.take(
            self.step, Measured(2.0 * share, is_part), 2.0, [self.site], [self.site]
        )


def test_one_reading_a_little_above_tightens_and_says_nothing() -> None:
    told = Told()
    told.read(0.12)
    assert told.site.bound == pytest.approx((0.1 / 0.12) ** 0.5)
    assert not told.events


def test_two_in_a_row_are_told_once_until_it_is_over() -> None:
    told = Told()
    for share in (0.12, 0.13, 0.14, 0.2):
        told.read(share)
    assert len(told.events) == 1
    told.read(0.05)
    told.read(0.11)
    assert len(told.events) == 1
    told.read(0.12)
    assert len(told.events) == 2


def test_one_far_above_is_told_at_once_and_with_what_was_done() -> None:
    told = Told()
    told.read(0.9)
    assert told.events == [
        "errors were 0.9 of the gradient's variance, above the tolerance of 0.1: all bounds are "
        "now 3.0 times tighter, and the next ones reckon with it"
    ]


def test_other_rules_do_not_keep_this_tolerance() -> None:
    told = Told(is_tight=False)
    told.read(0.9)
    assert told.site.bound == 1.0
    assert not told.events


def test_closed_forms_are_corrected_by_what_several_readings_agree_on() -> None:
    told = Told()
    trusts: list[float] = []
    for _ in range(4):
        told.read(0.09, predicted=0.03 * told.correction.trust)
        trusts.append(told.correction.trust)
    assert trusts[0] == 1.0
    assert trusts[-1] == pytest.approx(3.0)


def test_nothing_is_read_where_nothing_was_predicted() -> None:
    told = Told()
    told.read(0.09, predicted=0.0)
    assert not told.correction.readings


def test_a_part_is_set_against_what_is_predicted_for_it() -> None:
    """Its own prediction is half of the whole batch's: so is what it shows."""
    told = Told()
    told.site.bound, told.site.share, told.site.part_share = 1.0, 0.06, 0.03
    told.correction.take(1, Measured(0.06, is_part=True), 2.0, [told.site], [told.site])
    assert told.correction.readings[0].measured == pytest.approx(0.06)
