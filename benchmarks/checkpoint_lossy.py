"""What bounds on the optimizer's moments do to a training that is resumed again and again.

A network is trained, and every so many steps its state goes through a checkpoint and back, as if it
had been interrupted there. Pairs of equal seeds are compared.
"""

import argparse
import statistics
import tempfile
import warnings
from pathlib import Path

from elbowroom.science.training import fit, seeded
from elbowroom.store.checkpoint import Checkpointer
from elbowroom.study.networks import find_network


def train(name: str, seed: int, steps: int, every: int, tolerance: float) -> tuple[float, float]:
    """Return the score at the end, and the bytes of the last checkpoint over those of its state."""
    recipe = find_network(name, steps=steps)
    task = recipe.make_task()
    with seeded(seed):
        network = recipe.make_network(task)
    optimizer = recipe.schedule.make_optimizer(network)
    with (
        tempfile.TemporaryDirectory() as folder,
        Checkpointer(
            folder,
            model=network,
            optimizer=optimizer,
            tolerance=tolerance,
            keep=1,
            every=10**9,
            handle_signals=False,
        ) as checkpointer,
    ):
        sizes = [1.0]

        def tell(step: int, loss: float) -> None:
            del loss
            if step % every == 0:
                checkpointer.save(sync=True)
                checkpointer.restore()
                packs = sorted((Path(folder) / "packs").iterdir())
                state = 3 * sum(parameter.nbytes for parameter in network.parameters())
                sizes.append(packs[-1].stat().st_size / state)

        done = fit(network, task, recipe.schedule, seed=seed, optimizer=optimizer, tell=tell)
    return done.score.value, sizes[-1]


def main() -> None:
    """Print one table."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="climate-unet")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--every", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tolerances", type=float, nargs="+", default=(1e-3, 1e-2, 0.1, 0.5))
    options = parser.parse_args()
    given = (options.steps, options.every)
    plain = [train(options.network, s, *given, 0.0) for s in range(options.seeds)]
    print(f"{options.network}, {options.steps} steps, through a checkpoint every {options.every}")
    print("| tolerance | score | gain | standard error | bytes of an increment, of the state |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for tolerance in (0.0, *options.tolerances):
        found = [train(options.network, s, *given, tolerance) for s in range(options.seeds)]
        gains = [a[0] - b[0] for a, b in zip(found, plain, strict=True)]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        score, size = (statistics.mean(f[i] for f in found) for i in (0, 1))
        print(
            f"| {tolerance} | {score:.4f} | {statistics.mean(gains):+.4f} | {error:.4f} | "
            f"{size:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
