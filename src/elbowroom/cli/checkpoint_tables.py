"""Checkpoints in words: tables, trees and JSON of what a store has."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from elbowroom.cli.wording import SHOWN_NAMES, counted, printable

if TYPE_CHECKING:
    from rich.tree import Tree

    from elbowroom.store.checkpoint.comparison import Comparison, Survey
    from elbowroom.store.checkpoint.exchange import Exported
    from elbowroom.store.checkpoint.manifest import Entry
    from elbowroom.store.checkpoint.naming import Name
    from elbowroom.store.checkpoint.outline import Node, Stored
    from elbowroom.store.checkpoint.reading import Damage

PROGRESS_FROM_BYTES = 64 * 10**6
SHOWN_CHARACTERS = 60

Document = dict[str, Any]


def print_json(document: Document) -> None:
    """Print one document; numbers that JSON lacks become null."""
    typer.echo(json.dumps(_plain(document), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


@contextmanager
def show_progress(*, hidden: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal while there is much to read; yield what moves it on."""
    if hidden or not sys.stderr.isatty():
        yield lambda nbytes, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None, visible=False)

        def tell(nbytes: int, total: int) -> None:
            is_long = total >= PROGRESS_FROM_BYTES
            progress.update(task, advance=nbytes, total=total, visible=is_long)

        yield tell


def identity(name: "Name") -> Document:
    """What a checkpoint is called."""
    return {"step": name.step, "id": name.id}


def list_document(survey: "Survey", now_s: float) -> Document:
    """All checkpoints and the totals, as plain values."""
    return {
        "checkpoints": [
            {
                **identity(holding.name),
                "created_s": holding.created_s,
                "age_s": now_s - _number(holding.created_s),
                "state_bytes": holding.state_bytes,
                "alone_bytes": holding.alone_bytes,
                "shared_bytes": holding.shared_bytes,
                "tensors": holding.tensors,
                "ranks": holding.ranks,
                "readable": holding.is_readable,
                "problem": holding.problem,
            }
            for holding in survey.holdings
        ],
        "files": survey.files,
        "bytes": survey.nbytes,
        "leftover_files": survey.leftover_files,
        "leftover_bytes": survey.leftover_bytes,
        "foreign": list(survey.foreign),
    }


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.nan


def print_list(document: Document) -> None:
    """Print one line a checkpoint, the newest last."""
    from elbowroom.cli.tables import print_table
    from elbowroom.store.checkpoint.tensorfile import listed

    headings = ["step", "age", "state", "alone", "shared", "tensors", "ranks", "condition"]
    rows = [
        [
            str(row["step"]),
            say_age(row["age_s"]),
            f"{row['state_bytes']:,}" if row["readable"] else "-",
            f"{row['alone_bytes']:,}",
            f"{row['shared_bytes']:,}" if row["readable"] else "-",
            str(row["tensors"]) if row["readable"] else "-",
            str(row["ranks"]) if row["readable"] else "-",
            printable(row["problem"] or "readable"),
        ]
        for row in document["checkpoints"]
    ]
    remarks = [
        f"{document['store']}: {counted(len(rows), 'checkpoint')} in "
        f"{counted(document['files'], 'file')} of {counted(document['bytes'], 'byte')}"
    ]
    if document["leftover_files"]:
        remarks.append(
            f"{counted(document['leftover_files'], 'file')} of "
            f"{counted(document['leftover_bytes'], 'byte')} belong to no readable checkpoint: left "
            "behind, or being written"
        )
    if document["foreign"]:
        remarks.append(
            f"{counted(len(document['foreign']), 'file')} that no run has written, left alone: "
            + listed([printable(name) for name in document["foreign"]])
        )
    if rows:
        print_table(headings, rows, remarks=remarks, text_columns=(7,))
    else:
        print_lines(remarks)


def say_age(seconds: float) -> str:
    """In the largest unit that is not above it."""
    if not math.isfinite(seconds):
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def print_lines(lines: Sequence[str]) -> None:
    """Print lines as they are."""
    from elbowroom.cli.tables import make_console

    for line in lines:
        make_console().print(line, emoji=False)


