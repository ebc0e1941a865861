"""Which codec is worth its time."""

import pytest
import torch

from elbowroom.keep.activations.entries import UNKNOWN, Entry
from elbowroom.keep.activations.policy import ENOUGH, LEAST_WORTH, MOST_WORTH, Policy
from elbowroom.keep.activations.sites import Site


def make_policy() -> Policy:
    return Policy(is_exact=False, is_local=False, seed=0)


def settle(policy: Policy, ratio: float, passes: int) -> float:
    for _ in range(passes):
        policy.adapt(ratio)
    return policy.worth


def test_bytes_give_way_to_time_once_little_is_held() -> None:
    policy = make_policy()
    first = policy.worth
    assert first < settle(policy, 1.1 * ENOUGH, 1) <= 1.21 * first * (1 + 1e-9)
    assert settle(policy, 3 * ENOUGH, 20) == MOST_WORTH


def test_time_gives_way_to_bytes_down_to_where_it_began() -> None:
    policy = make_policy()
    first = policy.worth
    assert first == LEAST_WORTH
    high = settle(policy, 3 * ENOUGH, 20)
    assert first < settle(policy, 0.9 * ENOUGH, 1) < high
    assert settle(policy, 0.5 * ENOUGH, 20) == first


@pytest.mark.parametrize("ratio", [ENOUGH, 1.02 * ENOUGH])
def test_enough_is_left_as_it_is(ratio: float) -> None:
    policy = make_policy()
    before = settle(policy, 2 * ENOUGH, 2)
    assert settle(policy, ratio, 5) == before


@pytest.mark.parametrize(("worth", "small_ones"), [(LEAST_WORTH, 2), (0.025, 1), (MOST_WORTH, 0)])
def test_of_two_tensors_alike_the_larger_one_is_more_worth_the_small_codec(
    worth: float, small_ones: int
) -> None:
    """Tables and calls take as long for both."""
    policy = make_policy()
    policy.worth = worth
    torch.manual_seed(0)
    kept = 0
    for number, count in enumerate((1 << 17, 1 << 20)):
        x = 0.7 * torch.randn(count)
        site = Site(("", "linear", 0, number), number, bound=1.0)
        for part in (x, x[: count // 16], x):
            # What was found of a part of a batch does not change what is done with all of it.
            entry = Entry(part, site)
            entry.uses.append(UNKNOWN)
            assert policy.pack(entry, part) is not None
        kept += site.is_small
    assert kept == small_ones
