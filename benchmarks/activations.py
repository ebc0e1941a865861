"""Bytes, time and peak memory of training steps: plain, compressed, checkpointed, in 2 and 4 bits.

Every contender trains its own copy of the network in a process of its own, so that its heap and
its peak are its own. They take turns, a step each, on the same batches; only one runs at a time.
A step's time is compared with that of the plain step of the same turn, since the machine's speed
changes with what its neighbours do; and all is repeated with new processes, since how one happens
to lie in memory makes it faster or slower. The median of these comparisons counts, the least time
and the largest peak; the highest peak is that of all steps, the first ones and those that look at
gradients included.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from activation_cases import CASES, Case

from elbowroom.keep.activations.schedule import is_due

CONTENDERS = (
    "plain",
    "elbowroom",
    "exact",
    "checkpoint",
    "4-bit groups",
    "2-bit groups",
    "comet",
)
# These learn their bounds in the first steps, and look at the gradients in some.
LEARN = ("elbowroom", "comet")
OURS = ("elbowroom", "exact", "comet")


class Child:
    """A contender at work."""

    def __init__(self, case: Case, name: str, batch: int) -> None:
        script = Path(__file__).with_name("activation_contender.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), case.name, name, "--batch", str(batch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Only with elbowroom does torch lay large tensors on pages.
            env=os.environ | ({} if name in OURS else {"THP_MEM_ALLOC_ENABLE": "0"}),
        )
        self.answers: list[dict[str, Any]] = []
        self.highest_bytes = 0

    def step(self, number: int, *, counts: bool) -> None:
        """Take one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        self.highest_bytes = max(self.highest_bytes, answer["peak_bytes"])
        answer["highest_bytes"] = self.highest_bytes
        if counts:
            self.answers.append(answer)

    def end(self) -> None:
        """Let it go."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def take_turns(
    case: Case, names: tuple[str, ...], batch: int, *, warm: int, rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """The answers of each, all in new processes."""
    children = {name: Child(case, name, batch) for name in names}
    for step in range(warm + rounds):
        for name, child in children.items():
            if step >= warm - (warm if name in LEARN else 1):
                # A look at the gradients is not a usual step.
                child.step(step, counts=step >= warm and not is_due(step + 1, 100))
    for child in children.values():
        child.end()
    return {name: child.answers for name, child in children.items()}


def measure(
    case: Case, names: tuple[str, ...], batch: int, *, warm: int, rounds: int, repeats: int
) -> list[dict[str, Any]]:
    """A line for each contender."""
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, more in take_turns(case, names, batch, warm=warm, rounds=rounds).items():
            answers[name] += more
    plain = answers["plain"]
    plain_peak = max(answer["peak_bytes"] for answer in plain)
    saved = answers["elbowroom"][-1]["saved_bytes"]
    lines: list[dict[str, Any]] = []
    for name, mine in answers.items():
        best = min(mine, key=lambda answer: answer["seconds"])
        ratios = [a["seconds"] / b["seconds"] for a, b in zip(mine, plain, strict=True)]
        peak = max(answer["peak_bytes"] for answer in mine)
        # Just after a look at the gradients more is held than a few steps later.
        held = [answer["kept_bytes"] for answer in mine if "kept_bytes" in answer]
        kept = statistics.median(held) if held else saved if name == "plain" else None
        lines.append(
            {
                "network": case.name,
                "batch": batch,
                "contender": name,
                "saved_bytes": saved,
                "kept_bytes": kept,
                "ratio": None if not kept else saved / kept,
                "seconds": best["seconds"],
                "times_plain": statistics.median(ratios),
                "peak_bytes": peak,
                "peak_ratio": plain_peak / max(1, peak),
                "highest_bytes": max(answer["highest_bytes"] for answer in mine),
                "gradient_error": best.get("gradient_error"),
            }
        )
    return lines


HEADINGS = (
    "| network | batch | contender | saved MB | kept MB | ratio | s | times plain | peak MB | "
    "plain peak / peak | highest MB |\n"
    "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def row(line: dict[str, Any]) -> str:
    """As the table shows it."""
    kept = "-" if line["kept_bytes"] is None else f"{line['kept_bytes'] / 1e6:.1f}"
    ratio = "-" if line["ratio"] is None else f"{line['ratio']:.1f}"
    return (
        f"| {line['network']} | {line['batch']} | {line['contender']} | "
        f"{line['saved_bytes'] / 1e6:.0f} | {kept} | {ratio} | {line['seconds']:.2f} | "
        f"{line['times_plain']:.2f} | {line['peak_bytes'] / 1e6:.0f} | {line['peak_ratio']:.2f} | "
        f"{line['highest_bytes'] / 1e6:.0f} |"
    )


def main() -> None:
    """Run the cases that were named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", help="all of them by default")
    parser.add_argument("--warm", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3, help="with new processes")
    parser.add_argument("--large", action="store_true", help="large batches: for the peak")
    parser.add_argument("--only", default=",".join(CONTENDERS), help="contenders, by commas")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = tuple(dict.fromkeys(["plain", "elbowroom", *options.only.split(",")]))
    if not options.json:
        print(HEADINGS)
    for name in options.networks or CASES:
        case = CASES[name]
        batch = case.large_batch if options.large else case.batch
        for line in measure(
            case,
            names,
            batch,
            warm=options.warm,
            rounds=options.rounds,
            repeats=options.repeats,
        ):
            print(json.dumps(line) if options.json else row(line), flush=True)


if __name__ == "__main__":
    main()
