"""Training scripts of the zoo, run as they are and under `elbowroom run`."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.zoo import tables

FOLDER = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900


def names() -> list[str]:
    """All of them."""
    return sorted(path.stem for path in FOLDER.glob("*.py"))


def measure(name: str, ways: list[str], threads: int) -> list[dict[str, Any]]:
    """A row for each way; errors are not compared in scripts, so that truth is left out."""
    rows: list[dict[str, Any]] = []
    plain: dict[str, Any] = {}
    for way in ways:
        if way == "plain":
            plain = _run(name, "plain", [], threads)
            rows.append(plain)
        elif way == "zero":
            rows.append(_run(name, "zero", ["--tolerance", "0"], threads))
        elif way == "default":
            rows.append(_run(name, "default", [], threads))
        elif way == "memory" and plain.get("peaks"):
            budget = plain["base"] + int(0.6 * max(plain["peaks"]))
            row = _run(name, "memory", ["--memory", str(budget)], threads) | {"budget": budget}
            rows.append(row)
            advice = tables.advice_of(row.get("error", "") + row.get("words", ""))
            if advice is not None and row["code"]:
                again = _run(name, "advice", ["--memory", str(advice)], threads)
                rows.append(again | {"budget": advice})
    return rows


def _run(name: str, way: str, options: list[str], threads: int) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "way": way, "is_script": True}
    environment = {**os.environ, "ZOO_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    environment |= {"PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder:
        steps, ledger = Path(folder) / "steps.json", Path(folder) / "ledger.json"
        words = ["benchmarks.zoo.clocked", str(steps), str(FOLDER / f"{name}.py")]
        if way == "plain":
            command = [sys.executable, "-m", *words]
        else:
            ours = ["run", *options, "--ledger", str(ledger), "-m", *words]
            command = [sys.executable, "-m", "elbowroom", *ours]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return row | {"code": -1, "error": f"took more than {TIMEOUT_S} s"}
        row |= {"code": done.returncode, "printed": done.stdout}
        said = [line for line in done.stderr.splitlines() if "elbowroom" in line]
        row["words"] = "\n".join(said[-3:])
        if done.returncode:
            row["error"] = "\n".join(done.stderr.splitlines()[-3:])
        if steps.exists():
            row |= json.loads(steps.read_text())
        if ledger.exists():
            modules = json.loads(ledger.read_text())["modules"]
            row["saved"] = sum(m["ledger"]["saved_bytes"] for m in modules)
            row["kept"] = sum(m["ledger"]["kept_bytes"] for m in modules)
            row["ratio"] = row["saved"] / max(1, row["kept"])
    return row


def losses_of(printed: str) -> list[str]:
    """Numbers after the word loss, as they were printed."""
    return re.findall(r"loss\w*['\"]?[ =:]+['\"]?(-?[0-9.]+(?:e-?[0-9]+)?)", printed)
