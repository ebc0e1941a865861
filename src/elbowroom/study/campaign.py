"""Runs the cells of a study in processes, and writes down each as soon as it is finished."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elbowroom import errors
from elbowroom.errors import BackendUnavailable, ElbowroomError
from elbowroom.study.cells import Cell
from elbowroom.study.journal import (
    Identity,
    Row,
    append_row,
    identify,
    read_journal,
    set_damaged_aside,
)

LOG = "workers.log"
END_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Event:
    """What is told while the study goes on."""

    job: int
    cell: Cell
    done: int = 0  # steps
    steps: int = 0
    row: Row | None = None  # when the cell is finished
    failed: str | None = None  # why, if it could not be finished
    lasting: bool = False  # whether it would fail each time


@dataclass(frozen=True, kw_only=True)
class Start:
    """What the folder has before anything is trained."""

    already: int  # of the cells asked for, on the data that is found now
    other_data: int  # of the cells that are left, those that the folder has of other data
    damaged: int  # lines of the journal, found for the first time


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A cell that could not be finished."""

    cell: Cell
    said: str
    lasting: bool  # it would fail each time


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a study stands."""

    rows: dict[Identity, Row]  # all of the folder
    asked: tuple[Row, ...]  # of the cells asked for, on the data of now
    start: Start
    trained: int
    failures: tuple[Failure, ...]


Tell = Callable[[Event], None]
Show = Callable[[Start], AbstractContextManager[Tell]]


def run_campaign(
    cells: Sequence[Cell],
    folder: Path,
    *,
    jobs: int = 1,
    data: Path | None = None,
    show: Show | None = None,
) -> Ending:
    """Train what the journal does not have yet; the folder is locked by the caller.

    `show` makes what is told of every event while the training lasts. Rows of other data than is
    found now do not count. Raises what keeps every cell from being trained, such as MissingData,
    before any is, and OSError where a row cannot be written.
    """
    damaged = set_damaged_aside(folder)
    rows, _ = read_journal(folder)
    failures: list[Failure] = []
    trained = 0
    with _Crew(folder, jobs=min(jobs, len(cells)), data=data) as crew:
        found = crew.prepare(list(dict.fromkeys(cell.network for cell in cells)))
        wanted: dict[Identity, Cell] = {(cell.key, found[cell.network]): cell for cell in cells}
        waiting = {place: cell for place, cell in wanted.items() if place not in rows}
        keys = {key for key, _ in rows}
        start = Start(
            already=len(wanted) - len(waiting),
            other_data=sum(key in keys for key, _ in waiting),
            damaged=damaged,
        )
        with show(start) if show else nullcontext(_ignore) as tell:
            for event in crew.work(list(waiting.values())):
                if event.row is not None:
                    append_row(folder, event.row)
                    rows[identify(event.row)] = event.row
                    trained += 1
                elif event.failed is not None:
                    failures.append(
                        Failure(cell=event.cell, said=event.failed, lasting=event.lasting)
                    )
                tell(event)
    return Ending(
        rows=rows,
        asked=tuple(rows[place] for place in wanted if place in rows),
        start=start,
        trained=trained,
        failures=tuple(failures),
    )


def _ignore(event: Event) -> None:
    """Nobody looks on."""


class _Crew:
    """Processes that train; each is served by a thread of this one."""

    def __init__(self, folder: Path, *, jobs: int, data: Path | None) -> None:
        self._folder = folder
        self._jobs = jobs
        self._data = str(data) if data else None
        self._workers: list[_Worker | None] = [None] * jobs
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._ended = threading.Event()

    def __enter__(self) -> "_Crew":
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for worker in self._workers:
            if worker is not None:
                worker.end()

    def prepare(self, networks: Sequence[str]) -> dict[str, int]:
        """Have the first process read all data; return the checksum of each network's.

        What is missing is so told at once.
        """
        found: dict[str, int] = {}
        for network in networks:
            answer = self._worker(0).ask(
                {"kind": "prepare", "network": network, "data": self._data}, lambda *_: None
            )
            if answer["kind"] != "ready":
                raise _rebuild(answer)
            found[network] = int(answer["data_crc32"])
        return found

    def work(self, cells: Sequence[Cell]) -> Iterator[Event]:
        """Yield events until every cell is finished or has failed."""
        waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
        for cell in cells:
            waiting.put(cell)
        for job in range(self._jobs):
            threading.Thread(target=self._serve, args=(job, waiting), daemon=True).start()
        at_work = self._jobs
        while at_work:
            event = self._events.get()
            if event is None:
                at_work -= 1
            else:
                yield event

    def _serve(self, job: int, waiting: "queue.SimpleQueue[Cell]") -> None:
        try:
            while not self._ended.is_set():
                try:
                    cell = waiting.get_nowait()
                except queue.Empty:
                    break
                self._events.put(self._train(job, cell))
        finally:
            self._events.put(None)

    def _train(self, job: int, cell: Cell) -> Event:
        def hear(done: int, steps: int) -> None:
            self._events.put(Event(job=job, cell=cell, done=done, steps=steps))

        request = {"kind": "run", "cell": cell.to_json(), "data": self._data}
        answer = self._worker(job).ask(request, hear)
        if answer["kind"] == "outcome":
            row = {"key": cell.key, "settings": cell.settings(), "outcome": answer["outcome"]}
            return Event(job=job, cell=cell, row=row)
        return Event(
            job=job, cell=cell, failed=str(answer["said"]), lasting=bool(answer["lasting"])
        )

    def _worker(self, job: int) -> "_Worker":
        worker = self._workers[job]
        if worker is not None and not worker.is_alive():
            worker.end()
            worker = None
        if worker is None:
            worker = self._workers[job] = _Worker(self._folder / LOG)
        return worker


class _Worker:
    """One process, and the pipes to it."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as errors_file:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "elbowroom.study.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors_file,
                text=True,
                encoding="utf-8",
                env={**os.environ, "OMP_NUM_THREADS": "1", "ELBOWROOM_THREADS": "1"},
                # An interrupt is for the parent, which then ends its processes in order.
                start_new_session=True,
            )

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict[str, Any], hear: Callable[[int, int], None]) -> dict[str, Any]:
        """Return the answer; a process that dies without one is an answer too."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer = json.loads(line)
                if answer["kind"] != "step":
                    return answer
                hear(answer["done"], answer["steps"])
        except (BrokenPipeError, ValueError):
            pass
        said = _explain(process.wait())
        return {"kind": "error", "error": "", "said": said, "lasting": False}

    def end(self) -> None:
        process = self._process
        process.kill()
        process.wait(END_S)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except (BrokenPipeError, ValueError):
                pass


def _explain(code: int) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed, perhaps for want of memory"
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with code {code}: {LOG} says more"


def _rebuild(answer: dict[str, Any]) -> ElbowroomError:
    """The error that a worker has told, as if it had been raised here."""
    kind = getattr(errors, str(answer["error"]), None)
    if isinstance(kind, type) and issubclass(kind, ElbowroomError):
        return kind(str(answer["said"]))
    return BackendUnavailable(f"the data could not be read: {answer['said']}")
