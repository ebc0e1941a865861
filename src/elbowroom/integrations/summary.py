"""What a run says at its end, and the file that it leaves."""

import json
import os
import sys
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
        _show(accounts, companion.orders.memory)
    elif not (companion.is_child or companion.has_children or companion.has_failed):
        print(
            "elbowroom: no module was trained where it could be watched: nothing was compressed",
            file=sys.stderr,
        )


def _show(accounts: "list[Account]", memory: str | None) -> None:
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for account in accounts:
        console.print(_sentence(account, memory))


def _sentence(account: "Account", memory: str | None) -> str:
    from elbowroom.keep.activations.ledger import say_bytes
    from elbowroom.sizes import parse_bytes

    ledger = account.ledger
    on_disk = sum(row.saved_bytes for row in ledger.rows if row.method == "offload")
    disk = f", {say_bytes(on_disk)} of it on disk," if on_disk else ""
    which = "the last" if ledger.step in (0, account.passes) else f"number {ledger.step}"
    is_blind = any("compiled" in row.readers and row.bound > 0 for row in ledger.rows)
    measured = f", measured {account.measured_error:.2g}" if account.measured_error else ""
    line = (
        f"[bold]elbowroom:[/] {account.name}: {say_bytes(ledger.saved_bytes)} saved{disk} → "
        f"{say_bytes(ledger.kept_bytes)} kept in memory ([bold]{ledger.ratio:.1f}x[/]) in {which} "
        f"of {account.passes} passes, gradient error at most {account.gradient_error:.2g} of its "
        f"variance by prediction{measured}{BLIND if is_blind else ''}, "
        f"{account.encode_s + account.decode_s:.1f} s in encoding and decoding"
    )
    if account.peak_bytes:
        line += f", peak of the process {say_bytes(account.peak_bytes)}"
    if memory is not None and account.peak_bytes > parse_bytes(memory):
        line += f", [bold]above the budget of {say_bytes(parse_bytes(memory))}[/]"
    return line


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
                "measured_error": account.measured_error,
                "ledger": json.loads(account.ledger.to_json()),
            }
            for account in accounts
        ],
    }
