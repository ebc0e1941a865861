"""Budgets: the arithmetic, the regions that run again, and the real peak of a process."""

import copy
import functools
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations.arrangement import (
    Choice,
    Problem,
    Region,
    arrange,
    cost_s,
    lowest,
    state,
)
from elbowroom.keep.activations.budget import Budget
from elbowroom.keep.activations.entries import Entry
from elbowroom.keep.activations.gauge import Process
from elbowroom.keep.activations.payloads import Nothing, offload
from elbowroom.keep.activations.recompute import candidates, recomputed
from elbowroom.keep.activations.shelf import Shelf
from elbowroom.keep.activations.sites import Form, Site
from elbowroom.keep.activations.timeline import Timeline
from tests.keep.activations.models import make, run

ROOT = Path(__file__).parents[3]


STRETCHES = 6


def some_problem(*, can_offload: bool = False, regions: tuple[Region, ...] = ()) -> Problem:
    """Five tensors, each live from its own stretch on: all of them in the last but one."""
    sizes = [(100, 10, 1.0), (80, 20, 0.3), (60, 5, 2.0), (40, 4, 0.1), (30, 3, 0.5)]
    choices: list[Choice] = []
    for i, (plain, coded, seconds) in enumerate(sizes):
        live = np.zeros(STRETCHES)
        live[i : STRETCHES - 1] = 1
        choices.append(
            Choice(
                sites=(Site((f"block.{i % 2}", "f", 0, i), i),),
                plain=plain * live,
                coded=coded * live,
                seconds=seconds,
                offload_s=0.01 * coded,
            )
        )
    return Problem(
        rest=np.array([7.0, 5, 3, 2, 0, 7]),
        choices=tuple(choices),
        regions=regions,
        can_offload=can_offload,
    )


def outcome(problem: Problem, forms: tuple[Form, ...]) -> tuple[float, float]:
    """Peak and seconds of one way to do it, by the definition."""
    held, seconds = problem.rest.copy(), 0.0
    for choice, form in zip(problem.choices, forms, strict=True):
        if form is Form.KEEP:
            held += choice.plain
        else:
            seconds += choice.seconds
            held += choice.coded if form is Form.ENCODE else 0.0
            seconds += choice.offload_s if form is Form.OFFLOAD else 0.0
    return float(held.max()), seconds


@pytest.mark.parametrize("can_offload", [False, True])
@pytest.mark.parametrize("limit", [320, 250, 200, 120, 60, 42])
def test_arrangement_is_the_fastest_that_fits(limit: int, can_offload: bool) -> None:
    problem = some_problem(can_offload=can_offload)
    forms = tuple(Form) if can_offload else (Form.KEEP, Form.ENCODE)
    ways = [outcome(problem, way) for way in itertools.product(forms, repeat=5)]
    found = arrange(problem, limit)
    assert found is not None
    taken = tuple(found.forms.get(choice.sites[0], Form.ENCODE) for choice in problem.choices)
    peak, seconds = outcome(problem, taken)
    assert peak <= limit
    assert found.peak_bytes == pytest.approx(peak, abs=1)
    assert seconds == pytest.approx(min(s for p, s in ways if p <= limit), rel=0.01)
    assert found.seconds == pytest.approx(seconds) == cost_s(problem, found)


def test_the_lowest_peak_puts_everything_on_disk() -> None:
    problem = some_problem(can_offload=True)
    assert lowest(problem).peak_bytes == problem.rest.max()
    assert arrange(problem, problem.rest.max() - 1) is None
    assert lowest(some_problem()).peak_bytes == 42


def test_regions_run_again_where_encoding_is_not_enough() -> None:
    held = np.array([2.0, 2, 2, 2, 6, 0])
    region = Region(name="block.0", seconds=5.0, held=held)
    assert arrange(some_problem(), 41) is None
    found = arrange(some_problem(regions=(region,)), 41)
    assert found is not None
    assert found.regions == {"block.0"}
    assert found.peak_bytes <= 41


def test_a_region_too_large_to_run_again_is_left() -> None:
    region = Region(name="block.0", seconds=0.0, held=np.array([2.0, 2, 2, 2, 10_000, 0]))
    assert arrange(some_problem(regions=(region,)), 41) is None


class Fixed:
    """A gauge that tells what it is told."""

    def __init__(self, peaks: list[int]) -> None:
        self.peaks = peaks

    def now(self) -> int:
        return self.peaks[0]

    def peak(self) -> int:
        return self.peaks.pop(0)

    def reset(self) -> None:
        pass


def test_views_of_one_storage_are_kept_together_and_counted_once() -> None:
    """Each third of a projection keeps the whole of it."""
    timeline = Timeline(Fixed([100, 110, 130, 120, 110, 100]))
    whole = torch.zeros(3, 1000)
    sites = [Site(("attention", "split", 0, i), i) for i in range(3)]
    entries = [Entry(view, site) for view, site in zip(whole, sites, strict=True)]
    for entry in entries:
        entry.site.plain_bytes, entry.site.coded_bytes = 4000, 10
        entry.payload = Nothing((1000,), (1,), torch.float32, whole.device, "encode", 10)
        timeline.hold(entry)
    for entry in reversed(entries):
        timeline.read(entry)
    problem = state(timeline, {}, growth=1.0, bytes_per_s=None)
    (choice,) = problem.choices
    assert choice.sites == tuple(sites)
    assert choice.plain.tolist() == [0, 12000, 12000, 12000, 12000, 12000]
    assert choice.coded.tolist() == [0, 10, 20, 30, 20, 10]
    assert problem.rest.tolist() == [100, 100, 110, 90, 90, 90]


