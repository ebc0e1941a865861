"""Runs the soak: all float32 patterns once, random properties and random networks."""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from elbowroom import _native
from elbowroom.codec.recipe import Dtype
from tests.keep.activations.random_networks import report
from tests.soak.every_float import CASES, SLABS, check, slab, spread_order
from tests.soak.progress import Progress
from tests.soak.properties import fault

FOLDER = Path(__file__).parents[2] / "build" / "soak"


def say(text: str) -> None:
    """Print at once, also when the output is a file."""
    print(f"[soak] {text}", flush=True)


def run_floats(fraction: float, progress: Progress) -> int:
    """Check a share of all patterns, spread evenly; return the number of broken promises."""
    slabs = list(spread_order())[: math.ceil(SLABS * fraction)]
    faults = 0
    start = time.monotonic()
    for case in CASES:
        left = [number for number in slabs if f"{case.name} {number}" not in progress]
        say(f"floats, {case.name}: {len(slabs) - len(left)} of {len(slabs)} slabs done before")
        for count, number in enumerate(left, 1):
            found = check(case, Dtype.F32, slab(number))
            if found:
                say(f"BROKEN {found}")
                faults += 1
                break
            progress.add(f"{case.name} {number}")
            if count % 16 == 0 or count == len(left):
                seconds = time.monotonic() - start
                say(f"floats, {case.name}: {count} of {len(left)} slabs, {seconds:.0f} s")
    total = sum(f"{case.name} {number}" in progress for case in CASES for number in slabs)
    say(f"floats: {total * 2**24:,} patterns checked in {len(CASES)} cases, {faults} broken")
    return faults


def run_properties(minutes: float, seed: str, first: int) -> int:
    """Draw examples until the time is up; return the number that broke a promise."""
    end = time.monotonic() + 60 * minutes
    told = time.monotonic()
    faults = 0
    index = first
    while time.monotonic() < end:
        found = fault(f"{seed} {index}")
        if found:
            say(f"BROKEN example {index} of seed {seed!r}: {found}")
            faults += 1
            if faults == 10:
                break
        index += 1
        if time.monotonic() - told > 30:
            told = time.monotonic()
            say(f"properties: {index - first} examples, {faults} broken")
    say(f"properties: {index - first} examples of seed {seed!r} from {first} on, {faults} broken")
    return faults


def run_networks(count: int, seed: str, first: int) -> int:
    """Train random networks plainly and in rooms; return the number that differ or fail."""
    faults = 0
    told = time.monotonic()
    for index in range(first, first + count):
        for _, found in report([f"{seed} {index}"]):
            say(f"BROKEN network {index} of seed {seed!r}: {found}")
            faults += 1
        if time.monotonic() - told > 30:
            told = time.monotonic()
            say(f"networks: {index + 1 - first} of {count}, {faults} broken")
    say(f"networks: {count} of seed {seed!r} from {first} on, {faults} broken")
    return faults


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__)
    add = parser.add_argument
    add("--only", choices=["floats", "properties", "networks"], help="one part, not all")
    add("--fraction", type=float, default=1.0, help="share of all float32 patterns, up to 1")
    add("--fresh", action="store_true", help="forget the patterns that were checked before")
    add("--isa", choices=_native.isa_levels(), help="instruction set for the patterns")
    add("--minutes", type=float, default=30.0, help="how long to draw random examples")
    add("--networks", type=int, default=10_000, help="how many random networks to train")
    add("--seed", default="0", help="of the random examples and networks")
    add("--first", type=int, default=0, help="number of the first random example or network")
    options = parser.parse_args(words)
    if not 0 < options.fraction <= 1:
        parser.error("--fraction must be above 0 and at most 1")
    return options


def main(words: Sequence[str]) -> int:
    """Run what the options ask for; 1 if anything was broken."""
    options = parse(words)
    faults = 0
    if options.only in (None, "floats"):
        if options.isa:
            _native.set_isa(options.isa)
        level = _native.isa()
        say(f"floats at level {level}")
        progress = Progress(FOLDER / f"every_float_{level}.json", fresh=options.fresh)
        faults += run_floats(options.fraction, progress)
    if options.only in (None, "properties"):
        faults += run_properties(options.minutes, options.seed, options.first)
    if options.only in (None, "networks"):
        faults += run_networks(options.networks, options.seed, options.first)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
