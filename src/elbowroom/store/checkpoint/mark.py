"""The file that says what a folder is, and which hash its digests are of."""

import re
from typing import Any

from elbowroom.errors import CorruptData, IncompatibleFormat, InvalidArgument, StoreUnreachable
from elbowroom.store.checkpoint import manifest as manifests
from elbowroom.store.checkpoint.digests import HASHES
from elbowroom.store.checkpoint.naming import MANIFESTS, MARK, PACKS, PARTS, READERS, WRITER
from elbowroom.store.checkpoint.place import Place

FORMAT = "elbowroom checkpoint store"
_ID = re.compile("[0-9a-f]{32}")


def refuse_foreign(place: Place) -> None:
    """Refuse a folder with something else in it, before anything is put there."""
    names = set(place.names(""))
    others = {name for name in names if not name.startswith(MARK)}
    others -= {MANIFESTS, PACKS, PARTS, WRITER, READERS}
    if MARK in names or (not others and not place.names(MANIFESTS)):
        return
    if not missing_mark(place):
        raise InvalidArgument(
            f"{place.root} is no store of checkpoints and not empty (it has "
            f"{min(others, default=MANIFESTS)}): name a new folder"
        )


def publish(place: Place, name: str, data: bytes) -> None:
    """A small file, whole and durable or not there."""
    sink = place.create(name)
    try:
        sink.append(memoryview(data))
        sink.commit()
    except BaseException:
        sink.abandon()
        raise


def missing_mark(place: Place) -> dict[str, Any] | None:
    """What the mark has to say if it has to be written: nothing yet, or what it said."""
    if MARK not in place.names(""):
        return _recall_mark(place)
    try:
        manifests.unseal(place.read(MARK, 1 << 16), MARK)
    except CorruptData:
        return _recall_mark(place) or None
    return None


def _recall_mark(place: Place) -> dict[str, Any]:
    """What the mark must have said, going by manifests: no single file may cost all of them."""
    for file in reversed(place.names(MANIFESTS)):
        try:
            found = manifests.read(place.read(f"{MANIFESTS}/{file}", manifests.MOST_BYTES), file)
        except StoreUnreachable:
            raise
        except (CorruptData, IncompatibleFormat, OSError):
            continue
        return {"id": found.store, "hash": found.hash}
    return {}


def read_mark(place: Place, where: str) -> dict[str, Any]:
    """What the mark says, or must have said."""
    try:
        held = manifests.unseal(place.read(MARK, 1 << 16), MARK)
    except (FileNotFoundError, NotADirectoryError, CorruptData) as error:
        if found := _recall_mark(place):
            return found
        if isinstance(error, CorruptData):
            raise
        raise InvalidArgument(f"{where} is no store of checkpoints: it has no {MARK}") from None
    if not isinstance(held, dict) or held.get("format") != FORMAT:
        raise CorruptData(f"{where}/{MARK} is not that of a store of checkpoints")
    if held.get("version") != 1:
        raise IncompatibleFormat(
            f"{where} is of version {str(held.get('version'))[:20]}, and this release reads "
            "version 1: read it with a newer elbowroom"
        )
    id = held.get("id")
    if not isinstance(id, str) or not _ID.fullmatch(id) or not isinstance(held.get("hash"), str):
        raise CorruptData(f"{where}/{MARK} lacks its identity")
    if held["hash"] not in HASHES:
        raise IncompatibleFormat(
            f"{where} is hashed with {held['hash'][:20]!r}, which this release does not know: read "
            "it with a newer elbowroom"
        )
    return held