def test_the_shelf_gives_back_what_was_put_on_it(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    first = shelf.put([memoryview(b"abc"), np.arange(5).data.cast("B")])
    second = shelf.put([memoryview(b"")])
    assert first is not None and second is not None
    assert first.read() == b"abc" + np.arange(5).tobytes()
    assert second.read() == b""
    assert list(tmp_path.iterdir()) == []
    offset = second.offset
    del first, second
    again = shelf.put([memoryview(b"x")])
    assert offset > 0 and again is not None and again.offset == 0
    shelf.close()
    with pytest.raises(er.CorruptData, match="closed"):
        again.read()


def test_a_disk_that_is_full_leaves_tensors_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    shelf = Shelf()
    values = torch.randn(100)
    assert offload(shelf, values, None) is not None
    monkeypatch.setattr(os, "pwrite", refuse)
    assert offload(shelf, values, None) is None
    assert "No space left" in shelf.trouble


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("layout", ["plain", "transposed", "expanded", "gaps", "empty"])
def test_tensors_come_back_from_disk_as_they_were(dtype: torch.dtype, layout: str) -> None:
    values = torch.arange(24).reshape(2, 3, 4).to(dtype)
    tensor = {
        "plain": values,
        "transposed": values.permute(2, 0, 1),
        "expanded": values[:, :1].expand(2, 3, 4),
        "gaps": values[:, :, ::2],
        "empty": values[:0],
    }[layout]
    there = offload(Shelf(), tensor, None)
    assert there is not None
    back = there.restore()
    assert back.dtype == tensor.dtype and back.shape == tensor.shape
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("name", ["convolutional", "transformer"])
def test_recomputed_regions_give_the_same_bits(name: str) -> None:
    model, x, y = make(name)
    twin = copy.deepcopy(model)
    _, plain = run(twin, x, y)
    modules = candidates(model)
    assert modules
    before = {key: id(module.forward) for key, module in modules.items()}
    room = er.Activations(model, tolerance=0)
    torch.manual_seed(1)
    with room, recomputed(modules.values()):
        loss = functional.cross_entropy(model(x), y)
    loss.backward()
    for key, parameter in model.named_parameters():
        assert torch.equal(plain[key], parameter.grad), key
    for (key, mine), theirs in zip(
        model.state_dict().items(), twin.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs), key
    assert all("forward" not in module.__dict__ for module in modules.values())
    assert before.keys() == modules.keys()


SCRIPT = """
import resource, sys, torch
from torch.nn import functional
import elbowroom as er
from tests.keep.activations.models import Transformer, tokens

torch.set_num_threads(1)
torch.manual_seed(0)
model = Transformer(width=192)
x, y = tokens(96, 128)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
memory = sys.argv[1]


def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024


try:
    room = None if memory == "none" else er.Activations(model, memory=int(memory))
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        if room is None:
            loss = functional.cross_entropy(model(x), y)
        else:
            with room:
                loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
except er.BudgetUnreachable as error:
    print("refused", error)
    sys.exit()
pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print("peak", peak(), pages * resource.getpagesize())
"""

# Where the user has a say in memory there is no arena.
ALONE = "MALLOC_TRIM_THRESHOLD_"


@functools.cache
def peak_of(memory: str, *, has_arena: bool = True) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, memory],
        cwd=ROOT,
        env=environment | ({} if has_arena else {ALONE: "131072"}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # The last line: the solver has words of its own now and then.
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("has_arena", [True, False])
def test_a_real_process_stays_within_its_budget(has_arena: bool) -> None:
    plain = int(peak_of("none").split()[1])
    for share in (0.85, 0.7):
        said = peak_of(str(int(plain * share)), has_arena=has_arena)
        assert said.startswith("peak"), said
        assert int(said.split()[1]) <= plain * share


@pytest.mark.skipif(sys.platform != "linux", reason="there is an arena on Linux only")
def test_memory_is_used_again_within_a_budget() -> None:
    """What a step frees it needs again: pages that went back would come cleared, one by one."""
    plain = int(peak_of("none").split()[1])
    with_arena, without = (
        int(peak_of(str(int(0.85 * plain)), has_arena=has).split()[2]) for has in (True, False)
    )
    assert with_arena < plain / 20
    assert with_arena < without / 2


def test_a_budget_out_of_reach_is_refused_with_a_figure() -> None:
    said = peak_of("100000000")
    assert said.startswith("refused")
    assert "MB" in said


@pytest.mark.parametrize("share", [0.65, 0.6, 0.5])
def test_a_tight_budget_is_met_from_the_first_step_or_refused(share: float) -> None:
    plain = int(peak_of("none").split()[1])
    said = peak_of(str(int(plain * share)))
    assert said.startswith("refused") or int(said.split()[1]) <= plain * share, said


def test_in_the_first_pass_room_is_left_for_backward_to_work_in() -> None:
    model = torch.nn.Linear(1, 1)
    now = Process().now()
    for plain_bytes, expected in ((10 << 20, Form.ENCODE), (400 << 20, Form.OFFLOAD)):
        budget = Budget(model, now + (1 << 30), print)
        assert budget.form_of(Site(("block", "f", 0, 0), 0), plain_bytes) is expected
