"""Values that follow from kept tensors by a few operations, element by element.

An expression is a small tree. Its leaves are entries that are kept anyway, or a normalisation of
one. Its branches are the operations of the forward, so that exact leaves give the same bits.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from elbowroom.keep.activations.coordinates import (
    Coordinates,
    Shape,
    broadcast,
    first_copies,
    moved,
    permuted,
    within,
)

if TYPE_CHECKING:
    from elbowroom.keep.activations.derive import Derivation
    from elbowroom.keep.activations.entries import Entry

Read = Callable[["Leaf | Given"], Tensor]
"""From a leaf to its values."""


class Expression(Protocol):
    """A tensor that can be computed."""

    @property
    def shape(self) -> Shape:
        """Of the result."""
        ...

    def leaves(self) -> "Iterator[Leaf | Given]":
        """From left to right."""
        ...

    def apply(self, read: Read) -> Tensor:
        """All values."""
        ...

    def probed(self) -> Coordinates | None:
        """Where values are known that a leaf had when it was saved."""
        ...

    def at(self, places: Coordinates) -> Tensor | None:
        """Values at a few places, or None where that would take decoding."""
        ...


@dataclass(frozen=True, slots=True)
class Leaf:
    """What an entry holds."""

    entry: "Entry"

    @property
    def shape(self) -> Shape:
        """Of the entry."""
        return self.entry.shape

    def leaves(self) -> "Iterator[Leaf | Given]":
        """Itself."""
        yield self

    def value(self) -> Tensor:
        """Of the entry."""
        return self.entry.values()

    def apply(self, read: Read) -> Tensor:
        """As it is."""
        return read(self)

    def probed(self) -> Coordinates | None:
        """Where the entry has noted its values."""
        return self.entry.coordinates()

    def at(self, places: Coordinates) -> Tensor | None:
        """From the tensor itself, or what was noted of it."""
        entry = self.entry
        if entry.probe is not None:
            if entry.coordinates().are_at(places):
                return entry.probe
        is_there = entry.payload is None or entry.payload.method == "keep"
        return entry.values()[places] if is_there or entry.nbytes_plain <= _FEW_BYTES else None


@dataclass(frozen=True, slots=True)
class Given:
    """An output that follows from an entry as a whole, such as that of a normalisation."""

    derivation: "Derivation"

    @property
    def shape(self) -> Shape:
        """Of what is computed."""
        return self.derivation.shape

    def leaves(self) -> "Iterator[Leaf | Given]":
        """Itself."""
        yield self

    def value(self) -> Tensor:
        """Computed from the entry."""
        return self.derivation.apply().reshape(self.shape)

    def apply(self, read: Read) -> Tensor:
        """As it is."""
        return read(self)

    def probed(self) -> Coordinates | None:
        """Where its source has noted its values."""
        source = self.derivation.source
        return moved(source.coordinates(), source.shape, self.shape)

    def at(self, places: Coordinates) -> Tensor | None:
        """Only where its source has."""
        noted, some = self.probed(), self.derivation.some
        if some is None or noted is None or not noted.are_at(places):
            return None
        return some()


@dataclass(frozen=True, slots=True)
class Constant:
    """A number."""

    number: Tensor | float
    shape: Shape = ()

    def leaves(self) -> "Iterator[Leaf | Given]":
        """None."""
        return iter(())

    def apply(self, read: Read) -> Tensor:
        """As it is: operations take numbers as well."""
        return self.number  # type: ignore[return-value]

    def probed(self) -> Coordinates | None:
        """Nowhere in particular."""
        return None

    def at(self, places: Coordinates) -> Tensor | None:
        """As everywhere."""
        return self.number  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A function of tensors that broadcast."""

    function: Callable[..., Tensor]
    parts: tuple[Expression, ...]

    @property
    def shape(self) -> Shape:
        """What the parts broadcast to."""
        return broadcast(part.shape for part in self.parts)

    def leaves(self) -> "Iterator[Leaf | Given]":
        """Of all parts."""
        for part in self.parts:
            yield from part.leaves()

    def apply(self, read: Read) -> Tensor:
        """By the operation of the forward."""
        return self.function(*(part.apply(read) for part in self.parts))

    def probed(self) -> Coordinates | None:
        """Of the first part that has the whole shape."""
        shape = self.shape
        for part in self.parts:
            if part.shape == shape:
                found = part.probed()
                if found is not None:
                    return found
        return None

    def at(self, places: Coordinates) -> Tensor | None:
        """The same function of values at these places."""
        found: list[Tensor] = []
        for part in self.parts:
            values = part.at(within(places, part.shape))
            if values is None:
                return None
            found.append(values)
        return self.function(*found)


@dataclass(frozen=True, slots=True)
class Reshaped:
    """The same elements in the same order."""

    part: Expression
    shape: Shape

    def leaves(self) -> "Iterator[Leaf | Given]":
        """Of the part."""
        return self.part.leaves()

    def apply(self, read: Read) -> Tensor:
        """By a view where that can be."""
        return self.part.apply(read).reshape(self.shape)

    def probed(self) -> Coordinates | None:
        """Where the part has them."""
        found = self.part.probed()
        return moved(found, self.part.shape, self.shape) if found else None

    def at(self, places: Coordinates) -> Tensor | None:
        """Of the part."""
        return self.part.at(moved(places, self.shape, self.part.shape)) if places else None


@dataclass(frozen=True, slots=True)
class Permuted:
    """Axes in another order."""

    part: Expression
    order: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        """In the new order."""
        return tuple(self.part.shape[axis] for axis in self.order)

    def leaves(self) -> "Iterator[Leaf | Given]":
        """Of the part."""
        return self.part.leaves()

    def apply(self, read: Read) -> Tensor:
        """A view."""
        return self.part.apply(read).permute(self.order)

    def probed(self) -> Coordinates | None:
        """Where the part has them."""
        found = self.part.probed()
        return None if found is None else permuted(found, self.order)

    def at(self, places: Coordinates) -> Tensor | None:
        """Of the part."""
        back = tuple(self.order.index(axis) for axis in range(len(self.order)))
        return self.part.at(permuted(places, back))


@dataclass(frozen=True, slots=True)
class Expanded:
    """Repeated along axes of size one."""

    part: Expression
    shape: Shape

    def leaves(self) -> "Iterator[Leaf | Given]":
        """Of the part."""
        return self.part.leaves()

    def apply(self, read: Read) -> Tensor:
        """A view."""
        return self.part.apply(read).expand(self.shape)

    def probed(self) -> Coordinates | None:
        """The first of each that is repeated."""
        found = self.part.probed()
        if found is None or not found:
            return None
        return first_copies(found, len(self.shape))

    def at(self, places: Coordinates) -> Tensor | None:
        """Of the part."""
        return self.part.at(within(places, self.part.shape))


# Looking at some values of a tensor may take decoding it, if it is as small as this.
_FEW_BYTES = 1 << 16


def value_of(leaf: "Leaf | Given") -> Tensor:
    """As it is held."""
    return leaf.value()
