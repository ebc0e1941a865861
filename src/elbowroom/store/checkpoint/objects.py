"""Stores in what fsspec reaches: buckets, clusters' file systems, memory.

An object appears when it is complete, so nothing is written aside. There are no locks. Two runs in
one bucket do not overwrite each other's files, whose names never come twice; the one that came last
writes on, and the one before is told so instead of committing.
"""

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from elbowroom.errors import BackendUnavailable, CorruptData, InvalidArgument
from elbowroom.store.checkpoint.local import LocalPlace
from elbowroom.store.checkpoint.naming import PACKS, WRITER
from elbowroom.store.checkpoint.place import Place, ReadInto, check_name
from elbowroom.store.checkpoint.reaching import Reach
from elbowroom.store.checkpoint.system import System
from elbowroom.store.checkpoint.uploads import abort_uploads

_FILES = "file://"
# Of those a folder is a name that others begin with, and the first part of a path is the bucket,
# which is never made here: who mistypes it would not hear of it.
_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "tos"})
_MOST_CLAIM_BYTES = 4096
_SMALL_BYTES = 8 << 20
_FEW = 1  # sizes that are asked for one by one; of more, the folder is listed

Options = Mapping[str, Any]


def place_at(
    where: str | Path, system: System | None = None, options: Options | None = None
) -> "LocalPlace | ObjectPlace":
    """The place of a path, or of an address with a scheme, which fsspec may be told more of."""
    if not isinstance(where, str | Path) or not str(where).strip() or "\0" in str(where):
        raise InvalidArgument(f"checkpoints need the name of a folder, got {where!r}")
    # What lies on a disk is written as to a disk, however it is called: synced, and locked.
    if isinstance(where, str) and where.startswith(_FILES):
        where = where.removeprefix(_FILES)
    elif isinstance(where, str) and "://" in where:
        return ObjectPlace(where, options)
    return LocalPlace(Path(where).expanduser(), system)


class ObjectPlace(Place):
    """A prefix of an object store."""

    def __init__(self, url: str, options: Options | None = None) -> None:
        import fsspec

        held = dict(options or {})
        self._is_bucket = url.partition("://")[0] in _BUCKETS
        if self._is_bucket:
            # A list that is kept would say that what others have removed is there.
            held.setdefault("use_listings_cache", False)
        if url.startswith(("s3://", "s3a://")):
            # botocore draws its pauses between attempts from Python's own random numbers, which are
            # the training's: attempts are repeated here instead.
            config = {"retries": {"total_max_attempts": 1}, **held.get("config_kwargs", {})}
            held["config_kwargs"] = config
        try:
            self._files, self._root = fsspec.core.url_to_fs(url, **held)
        except (ImportError, ValueError, TypeError) as error:
            raise BackendUnavailable(f"{url} cannot be reached: {error}") from error
        self.root = url
        self.reach = Reach(url)
        self._claim: str | None = None

    def make(self, *folders: str) -> None:
        """Have the folders, where there are such; a bucket has to be there."""
        if self._is_bucket:
            self._find_bucket()
            return
        for folder in ("", *folders):
            self.reach.ask(self._files.makedirs, self._path(folder), exist_ok=True)

    def names(self, folder: str) -> list[str]:
        """What a folder has, sorted."""
        return sorted(self._listed(folder))

    def create(self, name: str) -> "ObjectSink":
        """Begin an object."""
        return ObjectSink(self._files, self._path(name), self.reach, is_bucket=self._is_bucket)

    def read(self, name: str, most_bytes: int) -> bytes:
        """A whole small object."""
        size = self.size(name)
        if size > most_bytes:
            raise CorruptData(f"{name} has {size} bytes, more than such a file ever has")
        out = bytearray(size)
        self.read_into(name, 0, memoryview(out))
        return bytes(out)

    def read_into(self, name: str, offset: int, out: memoryview) -> None:
        """Fill a buffer from a place in an object."""
        if not len(out):
            return
        path, end = self._path(name), offset + len(out)
        data = self.reach.ask(self._files.cat_file, path, start=offset, end=end)
        if len(data) != len(out):
            raise CorruptData(
                f"{name} ends after {offset + len(data)} bytes, and {len(out) - len(data)} more "
                "are needed: it was cut short"
            )
        out[:] = data

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[ReadInto]:
        """Objects are not opened; every read asks for its own bytes."""
        yield partial(self.read_into, name)

    def size(self, name: str) -> int:
        """In bytes."""
        found = self.reach.ask(self._files.info, self._path(name))
        if found.get("type") != "file" or not isinstance(found.get("size"), int):
            raise CorruptData(f"{name} is no ordinary file, and a store has none but such")
        return found["size"]

    def sizes(self, folder: str, names: Iterable[str]) -> dict[str, int]:
        """Of those of these objects that are there, by few requests."""
        wanted = list(names)
        found: dict[str, int] = {}
        if len(wanted) <= _FEW:
            for name in wanted:
                with contextlib.suppress(FileNotFoundError, CorruptData):
                    found[name] = self.size(f"{folder}/{name}")
            return found
        listed = self._listed(folder)
        for name in wanted:
            one = listed.get(name, {})
            if one.get("type") == "file" and isinstance(one.get("size"), int):
                found[name] = one["size"]
        return found

    def is_shared(self, name: str) -> bool:
        """Objects have one name."""
        del name
        return False

    def remove(self, name: str) -> None:
        """Remove an object; that it is not there is no error."""
        with contextlib.suppress(FileNotFoundError):
            self.reach.ask(self._files.rm_file, self._path(name))

    def remove_all(self, names: Iterable[str]) -> None:
        """Remove several, by one request where it can be said so."""
        left = list(names)
        if len(left) > 1 and self._is_bucket:
            self.reach.ask(self._files.rm, [self._path(name) for name in left])
            return
        for name in left:
            self.remove(name)

    def sync(self, folder: str) -> None:
        """Objects that are there are durable."""

    def abort_uploads(self, is_ours: Callable[[str], bool]) -> int:
        """End uploads that nobody goes on with; return how many there were."""
        return self.reach.tell(abort_uploads, self._files, self._root, is_ours)

    @contextlib.contextmanager
    def lock(self, name: str, *, shared: bool = False) -> Iterator[bool]:
        """There are none; whoever has several runs gives each a place of its own."""
        del name, shared
        yield True

    def claim(self) -> None:
        """Be the one who writes here from now on: whoever did before finds out by this."""
        token = secrets.token_hex(16)
        held = {"token": token, "host": socket.gethostname(), "pid": os.getpid()}
        self.reach.ask(self._files.pipe_file, self._path(WRITER), json.dumps(held).encode())
        self._claim = token

    def check_claim(self) -> None:
        """Refuse to go on where another has come to write."""
        if self._claim is None:
            return
        found = self._read_claim()
        if found.get("token") != self._claim:
            raise InvalidArgument(
                f"another run has begun to write checkpoints to {self.root} "
                f"({_say_who(found)}), and this one writes no more there: give each run a place "
                "of its own"
            )

    def release(self) -> None:
        """Another may come."""
        if self._claim is not None:
            with contextlib.suppress(OSError):
                if self._read_claim().get("token") == self._claim:
                    self.remove(WRITER)
            self._claim = None

    def is_claimed(self) -> bool:
        """Whether a run may be writing here, as far as can be told from this machine."""
        found = self._read_claim()
        if found.get("host") != socket.gethostname() or not isinstance(found.get("pid"), int):
            return bool(found)
        return Path(f"/proc/{found['pid']}").exists() or not Path("/proc/self").exists()

    def _read_claim(self) -> dict[str, Any]:
        path = self._path(WRITER)
        try:
            text = self.reach.ask(self._files.cat_file, path, start=0, end=_MOST_CLAIM_BYTES)
            found = json.loads(text)
        except FileNotFoundError:
            return {}
        except ValueError:
            found = None
        return found if isinstance(found, dict) else {"token": ""}

    def _listed(self, folder: str) -> dict[str, dict[str, Any]]:
        path = self._path(folder)
        self._files.invalidate_cache()
        try:
            found = self.reach.ask(self._files.ls, path, detail=True)
        except FileNotFoundError:
            if self._is_bucket and not folder:
                self._find_bucket()
            return {}
        listed = {str(one["name"]).rstrip("/").rpartition("/")[2]: one for one in found}
        listed.pop("", None)
        if folder:
            listed.pop(path.rpartition("/")[2], None)
        return listed

    def _find_bucket(self) -> None:
        bucket = self._root.partition("/")[0]
        try:
            self.reach.ask(self._files.info, bucket)
        except FileNotFoundError:
            raise InvalidArgument(
                f"there is no bucket {bucket!r} for {self.root}: check the name, or make it first"
            ) from None

    def _path(self, name: str) -> str:
        if not name:
            return self._root
        check_name(name)
        return f"{self._root.rstrip('/')}/{name}"


