"""Operations that leave more for backward than they read: they run again instead.

oneDNN's recurrent layers keep a workspace of gates and states about 17 times as large as their
output, in a layout of their own. The same call on the same inputs fills it with the same values;
for that the inputs are kept to the last bit.
"""

from typing import TYPE_CHECKING, Any

import torch

from elbowroom.keep.activations.derive import Derived
from elbowroom.keep.activations.operators.record import Derivation

if TYPE_CHECKING:
    from elbowroom.keep.activations.entries import Entry, Record

RERUN = frozenset({"MkldnnRnnLayer"})

_TENSORS = ("input", "weight0", "weight1", "weight2", "weight3", "hx_", "cx_")
_WORKSPACE = "result3"


def rerun(entry: "Entry", records: dict[int, "Record"]) -> Derived | None:
    """The way to a workspace that only its own node reads, or None if this is none."""
    if len(entry.uses) != 1:
        return None
    use = entry.uses[0]
    if use.kind not in RERUN or use.slot != _WORKSPACE:
        return None
    record = records[use.number]
    read = [record.entry(name) for name in _TENSORS]
    held = [e for e in read if e is not None and e.has_values and e.bound == 0]
    if len(held) != len(read):
        return None
    derivation = Derivation(
        (),
        held[0],
        tuple(held[1:]),
        lambda: _fill(held, record.details),
        entry.shape,
        entry.dtype,
    )
    assert entry.raw is not None
    return Derived(derivation, entry.shape, entry.raw.stride())


def _fill(held: "list[Entry]", details: dict[str, Any]) -> torch.Tensor:
    operation: Any = torch.ops.aten.mkldnn_rnn_layer.default
    tensors = [e.values().detach() for e in held]
    # It fills a workspace only where gradients are on, though nothing here asks for any. What
    # autocast had to cast has been cast already.
    with torch.enable_grad(), torch.autocast(tensors[0].device.type, enabled=False):
        return operation(*tensors, *details.values())[3]
