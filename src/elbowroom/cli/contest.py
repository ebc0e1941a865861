"""Runs the contenders of the demo side by side, and follows what they record."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from elbowroom.cli.contender import AHEAD, FOREVER, NO_MEMORY, NO_ROOM_ON_DISK, PACE, Settings
from elbowroom.errors import ElbowroomError
from elbowroom.report.model import Contender, Run
from elbowroom.report.reading import read_run

GLANCE_S = 0.25
PATIENCE_S = 20.0

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


@contextmanager
def started(folder: Path, settings: Settings) -> Iterator[subprocess.Popen[str]]:
    """Start a contender, and see to it that it has ended in the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "elbowroom.cli.contender", str(folder), settings.to_json()],
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is ours to pass on
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def compete(
    folder: Path, contenders: Sequence[Settings], *, seconds: float, look: Look
) -> dict[str, Ending]:
    """Train all of them at once, none far ahead; when time is up, all end at the same step."""
    (folder / PACE).unlink(missing_ok=True)
    paced = [replace(settings, is_paced=True) for settings in contenders]
    stop = FOREVER
    with _all_started(folder, paced) as processes:
        deadline = None
        while any(process.poll() is None for process in processes.values()):
            time.sleep(GLANCE_S)
            run = _glance(folder)
            if run is None:
                continue
            look(run)
            done = [len(c.steps) for c in run.contenders if c.state == "running"]
            if deadline is None and len(done) == len(contenders) and min(done) > 0:
                deadline = time.monotonic() + seconds
            if deadline is not None and stop == FOREVER and time.monotonic() > deadline:
                # One may be in the middle of a step that the others have not begun.
                stop = max(len(c.steps) for c in run.contenders) + 1
            # Whoever is alone waits for nobody, once all have begun.
            everybody = len(run.contenders) == len(contenders)
            until = min(done, default=0) + AHEAD if len(done) > 1 or not everybody else FOREVER
            _set_pace(folder / PACE, until, stop)
        endings = {name: _ending(process) for name, process in processes.items()}
    (folder / PACE).unlink(missing_ok=True)
    return endings


def run_alone(folder: Path, settings: Settings) -> tuple[Ending, Contender | None]:
    """Train one contender to its end."""
    with started(folder, settings) as process:
        _, said = process.communicate()
        ending = Ending(code=process.returncode, said=_last_line(said))
    run = _glance(folder)
    return ending, run.find(settings.name) if run else None


@contextmanager
def _all_started(
    folder: Path, contenders: Sequence[Settings]
) -> Iterator[Mapping[str, subprocess.Popen[str]]]:
    if not contenders:
        yield {}
        return
    first, *rest = contenders
    with started(folder, first) as process, _all_started(folder, rest) as others:
        yield {first.name: process, **others}


def _glance(folder: Path) -> Run | None:
    try:
        return read_run(folder)
    except (ElbowroomError, OSError):
        return None  # nothing is there yet


def _set_pace(path: Path, until: int, stop: int) -> None:
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps([until, stop]), encoding="ascii")
    aside.replace(path)


def _ending(process: subprocess.Popen[str]) -> Ending:
    assert process.stderr is not None
    said = process.stderr.read()
    return Ending(code=process.wait(), said=_last_line(said))


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def check(endings: Mapping[str, Ending], run: Run) -> None:
    """Raise where a contender did not come to an end of its own; a loss that is NaN is one."""
    for name, ending in endings.items():
        if ending.code == NO_ROOM_ON_DISK:
            raise ContenderFailed(f"{ending.said}: free some, or name another folder with --out")
        contender = run.find(name)
        if ending.code and (contender is None or not contender.note):
            raise ContenderFailed(
                f"the training '{name}' ended with code {ending.code}: {ending.said or 'no word'}"
            )
