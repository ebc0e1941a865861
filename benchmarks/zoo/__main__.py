"""Runs the zoo: models and scripts from outside packages, plainly and with Elbowroom.

./dev zoo                      everything, one process after another: hours on two cores
./dev zoo --models gpt2,llama  some models
./dev zoo --ways truth         only these ways to train: plain, zero, default, truth, memory
./dev zoo --scripts all        scripts alone; 'none' leaves them out
./dev zoo --table runs.jsonl   the tables of what was measured before
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.zoo import scripts, tables
from benchmarks.zoo.entry import load

WAYS = ("plain", "zero", "default", "memory", "truth")
TIMEOUT_S = 900


def main() -> None:
    """Measure what is asked for, and print tables."""
    parser = argparse.ArgumentParser(
        prog="./dev zoo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", default="all")
    parser.add_argument("--scripts", default=None)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("build/zoo/runs.jsonl"))
    parser.add_argument("--table", type=Path, default=None)
    parser.add_argument("--json", action="store_true", dest="as_json")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    entries = load()
    if given.list:
        for each in entries.values():
            print(f"{each.name:24} {each.package}")
        for name in scripts.names():
            print(f"{name:24} script")
        return
    if given.table is None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        names = _chosen(given.models, list(entries), "model")
        asked = given.scripts or ("all" if given.models == "all" else "none")
        programs = _chosen(asked, scripts.names(), "script")
        with given.out.open("a", encoding="utf-8") as out:
            _measure(names, programs, given, out)
    rows = _read(given.table or given.out)
    if given.as_json:
        print(json.dumps(rows))
    else:
        print(tables.report(rows))


def _chosen(asked: str, known: list[str], what: str) -> list[str]:
    if asked in ("all", "none"):
        return known if asked == "all" else []
    names = [name.strip() for name in asked.split(",")]
    for name in names:
        if name not in known:
            sys.exit(f"there is no {what} {name!r} in the zoo: ./dev zoo --list shows all")
    return names


def _measure(names: list[str], programs: list[str], given: argparse.Namespace, out: Any) -> None:
    ways = [way for way in given.ways.split(",") if way]
    for number, name in enumerate(names):
        plain: dict[str, Any] = {}
        for way in ways:
            print(f"[{number + 1}/{len(names)}] {name}: {way}", file=sys.stderr, flush=True)
            words = ["--steps", str(given.steps), "--threads", str(given.threads)]
            if way == "memory":
                if "peaks" not in plain:
                    continue
                for row in _budgets(name, plain, words):
                    _write(row, out)
                continue
            row = _run(name, way, words)
            plain = row if way == "plain" else plain
            _write(row, out)
            if way == "zero" and row.get("weights") != plain.get("weights"):
                # Threads may add in another order every time: then one of them tells.
                one = [*words, "--threads", "1"]
                for again in ("plain", "zero"):
                    _write(_run(name, again, one) | {"way": f"{again}, one thread"}, out)
    for number, name in enumerate(programs):
        print(f"[{number + 1}/{len(programs)}] script {name}", file=sys.stderr, flush=True)
        for row in scripts.measure(name, ways, given.threads):
            _write(row, out)


def _budgets(name: str, plain: dict[str, Any], words: list[str]) -> list[dict[str, Any]]:
    """At 60 % of the plain peak above the start; where that is refused, at what is advised."""
    budget = plain["base"] + int(0.6 * max(plain["peaks"]))
    row = _run(name, "memory", [*words, "--budget", str(budget)]) | {"budget": budget}
    rows = [row]
    advice = tables.advice_of(row.get("error", ""))
    if advice is not None:
        again = _run(name, "memory", [*words, "--budget", str(advice)])
        rows.append(again | {"way": "advice", "budget": advice})
    return rows


def _run(name: str, way: str, words: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.zoo.worker", name, way, *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"name": name, "way": way, "error": f"took more than {TIMEOUT_S} s"}
    lines = done.stdout.strip().splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        return {"name": name, "way": way, "error": f"exit {done.returncode}: {done.stderr[-300:]}"}


def _write(row: dict[str, Any], out: Any) -> None:
    print(json.dumps(row), file=out, flush=True)


def _read(path: Path) -> list[dict[str, Any]]:
    """The newest row of every name and way."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        newest[row["name"], row["way"]] = row
    return list(newest.values())


if __name__ == "__main__":
    main()
