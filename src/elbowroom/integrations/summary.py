"""What a run says at its end, and the file that it leaves."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elbowroom.integrations.outcomes import Outcome, breach_of, sentence_of
from elbowroom.sizes import parse_bytes

if TYPE_CHECKING:
    from elbowroom.integrations.companion import Companion
    from elbowroom.keep.activations.anywhere import Account

VERSION = 1


def conclude(companion: "Companion") -> None:
    """Report what one process has trained; the one that the user has started speaks for all."""
    family, orders = companion.family, companion.orders
    if companion.anywhere is not None:
        companion.anywhere.remove()
        if companion.anywhere.accounts:
            for name in sorted(companion.anywhere.absent):
                companion.say(f"no module is called {name!r}: --exact {name} kept nothing exact")
    if orders.ledger is not None:
        _write(companion, Path(orders.ledger))
    if companion.is_child or companion.rank:
        _report(companion)
        return
    if not companion.has_failed:
        family.await_peers()
    outcomes = _all_of(companion)
    breach = find_breach(companion)
    family.end()
    if orders.is_json:
        content = _content(companion, outcomes)
        print(
            json.dumps(content | ({} if breach is None else {"failure": breach})), file=sys.stderr
        )
        return
    if outcomes and not orders.is_quiet:
        _show(outcomes, None if orders.memory is None else parse_bytes(orders.memory))
    if breach is not None:
        print(f"elbowroom: {breach}", file=sys.stderr)
    elif not (outcomes or companion.has_failed or orders.is_quiet):
        print(
            "elbowroom: no module was trained where it could be watched: nothing was compressed",
            file=sys.stderr,
        )


def find_breach(companion: "Companion") -> str | None:
    """The sentence for a budget that was asked for and not kept to; None after a failure."""
    memory = companion.orders.memory
    if memory is None or companion.has_failed:
        return None
    return breach_of(_all_of(companion), parse_bytes(memory))


def _own(companion: "Companion") -> list[Outcome]:
    """Of this process."""
    if companion.anywhere is None:
        return []
    training_bytes = companion.anywhere.peaks.take()
    return [Outcome.of(account, training_bytes) for account in _accounts(companion)]


def _all_of(companion: "Companion") -> list[Outcome]:
    """Of this process and of those that have reported."""
    reports = companion.family.reports()
    return _own(companion) + [
        Outcome(**outcome) for report in reports for outcome in report["outcomes"]
    ]


def _report(companion: "Companion") -> None:
    outcomes = _own(companion)
    is_awaited = bool(companion.rank) and not companion.is_child
    if outcomes or is_awaited:
        name = f"rank{companion.rank}" if is_awaited else f"process{os.getpid()}"
        companion.family.report({"outcomes": [asdict(one) for one in outcomes]}, name)


def _show(outcomes: list[Outcome], limit_bytes: int | None) -> None:
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    groups: dict[str, list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault(one.name, []).append(one)
    for group in groups.values():
        console.print(sentence_of(group, limit_bytes))


def _write(companion: "Companion", path: Path) -> None:
    accounts = _accounts(companion)
    if not accounts and (companion.is_child or path.exists()):
        return
    if companion.rank:
        path = path.with_name(f"{path.stem}-rank{companion.rank}{path.suffix}")
    elif companion.is_child and companion.rank is None:
        path = path.with_name(f"{path.stem}-process{os.getpid()}{path.suffix}")
    try:
        content = _content(companion, _own(companion))
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    except OSError as error:
        print(f"elbowroom: the ledger could not be written: {error}", file=sys.stderr)


def _accounts(companion: "Companion") -> "list[Account]":
    every = [] if companion.anywhere is None else companion.anywhere.accounts
    return [account for account in every if account.passes]


def _content(companion: "Companion", outcomes: list[Outcome]) -> dict[str, Any]:
    orders = companion.orders
    accounts = _accounts(companion)
    return {
        "version": VERSION,
        "script": orders.script,
        "tolerance": orders.tolerance,
        "memory": orders.memory,
        "rule": orders.rule,
        "rank": companion.rank,
        "notes": companion.notes,
        "modules": [
            {
                "name": account.name,
                "passes": account.passes,
                "encode_s": account.encode_s,
                "decode_s": account.decode_s,
                "peak_bytes": account.peak_bytes,
                "training_bytes": outcome.training_bytes,
                "gradient_error": account.gradient_error,
                "measured_error": account.measured_error,
                "ledger": json.loads(account.ledger.to_json()),
            }
            for account, outcome in zip(accounts, outcomes, strict=False)
        ],
        "processes": [asdict(outcome) for outcome in outcomes[len(accounts) :]],
    }
