"""What a room may be asked for."""

import logging
import math
from typing import Any

from torch import nn

from elbowroom.errors import InvalidArgument
from elbowroom.keep.activations.rules import Rule

_log = logging.getLogger("elbowroom")


def check(model: Any, overhead: Any, rule: Any, refresh: Any, meter: Any, seed: Any) -> None:
    """All but limits and the optimizer: one sentence for the first that is wrong."""
    if not isinstance(model, nn.Module):
        raise InvalidArgument(
            f"model must be a torch.nn.Module, got {type(model).__name__}: pass the module whose "
            "forward is to be compressed"
        )
    _check_overhead(overhead)
    names = [known.value for known in Rule]
    if rule not in names:
        raise InvalidArgument(f"rule must be one of {', '.join(names)}, got {rule!r}: leave it out")
    for name, value, least in (("refresh", refresh, 1), ("meter", meter, 0), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidArgument(
                f"{name} must be a whole number of at least {least}, got {value!r}: leave it out"
            )


def _check_overhead(overhead: Any) -> None:
    """A share of the step, or None."""
    if overhead is None:
        return
    is_number = isinstance(overhead, int | float) and not isinstance(overhead, bool)
    if not is_number or not 0 <= overhead < math.inf:
        raise InvalidArgument(
            "overhead must be what a step may take more than plain, as a share such as 0.25, got "
            f"{overhead!r}: 0 keeps all that takes time, None holds the fewest bytes"
        )


def check_optimizer(model: nn.Module, optimizer: Any) -> None:
    """Anything with state and groups of the model's parameters will do."""
    if optimizer is None:
        return
    if not (hasattr(optimizer, "state") and hasattr(optimizer, "param_groups")):
        raise InvalidArgument(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}: pass the "
            "one that steps the model's parameters, or leave it out"
        )
    known = {id(parameter) for parameter in model.parameters()}
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if known and stepped and not known & stepped:
        # Copies of the weights in another precision may be what it steps.
        _log.warning(
            f"the {type(optimizer).__name__} given as optimizer= has none of the model's "
            "parameters: the gradient's variance is estimated without it"
        )
