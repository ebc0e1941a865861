"""The programs that turn items into chunks: all write the same bytes.

A backend is a module with two functions:

    encode(recipe, pointer, items, threads) -> segments, directory
    decode(recipe, segments, directory, items, pointer, threads) -> None, or raises CorruptData

The recipe is its 64 bytes; a pointer is the address of items that lie one after another.
"""

from types import ModuleType

from elbowroom.codec.backends import native
from elbowroom.errors import InvalidArgument


def backend_named(name: str | None) -> ModuleType:
    """The backend of that name; the native one by default."""
    if name is None or name == "native":
        return native
    if name == "reference":
        from elbowroom.codec.backends import oracle

        return oracle
    raise InvalidArgument(f"a backend is 'native' or 'reference', got {name!r}: leave it out")
