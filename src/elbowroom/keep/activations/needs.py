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
    """Only which values are not zero, of those that are never below: one bit a value."""

    SIDE = "side"
    """Only which values are above zero, of any: one bit a value."""

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
    # In place it saves what it has made: the side is the same.
    ("LeakyRelu", "self"): Need.SIDE,
    ("LeakyRelu", "result"): Need.SIDE,
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
    ("LinalgVectorNorm", "result"): Need.EXACT,
    ("RowNorm", "self"): Need.VALUES,
    ("RowNorm", "result"): Need.EXACT,
    ("CrossEntropy", "rows"): Need.EXACT,
    ("CrossEntropy", "weight"): Need.EXACT,
}

# Slots with a singularity or an edge within reach of an error: logarithms, roots, quotients,
# norms, inverses of periodic functions, products that are divided again. Or with comparisons of two
# tensors, or of values with their own largest one: off by a little none is the largest.
_SINGULAR = {
    "self": """Log Log2 Log10 Log1P Logit Root Acos Asin Acosh Atanh Erfinv SpecialNdtri Lgamma
        Digamma Polygamma Mvlgamma SpecialEntr BinaryCrossEntropy Prod Cumprod Logcumsumexp Atan2
        Fmod Remainder Std StdMean Dist Pdist Logsumexp Hypot Renorm Copysign Maximum Minimum Fmax
        Fmin Max Min Amax Amin Aminmax Median Nanmedian MultiMarginLoss MultilabelMarginLoss
        ScatterReduce IndexReduce SpecialI0E SpecialI1 SpecialI1E CholeskySolve CholeskyInverse
        TriangularSolve""",
    "result": """Sqrt Rsqrt Reciprocal Norm LinalgVectorNorm Std Prod Cumprod Root Dist Cdist Pdist
        Logsumexp Hypot Copysign Max Min Amax Amin Median Nanmedian ScatterReduce IndexReduce
        SegmentReduce SpecialI0E SpecialI1 SpecialI1E Inverse Cholesky CholeskySolve
        CholeskyInverse""",
    "other": """Div Atan2 Fmod Remainder Xlogy SpecialXlog1Py SpecialZeta Igamma Igammac Dist Hypot
        Maximum Minimum Fmax Fmin""",
    "exponent": "Root",
    "tensor2": "Addcdiv",
    "src": "ScatterReduce",
    "source": "IndexReduce",
    "data": "SegmentReduce",
    "x1": "Cdist",
    "x2": "Cdist",
    "min": "Clamp ClampMin Aminmax",
    "max": "Clamp ClampMax Aminmax",
    "result0": "StdMean CtcLoss",
    "result1": "WeightNormInterface CtcLoss",
    # Sums over whole sequences, of which the exponential is taken.
    "log_probs": "CtcLoss",
    "g": "WeightNormInterface",
    "v": "WeightNormInterface",
    # Which cell of the input a place is in.
    "grid": "GridSampler2D GridSampler3D GridSampler2DCpuFallback",
    "input2": "CholeskySolve",
    "A": "TriangularSolve",
    "solution": "TriangularSolve",
    # In place on a part of a tensor: what is done there cannot be seen.
    "values": "CopySlices",
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
    """The node's name without its ending.

    A power that is no whole number above zero is a root, and a norm that is the root of a sum of
    squares is one of rows: its gradient has no edges.
    """
    name = node.name()
    if name.startswith("LinalgVectorNorm"):
        return "RowNorm" if node._saved_ord == 2 else "LinalgVectorNorm"
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


def has_step(node: Any, kind: str, slot: str) -> bool:
    """Whether backward jumps at zero, so that no error may lead to the other side."""
    if kind == "Elu":
        return slot in ("self", "result") and node._saved_alpha * node._saved_input_scale != 1
    return (kind, slot) in _STEPS


_STEPS = frozenset(
    {
        *(("LeakyRelu", "self"), ("LeakyRelu", "result"), ("PreluKernel", "self")),
        *(("RreluWithNoise", "self"), ("RreluWithNoise", "result")),
    }
)

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
