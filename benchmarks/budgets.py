"""Budgets of memory: whether the real peak of a process stays below, and what that costs.

Every run is a process of its own, judged by the kernel's high-water mark from its start to its
end: code, weights, optimizer and first steps included. Times are medians of usual steps, those that
do not look at gradients (after the first dozen every hundredth does).
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from activation_cases import CASES, loss_of

import elbowroom as er
from elbowroom.bench.memory import status_bytes
from elbowroom.keep.activations.schedule import is_due

SHARES = (0.75, 0.5, 0.33)
FACTORS = (2, 3, 4, 6, 8, 12, 16, 24)
PLAIN = "plain"


def work(options: argparse.Namespace) -> None:
    """Train some steps; say what they took."""
    torch.set_num_threads(options.threads)
    case = CASES[options.networks[0]]
    torch.manual_seed(0)
    network = case.make()
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    answer: dict[str, Any] = {"refused": ""}
    seconds: list[float] = []
    try:
        room = None
        if options.worker != PLAIN:
            room = er.Activations(network, memory=int(options.worker))
        for number in range(options.steps):
            x, y = case.draw(torch.Generator().manual_seed(number), options.batch)
            start = time.perf_counter()
            if room is None:
                loss = loss_of(network(x), y)
            else:
                with room:
                    loss = loss_of(network(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if number > 3 and not is_due(number + 1, 100):
                seconds.append(time.perf_counter() - start)
        if room is not None:
            ledger = room.ledger
            answer |= {"ratio": ledger.ratio, "error": ledger.gradient_error}
            answer["events"] = [event for event in ledger.events if "budget" in event]
    except er.BudgetUnreachable as error:
        answer["refused"] = str(error)
    answer["peak_bytes"] = status_bytes("VmHWM")
    answer["seconds"] = statistics.median(seconds) if seconds else 0.0
    print(json.dumps(answer))


def ask(options: argparse.Namespace, network: str, memory: str, batch: int) -> dict[str, Any]:
    """What a process of its own says."""
    command = [sys.executable, __file__, network, "--worker", memory, "--batch", str(batch)]
    command += ["--steps", str(options.steps), "--threads", str(options.threads)]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def show_budgets(options: argparse.Namespace, network: str, batch: int) -> None:
    """Shares of the plain peak."""
    plain = ask(options, network, PLAIN, batch)
    for share in options.shares:
        budget = int(share * plain["peak_bytes"])
        found = ask(options, network, str(budget), batch)
        verdict = "met" if found["peak_bytes"] <= budget else "EXCEEDED"
        if found["refused"]:
            verdict = "refused"
        cells = [
            f"{network}, batch {batch}",
            f"{plain['peak_bytes'] / 1e6:,.0f}",
            f"{share:.0%}",
            f"{budget / 1e6:,.0f}",
            f"{found['peak_bytes'] / 1e6:,.0f}",
            verdict,
            "" if found["refused"] else f"{found['seconds'] / plain['seconds']:.2f}",
        ]
        print("| " + " | ".join(cells) + " |", flush=True)
        if options.verbose:
            for line in [found["refused"], *found.get("events", ())]:
                print("   ", line)


def show_largest(options: argparse.Namespace, network: str, batch: int) -> None:
    """The largest batch in the memory that a plain batch takes."""
    plain = ask(options, network, PLAIN, batch)
    budget = plain["peak_bytes"]
    largest, found = 0, plain
    for factor in options.factors:
        now = ask(options, network, str(budget), factor * batch)
        if now["refused"] or now["peak_bytes"] > budget:
            break
        largest, found = factor, now
    cells = [
        f"{network}",
        f"{budget / 1e6:,.0f}",
        f"{batch}",
        f"{largest * batch}",
        f"{largest}x",
        f"{found['peak_bytes'] / 1e6:,.0f}",
        f"{found['seconds'] / (largest or 1) / plain['seconds']:.2f}",
    ]
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(CASES), metavar="NETWORK")
    parser.add_argument("--batch", type=int, help="of all; by default the large one of each")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--factors", type=int, nargs="+", default=FACTORS, help="of the batch")
    parser.add_argument("--largest", action="store_true", help="batches in place of budgets")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options)
        return
    if options.largest:
        heads = ["network", "budget MB", "plain batch", "largest", "times", "peak MB"]
        heads.append("time a sample / plain")
    else:
        heads = ["network", "plain MB", "share", "budget MB", "peak MB", "", "step / plain"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads), flush=True)
    for network in options.networks:
        case = CASES[network]
        batch = options.batch or (case.batch if options.largest else case.large_batch)
        (show_largest if options.largest else show_budgets)(options, network, batch)


if __name__ == "__main__":
    main()
