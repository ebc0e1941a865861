"""Runs a training script, and notes the time and the peak of every step of its optimizers.

python -m benchmarks.zoo.clocked OUT script.py [args], plainly or under `elbowroom run -m`.
"""

import atexit
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.zoo.peaks import Peak


def main() -> None:
    """Watch optimizers from outside, as nothing in the script knows of it."""
    out, script = Path(sys.argv[1]), sys.argv[2]
    sys.argv[:] = sys.argv[2:]
    sys.path[0] = str(Path(script).resolve().parent)
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    torch.set_num_threads(int(os.environ.get("ZOO_THREADS", "2")))
    from benchmarks.zoo.stand_ins import LIBRARY

    operators = LIBRARY  # names that torchvision needs

    peak, times, peaks = Peak(), [], []
    base = peak.now()
    last = [time.perf_counter()]
    peak.reset()

    def note(optimizer: Any, args: Any, kwargs: Any) -> None:
        now = time.perf_counter()
        times.append(now - last[0])
        peaks.append(peak.read() - base)
        peak.reset()
        last[0] = time.perf_counter()

    register_optimizer_step_post_hook(note)
    atexit.register(
        lambda: out.write_text(json.dumps({"base": base, "times": times, "peaks": peaks}))
    )
    runpy.run_path(script, run_name="__main__")
    del operators


if __name__ == "__main__":
    main()
