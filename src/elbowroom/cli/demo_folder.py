"""The folder of a demo, cleared of what an earlier demo wrote."""

import json
from contextlib import suppress
from pathlib import Path

from elbowroom.cli.contender import PACE
from elbowroom.cli.limits import ATTEMPTS
from elbowroom.errors import InvalidArgument
from elbowroom.report.writing import RUN, SUFFIX

LIMITED = "limited"
MOST_HEADER_BYTES = 64 << 10


def clear(folder: Path, title: str, contenders: tuple[str, ...]) -> None:
    """Remove the files of an earlier demo of that title; refuse where there is anything else."""
    known = {f"{name}{SUFFIX}" for name in (RUN, *contenders)}
    if any(folder.iterdir()) and not _is_demo(folder / f"{RUN}{SUFFIX}", title):
        raise InvalidArgument(
            f"the folder {folder} holds something else than a demo: name another with --out"
        )
    # The report would take them for trainings of this run.
    foreign = sorted(path.name for path in folder.glob(f"*{SUFFIX}") if path.name not in known)
    if foreign:
        raise InvalidArgument(
            f"the folder {folder} holds {foreign[0]}, which no demo wrote: move it, or name "
            "another with --out"
        )
    aside = Path(PACE).with_suffix(".part").name
    for name in (*known, PACE, aside):
        (folder / name).unlink(missing_ok=True)
    for name in ATTEMPTS:
        place = folder / LIMITED / name
        (place / f"{name}{SUFFIX}").unlink(missing_ok=True)
        with suppress(OSError):  # something of somebody else's is in it
            place.rmdir()
    with suppress(OSError):
        (folder / LIMITED).rmdir()


def _is_demo(path: Path, title: str) -> bool:
    """Whether the first record is a demo's; a full disk may have left the file empty."""
    try:
        with path.open("rb") as file:
            line = file.readline(MOST_HEADER_BYTES)
        record = json.loads(line) if line else {"kind": RUN, "title": title}
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(record, dict) and record.get("kind") == RUN and record.get("title") == title
