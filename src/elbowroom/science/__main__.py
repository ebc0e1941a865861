"""Trains an application: python -m elbowroom.science NAME [--seed N] [--data FOLDER]."""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from elbowroom.errors import ElbowroomError
from elbowroom.science.applications import find_recipe, list_applications
from elbowroom.science.training import Tell, train

TOLD_EVERY_SECONDS = 5.0


def main() -> None:
    """Train, and print the score beside those of simple predictors."""
    parser = argparse.ArgumentParser(prog="python -m elbowroom.science", description=__doc__)
    parser.add_argument("name", metavar="NAME", help=", ".join(list_applications()))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="instead of the recipe's number")
    parser.add_argument("--batch", type=int, help="instead of the recipe's size")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where the data is")
    parser.add_argument("--threads", type=int, help="that PyTorch may use")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    words = parser.parse_args()
    if words.threads:
        torch.set_num_threads(words.threads)
    try:
        recipe: Any = find_recipe(words.name)
        changes = {key: getattr(words, key) for key in ("steps", "batch") if getattr(words, key)}
        recipe = replace(recipe, schedule=replace(recipe.schedule, **changes))
        tell = _say_now_and_then(recipe.schedule.steps)
        result = train(recipe, seed=words.seed, folder=words.data, tell=tell)
    except ElbowroomError as error:
        sys.exit(f"elbowroom: {error}")
    if words.json:
        print(json.dumps({"recipe": str(recipe), **result.record()}, indent=2, allow_nan=False))
        return
    print(f"{words.name}, seed {result.seed}, {len(result.losses)} steps: {result.score}")
    if result.diverged_at is not None:
        print(f"The loss of step {result.diverged_at + 1} was not finite, so training ended there.")


def _say_now_and_then(steps: int) -> Tell:
    last = [time.monotonic()]

    def tell(done: int, loss: float) -> None:
        if time.monotonic() - last[0] >= TOLD_EVERY_SECONDS:
            last[0] = time.monotonic()
            print(f"step {done} of {steps}, loss {loss:.4f}", file=sys.stderr, flush=True)

    return tell


if __name__ == "__main__":
    main()
