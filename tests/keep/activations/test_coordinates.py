"""Places in tensors, and what shapes make of them."""

from random import Random

import torch
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.keep.activations.coordinates import (
    coordinates_in,
    first_copies,
    flat_places,
    moved,
    permuted,
    places_in,
    within,
)

HOST = torch.device("cpu")
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


def numbered(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape)


@given(shapes)
def test_they_are_the_places_in_row_major_order(shape: tuple[int, ...]) -> None:
    values = numbered(shape)
    found = coordinates_in(values.numel(), shape, HOST)
    assert torch.equal(values[found], places_in(values.numel(), HOST))
    assert torch.equal(flat_places(found, shape), places_in(values.numel(), HOST))


@given(shapes, st.randoms(use_true_random=False))
def test_permuting_and_reshaping_find_the_same_elements(
    shape: tuple[int, ...], random: Random
) -> None:
    values = numbered(shape)
    places = coordinates_in(values.numel(), shape, HOST)
    order = list(range(len(shape)))
    random.shuffle(order)
    turned = permuted(places, tuple(order))
    assert torch.equal(values.permute(order)[turned], values[places])
    other = (values.numel(),)
    assert torch.equal(values.reshape(other)[moved(places, shape, other)], values[places])


@given(shapes, st.data())
def test_within_what_is_repeated(shape: tuple[int, ...], data: st.DataObject) -> None:
    kept = data.draw(st.integers(1, len(shape)))
    small = tuple(1 if data.draw(st.booleans()) else size for size in shape[len(shape) - kept :])
    values = numbered(small)
    places = coordinates_in(torch.Size(shape).numel(), shape, HOST)
    assert torch.equal(values.expand(shape)[places], values[within(places, small)])
    own = coordinates_in(values.numel(), small, HOST)
    copies = first_copies(own, len(shape))
    assert torch.equal(values.expand(shape)[copies], values[own])
