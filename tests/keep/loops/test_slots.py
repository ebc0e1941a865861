"""Places for states: what is free is used again, and what does not fit any more is given back."""

import torch

from elbowroom.keep.loops.slots import Copied, Pool

NUMBERS = 1 << 19


def test_places_are_used_again() -> None:
    pool = Pool()
    first = Copied([torch.full((NUMBERS,), 1.0)], pool)
    address = first.tensors[0].data_ptr()
    del first
    second = Copied([torch.full((NUMBERS,), 2.0)], pool)
    assert second.tensors[0].data_ptr() == address
    third = Copied([torch.full((NUMBERS,), 3.0)], pool)
    assert [float(held.load()[0].mean()) for held in (second, third)] == [2.0, 3.0]


def test_places_of_states_that_change_their_shape_do_not_add_up() -> None:
    pool = Pool()
    for more in range(20):
        held = Copied([torch.ones(NUMBERS + 1000 * more)], pool)
        assert float(held.load()[0].sum()) == NUMBERS + 1000 * more
        del held
    assert len(pool._free) == 1
