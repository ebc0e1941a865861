"""What the backward of each operation reads of the tensors it saves.

Names are those of autograd's nodes without the ending (`Relu` for `ReluBackward0`) and of their
saved slots (`result` for `_saved_result`).
"""

import math
import re
from enum import Enum
from functools import lru_cache
from typing import Any

import torch


class Need(Enum):
    """How much of a saved tensor its backward really reads."""

    VALUES = "values"
    """All of it."""

    SIGN = "sign"
    """Only which values are above zero: one bit a value."""

    BANDS = "bands"
    """Only on which side of a limit or two each value lies."""

    WINDOW = "window"
    """Indices that point into a small window each."""

    EXACT = "exact"
    """All of it, and to the last bit: what a small error would spoil. Such are statistics, and
    values that backward divides by, or that must stay where a function is defined."""

    NOTHING = "nothing"
    """Only shape and type."""


_NEEDS = {
    ("Relu", "result"): Need.SIGN,
    ("LeakyRelu", "self"): Need.SIGN,
    **{
        (kind, "self"): Need.BANDS
        for kind in (
            *("Abs", "Clamp", "ClampMin", "ClampMax", "Threshold"),
            *("Hardtanh", "Hardsigmoid", "Hardshrink", "Softshrink"),
        )
    },
    ("NativeBatchNorm", "result1"): Need.EXACT,
    ("NativeBatchNorm", "result2"): Need.EXACT,
    ("NativeLayerNorm", "result1"): Need.EXACT,
    ("NativeLayerNorm", "result2"): Need.EXACT,
    ("NativeGroupNorm", "result1"): Need.EXACT,
    ("NativeGroupNorm", "result2"): Need.EXACT,
    ("ScaledDotProductFlashAttentionForCpu", "logsumexp"): Need.EXACT,
    ("ScaledDotProductFlashAttention", "logsumexp"): Need.EXACT,
    ("ScaledDotProductEfficientAttention", "log_sumexp"): Need.EXACT,
    # Its forward runs again for the sake of its workspace.
    **{("MkldnnRnnLayer", slot): Need.EXACT for slot in ("input", "hx_", "cx_")},
    ("MaxPool2DWithIndices", "result1"): Need.WINDOW,
    ("MaxPool2DWithIndices", "self"): Need.NOTHING,
    ("MaxPool3DWithIndices", "self"): Need.NOTHING,
    ("AdaptiveMaxPool2D", "self"): Need.NOTHING,
    ("AdaptiveMaxPool3D", "self"): Need.NOTHING,
    ("AvgPool2D", "self"): Need.NOTHING,
    ("AvgPool3D", "self"): Need.NOTHING,
    ("AdaptiveAvgPool2D", "self"): Need.NOTHING,
    ("AdaptiveAvgPool3D", "self"): Need.NOTHING,
    ("NllLoss", "self"): Need.NOTHING,
    ("NllLoss2D", "self"): Need.NOTHING,
    ("CrossEntropy", "rows"): Need.EXACT,
    ("CrossEntropy", "weight"): Need.EXACT,
}

# Slots with a singularity or an edge within reach of an error: logarithms, roots, quotients,
# norms, inverses of periodic functions, products that are divided again.
_SINGULAR = {
    "self": """Log Log2 Log10 Log1P Logit Root Acos Asin Acosh Atanh Erfinv SpecialNdtri Lgamma
        Digamma Polygamma BinaryCrossEntropy Prod Cumprod Logcumsumexp Atan2 Fmod Remainder Std
        Pdist Cdist Logsumexp""",
    "result": """Sqrt Rsqrt Reciprocal Norm LinalgVectorNorm Std Prod Cumprod Root Cdist Pdist
        Logsumexp Renorm Inverse Cholesky""",
    "other": "Div Atan2 Fmod Remainder Xlogy Xlog1Py",
    "exponent": "Root",
    "input": "Renorm",
}
_NEEDS.update(
    {(kind, slot): Need.EXACT for slot, kinds in _SINGULAR.items() for kind in kinds.split()}
)

# Backward takes the exponential of these: an error above this is no longer a small one.
_LARGEST_BOUNDS = {("LogSoftmax", "result"): 0.5, ("CrossEntropy", "logits"): 1.0}


def largest_bound(uses: Any) -> float:
    """The loosest bound that closed forms hold for."""
    if any((u.kind, u.slot) == ("LogSoftmax", "result") for u in uses) and not is_exponent(uses):
        # Others read the values too: they cannot be shifted for the exponential's sake.
        return 0.1
    return min((_LARGEST_BOUNDS.get((u.kind, u.slot), math.inf) for u in uses), default=math.inf)


