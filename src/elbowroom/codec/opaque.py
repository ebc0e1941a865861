"""Keeps torch.compile from looking into functions that work on addresses."""

from collections.abc import Callable
from typing import TypeVar, cast

import torch

_Function = TypeVar("_Function", bound=Callable[..., object])


def opaque(function: _Function) -> _Function:
    """Make a compiled region call this function as it is, instead of tracing it.

    This is `torch.compiler.disable` without its wrapper, which costs every call a microsecond,
    and without the import of dynamo, which costs more than all of Elbowroom's.
    """
    try:
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    except (ImportError, AttributeError):
        return cast(_Function, torch.compiler.disable(function))
    for name, value in (
        ("_torchdynamo_disable", True),
        ("_torchdynamo_disable_msg", "torch.ops.elbowroom.encode and decode can be compiled"),
    ):
        setattr(function, name, value)
    return function
