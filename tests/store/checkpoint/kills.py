"""Trainings that are killed at random moments and started again until they are done.

Nothing here may compute with torch before it forks: the children are made from a process that has
imported everything and started no thread, so that one life costs little more than its steps.
"""

import argparse
import importlib
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint import Checkpointer

from .runs import Run, start

_PATIENCE_S = 120.0  # for a process that should end; longer is a fault


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A training, and how it is saved."""

    steps: int
    every: int
    snapshot: str = "copy"
    is_waiting: bool = False  # for every save to be durable before the next step
    ranks: int = 1
    has_far: bool = False  # a second tier, and a first that vanishes now and then


@dataclass
class Toll:
    """What was done to trainings, and what came of it."""

    trainings: int = 0
    kills: int = 0
    kills_while_saving: int = 0
    lost_steps: int = 0
    survivors: int = 0  # other ranks that ended by themselves when one was killed
    faults: list[str] = field(default_factory=list[str])


def draw_plan(draw: random.Random, ranks: int) -> Plan:
    """Any of the ways to save."""
    return Plan(
        steps=draw.randrange(20, 40),
        every=draw.randrange(1, 4),
        snapshot="fork" if ranks == 1 and draw.random() < 0.25 else "copy",
        is_waiting=draw.random() < 0.25,
        ranks=ranks,
        has_far=ranks == 1 and draw.random() < 0.25,
    )


# What children do.


def prepare(rank: int) -> Run:
    """A network of which a part never changes, and random numbers of each rank's own."""
    torch.set_num_threads(1)
    run = start(width=48)
    run.model.append(torch.nn.Linear(4, 400))
    run.model[-1].requires_grad_(requires_grad=False)
    torch.manual_seed(100 + rank)
    random.seed(200 + rank)
    return run


def open_checkpointer(plan: Plan, run: Run, folder: Path) -> Checkpointer:
    """A forked writer may outlive its run by one call of the system, and has the lock so long."""
    options: dict[str, Any] = {"per_rank": ("progress",)} if plan.ranks > 1 else {}
    if plan.has_far:
        options |= {"far": folder.with_name("far"), "keep_far": 2}
    while True:
        try:
            return run.checkpointer(
                folder, every=plan.every, keep=2, snapshot=plan.snapshot, **options
            )
        except InvalidArgument as error:
            if plan.snapshot != "fork" or "another run" not in str(error):
                raise
            time.sleep(0.01)


def train(plan: Plan, folder: Path, rank: int, tell: Callable[[str], None]) -> None:
    """Go on from what was saved, to the end, and tell each step."""
    run = prepare(rank)
    with open_checkpointer(plan, run, folder) as checkpointer:
        tell(f"resumed {checkpointer.steps} {len(run.losses)}")
        plain = distribute(run, plan)
        while len(run.losses) < plan.steps:
            run.step()
            is_saved = checkpointer.step()
            if plan.is_waiting:
                checkpointer.wait()
            tell(f"step {checkpointer.steps} {int(is_saved)}")
        run.model = plain
    tell("losses " + json.dumps([loss.hex() for loss in run.losses]))


def train_in_peace(plan: Plan, rank: int, tell: Callable[[str], None]) -> None:
    """The same training, which nothing saves and nobody kills."""
    run = prepare(rank)
    distribute(run, plan)
    for _ in range(plan.steps):
        run.step()
    tell("losses " + json.dumps([loss.hex() for loss in run.losses]))


def distribute(run: Run, plan: Plan) -> Any:
    """Have the ranks share their gradients; return the model as it was."""
    plain: Any = run.model
    if plan.ranks > 1:
        # Else DDP sorts its buckets anew after its first step, in each life, and sums of four ranks
        # come out in another order in that step than in a run that nothing has interrupted.
        made: Any = DistributedDataParallel(plain, find_unused_parameters=True)
        run.model = made
    return plain


# What their parent does.


