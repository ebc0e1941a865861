"""A campaign: processes that die, are killed or find no data, and nothing counted twice."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elbowroom.errors import MissingData
from elbowroom.study.campaign import Event, run_campaign
from elbowroom.study.cells import Cell
from elbowroom.study.journal import NAME, read_journal
from elbowroom.study.networks import find_network
from elbowroom.study.treatments import Treatment, room
from elbowroom.study.trial import run_cell

SECONDS = 120
WORDS = [
    *(sys.executable, "-m", "elbowroom", "study", "--network", "cms-perceptron"),
    *("--tolerance", "0.1", "--seeds", "40", "--steps", "6"),
]
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def children_of(process: int) -> list[int]:
    threads = Path(f"/proc/{process}/task").glob("*/children")
    return [int(number) for thread in threads for number in thread.read_text().split()]


def wait_for(condition: "object", what: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.02)


def make_cells(seeds: int, steps: int = 4) -> list[Cell]:
    return [
        Cell(network="cms-perceptron", treatment=treatment, seed=seed, steps=steps)
        for seed in range(seeds)
        for treatment in (Treatment(), room(0.1))
    ]


@linux
def test_a_study_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    words = [*WORDS, "--jobs", "2", "--out", str(tmp_path)]
    first = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    workers: list[int] = []

    def has_begun() -> bool:
        nonlocal workers
        workers = children_of(first.pid) or workers
        return len(read_journal(tmp_path)[0]) >= 3

    wait_for(has_begun, "the third training")
    os.kill(first.pid, signal.SIGKILL)
    first.wait(SECONDS)
    # Those who trained for it notice and end, in the middle of a training too.
    assert len(workers) == 2
    wait_for(lambda: not any(is_running(worker) for worker in workers), "the workers' end")
    before, _ = read_journal(tmp_path)
    assert 3 <= len(before) < 80
    text = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(text[:-30])  # the last line, cut short

    seeds = len(before) // 2 + 1
    again = [*words, "--json"]
    again[again.index("40")] = str(seeds)
    done = subprocess.run(again, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    rows, damaged = read_journal(tmp_path)
    assert damaged == 1
    assert len(rows) >= 2 * seeds
    kept = list(before)[:-1]
    assert all(rows[key] == before[key] for key in kept)
    lines = (tmp_path / NAME).read_bytes().splitlines()
    assert len(lines) == len(rows) + 1  # each once, and the damaged one


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@linux
def test_a_process_that_dies_costs_its_cell_alone_and_all_find_the_same(tmp_path: Path) -> None:
    cells = make_cells(1, steps=60)
    killed: list[Cell] = []

    def tell(event: Event) -> None:
        if not killed and event.steps:
            killed.append(event.cell)
            mine = [n for n in children_of(os.getpid()) if is_worker(n)]
            os.kill(mine[0], signal.SIGKILL)

    ending = run_campaign(cells, tmp_path, jobs=1, tell=tell)
    assert [cell for cell, _ in ending.failures] == killed
    assert "killed" in ending.failures[0][1]
    assert ending.trained == len(cells) - 1
    again = run_campaign(cells, tmp_path, jobs=1)
    assert (again.already, again.trained, again.failures) == (len(cells) - 1, 1, ())
    task = find_network("cms-perceptron").make_task()
    for cell in cells:
        row = again.rows[cell.key]
        assert row["outcome"]["value"] == run_cell(cell, task=task)["value"]
        assert row["settings"] == cell.settings()


def is_worker(process: int) -> bool:
    return b"elbowroom.study.worker" in Path(f"/proc/{process}/cmdline").read_bytes()


def test_missing_data_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    cells = [*make_cells(1), Cell(network="cifar-resnet", treatment=Treatment(), seed=0)]
    with pytest.raises(MissingData, match="cifar10"):
        run_campaign(cells, tmp_path)
    assert read_journal(tmp_path) == ({}, 0)
