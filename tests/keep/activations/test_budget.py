"""Budgets: the arithmetic, the regions that run again, and the real peak of a process."""

import copy
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import elbowroom as er
from elbowroom.keep.activations.budget import Choice, Region, arrange, least_bytes
from elbowroom.keep.activations.recompute import candidates, recomputed
from elbowroom.keep.activations.sites import Site
from elbowroom.sizes import parse_bytes
from tests.keep.activations.models import make, run

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6 GB", 6_000_000_000),
        ("512MiB", 2**29),
        ("1.5 gb", 1_500_000_000),
        (123, 123),
        ("2e3", 2000),
    ],
)
def test_sizes(text: object, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("bad", ["", "six GB", "5 parsecs", -1, 0, float("nan"), True, None, [1]])
def test_sizes_that_make_no_sense(bad: object) -> None:
    with pytest.raises(er.InvalidArgument, match="memory must be a size"):
        parse_bytes(bad)


def some_choices() -> list[Choice]:
    sizes = [(100, 10, 1.0), (80, 20, 0.3), (60, 5, 2.0), (40, 4, 0.1), (30, 3, 0.5)]
    return [
        Choice(
            site=Site((f"block.{i % 2}", "f", 0, i), i),
            plain_bytes=plain,
            coded_bytes=coded,
            seconds=seconds,
        )
        for i, (plain, coded, seconds) in enumerate(sizes)
    ]


@pytest.mark.parametrize("room", [320, 250, 200, 120, 60, 42])
def test_arrangement_is_the_fastest_that_fits(room: int) -> None:
    choices = some_choices()
    best = min(
        sum(c.seconds for c, kept in zip(choices, flags, strict=True) if not kept)
        for flags in itertools.product((True, False), repeat=len(choices))
        if sum(
            c.plain_bytes if kept else c.coded_bytes for c, kept in zip(choices, flags, strict=True)
        )
        <= room
    )
    found = arrange(choices, [], room)
    assert found is not None
    assert found.held_bytes <= room
    assert found.seconds == pytest.approx(best)


def test_regions_run_again_where_encoding_is_not_enough() -> None:
    choices = some_choices()
    regions = [Region(name="block.0", seconds=5.0, input_bytes=2, plain_bytes=6)]
    assert arrange(choices, [], 41) is None
    found = arrange(choices, regions, 41)
    assert found is not None
    assert found.regions == {"block.0"}
    assert least_bytes(choices, regions) == 2 + 20 + 4
    assert arrange(choices, regions, 20) is None


def test_a_region_too_large_to_run_again_is_left() -> None:
    regions = [Region(name="block.0", seconds=0.0, input_bytes=2, plain_bytes=10_000)]
    assert arrange(some_choices(), regions, 41) is None


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
import sys, torch
from torch.nn import functional
import elbowroom as er
from tests.keep.activations.models import Transformer, tokens

torch.set_num_threads(1)
torch.manual_seed(0)
model = Transformer(width=192)
x, y = tokens(96, 128)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
memory = sys.argv[1]
most = 0


def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024


try:
    room = None if memory == "none" else er.Activations(model, memory=int(memory))
    for _ in range(7):
        if room is None:
            loss = functional.cross_entropy(model(x), y)
        else:
            with room:
                loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        # The room resets the mark when the next pass begins.
        most = max(most, peak())
except er.BudgetUnreachable as error:
    print("refused", error)
    sys.exit()
print("peak", most)
"""


def peak_of(memory: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, memory],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_a_real_process_stays_within_its_budget() -> None:
    plain = int(peak_of("none").split()[1])
    for share in (0.85, 0.7):
        said = peak_of(str(int(plain * share)))
        assert said.startswith("peak"), said
        assert int(said.split()[1]) <= plain * share


def test_a_budget_out_of_reach_is_refused_with_a_figure() -> None:
    said = peak_of("100000000")
    assert said.startswith("refused")
    assert "MB" in said
