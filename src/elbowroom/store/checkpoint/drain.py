"""Two tiers: what is committed near is brought far, in a thread of its own.

Near is fast and may vanish with the machine: a disk in the node, a burst buffer. Far is slow and
stays: a parallel file system, a bucket. A checkpoint counts there from the moment its manifest is
there, which comes last.
"""

import queue
import threading
from collections.abc import Callable

from elbowroom.errors import CorruptData, IncompatibleFormat
from elbowroom.store.checkpoint import manifest as manifests
from elbowroom.store.checkpoint.mark import publish, read_mark
from elbowroom.store.checkpoint.naming import MANIFESTS, MARK, PACKS, Name
from elbowroom.store.checkpoint.place import Place
from elbowroom.store.checkpoint.retention import Keep
from elbowroom.store.checkpoint.store import Store

_PIECE_BYTES = 8 << 20


class Drain:
    """Brings checkpoints from one store to another; of several that wait, only the newest."""

    def __init__(
        self,
        near: Store,
        far: Store,
        keep: Keep,
        *,
        tell: Callable[[str], None],
        then: Callable[[], None] = lambda: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_over = is_over
        self._near, self._far, self._keep, self._tell, self._then = near, far, keep, tell, then
        self._asked = queue.SimpleQueue[Name | None]()
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="elbowroom drain", daemon=True)
        self._thread.start()

    def push(self, name: Name) -> None:
        """Bring this one there when there is time."""
        with self._lock:
            self._idle.clear()
            self._asked.put(name)

    def wait(self) -> None:
        """Until nothing is on its way."""
        self._idle.wait()

    def close(self) -> None:
        """Finish, and end the thread."""
        self._asked.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            name = self._asked.get()
            while name is not None and not self._asked.empty():
                newer = self._asked.get()
                if newer is None:
                    self._asked.put(None)
                    break
                name = newer
            if name is None:
                return
            try:
                self._check(name)
                bring(self._near, self._far, name)
                if self._keep.last is not None and not self._is_over():
                    self._far.collect(self._keep.choose, upto=name.order, is_over=self._is_over)
            except Exception as error:  # libraries of object stores have errors of their own
                self._tell(
                    f"the checkpoint of step {name.step} was not brought to "
                    f"{self._far.place.root}: {error}; "
                    + (
                        "older ones stay there"
                        if isinstance(error, CorruptData)
                        else "it is safe near, and will be brought along with the next"
                    )
                )
            self._then()
            with self._lock:
                if self._asked.empty():
                    self._idle.set()

    def _check(self, name: Name) -> None:
        """Refuse to bring what has been damaged near: far is where the next machine looks."""
        with self._near.reading():
            damages = self._near.verify(name) if name in self._near.names() else []
        if damages:
            raise CorruptData(f"it is damaged near, {damages[0]}")


def find_identity(far: Place | None) -> str | None:
    """Of the store that lies there already: that of its other tier has to be the same."""
    if far is None or MARK not in far.names(""):
        return None
    return Store(far, read_mark(far, str(far.root))).id


def bring_back(near: Store, far: Store, is_wanted: Callable[[Name], bool]) -> bool:
    """Have the newest that is wanted of those near that are only far; False if there is none."""
    there = near.names()
    for name in reversed(far.names()):
        if name not in there and is_wanted(name):
            try:
                bring(far, near, name)
            except (CorruptData, IncompatibleFormat, FileNotFoundError):
                continue  # an older one may be whole
            return True
    return False


def bring(near: Store, far: Store, name: Name) -> None:
    """Copy a checkpoint with all that it needs; packs first, its manifest last.

    While it is read, nothing is removed near; what is far already stays as it is.
    """
    with near.reading():
        if name not in near.names():
            return  # near has moved on, and a newer one is on its way
        data = near.place.read(f"{MANIFESTS}/{name}.json", manifests.MOST_BYTES)
        manifest = near.manifest(name)
        there = set(far.place.names(PACKS))
        for pack in dict.fromkeys(pack for part in manifest.parts for pack in part.packs):
            if pack.name not in there:
                copy_file(near.place, far.place, f"{PACKS}/{pack.name}", pack.nbytes)
        # What is there may be of an attempt that was killed before it was durable.
        far.place.sync(PACKS)
        if f"{name}.json" not in far.place.names(MANIFESTS):
            publish(far.place, f"{MANIFESTS}/{name}.json", data)
        else:
            far.place.sync(MANIFESTS)


def copy_file(near: Place, far: Place, name: str, nbytes: int) -> None:
    """Have a file there too, durable under its name or not at all."""
    far.remove(f"{name}.part")  # of an attempt that was killed
    sink = far.create(name)
    try:
        piece = bytearray(min(_PIECE_BYTES, nbytes))
        for start in range(0, nbytes, _PIECE_BYTES):
            part = memoryview(piece)[: min(_PIECE_BYTES, nbytes - start)]
            near.read_into(name, start, part)
            sink.append(part)
        sink.commit()
    except BaseException:
        sink.abandon()
        raise
