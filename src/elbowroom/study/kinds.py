"""Kinds of saved tensors: which sort of layer keeps a tensor, and as what."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

# Functions of PyTorch by name, and the kind of what they keep.
_FUNCTIONS = {
    "convolution": (
        *("conv1d", "conv2d", "conv3d"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    ),
    "linear": ("linear", "addmm", "bilinear"),
    "norm": ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"),
    "activation": (
        *("relu", "relu_", "relu6", "leaky_relu", "elu", "selu", "celu", "hardtanh"),
        *("gelu", "silu", "mish", "softplus", "sigmoid", "tanh", "hardswish"),
    ),
    "pooling": (
        *("max_pool1d", "max_pool2d", "max_pool3d"),
        *("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices"),
        *("boolean_dispatch", "avg_pool2d", "adaptive_max_pool2d"),
    ),
    "attention": ("scaled_dot_product_attention",),
    "softmax": ("softmax", "log_softmax"),
    "product": ("mul", "matmul", "bmm", "__mul__", "__matmul__", "einsum", "baddbmm"),
    "loss": ("cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "nll_loss"),
    "recurrent": ("lstm", "gru", "rnn_tanh", "rnn_relu"),
}
_KIND_OF = {name: kind for kind, names in _FUNCTIONS.items() for name in names}

# The arguments of attention by place; what is saved beside them is its output.
_ATTENTION = ("attention-query", "attention-key", "attention-value")
_OUTPUT = "attention-output"

ALL = "all"
KINDS = (*_FUNCTIONS, *_ATTENTION, _OUTPUT, "other")
CHOICES = (ALL, *KINDS)


def kind_of(function: str, arguments: Sequence[Any], saved: Tensor) -> str:
    """Return the kind of a tensor that a function with these arguments keeps."""
    kind = _KIND_OF.get(function, "other")
    if kind != "attention":
        return kind
    for name, argument in zip(_ATTENTION, arguments, strict=False):
        if isinstance(argument, Tensor) and _is_same(argument, saved):
            return name
    return _OUTPUT


def is_chosen(choice: str, kind: str) -> bool:
    """Tell whether a tensor of the kind is among those that the choice names."""
    return choice in (ALL, kind) or kind.startswith(f"{choice}-")


def is_values(kind: str, arguments: Sequence[Any], saved: Tensor) -> bool:
    """Tell whether these are values, one for every value that passes through the layer.

    Others are statistics: a mean and a spread a channel, a sum a row. They are small, and an
    error in one of them is an error everywhere.
    """
    if kind == "norm" and arguments and isinstance(arguments[0], Tensor):
        return saved.shape == arguments[0].shape
    if kind == _OUTPUT and arguments and isinstance(arguments[0], Tensor):
        return saved.dim() == arguments[0].dim()
    return True


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape
