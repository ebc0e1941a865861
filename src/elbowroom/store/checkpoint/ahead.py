"""Reading a whole state: files stay open, and threads read what will be asked for."""

import contextlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import torch
from torch import Tensor

from elbowroom.errors import CorruptData
from elbowroom.store.checkpoint.place import Place, ReadInto
from elbowroom.store.checkpoint.reading import PartReader

# While one waits for the disk, the others decode and compare.
_MOST_WORKERS = 16
_MOST_OPEN = 64


class OpenFiles(contextlib.ExitStack):
    """Files of a place that stay open once they were read from.

    The system reads ahead in a file that is read from its start to its end. To one that is opened
    for every piece it comes each time as a surprise.
    """

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self._open: dict[str, ReadInto] = {}
        self._lock = threading.Lock()

    def read_into(self, name: str, offset: int, out: memoryview) -> None:
        """Fill a buffer from a place in a file."""
        with self._lock:
            if name not in self._open and len(self._open) < _MOST_OPEN:
                self._open[name] = self.enter_context(self._place.opened(name))
            read_into = self._open.get(name)
        if read_into is None:
            self._place.read_into(name, offset, out)
        else:
            read_into(offset, out)

    def size(self, name: str) -> int:
        """Of a file, in bytes."""
        return self._place.size(name)


class Ahead:
    """Tensors of a state in any order, all of which are read from the first question on."""

    def __init__(self, reader: PartReader, count: int) -> None:
        self._count = count
        workers = min(torch.get_num_threads() + 1, _MOST_WORKERS)
        self._pool = ThreadPoolExecutor(workers, "elbowroom read")
        self._coming: list[Future[Tensor] | None] = [
            self._pool.submit(reader.tensor, number) for number in range(count)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def tensor(self, number: int) -> Tensor:
        """A tensor of the state, verified."""
        if not isinstance(number, int) or not 0 <= number < self._count:
            raise CorruptData(f"the checkpoint's state asks for a tensor {str(number)[:20]}")
        # Every tensor has its one place.
        coming, self._coming[number] = self._coming[number], None
        if coming is None:
            raise CorruptData(f"the checkpoint's state has its tensor {number} twice")
        return coming.result()

    def check_end(self) -> None:
        """Refuse a state that leaves tensors out: it is not the one that was saved."""
        used = self._coming.count(None)
        if used < self._count:
            raise CorruptData(
                f"the checkpoint's state has places for {used} of its {self._count} tensors"
            )
