"""Whether saving takes the share of time that it may take, on a loop whose speed drifts.

Stretches with and without a Checkpointer take turns; a step does more and less work over time, the
same in both. The share is what the stretches with one took longer.
"""

import argparse
import math
import tempfile
import time
import warnings

import torch
from checkpoint_models import make

import elbowroom as er


def main() -> None:
    """Print the share, and what the Checkpointer says."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--cap", type=float, default=0.035)
    parser.add_argument("--stretch", type=int, default=40, help="steps in a row")
    parser.add_argument("--where", default=".", help="a folder on the disk that counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    training = make(options.megabytes, batch=2)
    times = {False: 0.0, True: 0.0}
    saves = 0
    end = time.monotonic() + 60 * options.minutes
    with (
        tempfile.TemporaryDirectory(dir=options.where) as folder,
        er.Checkpointer(
            folder,
            model=training.model,
            optimizer=training.optimizer,
            max_overhead=options.cap,
            keep=2,
            handle_signals=False,
        ) as checkpointer,
    ):
        stretch = 0
        while time.monotonic() < end:
            # Slower and faster by half, with a period of twelve stretches of each sort.
            training.batch = round(4 * (1 + 0.5 * math.sin(2 * math.pi * stretch / 12)))
            for is_saved in (False, True) if stretch % 2 else (True, False):
                start = time.perf_counter()
                for _ in range(options.stretch):
                    training.step()
                    if is_saved:
                        saves += checkpointer.step()
                if is_saved:
                    checkpointer.wait()
                    checkpointer._last_step_at = None
                if stretch:
                    times[is_saved] += time.perf_counter() - start
            stretch += 1
        said = checkpointer.reasoning
    share = times[True] / times[False] - 1
    print(
        f"{times[False]:.0f} s without, {times[True]:.0f} s with {saves} checkpoints: "
        f"{share:.2%} more, cap {options.cap:.1%}\n{said}"
    )


if __name__ == "__main__":
    main()
