"""A campaign: processes that die, are killed or find no data, and nothing counted twice."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elbowroom.errors import MissingData
from elbowroom.study.campaign import Event, Start, Tell, run_campaign
from elbowroom.study.cells import Cell
from elbowroom.study.journal import DAMAGED, NAME, read_journal
from elbowroom.study.networks import find_network
from elbowroom.study.treatments import Treatment, room
from elbowroom.study.trial import run_cell
from elbowroom.study.worker import _Desk

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
    assert damaged == 0 and json.loads(done.stdout)["cells"]["damaged_lines"] == 1
    assert len(rows) >= 2 * seeds
    kept = list(before)[:-1]
    assert all(rows[key] == before[key] for key in kept)
    lines = (tmp_path / NAME).read_bytes().splitlines()
    assert len(lines) == len(rows)  # each once
    assert len((tmp_path / DAMAGED).read_bytes().splitlines()) == 1


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

    @contextmanager
    def show(start: Start) -> Iterator[Tell]:
        assert start == Start(already=0, other_data=0, damaged=0)
        yield tell

    ending = run_campaign(cells, tmp_path, jobs=1, show=show)
    (failure,) = ending.failures
    assert [failure.cell] == killed and "killed" in failure.said and not failure.lasting
    assert ending.trained == len(cells) - 1
    again = run_campaign(cells, tmp_path, jobs=1)
    assert (again.start.already, again.trained, again.failures) == (len(cells) - 1, 1, ())
    task = find_network("cms-perceptron").make_task()
    for cell, row in zip(cells, again.asked, strict=True):
        assert row["outcome"]["value"] == run_cell(cell, task=task)["value"]
        assert row["settings"] == cell.settings()


def is_worker(process: int) -> bool:
    return b"elbowroom.study.worker" in Path(f"/proc/{process}/cmdline").read_bytes()


def test_missing_data_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    cells = [*make_cells(1), Cell(network="cifar-resnet", treatment=Treatment(), seed=0)]
    with pytest.raises(MissingData, match="cifar10"):
        run_campaign(cells, tmp_path)
    assert read_journal(tmp_path) == ({}, 0)


def write_cifar(folder: Path, seed: int) -> Path:
    place = folder / "images" / "cifar-10-batches-bin"
    place.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for name in ("data_batch_1.bin", "test_batch.bin"):
        records = rng.integers(0, 256, (8, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(place / name)
    return folder


def test_rows_of_other_data_do_not_count(tmp_path: Path) -> None:
    one, other = (write_cifar(tmp_path / f"d{seed}", seed) for seed in (0, 1))
    cells = [Cell(network="cifar-resnet", treatment=Treatment(), seed=0, steps=1)]
    out = tmp_path / "out"
    out.mkdir()
    first = run_campaign(cells, out, data=one)
    assert (first.start, first.trained) == (Start(already=0, other_data=0, damaged=0), 1)
    second = run_campaign(cells, out, data=other)
    assert (second.start, second.trained) == (Start(already=0, other_data=1, damaged=0), 1)
    sums = [ending.asked[0]["outcome"]["data_crc32"] for ending in (first, second)]
    assert sums[0] != sums[1] and len(second.rows) == 2
    third = run_campaign(cells, out, data=one)
    assert (third.start.already, third.trained) == (1, 0)
    assert third.asked == first.asked


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (MissingData("it is gone"), True),
        (RuntimeError("shapes differ"), True),
        (MemoryError(), False),
        (OSError("no device"), False),
    ],
)
def test_a_worker_says_whether_it_would_fail_again(
    error: Exception, lasting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(_Desk, "_run", fail)
    said = io.StringIO()
    _Desk(said).answer({"kind": "run"})
    answer: dict[str, Any] = json.loads(said.getvalue())
    assert (answer["kind"], answer["error"]) == ("error", type(error).__name__)
    assert answer["lasting"] is lasting and answer["said"]
