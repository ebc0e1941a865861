"""The ledger against plain autograd: storages once, and nothing that is the user's."""

import gc
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import elbowroom as er
from tests.keep.activations.families import CASES, loss_of


class Plain:
    """What plain autograd holds: told by its own hooks, and by whether storages stay alive.

    Hooks hand on detached copies. Of each storage it is seen at the end whether anybody holds it
    beside them: they are the user's.
    """

    def __init__(self, model: nn.Module) -> None:
        self._own = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
        self._saved: dict[int, tuple[StorageWeakRef, int]] = {}

    def pack(self, tensor: Tensor) -> Callable[[], Tensor]:
        storage = tensor.untyped_storage()
        self._saved[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        # Values are not wanted again, so that nobody but the user holds on to them.
        return lambda: torch.empty(0)

    def count(self) -> int:
        gc.collect()
        return sum(
            nbytes
            for place, (reference, nbytes) in self._saved.items()
            if place not in self._own and reference.expired()
        )


def plain_bytes(model: nn.Module, forward: Callable[[], Any]) -> int:
    plain = Plain(model)
    with torch.autograd.graph.saved_tensors_hooks(plain.pack, lambda get: get()):
        kept = forward()
    nbytes = plain.count()
    del kept
    return nbytes


@pytest.mark.parametrize("tolerance", [0, 0.1])
@pytest.mark.parametrize("name", CASES)
def test_saved_bytes_are_those_of_plain_autograd(name: str, tolerance: float) -> None:
    torch.manual_seed(0)
    model, forward = CASES[name]()
    expected = plain_bytes(model, forward)
    room = er.Activations(model, tolerance=tolerance, meter=0)
    with room:
        kept = forward()
    ledger = room.ledger
    assert ledger.saved_bytes == pytest.approx(expected, rel=0.02)
    assert ledger.saved_bytes == sum(row.saved_bytes for row in ledger.rows)
    assert ledger.kept_bytes == sum(row.kept_bytes for row in ledger.rows)
    assert ledger.kept_bytes == room._tally.held_bytes
    del kept
    gc.collect()
    assert room._tally.held_bytes == 0


def test_backwards_inside_of_a_pass_count() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
    x = torch.randn(256, 64)
    room = er.Activations(model, meter=0)
    for _ in range(6):
        model.zero_grad()
        with room:
            for part in x.chunk(2):
                loss_of(model(part)).backward()
    ledger = room.ledger
    once = plain_bytes(model, lambda: loss_of(model(x)))
    assert ledger.saved_bytes == pytest.approx(once, rel=0.02)
    assert ledger.saved_bytes == sum(row.saved_bytes for row in ledger.rows)
    assert ledger.kept_bytes == sum(row.kept_bytes for row in ledger.rows)
    assert ledger.ratio > 3 and ledger.gradient_error > 0
    assert room.last_pass.held_bytes == 0


def test_what_is_kept_as_it_is_has_a_reason() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
    room = er.Activations(model, tolerance=0)
    with room:
        loss = loss_of(model(torch.randn(256, 64)).std(0))
    ledger = room.ledger
    reasons = {each.reason: each.kept_bytes for each in ledger.kept_because}
    assert sum(reasons.values()) == sum(r.kept_bytes for r in ledger.rows if r.method == "keep")
    assert reasons["tolerance 0"] == 256 * 128 * 4
    assert reasons["passed in by the caller"] == 256 * 64 * 4
    assert "kept as they are" in str(ledger) and "small tensors (under 16 kB)" in str(ledger)
    assert json.loads(ledger.to_json())["version"] == 2
    del loss
