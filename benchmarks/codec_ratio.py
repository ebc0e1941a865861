"""Bytes of the codec beside SZ3, zfp, pcodec, zstd and blosc2 on the activation set."""

import argparse
import json
import sys
from pathlib import Path

from elbowroom.bench.activations import list_activations
from elbowroom.bench.machine import describe
from elbowroom.bench.peers import installed_peers
from elbowroom.bench.ratio import (
    BOUNDS,
    SizeCache,
    measure_ratios,
    ratio_record,
    ratio_tables,
    write_text,
)
from elbowroom.errors import ElbowroomError

CACHE = Path(__file__).resolve().parents[1] / ".cache"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--activations", type=Path, default=CACHE / "activations")
    parser.add_argument("--bounds", type=float, nargs="+", default=list(BOUNDS))
    parser.add_argument("--only", default="", help="tensors whose name contains this")
    parser.add_argument("--out", type=Path, default=CACHE / "bench" / "codec_ratio.json")
    parser.add_argument("--peer-sizes", type=Path, default=CACHE / "bench" / "peers.json")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    options = parser.parse_args()
    peers, missing = ([], []) if options.no_peers else installed_peers()
    if missing:
        print(f"Not installed, so not measured: {', '.join(missing)}.", file=sys.stderr)
    try:
        tensors = list_activations(options.activations)
    except ElbowroomError as error:
        sys.exit(str(error))
    cells = measure_ratios(
        [tensor for tensor in tensors if options.only in tensor.name],
        options.bounds,
        peers=peers,
        cache=SizeCache(options.peer_sizes),
        tell=lambda text: print(text, file=sys.stderr, flush=True),
    )
    versions = {peer.package: peer.version for peer in peers}
    record = {"machine": describe(), "peers": versions, "cells": ratio_record(cells)}
    text = json.dumps(record, indent=1, allow_nan=False)
    write_text(options.out, text + "\n")
    if options.json:
        print(text)
    else:
        print("\n".join(table.markdown() for table in ratio_tables(cells)))
    if not all(cell.holds for cell in cells):
        sys.exit("a bound was broken: see the table")


if __name__ == "__main__":
    main()
