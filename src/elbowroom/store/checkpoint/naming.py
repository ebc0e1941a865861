"""Names in a store: of checkpoints, and of the files that a run writes for them."""

from collections.abc import Iterable
from dataclasses import dataclass

from elbowroom.store.checkpoint.manifest import split_name
from elbowroom.store.checkpoint.place import ASIDE

MANIFESTS, PACKS, PARTS = "manifests", "packs", "parts"
MARK = "store.json"
WRITER, READERS = "writer", "readers"
_MOST_ORDER = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class Name:
    """A checkpoint as its file name tells it.

    The identity begins with a number that counts up, and ends with one drawn by chance: the first
    tells which checkpoint is newer, whatever their steps and whatever the clock says, the second
    that no name comes twice.
    """

    step: int
    id: str

    @property
    def order(self) -> int:
        """Larger for what was begun later."""
        return int(self.id[:8], 16)

    def __str__(self) -> str:
        return f"{self.step:012d}-{self.id}"


def names_in(files: Iterable[str]) -> list[Name]:
    """Checkpoints by their manifests, oldest first."""
    found = []
    for file in files:
        name, _, ending = file.rpartition(".")
        split = split_name(name) if ending == "json" else None
        one = Name(step=split[0], id=split[1]) if split else None
        # No store has written such a number of checkpoints, or such zeros: it is not ours.
        if one is not None and str(one) == name and one.order <= _MOST_ORDER:
            found.append(one)
    return sorted(found, key=lambda name: name.id)


def is_upload(file: str, upto: int | None) -> bool:
    """Whether it is an upload for such a checkpoint."""
    folder, _, name = file.rpartition("/")
    return folder in (MANIFESTS, PACKS, PARTS) and is_old(name.removesuffix(".json"), upto)


def is_old(file: str, upto: int | None) -> bool:
    """Whether it was written by a run, and for no checkpoint that is still being made."""
    split = split_name("-".join(file.split("-")[:2]))
    return split is not None and (upto is None or int(split[1][:8], 16) <= upto)


def is_ours(file: str) -> bool:
    """Whether a run writes files of that name."""
    folder, _, name = file.rpartition("/")
    if not folder:
        return name in {MARK, MARK + ASIDE, WRITER, READERS}
    return is_old(name.removesuffix(ASIDE).removesuffix(".json"), None)
