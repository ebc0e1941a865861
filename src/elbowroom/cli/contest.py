"""Runs the contenders of the demo side by side, and follows what they record."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from elbowroom.cli.contender import AHEAD, FOREVER, NO_MEMORY, NO_ROOM_ON_DISK, PACE, Settings
from elbowroom.errors import ElbowroomError
from elbowroom.report.model import Contender, Run
from elbowroom.report.reading import read_run

GLANCE_S = 0.25
ASK_AGAIN_S = 2.0
ASKED = 10  # times that a process is asked to end before it is made to
TAIL_BYTES = 64 << 10  # of what a process says

# One thread each: they share the machine evenly, and results do not depend on its size. Freed
# blocks from 1 MiB on go back to the system at once, since holes in a heap hide what is in use.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "ELBOWROOM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(2 << 20),
}

Look = Callable[[Run], None]


class ContenderFailed(ElbowroomError):
    """A contender ended otherwise than it should; the text says how."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How the process of a contender ended."""

    code: int
    said: str

    @property
    def is_out_of_memory(self) -> bool:
        """Whether the limit was the reason; a process that is refused memory may also be ended."""
        return self.code == NO_MEMORY or self.code in (-signal.SIGABRT, -signal.SIGSEGV)


@dataclass(frozen=True, kw_only=True)
class Training:
    """The process of a contender."""

    process: subprocess.Popen[bytes]
    said: IO[bytes]
    """A file and no pipe: who writes much into a pipe waits until somebody reads."""

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def wait(self) -> Ending:
        """Return how it ended, once it has."""
        code = self.process.wait()
        self.said.seek(max(0, self.said.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = self.said.read().decode("utf-8", "replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return Ending(code=code, said=last[:300])


def end_all(trainings: Collection[Training]) -> None:
    """See to it that they have ended, none of them while another takes its time."""
    try:
        for _ in range(ASKED):
            # Again and again: what is being imported may have swallowed it.
            for training in trainings:
                training.process.send_signal(signal.SIGINT)
            until = time.monotonic() + ASK_AGAIN_S
            for training in trainings:
                with suppress(subprocess.TimeoutExpired):
                    training.process.wait(max(0.0, until - time.monotonic()))
            if not any(training.is_alive for training in trainings):
                break
    finally:
        for training in trainings:
            training.process.kill()
            training.process.wait()


@contextmanager
def started(folder: Path, settings: Settings) -> Iterator[Training]:
    """Start a contender, and see to it that it has ended in the end."""
    words = ["-m", "elbowroom.cli.contender", str(folder), settings.to_json(), str(os.getpid())]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-P", *words],
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
        training = Training(process=process, said=said)
        try:
            yield training
        finally:
            end_all([training])


def compete(
    folder: Path, contenders: Sequence[Settings], *, seconds: float, look: Look
) -> dict[str, Ending]:
    """Train all of them at once, none far ahead; when time is up, all end at the same step."""
    paced = [replace(settings, is_paced=True) for settings in contenders]
    places = [folder] * len(paced)
    with _pace_kept(folder / PACE) as set_pace, _all_started(places, paced) as trainings:
        stop, deadline = FOREVER, None
        while alive := {name for name, training in trainings.items() if training.is_alive}:
            time.sleep(GLANCE_S)
            run = _glance(folder)
            if run is None:
                continue
            look(run)
            done = count_steps(run, alive)
            if deadline is None and done and min(done) > 0:
                deadline = time.monotonic() + seconds
            if deadline is not None and stop == FOREVER and time.monotonic() > deadline:
                # One may be in the middle of a step that the others have not begun.
                stop = max(len(c.steps) for c in run.contenders) + 1
            # Whoever is alone waits for nobody.
            set_pace(min(done) + AHEAD if len(done) > 1 else FOREVER, stop)
        return {name: training.wait() for name, training in trainings.items()}


def count_steps(run: Run, alive: Collection[str]) -> list[int]:
    """Return the steps of those at work; one that is loading has done none.

    The record of one that was killed says for ever that it runs, so the processes are asked too.
    """
    found = [run.find(name) for name in alive]
    return [
        0 if contender is None else len(contender.steps)
        for contender in found
        if contender is None or contender.state == "running"
    ]


def run_together(
    folder: Path, contenders: Sequence[Settings]
) -> list[tuple[Ending, Contender | None]]:
    """Train to the end, each for itself and in a folder of its own."""
    places = [folder / settings.name for settings in contenders]
    with _all_started(places, contenders) as trainings:
        endings = [training.wait() for training in trainings.values()]
    runs = [_glance(place) for place in places]
    found = [run and run.find(s.name) for run, s in zip(runs, contenders, strict=True)]
    return list(zip(endings, found, strict=True))


@contextmanager
def _all_started(
    folders: Sequence[Path], contenders: Sequence[Settings]
) -> Iterator[Mapping[str, Training]]:
    with ExitStack() as stack:
        trainings: dict[str, Training] = {}
        try:
            for folder, settings in zip(folders, contenders, strict=True):
                trainings[settings.name] = stack.enter_context(started(folder, settings))
            yield trainings
        finally:
            end_all(trainings.values())


@contextmanager
def _pace_kept(path: Path) -> Iterator[Callable[[int, int], None]]:
    """Yield what tells the contenders how far each may go and where all end."""
    aside = path.with_suffix(".part")

    def set_pace(until: int, stop: int) -> None:
        aside.write_text(json.dumps([until, stop]), encoding="ascii")
        aside.replace(path)

    path.unlink(missing_ok=True)
    try:
        yield set_pace
    finally:
        for left in (path, aside):
            left.unlink(missing_ok=True)


def _glance(folder: Path) -> Run | None:
    try:
        return read_run(folder)
    except (ElbowroomError, OSError):
        return None  # nothing is there yet


def check(endings: Mapping[str, Ending], run: Run) -> None:
    """Raise where a contender did not come to an end of its own; a loss that is NaN is one."""
    for name, ending in endings.items():
        if ending.code == NO_ROOM_ON_DISK:
            raise ContenderFailed(f"{ending.said}: free some, or name another folder with --out")
        contender = run.find(name)
        if ending.code < 0:
            raise ContenderFailed(f"the training '{name}' {say_signal(ending.code)}")
        if ending.code and (contender is None or not contender.note):
            raise ContenderFailed(
                f"the training '{name}' ended with code {ending.code}: {ending.said or 'no word'}"
            )


def say_signal(code: int) -> str:
    """Say how a process was ended from outside, and what helps."""
    if code == -signal.SIGKILL:
        return (
            f"was killed (signal {-code}), perhaps for want of memory: close other programs, or "
            "try a smaller --batch"
        )
    return f"was ended by signal {-code}: run it again, and report it if that happens again"
