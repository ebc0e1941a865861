"""How much memory the control groups of Linux leave this process: those of jobs and containers."""

import sys
from collections.abc import Iterator
from pathlib import Path

# Limit, use, and what of it are files that could be dropped, by the version of control groups.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file",)),
    2: ("memory.max", "memory.current", ("inactive_file",)),
}


def left_bytes(root: Path = Path("/")) -> int:
    """What the tightest group still has; where there is none, more than any machine has."""
    return min(
        (_left_in(folder, version) for version, folder in _groups(root)), default=sys.maxsize
    )


def limit_bytes(root: Path = Path("/")) -> int:
    """What the tightest group may take; where there is none, more than any machine has."""
    return min(
        (_limit_of(folder, version) for version, folder in _groups(root)), default=sys.maxsize
    )


def _groups(root: Path) -> Iterator[tuple[int, Path]]:
    """The groups of this process, and those above: each has a limit of its own."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        number, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if "memory" in kinds.split(","):
            version, base = 1, root / "sys/fs/cgroup/memory"
        elif number == "0" and not kinds:
            version, base = 2, root / "sys/fs/cgroup"
        else:
            continue
        # Inside of a container the path may be the host's; the group itself lies at the base then.
        folder = base / path.strip("/")
        while True:
            yield version, folder
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent


def _limit_of(folder: Path, version: int) -> int:
    try:
        limit = (folder / _FILES[version][0]).read_text(encoding="ascii").strip()
        return sys.maxsize if limit == "max" else int(limit)
    except (OSError, ValueError):  # no such group here, or none that tells
        return sys.maxsize


def _left_in(folder: Path, version: int) -> int:
    _, used_name, droppable = _FILES[version]
    limit = _limit_of(folder, version)
    if limit == sys.maxsize:
        return limit
    try:
        used = int((folder / used_name).read_text(encoding="ascii"))
        pairs = (line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
        spare = sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in droppable)
        return max(0, limit - used + spare)
    except (OSError, ValueError):  # no such group here, or none that tells
        return sys.maxsize
