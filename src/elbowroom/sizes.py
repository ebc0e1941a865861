"""Sizes in bytes, as people write them."""

import re

from elbowroom.errors import InvalidArgument

_UNITS = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(memory: object) -> int:
    """Bytes from a number or a text such as "6 GB" or "512 MiB"."""
    if isinstance(memory, int | float) and not isinstance(memory, bool) and 0 < memory < 2**63:
        return int(memory)
    match = _SIZE.fullmatch(memory) if isinstance(memory, str) else None
    if match is not None and match[2].upper() in _UNITS:
        nbytes = float(match[1]) * _UNITS[match[2].upper()]
        if 0 < nbytes < 2**63:
            return int(nbytes)
    raise InvalidArgument(
        f'memory must be a size such as "6 GB" or a number of bytes, got {memory!r}: write the '
        "most that the whole process may take"
    )
