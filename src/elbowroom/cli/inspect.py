"""The verb `inspect`: what an .er file holds, in words, and whether it is whole."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elbowroom.cli.wording import counted
from elbowroom.errors import CorruptData

if TYPE_CHECKING:
    from elbowroom.cli.storage import Stored
    from elbowroom.codec.blob import Blob
    from elbowroom.codec.recipe import Recipe


def inspect(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A file made by encode.")],
    chunks: Annotated[bool, typer.Option("--chunks", help="List every chunk.")] = False,
    name: Annotated[str | None, typer.Option(help="Show the blob of this name in full.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show what a file holds and verify its checksums."""
    from elbowroom.cli.storage import naming, open_stored, refuse_name

    with open_stored(source) as stored:
        if name is not None and not (stored.named and name in stored.sizes):
            refuse_name(source, name, stored)
        found: list[dict[str, Any]] = []
        for key in [name] if name is not None else stored.sizes:
            with naming(source):
                found.append(describe(key, stored.read(key), chunks=chunks))
    if as_json:
        kind = "archive" if stored.named else "blob"
        facts = {"file": str(source), "bytes": source.stat().st_size, "format": kind}
        typer.echo(json.dumps({**facts, "blobs": found}, indent=2))
    else:
        _print(source, stored, found, full=name is not None or chunks)
    for blob in found:
        if blob["damaged_chunks"]:
            label = f", blob {blob['name']!r}" if stored.named else ""
            first, count = blob["damaged_chunks"][0], len(blob["damaged_chunks"])
            what = f"the checksum of chunk {first} of {blob['chunk_count']} does not match"
            if count > 1:
                what = f"{count} chunks do not match their checksums, the first is chunk {first}"
            raise CorruptData(f"{source}{label}: {what}")


def describe(name: str, blob: "Blob", *, chunks: bool) -> dict[str, Any]:
    """Return everything about a blob as plain values."""
    from elbowroom.cli.arrays import NAMES
    from elbowroom.codec.blob import VERSION, header_nbytes

    recipe = blob.recipe
    directory = check_chunks(blob)
    found: dict[str, Any] = {
        "name": name,
        "version": VERSION,
        "kind": blob.kind,
        "dtype": NAMES[recipe.dtype][0],
        "shape": list(blob.shape),
        "axis_order": list(blob.axis_order),
        "bound": {
            "mode": blob.bound.mode.name.lower(),
            "value": blob.bound.value,
            "keep_sign": blob.bound.keep_sign,
            "promise": promise(blob),
        },
        "recipe": describe_recipe(recipe),
        "raw_bytes": blob.raw_nbytes,
        "encoded_bytes": blob.nbytes,
        "header_bytes": header_nbytes(len(blob.shape), len(directory)),
        "payload_bytes": blob.payload_nbytes,
        "ratio": blob.ratio,
        "chunk_count": len(directory),
        "damaged_chunks": [row["chunk"] for row in directory if not row["intact"]],
    }
    return {**found, "chunks": directory} if chunks else found


def check_chunks(blob: "Blob") -> list[dict[str, Any]]:
    """Return the directory with the verdict on every chunk."""
    import numpy as np

    from elbowroom.codec.checksum import checksum

    pieces = blob.segments
    payload = pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, np.uint8), *pieces])
    length = blob.recipe.chunk_items
    rows: list[dict[str, Any]] = []
    start = 0
    for number, (nbytes, stated) in enumerate(blob.directory.tolist()):
        rows.append(
            {
                "chunk": number,
                "first_item": number * length,
                "items": min(length, blob.item_count - number * length),
                "bytes": nbytes,
                "checksum": f"{stated:08x}",
                "intact": checksum(payload[start : start + nbytes]) == stated,
            }
        )
        start += nbytes
    return rows


def promise(blob: "Blob") -> str:
    """Say what the bound promises about every value."""
    from elbowroom.codec.bound import Mode
    from elbowroom.codec.recipe import Rule

    bound, recipe = blob.bound, blob.recipe
    if bound.mode == Mode.LOSSLESS or not recipe.dtype.is_float:
        return "every bit comes back"
    if bound.mode == Mode.POINTWISE_RELATIVE:
        far = f"no finite value moves by more than {bound.value:g} of itself, signs are kept"
    elif bound.mode == Mode.ABSOLUTE:
        far = f"no finite value moves by more than {bound.value:g}"
    elif recipe.rule == Rule.EXACT:
        far = f"no finite value moves by more than {bound.value:g} of the array's range"
    else:
        far = (
            f"no finite value moves by more than {bound.value:g} of the array's range, "
            f"here {recipe.limit:g}"
        )
    if bound.keep_sign:
        far += ", no sign changes and none but zeros become zero"
    also = "; zeros, infinities and NaN come back as they were"
    exact = "; in fact every bit comes back" if recipe.rule == Rule.EXACT else ""
    return far + also + exact


def describe_recipe(recipe: "Recipe") -> dict[str, Any]:
    """Return the recipe in words, and its numbers."""
    numbers = {name: value for name, value in asdict(recipe).items() if name != "dtype"}
    return {
        **numbers,
        "codec": recipe.codec.name.lower(),
        "rule": recipe.rule.name.lower(),
        "weights": list(recipe.weights),
        "words": [rule_words(recipe), *codec_words(recipe)],
    }


