"""Gradients through long loops: time, memory and error of what can be kept of Marmousi's waves.

Every contender works in a process of its own and they take turns, so that a run is compared with
that of full storage next to it; medians count. Peaks are high-water marks of processes above what
they were before: once as they come, and once with all that is freed given back, since full storage
leaves a heap with holes. Parts: `gradient`, `overhead`, `scaling`, `hvp`, `inversion`, `counts`.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from math import comb
from pathlib import Path
from typing import Any

import torch

import elbowroom as er

HERE = Path(__file__).parent
NO_HOLES = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}

# Name, contender, one part in so many of the history's memory, tolerance.
GRADIENTS = (
    ("full storage", "full", 1, 0.0),
    ("er.loop, no bound", "everything", 1, 0.0),
    ("torch checkpoint, sqrt(N)", "segments", 1, 0.0),
    ("er.loop, slots, 1/40", "revolve", 40, 0.0),
    ("er.loop, memory, 1/40", "planned", 40, 0.0),
    ("pyrevolve, 1/40", "pyrevolve", 40, 0.0),
    ("zfp history, 1/40", "zfp", 40, 0.0),
    ("er.loop, 1/40, 1 %", "encoded", 40, 0.01),
    ("er.loop, slots, 1/100", "revolve", 100, 0.0),
    ("zfp history, 1/100", "zfp", 100, 0.0),
    ("er.loop, 1/100, 4 %", "encoded", 100, 0.04),
    ("er.loop, history, 1 %", "bounded", 1, 0.01),
    ("er.loop, history, 4 %", "bounded", 1, 0.04),
)
NEEDS = {"pyrevolve": "pyrevolve", "zfp": "zfpy"}

Line = dict[str, Any]


class Child:
    """A contender at work."""

    def __init__(self, words: list[str], more: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "loop_peers.py"), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | more,
        )

    def ask(self, file: str = "") -> Line:
        """A gradient, which may be saved to a file."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{file}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        """Let it go."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def gradient(options: argparse.Namespace) -> Iterator[Line]:
    """A line for each contender."""
    wanted = [g for g in GRADIENTS if not options.only or g[1] in options.only.split(",")]
    if GRADIENTS[0] not in wanted:
        wanted.insert(0, GRADIENTS[0])
    for _, contender, _, _ in list(wanted):
        module = NEEDS.get(contender)
        if module is not None and importlib.util.find_spec(module) is None:
            wanted = [g for g in wanted if g[1] != contender]
            print(f"{module} is not installed and was left out", file=sys.stderr)

    def words(contender: str, part: int, tolerance: float) -> list[str]:
        found = [contender, "--share", str(1 / part), "--tolerance", str(tolerance)]
        return [*found, *_shape(options)]

    answers: dict[str, list[Line]] = {g[0]: [] for g in wanted}
    with tempfile.TemporaryDirectory() as folder:
        children = {g[0]: Child(words(*g[1:]), {}) for g in wanted}
        for turn in range(options.rounds):
            for number, (name, child) in enumerate(children.items()):
                answers[name].append(child.ask("" if turn else f"{folder}/{number}"))
        for child in children.values():
            child.end()
        exact = torch.load(f"{folder}/0")
        for number, (name, contender, part, tolerance) in enumerate(wanted):
            if refused := answers[name][0].get("refused"):
                yield {"part": "gradient", "contender": name, "refused": refused}
                continue
            child = Child(words(contender, part, tolerance), NO_HOLES)
            tight = child.ask()
            child.end()
            errors = _errors(exact, torch.load(f"{folder}/{number}"))
            yield _summary(name, answers[name], answers[wanted[0][0]], tight) | errors


