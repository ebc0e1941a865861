"""Runs the cells of a study in processes, and writes down each as soon as it is finished."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elbowroom import errors
from elbowroom.errors import BackendUnavailable, ElbowroomError
from elbowroom.study.cells import Cell
from elbowroom.study.journal import Row, append_row, read_journal

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


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a study stands."""

    rows: dict[str, Row]  # all of the folder, by key
    already: int  # of the cells asked for
    trained: int
    failures: tuple[tuple[Cell, str], ...]
    damaged: int  # lines of the journal


def run_campaign(
    cells: Sequence[Cell],
    folder: Path,
    *,
    jobs: int = 1,
    data: Path | None = None,
    tell: Callable[[Event], None] | None = None,
) -> Ending:
    """Train what the journal does not have yet; the folder is locked by the caller.

    Raises what keeps every cell from being trained, such as MissingData, before any is, and
    OSError where a row cannot be written.
    """
    rows, damaged = read_journal(folder)
    waiting = [cell for cell in cells if cell.key not in rows]
    already = len(cells) - len(waiting)
    failures: list[tuple[Cell, str]] = []
    trained = 0
    if waiting:
        with _Crew(folder, jobs=min(jobs, len(waiting)), data=data) as crew:
            crew.prepare(list(dict.fromkeys(cell.network for cell in waiting)))
            for event in crew.work(waiting):
                if event.row is not None:
                    append_row(folder, event.row)
                    rows[event.row["key"]] = event.row
                    trained += 1
                elif event.failed is not None:
                    failures.append((event.cell, event.failed))
                if tell is not None:
                    tell(event)
    return Ending(
        rows=rows, already=already, trained=trained, failures=tuple(failures), damaged=damaged
    )


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

    def prepare(self, networks: Sequence[str]) -> None:
        """Have the first process read all data, so that what is missing is told at once."""
        for network in networks:
            answer = self._worker(0).ask(
                {"kind": "prepare", "network": network, "data": self._data}, lambda *_: None
            )
            if answer["kind"] != "ready":
                raise _rebuild(answer)

    def work(self, cells: Sequence[Cell]) -> Any:
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
        return Event(job=job, cell=cell, failed=str(answer["said"]))

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
                [sys.executable, "-m", "elbowroom.study.worker"],
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
        return {"kind": "error", "error": "", "said": _explain(process.wait())}

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
