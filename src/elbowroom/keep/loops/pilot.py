"""One step, tried out: how long it takes, what it keeps, and what it leaves alone."""

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from elbowroom.host import TRIM_FROM_BYTES, trim_heap
from elbowroom.keep.activations.entries import Identity, identity_of
from elbowroom.keep.activations.untouched import is_plain
from elbowroom.keep.loops.body import NODE_BYTES, Body, Tensors, leaves_of
from elbowroom.keep.loops.footprint import Footprint
from elbowroom.keep.loops.parameters import (
    edges_of,
    look_at_graph,
    refuse_forgotten,
    sequence_number,
)

# What Python needs for a state in a slot: measured.
SLOT_BYTES = 2500

# What is saved that nobody may look at, in what the nodes of the graph have made.
_UNSEEN = 1.5


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """What one step takes."""

    advance_s: float
    """Without a tape."""

    tape_s: float
    backward_s: float
    state_bytes: int
    tape_bytes: int
    """What autograd keeps of a step, besides what was there before."""

    step_bytes: int
    """What a step with its backward has at once, tape and results included, at most."""

    tape_tensors: int
    """How many tensors that is."""

    constants: Tensors
    """Tensors that every step saves and none makes."""

    nodes: int = 0
    """Of the graph of a step."""

    are_buffers_moving: bool = False

    is_seen: bool = True
    """Whether hooks see what autograd saves; not where a step uses torch.func."""

    @property
    def taped_bytes(self) -> int:
        """What a step on the tape takes, the graph itself included."""
        return self.tape_bytes + NODE_BYTES * self.nodes

    @property
    def slot_bytes(self) -> int:
        """What a state takes in a slot."""
        return self.state_bytes + SLOT_BYTES


def try_out(
    body: Body, state: Tensors, inputs: Tensors, parameters: Tensors, *, is_counted: bool
) -> Pilot:
    """Make a step a few times, and leave everything as it was.

    Bytes are counted only if asked for: what counts them takes torch a second to load.
    """
    found = _try_out(body, state, inputs, parameters, is_counted)
    found = replace(found, are_buffers_moving=body.conditions.statistics.are_moving)
    if found.step_bytes > TRIM_FROM_BYTES:
        trim_heap()
    return found


def _try_out(
    body: Body, state: Tensors, inputs: Tensors, parameters: Tensors, is_counted: bool
) -> Pilot:
    conditions = body.conditions
    with conditions.put_back(), conditions.left_alone() as take_away, torch.enable_grad():

        def again() -> None:
            take_away()
            conditions.rewind()

        slices = [x[0].detach().clone() for x in inputs]
        since = sequence_number()
        is_seen = True
        try:
            first, leaves, ends = _tape(body, state, slices, is_seen=True)
        except RuntimeError as error:
            if "saved tensor hooks" not in str(error):
                raise
            is_seen = False  # torch.func lets nobody look
            again()
            since = sequence_number()
            first, leaves, ends = _tape(body, state, slices, is_seen=False)
        known = edges_of([*leaves, *parameters])
        refuse_forgotten(ends, known, body.step, since)
        nodes, results = look_at_graph(ends, known)
        again()
        footprint = Footprint()
        if is_counted:
            with footprint:
                _, leaves, ends = _tape(body, state, slices, is_seen=is_seen)
                _back(leaves, ends, parameters)
            again()
        del leaves, ends
        start = time.perf_counter()
        second, leaves, ends = _tape(body, state, slices, is_seen=is_seen)
        tape_s = time.perf_counter() - start
        same = {key: tensor for key, tensor in second.items() if key in first}
        made = (
            int(_UNSEEN * results)
            if not is_seen
            else sum(t.nbytes for key, t in second.items() if key not in same)
        )
        start = time.perf_counter()
        _back(leaves, ends, parameters)
        backward_s = time.perf_counter() - start
        again()
        copies = [t.detach().clone() for t in state]
        with torch.no_grad():
            start = time.perf_counter()
            body.run(copies, slices, 0)
            advance_s = time.perf_counter() - start
    return Pilot(
        advance_s=advance_s,
        tape_s=tape_s,
        backward_s=backward_s,
        state_bytes=max(1, sum(t.nbytes for t in state)),
        tape_bytes=made,
        step_bytes=footprint.peak_bytes,
        tape_tensors=len(second) - len(same),
        constants=[*same.values(), *inputs],
        nodes=nodes,
        is_seen=is_seen,
    )


def _back(leaves: Tensors, ends: Tensors, parameters: Tensors) -> None:
    asked = [t for t in leaves if t.requires_grad] + parameters
    targets = [t for t in ends if t.requires_grad]
    if targets and asked:
        weights = [torch.ones_like(t) for t in targets]
        torch.autograd.grad(targets, asked, weights, allow_unused=True)


def _tape(
    body: Body, state: Tensors, slices: Tensors, *, is_seen: bool
) -> tuple[dict[Identity, Tensor], Tensors, Tensors]:
    saved: dict[Identity, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        # Without its node: a node that held its own result would never go.
        held = tensor.detach()
        if is_plain(tensor):
            saved[identity_of(tensor)] = held
        return held

    leaves = leaves_of(state)
    # Not the leaves themselves: a step may change its state in place.
    begin = [t.clone() for t in leaves]
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)
    with hooks if is_seen else nullcontext():
        after, outputs = body.run(begin, slices, 0)
    return saved, leaves, [*after, *outputs]
