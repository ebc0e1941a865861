"""What a compiled backward graph reads of a saved tensor: whether an error may be in it."""

from typing import Any

import torch

# Names of aten's operators whose argument, at these places, must not be moved: a small error
# could have no limit there, or turn a comparison.
_PLACES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("div", "true_divide", "atan2", "fmod", "remainder", "xlogy"), (1,)),
    **dict.fromkeys(
        """log log2 log10 log1p logit sqrt rsqrt reciprocal acos asin acosh atanh erfinv lgamma
        digamma polygamma prod cumprod logsumexp std var""".split(),
        (0,),
    ),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum"), (0, 1)),
    **dict.fromkeys(("abs", "sign", "sgn", "floor", "ceil", "round", "trunc", "argmax"), (0,)),
    "hardtanh_backward": (1,),
    "hardsigmoid_backward": (1,),
    "leaky_relu_backward": (1,),
    "elu_backward": (4,),
    "threshold_backward": (1,),
    "native_layer_norm_backward": (3, 4),
    "native_batch_norm_backward": (3, 4, 5, 6),
    "batch_norm_backward": (3, 4, 5, 6),
    "native_group_norm_backward": (2, 3),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (5,),
    "_scaled_dot_product_flash_attention_backward": (5,),
    "_scaled_dot_product_efficient_attention_backward": (6,),
}
_BESIDE_ZERO = frozenset({"threshold_backward", "le", "gt"})
# Operators that hand values on: what reads their result reads the tensor.
_THROUGH = frozenset(
    """view reshape permute transpose t expand unsqueeze squeeze slice select clone alias detach
    _to_copy to convert_element_type getitem""".split()
)

_VIEWS = _THROUGH - {"clone", "_to_copy", "to", "convert_element_type", "getitem"}
_PARTED = frozenset("split split_with_sizes chunk unbind".split())


def must_be_exact(node: Any, backward: Any) -> bool:
    """Whether a reader of the saved node in the backward graph could not bear an error."""
    read = next((n for n in backward.nodes if n.op == "placeholder" and n.name == node.name), None)
    return read is not None and _is_sensitive(read, _is_positive(node), 4)


def reads_sides(node: Any, backward: Any) -> bool:
    """Whether only which values of a ReLU's result are above zero is read of it."""
    read = next((n for n in backward.nodes if n.op == "placeholder" and n.name == node.name), None)
    return read is not None and _is_positive(node) and _has_sides(read, 4)


def _is_positive(node: Any) -> bool:
    return _name(source_of(node)) == "relu"


def _has_sides(read: Any, depth: int) -> bool:
    for user in read.users:
        beside = _name(user) in _BESIDE_ZERO and user.args[-1] == 0
        place = 1 if _name(user) == "threshold_backward" else 0
        if beside and [i for i, a in enumerate(user.args) if a is read] == [place]:
            continue
        if not (depth and _name(user) in _THROUGH and _has_sides(user, depth - 1)):
            return False
    return bool(read.users)


def readers_of(node: Any, backward: Any) -> tuple[str, ...]:
    """Names of the operators that read the saved node, those of single elements as one."""
    read = next((n for n in backward.nodes if n.op == "placeholder" and n.name == node.name), None)
    return () if read is None else tuple(sorted(_readers(read, 4)))


def source_of(node: Any) -> Any:
    """The node whose memory a view is of."""
    name = _name(node)
    is_part = name == "getitem" and _name(node.args[0]) in _PARTED
    if name in _VIEWS or is_part or name in _PARTED:
        return source_of(node.all_input_nodes[0])
    return node


def _readers(read: Any, depth: int) -> set[str]:
    found: set[str] = set()
    for user in read.users:
        name = _name(user)
        if name in _THROUGH and depth:
            found |= _readers(user, depth - 1)
        elif user.op != "output":
            is_pointwise = torch.Tag.pointwise in getattr(user.target, "tags", ())
            found.add("pointwise" if is_pointwise else name)
    return found


def _is_sensitive(read: Any, is_positive: bool, depth: int) -> bool:
    for user in read.users:
        name = _name(user)
        if name.startswith("linalg"):
            return True
        if name == "pow" and user.args and user.args[0] is read and not _is_whole(user.args[-1]):
            return True
        places = [i for i, a in enumerate(user.args) if a is read and i in _PLACES.get(name, ())]
        # Of a ReLU's result zeros stay zeros, and the others positive.
        if places and not (is_positive and name in _BESIDE_ZERO and user.args[-1] == 0):
            return True
        handed = name in _THROUGH
        # Scaled or shifted by a number.
        shifted = name in ("mul", "add", "sub", "div", "neg") and len(user.all_input_nodes) == 1
        if depth and (handed or shifted) and _is_sensitive(user, is_positive and handed, depth - 1):
            return True
    return False


def _is_whole(exponent: Any) -> bool:
    return isinstance(exponent, int | float) and exponent > 0 and exponent == int(exponent)


def _name(node: Any) -> str:
    """Of the operator, without overload."""
    packet = getattr(node.target, "_opname", None) or getattr(node.target, "__name__", "")
    return str(packet).split(".")[0]
