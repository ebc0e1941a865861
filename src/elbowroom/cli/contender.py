"""One contender of the demo, in a process of its own: python -m elbowroom.cli.contender ...

Its memory is then its own: the high-water mark of the process above where it stood before the
first step.
"""

import copy
import json
import os
import re
import signal
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from elbowroom.keep.activations import Activations
    from elbowroom.keep.activations.ledger import Reading
    from elbowroom.science.climate.deep import DeepRain
    from elbowroom.science.task import Score, Task

PACE = "pace.json"  # in the run's folder: how far each may go, and after how many steps all end
GLANCE_S = 0.05

FOREVER = 2**31
AHEAD = 2  # steps that one may be ahead of the other
COMPARED = 8  # batches whose gradient is computed with and without compression

METER_OFF = "off in the demo, since it would be the peak of memory"

NO_MEMORY = 3  # exit codes
DIVERGED = 4
NO_ROOM_ON_DISK = 5
NO_LIMIT = 6


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a contender is told; the same for all but the first three."""

    name: str
    label: str
    tolerance: float | None = None  # None: plain
    steps: int = 30
    batch: int = 8
    seed: int = 0
    rows: int = 192  # of latitude that a map keeps
    score_every: int | None = None
    is_paced: bool = False  # goes no further than the file PACE says
    limit_bytes: int | None = None  # above the start; enforced by the operating system
    learning_rate: float | None = None  # instead of the recipe's

    def to_json(self) -> str:
        """As the command line takes it."""
        return json.dumps(asdict(self))


class Enough(Exception):
    """Time is up."""


class Unlimited(Exception):
    """The limit cannot be set; the text says why."""


def train(folder: Path, settings: Settings, parent: int) -> int:
    """Train as told while that process is there to look after it, and return the exit code."""
    import torch

    from elbowroom.keep.activations import Activations
    from elbowroom.keep.activations.gauge import return_freed_memory
    from elbowroom.report.recorder import Recorder
    from elbowroom.science.training import fit, seeded

    torch.set_num_threads(1)
    recipe = make_recipe(settings)
    task = recipe.make_task()
    with seeded(settings.seed):
        network = recipe.make_network(task)
    optimizer = recipe.schedule.make_optimizer(network)
    _warm_up(recipe, task, network)
    return_freed_memory(at_once=True)
    if settings.limit_bytes is not None:
        limit_memory(settings.limit_bytes)
    room = None
    if settings.tolerance is not None:
        # The meter runs small batches plainly and whole, which would be the peak. The gradient is
        # compared when training is over instead.
        # Both contenders share the machine, so that times say little: bytes are what is shown.
        room = Activations(network, tolerance=settings.tolerance, meter=0, overhead=None)
    recorder = Recorder(
        folder,
        network,
        optimizer,
        room=room,
        name=settings.name,
        label=settings.label,
        planned_steps=settings.steps,
        facts=_facts(settings, network),
    )

    def score(trained: "nn.Module") -> "Score":
        found = task.score(trained)
        recorder.score(
            recorder.steps,
            found.name,
            found.value,
            baselines=dict(found.baselines),
            higher_is_better=found.higher_is_better,
        )
        return found

    def tell(step: int, loss: float) -> None:
        return_freed_memory(at_once=True)
        recorder.step(loss)
        _stay_with(parent)
        if settings.is_paced:
            _keep_pace(folder / PACE, step, parent)
            recorder.pause()

    judged = replace(task, score=score)
    ending = "finished"
    try:
        try:
            result = fit(
                network,
                judged,
                recipe.schedule,
                seed=settings.seed,
                optimizer=optimizer,
                room=recorder,
                tell=tell,
            )
        except Enough:
            score(network)
            ending = "stopped"
        else:
            if result.diverged_at is not None:
                step = result.diverged_at + 1
                said = f"the loss of step {step} was not finite, so it ended there"
                recorder.end("failed", said)
                return DIVERGED
        if room is not None and settings.limit_bytes is None:
            recorder.tell("measuring gradients")
            reading = compare_gradients(network, task, room, settings, recorder.steps)
            recorder.note_ledger([reading])
    except KeyboardInterrupt:
        recorder.end("interrupted", f"interrupted after {recorder.steps} steps")
        return 130
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        recorder.end("failed", f"out of memory in step {recorder.steps + 1}: {_reason(error)}")
        return NO_MEMORY
    recorder.end(ending)
    return 0


def compare_gradients(
    network: "nn.Module", task: "Task", room: "Activations", settings: Settings, step: int
) -> "Reading":
    """Compute gradients of a few new batches twice, and set their error against their variance.

    The prediction is of the same batches: their mean, as the error is.
    """
    import torch

    from elbowroom.keep.activations.ledger import Reading

    draws = torch.Generator().manual_seed(settings.seed + 1)
    parameters = [p for p in network.parameters() if p.requires_grad]
    sums = [torch.zeros_like(p) for p in parameters]
    squares = errors = predicted = 0.0
    for _ in range(COMPARED):
        inputs, targets = task.draw(settings.batch, draws)
        _differentiate(network, task, inputs, targets, nullcontext())
        plain = [p.grad for p in parameters]
        _differentiate(network, task, inputs, targets, room)
        predicted += room.ledger.gradient_error
        for total, before, parameter in zip(sums, plain, parameters, strict=True):
            if before is None or parameter.grad is None:
                continue
            total += before
            squares += float(before.square().sum())
            errors += float(before.sub_(parameter.grad).square().sum())
    network.zero_grad()
    between = squares - sum(float(total.square().sum()) for total in sums) / COMPARED
    variance = between / (COMPARED - 1)
    measured = errors / COMPARED / variance if variance > 0 else 0.0
    return Reading(step=step, predicted=predicted / COMPARED, measured=measured)


def _differentiate(
    network: "nn.Module",
    task: "Task",
    inputs: "Tensor",
    targets: "Tensor",
    inside: AbstractContextManager[object],
) -> None:
    """Leave new gradients in the parameters; who holds the old ones keeps them."""
    network.zero_grad(set_to_none=True)
    with inside:
        loss = task.loss(network(inputs), targets)
    loss.backward()


def make_recipe(settings: Settings) -> "DeepRain":
    """Return the recipe: the maps that ship, cut to so many rows."""
    from elbowroom.science.climate.deep import DeepRain

    recipe = DeepRain(crop=(settings.rows, 288))
    if settings.rows < 64:
        recipe = replace(recipe, convolutions=1, held_out_days=3)
    schedule = replace(
        recipe.schedule,
        steps=settings.steps,
        batch=settings.batch,
        score_every=settings.score_every,
        learning_rate=recipe.schedule.learning_rate
        if settings.learning_rate is None
        else settings.learning_rate,
    )
    return replace(recipe, schedule=schedule)


def limit_memory(nbytes: int) -> None:
    """From now on the operating system refuses data beyond so many bytes more than there is."""
    import resource

    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (there,) = (int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = there + nbytes
    if most != resource.RLIM_INFINITY and most < limit:
        raise Unlimited(
            f"the system already allows data of no more than {most / 1e6:.0f} MB, and the limit "
            f"would be {limit / 1e6:.0f} MB: raise that first (ulimit -Hd)"
        )
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _warm_up(recipe: "DeepRain", task: "Task", network: "nn.Module") -> None:
    """Load what is loaded late, on a small piece and a copy: that is not the memory of training."""
    import torch

    spare = copy.deepcopy(network)
    optimizer = recipe.schedule.make_optimizer(spare)
    inputs, targets = task.draw(1, torch.Generator().manual_seed(0))
    for _ in range(2):
        optimizer.zero_grad()
        task.loss(spare(inputs[..., :32, :64]), targets[..., :32, :64]).backward()
        optimizer.step()


def _keep_pace(path: Path, step: int, parent: int) -> None:
    """Wait for the others; return when there is more to do, raise Enough when there is not."""
    while True:
        try:
            until, stop = json.loads(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            until, stop = AHEAD, FOREVER
        if step >= stop:
            raise Enough
        if step < until:
            return
        _stay_with(parent)
        time.sleep(GLANCE_S)


def _stay_with(parent: int) -> None:
    if os.getppid() != parent:
        raise KeyboardInterrupt  # nobody is left who would tell


def _is_out_of_memory(error: Exception) -> bool:
    said = str(error).lower()
    words = ("allocate memory", "bad_alloc", "out of memory", "could not create a primitive")
    return isinstance(error, MemoryError) or any(word in said for word in words)


def _reason(error: Exception) -> str:
    asked = re.search(r"tried to allocate (\d+) bytes", str(error))
    if asked:
        return f"{int(asked[1]) / 1e6:.1f} MB more were asked for and refused"
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]


def _facts(settings: Settings, network: "nn.Module") -> dict[str, object]:
    parameters = sum(p.numel() for p in network.parameters())
    return {
        "network": f"U-Net of {parameters:,} parameters",
        "maps": f"{settings.rows} x 288 cells",
        "batch": settings.batch,
        "seed": settings.seed,
        "threads": 1,
        "tolerance": "none" if settings.tolerance is None else settings.tolerance,
        **({} if settings.tolerance is None else {"meter": METER_OFF}),
        "allocator": "freed blocks of 1 MiB and more go back to the system at once",
    }


def main() -> None:
    """Take folder, settings and the process that started this one from the command line."""
    # Interrupted and ended alike: what was recorded gets its end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder, settings = Path(sys.argv[1]), Settings(**json.loads(sys.argv[2]))
    try:
        _stay_with(parent := int(sys.argv[3]))
        sys.exit(train(folder, settings, parent))
    except KeyboardInterrupt:
        sys.exit(130)
    except Unlimited as error:
        print(error, file=sys.stderr)
        sys.exit(NO_LIMIT)
    except OSError as error:
        print(f"{error.strerror or error}: {error.filename or folder}", file=sys.stderr)
        sys.exit(NO_ROOM_ON_DISK)


if __name__ == "__main__":
    main()
