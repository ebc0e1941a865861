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
EXIT_INTERRUPTED = 130
MOST_COUNT = 2**31 - 1
MOST_SEED = 2**32 - 1


def main() -> None:
    """Train, and print the score beside those of simple predictors."""
    parser = argparse.ArgumentParser(prog="python -m elbowroom.science", description=__doc__)
    parser.add_argument("name", metavar="NAME", help=", ".join(list_applications()))
    parser.add_argument("--seed", type=_take_seed, default=0)
    parser.add_argument("--steps", type=_take_count, help="instead of the recipe's number")
    parser.add_argument("--batch", type=_take_count, help="instead of the recipe's size")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where the data is")
    parser.add_argument("--threads", type=_take_count, help="that PyTorch may use")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    words = parser.parse_args()
    if words.threads is not None:
        torch.set_num_threads(words.threads)
    try:
        _train(words)
    except (ElbowroomError, OSError) as error:
        sys.exit(f"elbowroom: {error}")
    except KeyboardInterrupt:
        print("elbowroom: interrupted, and nothing was kept", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def _train(words: argparse.Namespace) -> None:
    recipe: Any = find_recipe(words.name)
    given = {key: getattr(words, key) for key in ("steps", "batch")}
    changes = {key: value for key, value in given.items() if value is not None}
    recipe = replace(recipe, schedule=replace(recipe.schedule, **changes))
    tell = _say_now_and_then(recipe.schedule.steps)
    result = train(recipe, seed=words.seed, folder=words.data, tell=tell)
    if words.json:
        print(json.dumps({"recipe": str(recipe), **result.record()}, indent=2, allow_nan=False))
        return
    print(f"{words.name}, seed {result.seed}, {len(result.losses)} steps: {result.score}")
    if result.diverged_at is not None:
        print(f"The loss of step {result.diverged_at + 1} was not finite, so training ended there.")


def _take_count(text: str) -> int:
    return _take_number(text, 1, MOST_COUNT)


def _take_seed(text: str) -> int:
    return _take_number(text, 0, MOST_SEED)


def _take_number(text: str, least: int, most: int) -> int:
    if not text.strip().isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(
            f"a whole number from {least} to {most} was expected, got {text!r}"
        )
    return int(text)


def _say_now_and_then(steps: int) -> Tell:
    last = [time.monotonic()]

    def tell(done: int, loss: float) -> None:
        if time.monotonic() - last[0] >= TOLD_EVERY_SECONDS:
            last[0] = time.monotonic()
            print(f"step {done} of {steps}, loss {loss:.4f}", file=sys.stderr, flush=True)

    return tell


if __name__ == "__main__":
    main()