@dataclass
class Child:
    """A process, and what it has told."""

    process: int
    pipe: int
    lines: list[str] = field(default_factory=list[str])
    status: int | None = None
    _rest: str = ""

    def listen(self, timeout_s: float) -> bool:
        """Take in what it tells; False when there is no more to come."""
        if not select.select([self.pipe], [], [], timeout_s)[0]:
            return True
        data = os.read(self.pipe, 1 << 16)
        *lines, self._rest = (self._rest + data.decode()).split("\n")
        self.lines += lines
        return bool(data)

    def kill(self) -> None:
        """From one instruction to the next."""
        if self.status is None:
            os.kill(self.process, signal.SIGKILL)

    def bury(self, patience_s: float = _PATIENCE_S) -> bool:
        """Hear it out to its end; False if it had to be killed for that."""
        if self.status is not None:
            return True
        end, is_dead = time.monotonic() + patience_s, True
        while self.listen(1.0):
            if time.monotonic() > end:
                self.kill()
                is_dead, end = False, end + patience_s
        os.close(self.pipe)
        _, self.status = os.waitpid(self.process, 0)
        return is_dead


def spawn(work: Callable[[Callable[[str], None]], None], errors: Path) -> Child:
    """A child that does that work and ends."""
    ear, mouth = os.pipe()
    process = os.fork()
    if process:
        os.close(mouth)
        return Child(process, ear)
    code = 1
    try:
        os.close(ear)
        handle = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)

        def tell(line: str) -> None:
            os.write(mouth, f"{line}\n".encode())

        work(tell)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def gather(
    plan: Plan, work: Callable[[int, Callable[[str], None]], None], folder: Path
) -> list[Child]:
    """The processes of one life, all of them ranks of one group if there are several."""
    meeting = tempfile.mktemp(dir=folder)

    def join(rank: int) -> Callable[[Callable[[str], None]], None]:
        def do(tell: Callable[[str], None]) -> None:
            if plan.ranks > 1:
                os.environ["GLOO_SOCKET_IFNAME"] = "lo"
                dist.init_process_group(
                    "gloo", init_method=f"file://{meeting}", rank=rank, world_size=plan.ranks
                )
            work(rank, tell)
            if plan.ranks > 1:
                dist.barrier()
                dist.destroy_process_group()

        return do

    return [spawn(join(rank), folder / "errors") for rank in range(plan.ranks)]


def losses_of(child: Child) -> list[str] | None:
    """What it has told in the end."""
    told = [line for line in child.lines if line.startswith("losses ")]
    return json.loads(told[-1].removeprefix("losses ")) if told else None


class Life:
    """One start of a training, what it promised to the next, and how it ended."""

    def __init__(self, plan: Plan, children: list[Child], least: int) -> None:
        self.plan, self.children, self.least = plan, children, least

    @property
    def resumed(self) -> int | None:
        """The step that it went on from, if it came so far."""
        return int(self.children[0].lines[0].split()[1]) if self.children[0].lines else None

    def problems(self, doomed: list[Child]) -> list[str]:
        """It goes on from no less than what was durable, and ends by being killed or well."""
        found: list[str] = []
        for child in self.children:
            for line in child.lines[:1]:
                _, steps, losses = line.split()
                if steps != losses:
                    found.append(f"resumed from step {steps} with {losses} losses")
                if int(steps) < self.least:
                    found.append(f"resumed from step {steps}, and {self.least} was durable")
        first = doomed[0] if doomed else self.children[0]
        if first.status not in (0, signal.SIGKILL):
            found.append(f"ended by itself with {first.status}")
        return found

    def durable(self) -> int:
        """The step that the next life must have, going by what was told in this one."""
        told = [line.split() for line in self.children[0].lines]
        found = [int(words[1]) for words in told[:1]]
        saved = [int(words[1]) for words in told[1:] if words[0] == "step" and words[2] == "1"]
        if self.plan.is_waiting:
            found += saved
        elif len(saved) > 2 or (self.plan.snapshot == "fork" and len(saved) > 1):
            # Its buffer comes back when the next one is written: the last but one is durable.
            found.append(saved[-2])
        return max([self.least, *found])

    def steps(self) -> int:
        """How far it has come."""
        told = [line.split() for line in self.children[0].lines]
        return max((int(words[1]) for words in told if words[0] == "step"), default=0)


