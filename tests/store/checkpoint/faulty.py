"""Calls of the operating system that fail when they are told to."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elbowroom.store.checkpoint.system import System


@dataclass(frozen=True, kw_only=True)
class Trip:
    """Which call goes wrong, and how."""

    at: int  # the number of the call among those it is about, from 1
    code: int = errno.EIO
    calls: frozenset[str] = frozenset()  # all, if none is named
    is_lasting: bool = False
    short: int | None = None  # a write takes so many bytes, and does not fail; 0 is half


# Those that change the disk; opening a file to write it is a call of its own here.
CHANGES = frozenset({"create", "write", "sync", "rename", "remove", "make_folder"})


class Failing(System):
    """Hands every call on to another system, until one has to fail."""

    def __init__(self, inner: System, trip: Trip | None = None) -> None:
        self.inner, self.trip = inner, trip
        self.seen: list[str] = []  # the calls that a trip is about
        self.tripped: list[str] = []

    def hand_on(self, name: str, *arguments: Any) -> Any:
        """Do a call, or have it fail."""
        call = "create" if name == "open" and arguments[1] & os.O_CREAT else name
        trip = self.trip
        if trip is None or (trip.calls and call not in trip.calls):
            return getattr(self.inner, name)(*arguments)
        self.seen.append(call)
        count = len(self.seen)
        if count != trip.at and not (trip.is_lasting and count > trip.at):
            return getattr(self.inner, name)(*arguments)
        self.tripped.append(call)
        if trip.short is not None:
            if call == "write":
                handle, data = arguments
                taken = trip.short or -(-len(data) // 2)
                return self.inner.write(handle, data[:taken])
            return getattr(self.inner, name)(*arguments)
        if call == "close":
            self.inner.close(*arguments)  # a file is closed whatever the system says about it
        raise OSError(trip.code, os.strerror(trip.code))


def _handing_on(name: str) -> Callable[..., Any]:
    def call(self: Failing, *arguments: Any) -> Any:
        return self.hand_on(name, *arguments)

    return call


for _name in [name for name in vars(System) if not name.startswith("_")]:
    setattr(Failing, _name, _handing_on(_name))