def _summary(name: str, mine: list[Line], base: list[Line], tight: Line) -> Line:
    history = mine[0]["history_bytes"]
    held = mine[-1].get("held_bytes", history)
    pairs = list(zip(mine, base, strict=True))
    return {
        "part": "gradient",
        "contender": name,
        "seconds": min(a["seconds"] for a in mine),
        "times_full": statistics.median(a["seconds"] / b["seconds"] for a, b in pairs),
        "times_full_cpu": statistics.median(a["cpu_s"] / b["cpu_s"] for a, b in pairs),
        "history_bytes": history,
        "held": held / history,
        "peak": max(a["peak_bytes"] for a in mine) / history,
        "peak_no_holes": tight["peak_bytes"] / history,
        "sweeps": mine[-1]["sweeps"],
        "plan": mine[-1].get("plan", ""),
    }


def _errors(exact: dict[str, Any], other: dict[str, Any]) -> Line:
    off, muted = other["gradient"] - exact["gradient"], exact["muted"]
    return {
        "error": float(off.norm() / exact["gradient"].norm()),
        "muted_error": float((off * muted).norm() / (exact["gradient"] * muted).norm()),
    }


def overhead(options: argparse.Namespace) -> Iterator[Line]:
    """How much longer a loop without a bound takes than a for-loop."""
    for way, steps in (("tiny", 2000), ("small", 1000), ("middle", 200), ("waves", 200)):
        words = ["--steps", steps, "--every", options.every, "--rounds", 4 * options.rounds + 1]
        found = _run(options, "overhead", way, *words)
        yield {"part": "overhead", "step": way, **found}