def is_exponent(uses: Any) -> bool:
    """Whether backward reads these values only to take their exponential."""
    values = {(u.kind, u.slot) for u in uses if need_of(u.kind, u.slot) is Need.VALUES}
    return values == {("LogSoftmax", "result")}


# Nodes that hand elements on in the same order, whatever the shape is called.
RESHAPES = frozenset(
    {"View", "UnsafeView", "ReshapeAlias", "Unsqueeze", "Squeeze", "Alias", "ViewAsReal"}
)
# Nodes between a parameter and what is saved of it: views, and the copies that autocast makes.
OF_PARAMETERS = RESHAPES | {"T", "Transpose", "Permute", "ToCopy", "Expand", "Select", "Slice"}

_ENDING = re.compile(r"Backward\d*$")
_ACCUMULATE = "torch::autograd::AccumulateGrad"


def need_of(kind: str, slot: str) -> Need:
    """What the backward of this kind of node reads from the slot."""
    need = _NEEDS.get((kind, slot))
    if need is None:
        # Factorisations and solutions of systems: nobody knows how well conditioned.
        need = Need.EXACT if kind.startswith("Linalg") else Need.VALUES
    return need


@lru_cache(maxsize=4096)
def _kind_of(name: str) -> str:
    return _ENDING.sub("", name)


def kind_of(node: Any) -> str:
    """The node's name without its ending; a power that is no whole number above zero is a root."""
    name = node.name()
    if name.startswith("PowBackward"):
        exponent = node._saved_exponent if name.endswith("0") else 0.5
        return "Pow" if exponent > 0 and exponent == int(exponent) else "Root"
    return _kind_of(name)


def is_accumulator(node: Any) -> bool:
    """Whether the node is where a leaf tensor's gradient ends up."""
    return node.name() == _ACCUMULATE


@lru_cache(maxsize=1024)
def slots_of(node_type: type) -> tuple[str, ...]:
    """Names of the slots that may hold tensors."""
    return tuple(
        name[len("_saved_") :]
        for name in dir(node_type)
        if name.startswith("_saved_") and "_sym_" not in name and not name.endswith("_opt")
    )


def leaf_of(node: Any) -> Any:
    """The leaf that a chain of views and casts leads to from this node, or None."""
    for _ in range(8):
        if node is None:
            return None
        if is_accumulator(node):
            return node.variable
        if kind_of(node) not in OF_PARAMETERS:
            return None
        node = node.next_functions[0][0]
    return None


def receiver_of(node: Any) -> tuple[int, int]:
    """Of a node that gradients are handed on to: its number, or the id of the leaf it leads to."""
    if node is None:
        return 0, 0
    leaf = leaf_of(node)
    return (0, id(leaf)) if leaf is not None else (node._sequence_nr(), 0)


def next_number() -> int:
    """Nodes made from now on have at least this number; older ones are none of ours."""
    with torch.enable_grad():
        node: Any = torch.zeros(1, requires_grad=True).view(1).grad_fn
    return node._sequence_nr()


# Numbers that say how a node computes, wanted where its gradients are read.
_DETAILS = {
    "Convolution": (
        *("transposed", "stride", "groups"),
        *("padding", "dilation", "output_padding"),
    ),
    "LogSoftmax": ("dim",),
    # All that its forward was called with beside tensors, in that order.
    "MkldnnRnnLayer": (
        *("reverse", "batch_sizes", "mode", "hidden_size", "num_layers"),
        *("has_biases", "bidirectional", "batch_first", "train"),
    ),
    "NativeGroupNorm": ("group",),
    "Softmax": ("dim",),
    "SafeSoftmax": ("dim",),
    "Pow": ("exponent",),
    "ScaledDotProductFlashAttentionForCpu": ("is_causal", "scale"),
}


def details_of(node: Any) -> dict[str, Any]:
    """Of the kinds of nodes whose closed forms need them."""
    return {name: getattr(node, "_saved_" + name) for name in _DETAILS.get(kind_of(node), ())}


def class_of(uses: Any) -> str:
    """Where errors go: W stay in one weight gradient, P travel on, M only a mask is read."""
    needs = {need_of(use.kind, use.slot) for use in uses}
    if Need.EXACT in needs or not needs:
        return "E"
    if Need.VALUES not in needs:
        return "M"
    values = [use for use in uses if need_of(use.kind, use.slot) is Need.VALUES]
    local = all((use.kind, use.slot) in _LOCAL for use in values)
    return "W" if local else "P"


_LOCAL = frozenset({("Convolution", "input"), ("Addmm", "mat1"), ("Mm", "self")})