def print_verdicts(document: Document) -> None:
    """Print what was read, and all damage that was found."""
    from elbowroom.cli.tables import print_table

    rows = [
        [
            str(row["step"]),
            str(row["tensors"]),
            f"{row['bytes']:,}",
            f"{len(row['damage'])} damaged" if row["damage"] else "whole",
        ]
        for row in document["checkpoints"]
    ]
    print_table(["step", "tensors", "bytes", "condition"], rows, text_columns=(3,))
    found = [
        [str(row["step"]), *(printable(one[key]) for key in ("tensor", "file", "what"))]
        for row in document["checkpoints"]
        for one in row["damage"]
    ]
    if found:
        print_lines([""])
        print_table(["step", "tensor", "file", "what"], found, text_columns=(1, 2, 3))


def damage_document(damage: "Sequence[Damage]") -> list[Document]:
    """Damage as plain values."""
    return [{"tensor": one.where, "file": one.file, "what": one.what} for one in damage]


def diff_document(found: "Comparison") -> Document:
    """What differs, as plain values."""
    return {
        "changed": found.count("changed"),
        "new": found.count("new"),
        "gone": found.count("gone"),
        "same": found.count("same"),
        "tensors": [
            {
                "tensor": change.where,
                "rank": change.rank,
                "status": change.status,
                "bytes": change.nbytes,
                "before": _looks(change.before),
                "after": _looks(change.after),
                "changed_share": change.share,
                "max_difference": change.most_difference,
                "relative_norm": change.relative_norm,
                "nonfinite_items": change.nonfinite_items,
                "problem": change.problem,
            }
            for change in found.tensors
        ],
        "values": [
            {
                "value": change.where,
                "rank": change.rank,
                "status": change.status,
                "before": change.before,
                "after": change.after,
            }
            for change in found.values
        ],
    }


def print_diff(document: Document, *, values: bool) -> None:
    """Print what is not the same, what changed most first."""
    from elbowroom.cli.tables import print_table

    headings = ["tensor", "status", "type and shape", "bytes", "changed"]
    headings += ["max |difference|", "relative norm"] if values else []
    rows = [_diff_row(row, values) for row in document["tensors"] if row["status"] != "same"]
    total = ", ".join(f"{document[word]:,} {word}" for word in ("changed", "new", "gone", "same"))
    if rows:
        print_table(headings, rows, remarks=[f"tensors: {total}"], text_columns=(0, 1, 2))
    else:
        print_lines([f"tensors: {total}"])
    others = [
        [printable(row["value"]), row["status"], _short(row["before"]), _short(row["after"])]
        for row in document["values"]
    ]
    if others:
        print_lines([""])
        print_table(["value", "status", "before", "after"], others, text_columns=(0, 1, 2, 3))


def _diff_row(row: Document, values: bool) -> list[str]:
    looks = [say_looks(row[key]) for key in ("before", "after") if row[key]]
    share = row["changed_share"]
    words = [
        printable(row["tensor"]) + (f" of rank {row['rank']}" if row["rank"] else ""),
        row["status"],
        looks[0] if looks[0] == looks[-1] else f"{looks[0]} to {looks[-1]}",
        f"{row['bytes']:,}",
        "damaged" if row["problem"] else "-" if share is None else f"{share:.1%}",
    ]
    if values:
        words += ["-" if row[key] is None else f"{row[key]:.3g}" for key in _MEASURES]
    return words


_MEASURES = ("max_difference", "relative_norm")


def _looks(entry: "Entry | None") -> Document | None:
    return None if entry is None else {"dtype": entry.dtype, "shape": list(entry.shape)}


def say_looks(looks: Document) -> str:
    """A type and a shape."""
    return f"{printable(looks['dtype'])} {'x'.join(map(str, looks['shape'])) or 'scalar'}"


def _short(value: Any) -> str:
    from elbowroom.report.wording import shorten

    return "-" if value is None else shorten(printable(repr(value)), SHOWN_CHARACTERS)


