"""A loop as one differentiable function, to any order.

Let the loop be y = F(x), where x is the first state, the inputs and the parameters. Its backward
is x' = J(x)^T y'. The backward of that, for a gradient v of x', is the gradient of v . J(x)^T y' =
y' . J(x) v: with respect to y' it is the tangent J(x) v, and with respect to x it is the gradient
of y' . J(x) v, which is what the backward of a loop over states and tangents side by side gives.
So the second order is a loop again, kept in slots like the first, and so is every higher one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from elbowroom.keep.loops.body import Body, Grads, Tensors, is_differentiable
from elbowroom.keep.loops.hooks import unhooked
from elbowroom.keep.loops.parameters import refuse_changed
from elbowroom.keep.loops.plans import Plan
from elbowroom.keep.loops.replay import Replay
from elbowroom.keep.loops.tangent import Tangent


class Engine(Protocol):
    """Runs a loop forward and backward."""

    @property
    def length(self) -> int | None:
        """Of the loop, once it is known."""
        ...

    @property
    def held_bytes(self) -> int:
        """Of memory, between forward and backward."""
        ...

    def forward(
        self, state: Tensors, inputs: Tensors, parameters: Tensors
    ) -> tuple[Tensors, Tensors]:
        """The last state, and outputs."""
        ...

    def close(self) -> None:
        """Give back what was kept for backward."""
        ...

    def backward(
        self,
        state: Tensors,
        inputs: Tensors,
        parameters: Tensors,
        grads: Grads,
        output_grads: Grads,
    ) -> tuple[Grads, Grads, Grads]:
        """Gradients of the first state, the inputs and the parameters."""
        ...


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a loop: who runs it, and how many tensors of each kind it has."""

    engine: Engine
    body: Body
    plan: Plan
    states: int
    inputs: int
    parameters: Tensors
    """Those that the step itself uses: what comes in as an argument may be a view of them."""

    def split(self, tensors: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """State, inputs and parameters."""
        inner, outer = self.states, self.states + self.inputs
        return list(tensors[:inner]), list(tensors[inner:outer]), list(tensors[outer:])


class Forward(torch.autograd.Function):
    """The loop."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run it."""
        state, inputs, _ = call.split(tensors)
        with refuse_changed(call.parameters):
            after, outputs = call.engine.forward(state, inputs, call.parameters)
        call.body.conditions.settle()
        ctx.call = call
        ctx.save_for_backward(*tensors)
        results = _own([*after, *outputs], tensors)
        ctx.mark_non_differentiable(*(t for t in results if not is_differentiable(t)))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Go back, in a way that can be differentiated if that is asked for."""
        tensors = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *Backward.apply(ctx.call, len(grads), *grads, *tensors)
        return None, *_go_back(ctx.call, grads, tensors)


class Backward(torch.autograd.Function):
    """The loop's backward."""

    @staticmethod
    def forward(ctx: Any, call: Call, count: int, *tensors: Tensor) -> tuple[Tensor | None, ...]:
        """Go back."""
        ctx.call, ctx.count = call, count
        ctx.save_for_backward(*tensors)
        found = _go_back(call, tensors[:count], tensors[count:])
        return tuple(
            torch.zeros_like(t) if grad is None and t.requires_grad else grad
            for t, grad in zip(tensors[count:], found, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor | None) -> Any:
        """The second order: a loop over states and tangents."""
        tensors = ctx.saved_tensors
        grads, primals = list(tensors[: ctx.count]), list(tensors[ctx.count :])
        is_higher = torch.is_grad_enabled()
        with torch.enable_grad(), unhooked(ctx.call.parameters):
            primals = _apart(ctx.call, primals, is_higher=is_higher)
            if not is_higher:
                grads = [g.detach() for g in grads]
            pushed = _push(ctx.call, primals, list(tangents))
            wanted = ctx.needs_input_grad[2 + ctx.count :]
            asked = [p for p, is_asked in zip(primals, wanted, strict=True) if is_asked]
            pairs = [
                (dot, grad)
                for dot, grad in zip(pushed, grads, strict=True)
                if dot is not None and dot.requires_grad
            ]
            found: Sequence[Tensor | None] = [None] * len(asked)
            if pairs and asked:
                dots, weights = zip(*pairs, strict=True)
                found = torch.autograd.grad(
                    dots, asked, weights, create_graph=is_higher, allow_unused=True
                )
        mine = iter(found)
        second = [next(mine) if is_asked else None for is_asked in wanted]
        if not is_higher:
            pushed = [None if dot is None else dot.detach() for dot in pushed]
        return None, None, *pushed, *second


def _go_back(call: Call, grads: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> list[Any]:
    state, inputs, _ = call.split(tensors)
    # What they were computed from is no part of what is taped here.
    # Gradients that come in batches cannot be detached, and are no part of it.
    coming: Grads = [g.detach() if g is not None and g.requires_grad else g for g in grads]
    first, rest = coming[: call.states], coming[call.states :]
    with unhooked(call.parameters):
        found = call.engine.backward(state, inputs, call.parameters, first, rest)
    flat = [grad for part in found for grad in part]
    return [g if t.requires_grad else None for g, t in zip(flat, tensors, strict=True)]


def _own(results: Tensors, given: Sequence[Tensor]) -> Tensors:
    """None of what a function returns may be what it was given."""
    known = {id(t) for t in given}
    made: Tensors = []
    for tensor in results:
        is_known = id(tensor) in known or any(
            tensor.untyped_storage()._cdata == t.untyped_storage()._cdata for t in given
        )
        known.add(id(tensor))
        made.append(tensor.clone() if is_known else tensor)
    return made


def _apart(call: Call, primals: Tensors, *, is_higher: bool) -> Tensors:
    """The same, so that none is computed from another.

    A gradient with respect to one would else count what comes to it through others, and come to it
    twice. For higher orders they stay connected with what they were computed from.
    """
    if is_higher:
        return [t.view_as(t) if t.requires_grad else t for t in primals]
    state, inputs, parameters = call.split(primals)
    leaves = [t.detach().requires_grad_(t.requires_grad) for t in (*state, *inputs)]
    return [*leaves, *parameters]


def _push(call: Call, primals: Tensors, tangents: list[Tensor | None]) -> list[Tensor | None]:
    """Push tangents through the loop: those of the last state and of the outputs."""
    state, inputs, parameters = call.split(primals)
    state_dots, input_dots, parameter_dots = call.split(tangents)
    body = Tangent(call.body, call.parameters, len(inputs))
    moving = [n for n, t in enumerate(state) if is_differentiable(t)]
    dots = [_dot(state_dots[n], state[n]) for n in moving]
    flowing = [n for n, t in enumerate(inputs) if is_differentiable(t)]
    more = [_dot(input_dots[n], inputs[n]) for n in flowing]
    constants = [_dot(dot, p) for dot, p in zip(parameter_dots, parameters, strict=True)]
    own = [c.detach().requires_grad_(c.requires_grad) for c in constants]
    body.set(moving, flowing, own)
    # States are twice as large with their tangents, and so is all that a step has besides. One step
    # is taped at a time: the derivative by parameters is that of one step, and must not reach them
    # through the steps before it.
    plan = Plan(
        kind="replay",
        slots=max(1, call.plan.slots // 2 - call.plan.slots // 16),
        disk_slots=call.plan.disk_slots // 2,
        folder=call.plan.folder,
    )
    length = call.engine.length
    engine = Replay(body, plan, length, None)
    wide = Call(
        engine=engine,
        body=body,
        plan=plan,
        states=len(state) + len(dots),
        inputs=len(inputs) + len(more),
        parameters=[*call.parameters, *own],
    )
    with call.body.conditions.put_back():
        call.body.conditions.rewind()
        results = list(
            Forward.apply(wide, *state, *dots, *inputs, *more, *parameters, *constants)  # pyright: ignore[reportArgumentType]
        )
    pushed: list[Tensor | None] = [None] * len(state)
    for place, n in enumerate(moving):
        pushed[n] = results[len(state) + place]
    outputs = results[wide.states :]
    half = body.output_count
    ends: list[Tensor | None] = [None] * half
    for place, n in enumerate(body.moving_outputs):
        ends[n] = outputs[half + place]
    return [*pushed, *ends]


def _dot(tangent: Tensor | None, primal: Tensor) -> Tensor:
    return torch.zeros_like(primal) if tangent is None else tangent
