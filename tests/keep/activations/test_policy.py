"""Which codec is worth its time."""

import pytest

from elbowroom.keep.activations.policy import ENOUGH, LEAST_WORTH, MOST_WORTH, Policy


def make_policy() -> Policy:
    return Policy(is_exact=False, is_local=False, seed=0)


def settle(policy: Policy, ratio: float, passes: int) -> float:
    for _ in range(passes):
        policy.adapt(ratio)
    return policy.worth


def test_bytes_give_way_to_time_once_little_is_held() -> None:
    policy = make_policy()
    first = policy.worth
    assert first < settle(policy, 1.1 * ENOUGH, 1) <= 1.1 * first * (1 + 1e-9)
    assert settle(policy, 3 * ENOUGH, 20) == MOST_WORTH


def test_time_gives_way_to_bytes_down_to_where_it_began() -> None:
    policy = make_policy()
    first = policy.worth
    assert first == LEAST_WORTH
    high = settle(policy, 3 * ENOUGH, 20)
    assert first < settle(policy, 0.9 * ENOUGH, 1) < high
    assert settle(policy, 0.5 * ENOUGH, 20) == first


@pytest.mark.parametrize("ratio", [ENOUGH, 1.04 * ENOUGH])
def test_enough_is_left_as_it_is(ratio: float) -> None:
    policy = make_policy()
    before = settle(policy, 2 * ENOUGH, 2)
    assert settle(policy, ratio, 5) == before