def rule_words(recipe: "Recipe") -> str:
    """Say how values became codes."""
    from elbowroom.codec.recipe import Codec, Rule

    if recipe.codec == Codec.RAW:
        return "values are stored as they are"
    words = {
        Rule.EXACT: "values become codes bit for bit",
        Rule.PLAIN: f"values become the nearest multiple of {recipe.step:g}",
        Rule.SIGNS: f"values fall into bins {recipe.step:g} wide, none of which holds both signs",
        Rule.DITHER: (
            f"values fall into bins {recipe.step:g} wide, shifted by noise of seed {recipe.seed}"
        ),
        Rule.POINTWISE: (
            f"magnitudes become the nearest multiple of {recipe.step:.0f} of their bit pattern"
        ),
    }[recipe.rule]
    return words + (", negative zero has a code of its own" if recipe.negative_zero else "")


def codec_words(recipe: "Recipe") -> list[str]:
    """Say how codes became bytes."""
    from elbowroom.codec.recipe import Codec, Model, Predictor

    if recipe.codec == Codec.RAW:
        return []
    if recipe.codec == Codec.BLOCK:
        words = ["blocks of 64 codes are stored in as many bit planes as each needs"]
        differences = {
            Predictor.LEFT: "to the code before",
            Predictor.ABOVE: f"to the code {recipe.columns} earlier",
            Predictor.PLANE: f"in planes of {counted(recipe.rows, 'row')} of {recipe.columns}",
        }.get(Predictor(recipe.method))
        return [*words, f"what is stored are differences {differences}"] if differences else words
    model = Model(recipe.method)
    if model == Model.SPARSE:
        return ["codes are mostly zero: where they are not is entropy-coded, then what they are"]
    coded = "codes" if model == Model.CODE else "errors of the prediction"
    chooser = {
        Model.CODE: "the prediction chooses the table",
        Model.FLAT: "one table serves all",
        Model.ALONG: "those before choose the table",
        Model.ACROSS: "those above choose the table",
        Model.BOTH: "the mean of those before and above chooses the table",
        Model.GRID: "those before and those above choose the table",
    }[model]
    names = ("left", "above", "above left", "above right")
    terms = [
        f"{weight / 64:+.3g} {name}"
        for weight, name in zip(recipe.weights, names, strict=True)
        if weight
    ]
    words = [
        f"{coded} are entropy-coded, {chooser}",
        f"prediction: {' '.join(terms) if terms else 'zero'}",
    ]
    if recipe.columns:
        words.append(f"rows of {recipe.columns}, planes of {counted(recipe.rows, 'row')}")
    return words


def _print(source: Path, stored: "Stored", found: list[dict[str, Any]], *, full: bool) -> None:
    from elbowroom.cli.tables import print_facts, print_table

    if stored.named:
        kind = f"archive of {counted(len(stored.sizes), 'blob')}"
    else:
        kind = "one blob"
    print_facts([("file", str(source)), ("holds", f"{kind}, {source.stat().st_size:,} bytes")])
    if stored.named and not full:
        headings = ["name", "dtype", "shape", "codec", "bound", "raw bytes", "encoded", "ratio"]
        rows = [
            [
                blob["name"] or "-",
                blob["dtype"],
                _shape(blob),
                blob["recipe"]["codec"],
                _bound(blob["bound"]),
                f"{blob['raw_bytes']:,}",
                f"{blob['encoded_bytes']:,}",
                f"{blob['ratio']:.2f}",
                _state(blob),
            ]
            for blob in found
        ]
        print_table([*headings, "checksums"], rows, text_columns=(0, 1, 2, 3, 4, 8))
        return
    for blob in found:
        print_facts(_facts(blob, named=stored.named))
        if "chunks" in blob:
            headings = ["chunk", "first item", "items", "bytes", "checksum", "state"]
            rows = [
                [
                    str(row["chunk"]),
                    f"{row['first_item']:,}",
                    f"{row['items']:,}",
                    f"{row['bytes']:,}",
                    row["checksum"],
                    "intact" if row["intact"] else "damaged",
                ]
                for row in blob["chunks"]
            ]
            print_table(headings, rows, text_columns=(4, 5))


def _facts(blob: dict[str, Any], *, named: bool) -> list[tuple[str, str]]:
    row_major = blob["axis_order"] == sorted(blob["axis_order"])
    layout = "row-major" if row_major else f"axes in memory {blob['axis_order']}"
    items = counted(math.prod(blob["shape"]), "item")
    words = blob["recipe"]["words"]
    return [
        *([("name", blob["name"])] if named else []),
        ("array", f"{blob['kind']} {blob['dtype']} {_shape(blob)}, {items}, {layout}"),
        ("promise", blob["bound"]["promise"]),
        ("codec", f"{blob['recipe']['codec']}, format version {blob['version']}"),
        *[("" if number else "recipe", text) for number, text in enumerate(words)],
        (
            "bytes",
            f"{blob['encoded_bytes']:,} for {blob['raw_bytes']:,} "
            f"(header {blob['header_bytes']:,}, payload {blob['payload_bytes']:,})",
        ),
        ("ratio", f"{blob['ratio']:.2f}"),
        ("checksums", _state(blob)),
    ]


def _bound(bound: dict[str, Any]) -> str:
    words = bound["mode"].replace("_", "-")
    return words if bound["mode"] == "lossless" else f"{words} {bound['value']:g}"


def _shape(blob: dict[str, Any]) -> str:
    return "x".join(map(str, blob["shape"])) or "scalar"


def _state(blob: dict[str, Any]) -> str:
    damaged = len(blob["damaged_chunks"])
    if damaged:
        return f"{damaged} of {counted(blob['chunk_count'], 'chunk')} damaged"
    return "header and payload match"
