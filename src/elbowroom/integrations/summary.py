"""What a run says at its end, and the file that it leaves."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elbowroom.integrations.companion import Companion
    from elbowroom.keep.activations.anywhere import Account

VERSION = 1
BLIND = " (not predicted for compiled parts)"


def conclude(companion: "Companion") -> None:
    """Print the summary of one process, and write its ledger where one was asked for."""
    accounts: list[Account] = []
    if companion.anywhere is not None:
        companion.anywhere.remove()
        accounts = [account for account in companion.anywhere.accounts if account.passes]
    if companion.orders.ledger is not None:
        _write(companion, Path(companion.orders.ledger), accounts)
    if companion.orders.is_quiet or companion.rank:
        return
    if companion.orders.is_json and not companion.is_child:
        print(json.dumps(_content(companion, accounts)), file=sys.stderr)
    elif accounts:
        _show(accounts)
    elif not (companion.is_child or companion.has_children or companion.has_failed):
        print(
            "elbowroom: no module was trained where it could be watched: nothing was compressed",
            file=sys.stderr,
        )


def _show(accounts: "list[Account]") -> None:
    from rich.console import Console

    from elbowroom.keep.activations.gauge import Process
    from elbowroom.keep.activations.ledger import say_bytes

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for account in accounts:
        ledger = account.ledger
        is_blind = any("compiled" in row.readers and row.bound > 0 for row in ledger.rows)
        line = (
            f"[bold]elbowroom:[/] {account.name}: {say_bytes(ledger.saved_bytes)} saved → "
            f"{say_bytes(ledger.kept_bytes)} kept ([bold]{ledger.ratio:.1f}x[/]) in the last of "
            f"{account.passes} passes, gradient error at most {account.gradient_error:.2g} of its "
            f"variance{BLIND if is_blind else ''}, "
            f"{account.encode_s + account.decode_s:.1f} s in encoding and decoding"
        )
        peak_bytes = account.peak_bytes
        with suppress(OSError):
            peak_bytes = peak_bytes or Process().peak()
        if peak_bytes:
            line += f", peak of the process {say_bytes(peak_bytes)}"
        console.print(line)


def _write(companion: "Companion", path: Path, accounts: "list[Account]") -> None:
    if not accounts and (companion.is_child or path.exists()):
        return
    if companion.rank:
        path = path.with_name(f"{path.stem}-rank{companion.rank}{path.suffix}")
    elif companion.is_child and companion.rank is None:
        path = path.with_name(f"{path.stem}-process{os.getpid()}{path.suffix}")
    try:
        path.write_text(json.dumps(_content(companion, accounts), indent=1), encoding="utf-8")
    except OSError as error:
        print(f"elbowroom: the ledger could not be written: {error}", file=sys.stderr)


def _content(companion: "Companion", accounts: "list[Account]") -> dict[str, Any]:
    orders = companion.orders
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
                "gradient_error": account.gradient_error,
                "ledger": json.loads(account.ledger.to_json()),
            }
            for account in accounts
        ],
    }
