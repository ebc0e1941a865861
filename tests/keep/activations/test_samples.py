"""Which samples of a call are a part of it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from elbowroom.keep.activations.samples import (
    LEAST,
    Part,
    Uncuttable,
    least_of,
    part_of,
    parts_of,
)


@pytest.mark.parametrize(
    ("batch", "least", "count"),
    [
        *((1, 1, 1), (7, 1, 7), (8, 1, 1), (23, 1, 1), (24, 1, 2), (120, 1, 10)),
        *((2, 2, 2), (15, 2, 15), (16, 2, 2), (35, 2, 2), (36, 2, 3)),
    ],
)
def test_a_part_is_small_or_it_is_none(batch: int, least: int, count: int) -> None:
    assert part_of(batch, least) == count


def test_statistics_over_a_batch_need_two_samples_while_they_are_taken() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    assert least_of(model) == LEAST == 2
    assert least_of(model.eval()) == 1


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass
class Sample:
    x: Tensor
    name: str


def test_what_a_call_may_hold() -> None:
    part = Part(16, 2, counts_in_numbers=True)
    x = torch.arange(48.0).view(16, 3)
    call: Any = {
        "pair": Pair(x, x.T.contiguous()),
        "sample": Sample(x, "some"),
        "lengths": list(range(16)),
        "pictures": [torch.zeros(3, size) for size in range(2, 18)],
        "maps": [x, x + 1],
        "count": 16,
        "flag": True,
        "table": torch.zeros(5, 5),
        "nothing": None,
    }
    found = part.of_call(call)
    assert isinstance(found["pair"], Pair)
    assert torch.equal(found["pair"].x, x[:2])
    assert torch.equal(found["pair"].y, x.T[:, :2])
    assert torch.equal(found["sample"].x, x[:2])
    assert found["sample"].name == "some"
    assert call["sample"].x is x
    assert found["lengths"] == [0, 1]
    assert [len(p[0]) for p in found["pictures"]] == [2, 3]
    assert [len(m) for m in found["maps"]] == [2, 2]
    assert found["count"] == 2
    assert found["flag"] is True
    assert found["table"] is call["table"]
    assert Part(16, 2).of_call(call)["count"] == 16


def test_a_model_may_write_over_its_part() -> None:
    x = torch.ones(16, 3, requires_grad=True)
    found = Part(16, 2).of_call((x,))[0]
    assert found.is_leaf
    assert found.requires_grad
    found.detach().zero_()
    assert x.min() == 1


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(2, 40, dtype=torch.int64),
        pack_sequence([torch.zeros(4, 3), torch.zeros(2, 3)]),
        torch.zeros(16, 3).to_sparse(),
    ],
    ids=["edges", "packed", "sparse"],
)
def test_what_cannot_be_cut(value: Any) -> None:
    with pytest.raises(Uncuttable):
        Part(16, 2).of_call((torch.zeros(16, 3), value))


def test_outputs_of_several_rows_a_sample_and_of_none() -> None:
    part = Part(16, 2, start=3)
    assert part.of_output(torch.arange(48)).tolist() == [9, 10, 11, 12, 13, 14]
    loss = torch.zeros(())
    assert part.is_sum(loss)
    assert part.of_output(loss) is loss
    assert part.is_sum(torch.zeros(17))
    assert not part.is_sum(torch.zeros(3, 16))


def test_halves_are_the_whole_part() -> None:
    part, rows = Part(64, 5), torch.arange(64)
    given = part.of(rows)
    found = [half.of(given) for half in part.halves()]
    assert torch.equal(torch.cat(found), given)
    assert not Part(64, 3).halves()


@pytest.mark.parametrize(
    ("shapes", "outputs", "model", "expected"),
    [
        ([(32, 3, 8, 8)], [(32, 10)], nn.Identity(), (32, 0)),
        ([(64, 32), (64, 32)], [()], nn.Identity(), (64, 0)),
        ([(20, 32, 8)], [(20, 32, 8)], nn.LSTM(8, 8), (32, 1)),
        ([(20, 32, 8)], [(20, 32, 8), (1, 32, 8)], nn.Identity(), (32, 1)),
        ([(32, 20, 8)], [(32, 20, 8)], nn.LSTM(8, 8, batch_first=True), (32, 0)),
        ([(32, 3, 8, 8)], [(32, 10)], nn.MultiheadAttention(8, 2), (32, 0)),
    ],
)
def test_the_samples_are_found(
    shapes: list[Any], outputs: list[Any], model: nn.Module, expected: tuple[int, int]
) -> None:
    call = (tuple(torch.zeros(shape) for shape in shapes), {})
    part = parts_of(call, [torch.zeros(shape) for shape in outputs], model, 1)[0]
    assert (part.batch, part.axis) == expected


def test_small_batches_and_lists() -> None:
    assert not parts_of(((torch.zeros(4, 3),), {}), [], nn.Identity(), 1)
    pictures = [torch.zeros(3, size, size) for size in range(8, 24)]
    assert Part(16, 1) in parts_of(((pictures,), {}), [], nn.Identity(), 1)
    ways = parts_of(((torch.zeros(16, 3), 16), {}), [], nn.Identity(), 1)
    assert ways == [Part(16, 1), Part(16, 1, counts_in_numbers=True)]
