"""What compiled graphs hold: parts of memories, masks, the operators, and how it is counted."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations import graphs
from tests.keep.activations.checking import gradients, matches
from tests.keep.activations.test_compiled import convolutional, encoded

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled for one test is used by another."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_the_ledger_counts_what_plain_training_holds(tolerance: float) -> None:
    """Storages once; neither parameters nor inputs."""
    own = convolutional()
    x = torch.randn(8, 3, 24, 24)

    def held_of(y: Tensor) -> dict[int, int]:
        node: Any = y.grad_fn
        while "CompiledFunction" not in node.name():
            node = node.next_functions[0][0]
        saved = (*node.saved_tensors, *node._tensors_no_vc_check)
        ours = {t.untyped_storage()._cdata for t in (*own.parameters(), *own.buffers(), x)}
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in saved}
        return {k: n for k, n in storages.items() if k not in ours}

    plain = held_of(cast(Any, torch.compile(own, backend="aot_eager"))(x))
    torch.compiler.reset()
    model: Any = torch.compile(own, backend="aot_eager")
    room = er.Activations(model, tolerance=tolerance)
    with room:
        y = model(x)
    assert room.ledger.saved_bytes == sum(plain.values())
    assert room.ledger.kept_bytes == sum(held_of(y).values())
    assert room.ledger.ratio > (1.1 if tolerance == 0 else 4)
    words = "packed" if tolerance == 0 else "bounds"
    assert [words in event for event in room.ledger.events] == [True]


class Heads(nn.Module):
    """Parts of one memory, several views of another, and a mask that is read as nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.split, self.join, self.last = nn.Linear(64, 192), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.view(16, 16, 4, 16).transpose(1, 2) for t in self.split(x).split(64, 2))
        y = functional.scaled_dot_product_attention(q, k, v)
        y = self.join(y.transpose(1, 2).reshape(16, 16, 64))
        return self.last(x * functional.relu(y).sum(-1, keepdim=True))


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_parts_of_a_memory_and_views_of_it(tolerance: float) -> None:
    torch.manual_seed(0)
    own = Heads()

    def loss_of(m: Any) -> tuple[Tensor, ...]:
        return (m(torch.randn(16, 16, 64)).square().mean(),)

    model: Any = torch.compile(own, backend="aot_eager")
    plain = gradients(model, loss_of)
    room = er.Activations(model, tolerance=tolerance)
    matches(plain, gradients(model, loss_of, room), tolerance)
    rows = encoded(room)
    size = 16 * 16 * 64 * 4
    masks = [row for row in rows if row.error_class == "M"]
    assert [(row.saved_bytes, row.kept_bytes < size / 16) for row in masks] == [(size, True)]
    if tolerance > 0:
        heads = [row for row in rows if row.shape == (16, 4, 16, 16)]
        # Queries, keys and values; what attention makes of them is held once.
        assert [row.saved_bytes for row in heads] == [size] * len(heads)
        assert len(heads) >= 3
        names = [row.name for row in rows]
        assert len(set(names)) == len(names)


def test_the_operators_keep_torchs_rules() -> None:
    ops: Any = torch.ops.elbowroom
    for x in (torch.randn(64, 64), torch.randn(8, 3, 9, 9).to(memory_format=torch.channels_last)):
        torch.library.opcheck(ops.hold.default, (x, "tag"), test_utils="test_schema")
        torch.library.opcheck(ops.hold.default, (x, "tag"), test_utils="test_faketensor")
        held = ops.hold(x, "tag")
        again = ops.give(held, x.shape, x.stride(), x.dtype)
        assert torch.equal(x, again)
        assert x.stride() == again.stride()
        assert held.numel() == graphs.HEAD
        with pytest.raises(er.CorruptData, match="copied"):
            ops.give(held.clone(), x.shape, x.stride(), x.dtype)