def _say_who(claim: dict[str, Any]) -> str:
    if "host" not in claim:
        return "it has ended since"
    return f"process {str(claim.get('pid'))[:20]} on {str(claim['host'])[:80]}"


class ObjectSink:
    """An object in the making, which appears when it is committed.

    In a bucket, what is small is gathered and put there by one request, which can be repeated.
    """

    def __init__(self, files: Any, path: str, reach: Reach, *, is_bucket: bool) -> None:
        self._files, self._path, self._reach = files, path, reach
        # Packs have names that were drawn by chance.
        if not (is_bucket and f"/{PACKS}/" in path) and reach.ask(_is_there, files, path):
            raise FileExistsError(path)
        self._small: bytearray | None = bytearray() if is_bucket else None
        self._file: Any = None
        if not is_bucket:
            self._open()
        self.position = 0

    def append(self, data: memoryview) -> int:
        """Add bytes; return where they begin."""
        start = self.position
        if self._small is not None and len(self._small) + len(data) <= _SMALL_BYTES:
            self._small += data
        else:
            if self._small is not None:
                self._open()
                small, self._small = self._small, None
                self._reach.tell(self._file.write, small)
            self._reach.tell(self._file.write, data)
        self.position += len(data)
        return start

    def align(self) -> None:
        """Nothing is gained by it here."""

    def commit(self) -> int:
        """Make it visible under its name; return its size in bytes."""
        if self._small is not None:
            self._reach.ask(self._files.pipe_file, self._path, bytes(self._small))
        else:
            self._reach.tell(self._file.close)
            self._reach.ask(self._file.commit)
        return self.position

    def abandon(self) -> None:
        """Forget it, as far as that is possible."""
        if self._file is None:
            return
        with contextlib.suppress(Exception):
            self._file.close()
        with contextlib.suppress(Exception):
            self._file.discard()

    def _open(self) -> None:
        self._file = self._reach.ask(self._files.open, self._path, "wb", autocommit=False)


def _is_there(files: Any, path: str) -> bool:
    if not hasattr(files, "call_s3"):
        return files.exists(path)
    bucket, _, key = path.partition("/")
    try:
        files.call_s3("head_object", Bucket=bucket, Key=key)
    except FileNotFoundError:
        return False
    return True