def run_to_the_end(
    plan: Plan, draw: random.Random, folder: Path, most_kills: int, toll: Toll
) -> None:
    """Kill a training and start it again until it is done, then look at its losses."""
    toll.trainings += 1
    peace = gather(plan, lambda rank, tell: train_in_peace(plan, rank, tell), folder)
    for child in peace:
        child.bury()
    expected = [losses_of(child) for child in peace]
    least = reached = kills = 0
    while True:
        children = gather(plan, lambda rank, tell: train(plan, folder / "run", rank, tell), folder)
        life = Life(plan, children, least)
        doomed = kill_some(life, draw, toll) if kills < most_kills else []
        for child in children:
            child.bury()
        problems = life.problems(doomed)
        if problems:
            said = (folder / "errors").read_text()[-3000:]
            toll.faults += [f"{plan}, after {kills} kills: {one}: {said}" for one in problems]
            return
        if life.resumed is not None:
            toll.lost_steps += max(reached - life.resumed, 0)
            reached = 0
        least, reached = life.durable(), max(reached, life.steps())
        if not doomed:
            break
        kills += 1
        if plan.has_far and draw.random() < 0.3:
            shutil.rmtree(folder / "run", ignore_errors=True)
            least = 0  # what had not been brought far yet is gone
        toll.kills += 1
        toll.kills_while_saving += any(folder.rglob("*.part"))
    found = [losses_of(child) for child in children]
    if found != expected or None in expected:
        where = [_first_difference(one, other) for one, other in zip(found, expected, strict=True)]
        resumed = [child.lines[:1] for child in children]
        said = (folder / "errors").read_text()[-3000:]
        toll.faults.append(
            f"{plan}: other losses after {kills} kills, by ranks from step {where}, who told "
            f"{resumed}: {said}"
        )


def _first_difference(found: list[str] | None, expected: list[str] | None) -> int | str | None:
    if found is None or expected is None:
        return "not told" if found is None else "not expected"
    if len(found) != len(expected):
        return f"{len(found)} losses, not {len(expected)}"
    pairs = enumerate(zip(found, expected, strict=True))
    return next((number for number, (one, other) in pairs if one != other), None)


def kill_some(life: Life, draw: random.Random, toll: Toll) -> list[Child]:
    """At a moment drawn by chance, after so many lines and some milliseconds; return whom."""
    plan, first = life.plan, life.children[0]
    lines = draw.choice([0, 1, draw.randrange(2, 6), draw.randrange(2, plan.steps)])
    pause_s = draw.choice([0.0, draw.random() * 0.003, draw.random() * 0.03])
    while len(first.lines) < lines:
        if not first.listen(_PATIENCE_S):
            break
    time.sleep(pause_s)
    # One rank of several, or all of them.
    doomed = life.children
    if plan.ranks > 1 and draw.random() < 0.6:
        doomed = [draw.choice(life.children)]
    for child in doomed:
        child.kill()
    for child in life.children:
        if child not in doomed:
            # One that waits for the part of a rank that is gone would do so for minutes.
            toll.survivors += child.bury(5.0)
    return doomed


def kill_many(
    kills: int, ranks: int, seed: int, folder: Path, *, end_s: float, tell: Callable[[Toll], None]
) -> Toll:
    """Go through trainings until so many processes were killed, or the time is up."""
    # An optimizer imports this when it is made; a child would, in every life.
    importlib.import_module("torch._dynamo")
    toll, number = Toll(), 0
    while toll.kills < kills and not toll.faults and time.monotonic() < end_s:
        draw = random.Random(f"{seed} {ranks} {number}")
        number += 1
        place = folder / f"{ranks}-{number}"
        place.mkdir()
        most = min(draw.randrange(3, 15), kills - toll.kills)
        run_to_the_end(draw_plan(draw, ranks), draw, place, most, toll)
        shutil.rmtree(place)
        tell(toll)
    return toll


def main(words: Sequence[str]) -> int:
    """Kill, and print what came of it as JSON; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--kills", type=int, default=6, help="of trainings that are one process")
    add("--rank-kills", type=int, default=2, help="of trainings that are several")
    add("--ranks", type=int, default=4)
    add("--seed", type=int, default=0)
    add("--minutes", type=float, default=20.0)
    options = parser.parse_args(words)
    end_s = time.monotonic() + 60 * options.minutes
    tolls: dict[str, Toll] = {}
    with tempfile.TemporaryDirectory(prefix="elbowroom-kills-") as folder:
        for ranks, kills in ((1, options.kills), (options.ranks, options.rank_kills)):

            def tell(toll: Toll, name: str = f"{ranks} ranks", kills: int = kills) -> None:
                print(f"{name}: {toll.kills} of {kills} killed", file=sys.stderr, flush=True)

            where = Path(folder)
            toll = kill_many(kills, ranks, options.seed, where, end_s=end_s, tell=tell)
            tolls["alone" if ranks == 1 else "ranks"] = toll
    print(json.dumps({name: asdict(toll) for name, toll in tolls.items()}), flush=True)
    return 1 if any(toll.faults for toll in tolls.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
