"""Sizes in bytes, as people write them."""

import re

from elbowroom.errors import InvalidArgument
from elbowroom.host import whole_bytes

_UNITS = {"": 1.0, "B": 1.0}
_UNITS |= {f"{letter}{end}": 1e3**n for n, letter in enumerate("KMGT", 1) for end in ("", "B")}
_UNITS |= {f"{letter}IB": 1024.0**n for n, letter in enumerate("KMGT", 1)}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][0-9]+)?)\s*([A-Za-z]*|%)\s*")

# A number below this is no number of bytes: its unit was forgotten.
_LEAST_BYTES = 1000


def parse_bytes(memory: object, whole: int | None = None) -> int:
    """Bytes from a number, or from a text such as "6 GB", "6G", "512 MiB" or "80%".

    Args:
        memory: What was asked for.
        whole: What a percentage is a share of; the memory of this machine, or of the container or
            job, where it is left out.
    """
    number, unit = _read(memory)
    if unit == "%" and 0 < number <= 100:
        return int((whole_bytes() if whole is None else whole) * number / 100)
    nbytes = number * _UNITS.get(unit, 0.0)
    if unit == "" and 0 < number < _LEAST_BYTES:
        meant = f"{100 * number:g}%" if number < 1 else f"{number:g} GB"
        raise InvalidArgument(
            f'memory={memory!r} is {number:g} bytes: did you mean "{meant}"? Write the unit'
        )
    if 0 < nbytes < 2**63:
        return int(nbytes)
    raise InvalidArgument(
        f'memory must be a size such as "6 GB" or "80%", or a number of bytes, got {memory!r}: '
        "write the most that the whole process may take"
    )


def _read(memory: object) -> tuple[float, str]:
    """A number and its unit; zero for what is neither."""
    if isinstance(memory, int | float) and not isinstance(memory, bool):
        return (float(memory), "") if 0 < memory < 2**63 else (0.0, "")
    match = _SIZE.fullmatch(memory) if isinstance(memory, str) else None
    return (0.0, "") if match is None else (float(match[1]), match[2].upper())
