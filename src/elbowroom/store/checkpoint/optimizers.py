"""Whether an optimizer is the one that was saved: torch takes any state that has enough rows."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint.digests import digest_of
from elbowroom.store.checkpoint.sources import Stateful

# What groups have besides settings: their parameters, and what schedulers put there.
_OTHERS = frozenset(
    "params param_names initial_lr max_lr min_lr swa_lr max_momentum base_momentum".split()
)


def describe_optimizers(sources: Mapping[str, Stateful]) -> dict[str, Any]:
    """Of each optimizer the name of its class, and in which order it has which parameters."""
    optimizers = _find_optimizers(sources)
    orders = {name: _order_of(one, sources) for name, one in optimizers.items()}
    return {
        "kinds": {name: type(one).__name__ for name, one in optimizers.items()},
        "orders": {name: order for name, order in orders.items() if order is not None},
    }


def check_optimizers(
    facts: Mapping[str, Any], state: Mapping[str, Any], sources: Mapping[str, Stateful]
) -> list[str]:
    """Refuse the state of another optimizer; return what is worth knowing of one that does."""
    told: list[str] = []
    for name, optimizer in _find_optimizers(sources).items():
        if name not in state:
            continue
        kind = type(optimizer).__name__
        was = str(_told_of(facts, "kinds", name) or kind)[:60]
        if was != kind:
            if not _has_same_settings(optimizer, state[name]):
                raise InvalidArgument(
                    f"the checkpoint's {name} is {was}, and {kind} was given: give the one that "
                    "was saved, or begin in another folder"
                )
            told.append(
                f"the checkpoint's {name} is {was}, and {kind} was given: it goes on with the "
                f"settings that {was} had"
            )
        mine, theirs = _order_of(optimizer, sources), _told_of(facts, "orders", name)
        if mine and isinstance(theirs, list) and theirs[:1] == mine[:1] and theirs != mine:
            # Moments are told apart by their places alone, and would go to other parameters.
            raise InvalidArgument(
                f"{name}= has its parameters in another order than the one that was saved: give "
                "them in the same order"
            )
    return told


def _find_optimizers(sources: Mapping[str, Stateful]) -> dict[str, torch.optim.Optimizer]:
    return {n: one for n, one in sources.items() if isinstance(one, torch.optim.Optimizer)}


def _told_of(facts: Mapping[str, Any], what: str, name: str) -> Any:
    held = facts.get(what)
    return held.get(name) if isinstance(held, dict) else None


def _has_same_settings(optimizer: torch.optim.Optimizer, state: Any) -> bool:
    """As Adam and AdamW have: those have the same state as well."""
    try:
        saved = set().union(*state["param_groups"])
    except (TypeError, KeyError):
        return True  # load_state_dict says what is wrong
    return saved - _OTHERS == set().union(*optimizer.param_groups) - _OTHERS


def _order_of(
    optimizer: torch.optim.Optimizer, sources: Mapping[str, Stateful]
) -> list[str] | None:
    """Digests of the names of its parameters, sorted and as they are; None if some have none."""
    known = {
        id(parameter): f"{source}.{name}"
        for source, module in sources.items()
        if isinstance(module, nn.Module)
        for name, parameter in module.named_parameters()
    }
    groups = optimizer.param_groups
    names = [known.get(id(parameter)) for group in groups for parameter in group["params"]]
    plain = [name for name in names if name is not None]
    if len(plain) < len(names):
        return None
    return [digest_of("xxh3-128", "\n".join(n).encode()).hex() for n in (sorted(plain), plain)]