def scaling(options: argparse.Namespace) -> Iterator[Line]:
    """Peaks of a loop and of one with ten times its steps."""
    for way in ("full", "slots", "memory", "encoded"):
        short, long = (
            _run(options, "scaling", way, "--every", 2 * options.every, "--steps", n, more=NO_HOLES)
            for n in (options.steps // 2, 5 * options.steps)
        )
        if refused := short.get("refused") or long.get("refused"):
            yield {"part": "scaling", "kept": way, "refused": refused}
            continue
        yield {
            "part": "scaling",
            "kept": way,
            "steps": options.steps // 2,
            "peak_bytes": short["peak_bytes"],
            "peak_10x_bytes": long["peak_bytes"],
            "growth": long["peak_bytes"] / max(1, short["peak_bytes"]),
            "plan": f"{short['plan']}, {long['plan']}",
        }


def hvp(options: argparse.Namespace) -> Iterator[Line]:
    """A Hessian-vector product within a twentieth of what full storage has at its peak."""
    words = ["--every", 2 * options.every, "--steps", options.steps]
    with tempfile.TemporaryDirectory() as folder:
        whole: Line = {}
        for way in ("full", "slots", "encoded"):
            room = ["--memory-bytes", whole.get("peak_bytes", 0) // 20, "--tolerance", 0.001]
            found = _run(
                options, "hvp", way, *words, *room, "--save", f"{folder}/{way}", more=NO_HOLES
            )
            whole = whole or found
            if "refused" in found:
                yield {"part": "hvp", "kept": way, "refused": found["refused"]}
                continue
            exact, mine = (torch.load(f"{folder}/{w}")["gradient"] for w in ("full", way))
            yield {
                "part": "hvp",
                "kept": way,
                "times_full": found["seconds"] / whole["seconds"],
                "peak_bytes": found["peak_bytes"],
                "peak": found["peak_bytes"] / whole["peak_bytes"],
                "error": float((mine - exact).norm() / exact.norm()),
            }


def inversion(options: argparse.Namespace) -> Iterator[Line]:
    """The same iterations with all kept, within a fortieth of it, and with an encoded history."""
    words = ["--every", 4 * options.every, "--steps", options.steps, "--shots", 2]
    words += ["--iterations", options.iterations, "--tolerance", options.tolerance]
    first: Line = {}
    for way in ("full", "memory", "encoded"):
        found = _run(options, "inversion", way, *words)
        first = first or found
        if "refused" in found:
            yield {"part": "inversion", "kept": way, "refused": found["refused"]}
            continue
        yield {
            "part": "inversion",
            "kept": way,
            **found,
            "last_ratio": found["last"] / first["last"],
        }


def counts(options: argparse.Namespace) -> Iterator[Line]:
    """Steps of revolve: the formula, the least there is, what is scheduled, and what is made."""
    from elbowroom.keep.loops import schedules

    longest, most = 200, 20
    least = _least(longest, most)
    wrong = {"formula": 0, "schedule": 0, "made": 0}
    sampled = 0
    for slots in range(1, most + 1):
        for length in range(1, longest + 1):
            t = _formula(length, slots)
            wrong["formula"] += t != least[slots][length]
            placed = schedules.placements(length, slots)
            again = schedules.count_steps(schedules.backward(placed, length, slots))
            wrong["schedule"] += placed[-1] + again != t
            if (length + 7 * slots) % 37 == 0:
                sampled += 1
                # The first run goes on to the end, and each step is taped once.
                expected = t - placed[-1] + 2 * length
                wrong["made"] += _made(length, slots) != expected
    yield {"part": "counts", "pairs": longest * most, "run": sampled, **wrong}


def _formula(length: int, slots: int) -> int:
    r = 0
    while comb(slots + r, slots) < length:
        r += 1
    return r * length - (comb(slots + r, r - 1) if r else 0)


def _least(longest: int, most: int) -> list[list[int]]:
    """By trying all first places: t(l, s) = min m + t(m, s) + t(l - m, s - 1)."""
    table = [[0] * (longest + 1) for _ in range(most + 1)]
    table[1] = [length * (length - 1) // 2 for length in range(longest + 1)]
    for slots in range(2, most + 1):
        mine, fewer = table[slots], table[slots - 1]
        for length in range(2, longest + 1):
            mine[length] = min(m + mine[m] + fewer[length - m] for m in range(1, length))
    return table


def _made(length: int, slots: int) -> int:
    called = 0
    knob = torch.tensor(0.5, requires_grad=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        nonlocal called
        called += 1
        return torch.sin(knob * x)

    er.loop(step, torch.ones(()), length, parameters=(knob,), slots=slots).backward()
    return called


def _shape(options: argparse.Namespace) -> list[str]:
    found = ["--every", options.every, "--steps", options.steps, "--kernel", options.kernel]
    return [str(word) for word in (*found, "--threads", options.threads)]


def _run(
    options: argparse.Namespace,
    task: str,
    way: str,
    *words: Any,
    more: dict[str, str] | None = None,
) -> Line:
    command = [sys.executable, HERE / "loop_orders.py", task, way, *words]
    command += ["--kernel", options.kernel, "--threads", options.threads]
    done = subprocess.run(
        [str(word) for word in command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | (more or {}),
    )
    return json.loads(done.stdout)


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    "gradient": gradient,
    "overhead": overhead,
    "scaling": scaling,
    "hvp": hvp,
    "inversion": inversion,
    "counts": counts,
}


def show(value: Any) -> str:
    """A cell."""
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def main() -> None:
    """Run the parts that were named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--every", type=int, default=2, help="point of Marmousi")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--kernel", default="plain", help="plain or lean: see loop_waves")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=10, help="of the inversion")
    parser.add_argument("--tolerance", type=float, default=0.005, help="of the inversion")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="contenders of the gradient, by commas")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}: choose of {', '.join(PARTS)}")
    for part in options.parts or PARTS:
        heads: list[str] = []
        for line in PARTS[part](options):
            if options.json:
                print(json.dumps(line), flush=True)
                continue
            if not heads:
                heads = [key for key in line if key != "part"]
                print(f"\n## {part}\n\n| " + " | ".join(heads) + " |")
                print("| " + " | ".join("---" for _ in heads) + " |")
            cells = [show(line.get(key)) for key in heads]
            if "refused" in line:
                cells[-1] = f"refused: {line['refused']}"
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
