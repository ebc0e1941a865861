"""A small convolutional autoencoder of patches, whose decoder calculates with whole numbers.

The encoder turns a patch and all that touch it into a few numbers, rounded to codes. The decoder
predicts a patch from the codes of it and of all that touch it: a linear part, and a hidden layer
beside it. An integer network (Ballé et al. 2019) gives the same bits on every machine: weights and
hidden values are whole numbers in units of powers of two, and all sums are below 2^53.
"""

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from elbowroom.codec import Bound, encode
from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.keep.loops.patches import SIDES, VALUES, with_neighbours

# Of the linear part 20 + 21 + 6 bits are summed up: codes, weights and a sum of 64. Of the hidden
# layer 20 + 15 + 11 (27 neighbours of 64 codes), of the last one 30 + 15 + 6.
LEAST_BITS, MOST_BITS = 8, 14
_HIDDEN_BITS = 4
_MOST_LINEAR, _MOST_WEIGHT, _MOST_HIDDEN = 2.0**20, 2.0**14, 2.0**30
_LEAK = 0.125
_MOST_HIDDEN_UNITS = 64

_FORMAT = "elbowroom-loop-network-1"


@dataclass(frozen=True, slots=True)
class Weights:
    """What is learned. Codes are steps along `linear` and what hidden layers add to that."""

    into: Tensor
    """64 x codes: the encoder's linear part."""

    into_hidden: Tensor
    """Neighbours of codes x hidden: what the encoder sees of the codes of neighbours."""

    into_out: Tensor
    """Hidden x codes."""

    linear: Tensor
    """Codes x 64: the decoder's linear part, in units of the bound."""

    hidden: Tensor
    """Neighbours of codes x hidden."""

    out: Tensor
    """Hidden x 64."""

    def tensors(self) -> dict[str, Tensor]:
        """By name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def encoded(self, patches: Tensor, dims: int) -> Tensor:
        """Codes before they are rounded."""
        first = patches @ self.into
        seen = with_neighbours(first, dims) @ self.into_hidden
        return first + functional.leaky_relu(seen, _LEAK) @ self.into_out

    def decoded(self, codes: Tensor, dims: int) -> Tensor:
        """Patches, before weights are made whole numbers."""
        seen = with_neighbours(codes, dims) @ self.hidden
        return codes @ self.linear + functional.leaky_relu(seen, _LEAK) @ self.out


class Network:
    """A fitted autoencoder, which serves as a model of patches."""

    def __init__(self, weights: Weights, dims: int, bits: int = MOST_BITS) -> None:
        """`bits`: of weights behind the point; what codes of as many bits need."""
        self.weights, self.dims, self.bits = weights, dims, bits
        self._linear = _whole(weights.linear, bits, _MOST_LINEAR)
        self._hidden = _whole(weights.hidden, bits, _MOST_WEIGHT)
        self._out = _whole(weights.out, bits, _MOST_WEIGHT)
        parts = (self._linear, self._hidden, self._out)
        self._nbytes = sum(encode(t.to(torch.int32), Bound.lossless()).nbytes for t in parts)

    @property
    def nbytes(self) -> int:
        """Of the decoder's weights, encoded: what frames need beside their codes."""
        return self._nbytes

    def analyse(self, patches: Tensor) -> Tensor:
        """Codes; the encoder may round as it likes, as what it finds is written down."""
        found = self.weights.encoded(patches.to(torch.float32), self.dims)
        return found.to(torch.float64).round_()

    def predict(self, codes: Tensor) -> Tensor:
        """Exact, but for one sum of two numbers for each value."""
        seen = with_neighbours(codes, self.dims) @ self._hidden
        # Products with powers of two, so that only rounding to whole numbers rounds.
        leaky = torch.where(seen < 0, seen * _LEAK, seen)
        inner = leaky.mul_(2.0 ** (_HIDDEN_BITS - self.bits)).round_()
        inner.clamp_(-_MOST_HIDDEN, _MOST_HIDDEN)
        beside = (inner @ self._out).mul_(2.0 ** (-_HIDDEN_BITS - self.bits))
        return (codes @ self._linear).mul_(2.0**-self.bits).add_(beside)

    def save(self, path: str | Path) -> None:
        """Write a file of weights that `load` reads (safetensors)."""
        from safetensors.torch import save_file

        about = {"format": _FORMAT, "dims": str(self.dims), "bits": str(self.bits)}
        save_file({k: t.contiguous() for k, t in self.weights.tensors().items()}, str(path), about)

    @classmethod
    def load(cls, path: str | Path) -> "Network":
        """Read a file that `save` wrote; it may come from a stranger."""
        from safetensors import SafetensorError, safe_open

        names = {field.name for field in fields(Weights)}
        try:
            with safe_open(str(path), "pt") as file:
                about = file.metadata() or {}
                if about.get("format") != _FORMAT or set(file.keys()) != names:
                    raise InvalidArgument(
                        f"{path} holds no network of loops: pass a file that Network.save wrote"
                    )
                found = {name: file.get_tensor(name) for name in names}
        except FileNotFoundError:
            raise InvalidArgument(
                f"there is no file {path}: pass one that Network.save wrote"
            ) from None
        except (SafetensorError, OSError) as error:
            raise CorruptData(f"{path} is no whole file of weights: {error}") from None
        weights = Weights(**found)
        dims = {str(n): n for n in SIDES}.get(about.get("dims", ""))
        bits = {str(n): n for n in range(LEAST_BITS, MOST_BITS + 1)}.get(about.get("bits", ""))
        if dims is None or bits is None or not _fits(weights, dims):
            raise CorruptData(f"{path} has weights that do not fit together: save it again")
        return cls(weights, dims, bits)


def _whole(weights: Tensor, bits: int, most: float) -> Tensor:
    return weights.to(torch.float64).contiguous().mul(2**bits).round_().clamp_(-most, most)


def _fits(weights: Weights, dims: int) -> bool:
    """Shapes and types as they are made; also the bounds that keep sums exact."""
    if any(t.ndim != 2 or t.dtype != torch.float32 for t in weights.tensors().values()):
        return False
    codes, hidden = weights.linear.shape[0], weights.hidden.shape[1]
    seen = 3**dims * codes
    expected = {
        "into": (VALUES, codes),
        "into_hidden": (seen, hidden),
        "into_out": (hidden, codes),
        "linear": (codes, VALUES),
        "hidden": (seen, hidden),
        "out": (hidden, VALUES),
    }
    is_small = 1 <= codes <= VALUES and 1 <= hidden <= _MOST_HIDDEN_UNITS and dims in SIDES
    found = weights.tensors()
    has_shapes = all(tuple(found[name].shape) == shape for name, shape in expected.items())
    return is_small and has_shapes and all(bool(t.isfinite().all()) for t in found.values())
