"""Which codec is worth its time."""

import pytest
import torch
from torch import Tensor

from elbowroom.keep.activations.entries import UNKNOWN, Entry
from elbowroom.keep.activations.laps import Lap
from elbowroom.keep.activations.payloads import Coded
from elbowroom.keep.activations.policy import Policy
from elbowroom.keep.activations.sites import Form, Site


def make_policy() -> Policy:
    return Policy(is_exact=False, is_local=False, seed=0)


def make_site() -> Site:
    return Site(("", "linear", 0, 0), 0, bound=1.0)


def pack(
    policy: Policy, site: Site, x: Tensor, form: Form = Form.ENCODE, lap: Lap | None = None
) -> Coded:
    entry = Entry(x, site)
    entry.uses.append(UNKNOWN)
    coded = policy.pack(entry, x, form, lap)
    assert coded is not None
    assert float((coded.restore() - x).abs().max()) <= 1
    return coded


def values(*shape: int) -> Tensor:
    torch.manual_seed(0)
    return 0.7 * torch.randn(shape)


def test_of_two_tensors_alike_the_larger_one_is_more_worth_the_small_codec() -> None:
    """Tables and calls take as long for both, where nobody says which codec to take."""
    policy = make_policy()
    found: list[bool] = []
    for count in (1 << 13, 1 << 20):
        x, site = values(count), make_site()
        for part in (x, x[: count // 16], x):
            # What was found of a part of a batch does not change what is done with all of it.
            pack(policy, site, part)
        found.append(site.is_small)
    assert found == [False, True]


@pytest.mark.parametrize("shape", [(64, 8, 32, 32), (1, 64, 64, 64), (1 << 19,)])
def test_a_part_of_a_tensor_tells_what_the_small_codec_would_save(shape: tuple[int, ...]) -> None:
    policy, site, x = make_policy(), make_site(), values(*shape)
    fast = pack(policy, site, x, Form.BLOCK).nbytes
    assert not site.is_small
    expected = fast / site.gain
    assert pack(policy, site, x, Form.DENSE).nbytes == pytest.approx(expected, rel=0.05)
    assert site.is_small and site.gain > 1.1
    layout = x.reshape(shape).to(memory_format=torch.channels_last) if x.dim() == 4 else x
    assert pack(policy, site, layout, Form.DENSE).nbytes == pytest.approx(expected, rel=0.05)


def test_without_time_codecs_are_not_compared() -> None:
    policy, site = make_policy(), make_site()
    lap = Lap(trials=0.0)
    lap.note_trial(1e9)
    pack(policy, site, values(1 << 16), Form.BLOCK, lap)
    assert site.choice == 0
    lap = Lap()
    pack(policy, site, values(1 << 16), Form.BLOCK, lap)
    assert site.choice == 1 and site.gain > 1 and lap.tried_s > 0
