"""Treatments: what is done to the tensors that a training keeps, in the columns of the table."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from elbowroom.errors import InvalidArgument
from elbowroom.study.kinds import CHOICES

Method = Literal["plain", "room", "fixed", "batch"]
Codec = Literal["block", "dense", "group"]
Mode = Literal["absolute", "range", "pointwise", "bits"]
Rule = Literal["variance", "comet", "certified"]

LEAST_BITS, MOST_BITS = 1, 8

_NAMES = {"codec": get_args(Codec), "mode": get_args(Mode), "kind": CHOICES}


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """One way to keep tensors.

    `plain` does nothing. `room` is `er.Activations` with a tolerance and a rule: the gradient
    decides. `fixed` encodes every tensor of one kind with one codec and one bound, come what may;
    what the gradient can bear is then an outcome. The codec `group` is the peers': groups of 256
    values, a minimum, a scale and a few `bits` a value. `batch` is no compression but what one does
    without: it takes a share of the batch, which saves as much and makes the gradient vary more.
    """

    method: Method = "plain"
    tolerance: float | None = None
    rule: Rule | None = None
    codec: Codec | None = None
    mode: Mode | None = None
    bound: float | None = None  # of bits, their number; of a batch, its share
    kind: str | None = None
    dithered: bool | None = None

    def __post_init__(self) -> None:
        """Check that what the method needs is there, and nothing else."""
        if self.method not in get_args(Method):
            raise InvalidArgument(
                f"a method is one of {', '.join(get_args(Method))}, got {self.method!r}"
            )
        needed = {
            "plain": set[str](),
            "room": {"tolerance", "rule"},
            "fixed": {"codec", "mode", "bound", "kind", "dithered"},
            "batch": {"bound"},
        }[self.method]
        for name, value in asdict(self).items():
            if name != "method" and (value is not None) != (name in needed):
                word = "needs" if name in needed else "has no"
                raise InvalidArgument(f"the method {self.method} {word} {name}, got {value!r}")
        if self.tolerance is not None:
            _check_tolerance(self.tolerance)
        if self.rule is not None and self.rule not in get_args(Rule):
            raise InvalidArgument(
                f"a rule is one of {', '.join(get_args(Rule))}, got {self.rule!r}"
            )
        if self.bound is not None:
            if self.method == "batch":
                _check_share(self.bound)
            else:
                check_bound(self.bound)
        if self.method == "fixed":
            self._check_fixed()

    def _check_fixed(self) -> None:
        for name in _NAMES:
            check_name(name, getattr(self, name))
        assert self.bound is not None
        if (self.codec == "group") != (self.mode == "bits"):
            raise InvalidArgument(
                f"bits belong to the codec group and bounds to block and dense, got "
                f"{self.codec} with {self.mode}"
            )
        if self.mode == "bits" and not (
            LEAST_BITS <= self.bound <= MOST_BITS and self.bound == int(self.bound)
        ):
            raise InvalidArgument(
                f"bits are a whole number from {LEAST_BITS} to {MOST_BITS}, got {self.bound:g}"
            )
        if self.mode == "pointwise" and self.bound >= 1:
            raise InvalidArgument(
                f"a pointwise bound is a share below 1 of each value, got {self.bound:g}"
            )
        if self.dithered and self.mode == "pointwise":
            raise InvalidArgument("pointwise bounds cannot be dithered: leave one of the two out")

    @property
    def label(self) -> str:
        """In a few words, for people."""
        if self.method == "plain":
            return "plain"
        if self.method == "room":
            rule = "" if self.rule == "variance" else f", {self.rule}"
            return f"room {self.tolerance:g}{rule}"
        if self.method == "batch":
            return f"{self.bound:g} of the batch"
        if self.mode == "bits":
            how = f"{self.bound:g} bits"
        else:
            how = f"{self.mode} {self.bound:g}" + (" dithered" if self.dithered else "")
        return f"{self.kind}: {self.codec}, {how}"

    def columns(self) -> dict[str, Any]:
        """As the table has it."""
        return asdict(self)


def room(tolerance: float, rule: Rule = "variance") -> Treatment:
    """Let the gradient decide."""
    return Treatment(method="room", tolerance=tolerance, rule=rule)


def fixed(
    kind: str, mode: Mode, bound: float, *, codec: Codec = "dense", dithered: bool | None = None
) -> Treatment:
    """Encode all tensors of a kind alike; dithered, where the mode allows it."""
    if dithered is None:
        dithered = mode != "pointwise"
    return Treatment(
        method="fixed", codec=codec, mode=mode, bound=float(bound), kind=kind, dithered=dithered
    )


def smaller(share: float) -> Treatment:
    """Take a share of the batch."""
    return Treatment(method="batch", bound=share)


def check_name(name: str, value: object) -> None:
    """Refuse a codec, mode or kind that there is not."""
    if value not in _NAMES[name]:
        raise InvalidArgument(f"a {name} is one of {', '.join(_NAMES[name])}, got {value!r}")


def check_bound(value: float) -> None:
    """Refuse what is no bound of any mode."""
    if not (math.isfinite(value) and value > 0):
        raise InvalidArgument(f"a bound must be finite and positive, got {value!r}")


def _check_share(value: float) -> None:
    if not 0 < value < 1:
        raise InvalidArgument(f"a share of the batch must be above 0 and below 1, got {value:g}")


def _check_tolerance(value: float) -> None:
    if not 0 <= value <= 1:
        raise InvalidArgument(f"a tolerance must be a share from 0 (exact) to 1, got {value!r}")
