"""Losses over many classes, in place of torch's own: the same values in far less memory.

The composition is that of torch's cross entropy, on log-probabilities of the targets alone.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from elbowroom.keep.activations.logits import CrossEntropy, Manner
from elbowroom.keep.activations.needs import kind_of
from elbowroom.keep.activations.pieces import flat
from elbowroom.keep.activations.untouched import is_plain

# From here on it is worth it. Two numbers a row are kept besides: of few classes that is more than
# their log-probabilities take once they are encoded.
LEAST_BYTES, LEAST_CLASSES = 1 << 20, 32

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_IGNORED = -100


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    """The same bits as torch's own function gives, or None where that had better be called."""
    is_usual = size_average is None and reduce is None and reduction in ("mean", "sum", "none")
    if not is_usual or not 0 <= label_smoothing <= 1 or not _is_worth(input, target):
        return None
    dtype = input.dtype
    if torch.is_autocast_enabled("cpu") and dtype != torch.float64:
        dtype = torch.float32
    if weight is not None and not _is_usable(weight, input.shape[1], dtype, reduction):
        return None
    is_ignored = target == ignore_index
    classes = target.masked_fill(is_ignored, 0)
    least, most = classes.aminmax()
    if least < 0 or most >= input.shape[1]:
        return None
    manner = Manner(dtype, ignore_index, label_smoothing > 0, _is_straightened(input))
    of_sums = weight if manner.is_smoothed else None
    picked, summed = CrossEntropy.apply(input, target, of_sums, manner)
    weights = None
    if weight is not None:
        weights = weight[classes].masked_fill_(is_ignored, 1)
    loss = _likelihood(picked, is_ignored, weights, reduction)
    if summed is None:
        return loss
    smooth = (-summed).masked_fill(is_ignored, 0.0)
    if reduction != "none":
        smooth = smooth.sum()
    if reduction == "mean":
        kept = ~is_ignored
        smooth = smooth / (
            kept.sum() if weight is None else weight.gather(0, target.masked_select(kept)).sum()
        )
    return (1 - label_smoothing) * loss + smooth * (label_smoothing / input.shape[1])


SUBSTITUTES: dict[Any, Callable[..., Tensor | None]] = {functional.cross_entropy: cross_entropy}
"""By the function they stand for."""


def _likelihood(
    picked: Tensor, is_ignored: Tensor, weights: Tensor | None, reduction: str
) -> Tensor:
    """Torch's own sum, in its order: there is only one class, and it is always the right one."""
    only = torch.where(is_ignored, _IGNORED, 0)

    def total(values: Tensor, reduction: str) -> Tensor:
        return functional.nll_loss(values.unsqueeze(1), only, reduction=reduction)

    if weights is None:
        return total(picked, reduction)
    if reduction == "none":
        return total(picked, reduction) * weights
    loss = total(picked * weights, "sum")
    return loss / total(-weights, "sum") if reduction == "mean" else loss


def _is_worth(logits: Any, target: Any) -> bool:
    if not (isinstance(logits, Tensor) and isinstance(target, Tensor)):
        return False
    if not (logits.requires_grad and torch.is_grad_enabled() and logits.dim() >= 2):
        return False
    if logits.shape[1] < LEAST_CLASSES:
        return False
    if not (is_plain(logits) and is_plain(target) and logits.is_cpu and target.is_cpu):
        return False
    if logits.dtype not in _FLOATS or target.dtype != torch.int64:
        return False
    if logits.numel() * logits.element_size() < LEAST_BYTES or not target.numel():
        return False
    if target.shape != logits.shape[:1] + logits.shape[2:]:
        return False
    is_aside = torch.compiler.is_compiling() or forward_ad._current_level >= 0
    return not is_aside and flat(logits).untyped_storage()._cdata == (
        logits.untyped_storage()._cdata
    )


def _is_usable(weight: Any, classes: int, dtype: torch.dtype, reduction: str) -> bool:
    if not is_plain(weight) or weight.requires_grad or not weight.is_cpu:
        return False
    if weight.dtype != dtype or weight.shape != (classes,):
        return False
    return reduction == "none" or _rounds_products(dtype)


@lru_cache
def _rounds_products(dtype: torch.dtype) -> bool:
    """Whether torch's sum of weighted values rounds each product, as it does with few compilers.

    Where a product is added as it is, the loss would differ in its last bit.
    """
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(256, 1, generator=generator).to(dtype)
    weight = torch.randn(1, generator=generator).to(dtype)
    only = torch.zeros(256, dtype=torch.int64)
    once = functional.nll_loss(values, only, weight, reduction="sum")
    return torch.equal(once, functional.nll_loss(values * weight, only, reduction="sum"))


def _is_straightened(logits: Tensor) -> bool:
    """Whether the gradient comes to lie in order behind, whatever order it is handed on in.

    So it is where axes were exchanged after a product of matrices. Its rows are put one after
    another again, which copies a gradient in any other order than its own.
    """
    node: Any = logits.grad_fn
    if node is None or kind_of(node) not in ("Transpose", "Permute"):
        return False
    behind = node.next_functions[0][0]
    if behind is None or kind_of(behind) not in ("View", "UnsafeView", "ReshapeAlias"):
        return False
    sizes = behind._saved_self_sym_sizes
    ours = torch.empty_strided(logits.shape, logits.stride(), device="meta")
    plain = torch.empty(logits.shape, device="meta")
    try:
        ours, plain = (_exchanged_back(node, t) for t in (ours, plain))
        straight = ours.reshape(sizes).is_contiguous() and ours.is_contiguous()
    except RuntimeError:
        return False
    return straight and not _is_view(plain, sizes)


def _exchanged_back(node: Any, tensor: Tensor) -> Tensor:
    if kind_of(node) == "Transpose":
        return tensor.transpose(_signed(node._saved_dim0), _signed(node._saved_dim1))
    dims = [_signed(d) % tensor.dim() for d in node._saved_dims]
    return tensor.permute([dims.index(axis) for axis in range(tensor.dim())])


def _is_view(tensor: Tensor, sizes: Any) -> bool:
    try:
        tensor.view(sizes)
    except RuntimeError:
        return False
    return True


def _signed(axis: int) -> int:
    """Autograd shows it without a sign."""
    return axis - 2**64 if axis > 2**63 else axis
