"""What a step differentiates besides its state: found in modules, or given, never forgotten."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from elbowroom.errors import InvalidArgument


def modules_of(step: Callable[..., Any]) -> list[nn.Module]:
    """The modules that a step is, is a method of, or is bound to as an argument."""
    found: list[nn.Module] = []
    if isinstance(step, nn.Module):
        found.append(step)
    elif isinstance(step, partial):
        found += modules_of(step.func)
        found += [v for v in (*step.args, *step.keywords.values()) if isinstance(v, nn.Module)]
    elif isinstance(owner := getattr(step, "__self__", None), nn.Module):
        found.append(owner)
    return found


def modules_named_by(step: Callable[..., Any]) -> list[nn.Module]:
    """Those that the closure, the defaults or the globals of a plain function name themselves."""
    if not isinstance(step, FunctionType):
        return []
    cells = [c.cell_contents for c in step.__closure__ or () if not _is_empty(c)]
    scope, names = step.__globals__, step.__code__.co_names
    values = [*cells, *(step.__defaults__ or ()), *(scope[n] for n in names if n in scope)]
    return [value for value in values if isinstance(value, nn.Module)]


def _is_empty(cell: CellType) -> bool:
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True


def refuse_time_first(step: Callable[..., Any]) -> None:
    """Refuse the right side of a differential equation, f(t, y), by the names of its arguments."""
    try:
        signature = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return
    names = [p.name for p in signature if p.default is p.empty]
    if len(names) == 2 and names[0] in ("t", "time"):
        raise InvalidArgument(
            f"a step takes its state first, and this one is f({names[0]}, {names[1]}), as the "
            "right side of a differential equation is: write the step that a solver makes of it, "
            f"such as step=lambda {names[1]}, n: {names[1]} + dt * f(n * dt, {names[1]})"
        )


def find_tensors(step: Callable[..., Any], given: Any) -> list[Tensor]:
    """All that are named besides state and inputs, each once."""
    found: dict[int, Tensor] = {}
    for module in modules_of(step) or modules_named_by(step):
        found |= {id(p): p for p in module.parameters()}
    for tensor in _tensors_in(given):
        found.setdefault(id(tensor), tensor)
    return list(found.values())


def find_parameters(step: Callable[..., Any], given: Any) -> list[Tensor]:
    """Those of them that gradients are wanted of."""
    return [tensor for tensor in find_tensors(step, given) if tensor.requires_grad]


def refuse_dependent(parameters: list[Tensor]) -> None:
    """Refuse a parameter that was computed from another.

    Its gradient would come to the other one twice: through the loop, and through what is behind it.
    """
    ends = edges_of(parameters)
    waiting = [
        edge for tensor in parameters if tensor.grad_fn for edge in tensor.grad_fn.next_functions
    ]
    seen = set(waiting)
    while waiting:
        edge = waiting.pop()
        if edge in ends:
            raise InvalidArgument(
                "one of parameters= was computed from another, so that its gradient would count "
                "twice: compute it inside of the step, or name only one of them"
            )
        if edge[0] is not None:
            new = [following for following in edge[0].next_functions if following not in seen]
            seen.update(new)
            waiting += new


def _tensors_in(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, nn.Module):
        yield from given.parameters()
    elif isinstance(given, Mapping):
        for value in given.values():
            yield from _tensors_in(value)
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        for value in given:
            yield from _tensors_in(value)
    else:
        raise InvalidArgument(
            "parameters must be tensors or modules that the step uses, got "
            f"{type(given).__name__}: pass parameters=(k, w) or parameters=model"
        )


def sequence_number() -> int:
    """Nodes of the autograd graph that this thread makes from now on have none below."""
    node: Any = torch.zeros((), requires_grad=True).view(1).grad_fn
    return node._sequence_nr()


@contextmanager
def refuse_changed(parameters: list[Tensor]) -> Iterator[None]:
    """Refuse a step that changes a parameter in place: made again, it would find another one."""
    before = [p._version for p in parameters]
    found: InvalidArgument | None = None
    try:
        yield
    except InvalidArgument as error:  # of what follows from the change
        found = error
    if [p._version for p in parameters] != before:
        raise InvalidArgument(
            "the step changes one of its parameters in place, and would find it changed when it is "
            "made again: put what changes from step to step into the state"
        )
    if found is not None:
        raise found


Edges = set[tuple[Any, int]]
"""Where gradients come to tensors."""


def edges_of(tensors: Iterable[Tensor]) -> Edges:
    """Of those that require gradients."""
    return {_edge(tensor) for tensor in tensors if tensor.requires_grad}


def refuse_forgotten(results: Iterable[Tensor], ends: Edges, step: Any, since: int) -> None:
    """Refuse a step whose results depend on tensors that nobody has named.

    Their gradients would be missing without a word. The graph behind the results is walked back;
    it must end in what is known, and not go on into what was computed before the step.
    """
    refuse_forgotten_edges([_edge(t) for t in results if t.grad_fn is not None], ends, step, since)


def refuse_forgotten_edges(edges: Iterable[Any], ends: Edges, step: Any, since: int) -> None:
    """The same, of edges that lead into the graph."""
    first = [(edge[0], edge[1]) for edge in edges]
    waiting, seen = list(first), set(first)
    while waiting:
        edge = waiting.pop()
        if edge in ends:
            continue
        following = edge[0].next_functions
        if not following or edge[0]._sequence_nr() < since:
            _name_forgotten(first, ends, step, since)
            return
        for other in following:
            if other not in seen and other[0] is not None:
                seen.add(other)
                waiting.append(other)


def look_at_graph(results: Iterable[Tensor], ends: Edges) -> tuple[int, int]:
    """How many nodes there are between results and what is known, and the bytes that they made."""
    waiting = [_edge(t)[0] for t in results if t.grad_fn is not None]
    known, seen = {node for node, _ in ends}, set(waiting)
    nbytes = 0
    while waiting:
        node = waiting.pop()
        nbytes += sum(math.prod(m.shape) * m.dtype.itemsize for m in node._input_metadata if m)
        for other, _ in node.next_functions:
            if other is not None and other not in seen and other not in known:
                seen.add(other)
                waiting.append(other)
    return len(seen), nbytes


def _name_forgotten(first: list[Any], ends: set[Any], step: Any, since: int) -> None:
    """The same walk, with a look at every node: slower, and it says what was found."""
    waiting, seen = list(first), set(first)
    while waiting:
        node, _ = edge = waiting.pop()
        if edge in ends:
            continue
        if hasattr(node, "variable"):
            raise _forgotten(node.variable, step)
        if node._sequence_nr() < since:
            raise InvalidArgument(
                f"the step uses a tensor that was computed before the loop (by {node.name()}) and "
                "requires gradients, and does not get it as an argument, so that its gradient "
                "would be lost: name that very tensor in parameters=, or detach it"
            )
        for following in node.next_functions:
            if following[0] is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def _edge(tensor: Tensor) -> tuple[Any, int]:
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def _forgotten(tensor: Tensor, step: Any) -> InvalidArgument:
    name = _name_of(tensor, step)
    return InvalidArgument(
        f"the step uses {name + ', ' if name else ''}a tensor of shape {list(tensor.shape)} that "
        "requires gradients, and does not get it as an argument, so that its gradient would be "
        f"lost: pass parameters=({name or 'that tensor'},), or detach it"
    )


def _name_of(tensor: Tensor, step: Any) -> str:
    """The name by which the step knows a tensor, if it has one."""
    function = step.func if isinstance(step, partial) else step
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function):
        return ""
    seen = inspect.getclosurevars(function)
    for names in (seen.nonlocals, seen.globals):
        for name, value in names.items():
            if value is tensor:
                return name
            if isinstance(value, nn.Module):
                for inner, parameter in value.named_parameters():
                    if parameter is tensor:
                        return f"{name}.{inner}"
    return ""