def tree_document(node: "Node") -> Document:
    """A state as plain values."""
    found: Document = {"name": _name(node), "kind": node.kind}
    if node.entry is not None and node.stored is not None:
        stored = node.stored
        return {
            **found,
            **(_looks(node.entry) or {}),
            "stride": list(node.entry.stride),
            "bytes": stored.nbytes,
            "coding": stored.coding or "raw",
            "depth": stored.depth,
            "held_bytes": stored.held_bytes,
            "new_bytes": stored.new_bytes,
            "ratio": stored.nbytes / stored.held_bytes if stored.held_bytes else None,
            "same_as": stored.twin,
        }
    if node.children:
        return {**found, "children": [tree_document(child) for child in node.children]}
    return {**found, "value": node.value}


def print_tree(nodes: "Sequence[Node]", title: str) -> None:
    """Print the state of every rank."""
    from rich.text import Text
    from rich.tree import Tree

    from elbowroom.cli.tables import make_console

    tree = Tree(Text(title))
    for rank, node in enumerate(nodes):
        _grow(tree if len(nodes) == 1 else tree.add(Text(f"rank {rank}")), node)
    make_console().print(tree)


def _grow(tree: "Tree", node: "Node") -> None:
    from rich.text import Text

    for child in node.children:
        branch = tree.add(Text(_label(child)))
        _grow(branch, child)


def _label(node: "Node") -> str:
    name = printable(_name(node))
    if node.entry is not None and node.stored is not None:
        looks = say_looks(_looks(node.entry) or {}) if node.kind == "tensor" else "array of numpy"
        return f"{name}  {looks}, {counted(node.stored.nbytes, 'byte')}, {say_stored(node.stored)}"
    if node.children:
        return f"{name}  {node.kind} of {len(node.children):,}"
    if isinstance(node.value, list):
        return f"{name} = {node.kind} of {len(node.value):,}  {_short(node.value)}"
    return f"{name} = {shorten_value(node)}"


def shorten_value(node: "Node") -> str:
    """A value in a few characters; what is empty says what it is."""
    if node.kind == "value":
        return "None" if node.value is None else _short(node.value)
    return f"empty {node.kind}"


def _name(node: "Node") -> str:
    return node.key if isinstance(node.key, str) else repr(node.key)


def say_stored(stored: "Stored") -> str:
    """How a tensor is stored, in words."""
    if not stored.nbytes:
        return "empty"
    if stored.twin is not None:
        return f"the same bytes as {printable(stored.twin)}"
    words = [{"": "raw", "blob": "lossy"}.get(stored.coding, printable(stored.coding))]
    if stored.depth:
        words.append(f"on {counted(stored.depth, 'earlier one')}")
    if 0 < stored.held_bytes < stored.nbytes:
        words.append(f"{stored.nbytes / stored.held_bytes:.2f} times smaller")
    old = stored.held_bytes - stored.new_bytes
    if old:
        part = "" if old == stored.held_bytes else f"{counted(old, 'byte')} "
        words.append(f"{part}shared with an earlier pack")
    return ", ".join(words)


def export_document(done: "Exported") -> Document:
    """What was written, as plain values."""
    return {
        **identity(done.name),
        "tensors": done.tensors,
        "tensor_bytes": done.tensor_bytes,
        "bytes": done.file_bytes,
        "replaced": done.replaced,
        "left_out": list(done.left_out),
    }


def print_export(document: Document) -> None:
    """Say what was written, and what of it is not as it was."""
    lines = [
        f"{document['file']}: step {document['step']}, {counted(document['tensors'], 'tensor')}, "
        f"{counted(document['bytes'], 'byte')}, read back and compared"
    ]
    for place, kind in document["replaced"].items():
        lines.append(f"{printable(place)} is stored as {kind}, which torch.load reads")
    if document["left_out"]:
        count = counted(len(document["left_out"]), "value")
        first = ", ".join(document["left_out"][:SHOWN_NAMES])
        lines.append(f"left out, since no tensor: {count}, such as {printable(first)}")
    print_lines(lines)
