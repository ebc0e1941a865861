"""GB/s of the codec beside memcpy, SZ3, 4-bit groups and bf16, and its overhead and memory.

Everything runs in one thread and in turns; nothing else should run on the machine.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from elbowroom import _native
from elbowroom.bench.activations import Tensor, list_activations
from elbowroom.bench.machine import describe
from elbowroom.bench.memory import Peak, measure_peaks
from elbowroom.bench.peers import installed_peers
from elbowroom.bench.ratio import write_text
from elbowroom.bench.speed import SpeedCell, measure_overhead, measure_speed
from elbowroom.bench.speed_tables import (
    memory_table,
    overhead_table,
    speed_record,
    speed_tables,
    thread_table,
)
from elbowroom.bench.verification import extent
from elbowroom.codec.bound import Bound
from elbowroom.errors import ElbowroomError

CACHE = Path(__file__).resolve().parents[1] / ".cache"
SMALL = ("resnet_post_relu_early", "resnet_pre_bn_early", "transformer_post_gelu_early")
SMALL_ROUNDS = 40


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--activations", type=Path, default=CACHE / "activations")
    parser.add_argument("--bounds", type=float, nargs="+", default=[1e-1, 1e-2, 1e-3])
    parser.add_argument("--isa", nargs="+", default=None, help="default: all but scalar")
    parser.add_argument("--rounds", type=int, default=7, help="for large arrays; small: 40")
    parser.add_argument("--small-only", action="store_true", help="leave out the large arrays")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--out", type=Path, default=CACHE / "bench" / "codec_speed.json")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    parser.add_argument(
        "--smoke", action="store_true", help="small random arrays and few rounds: does it run?"
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    # Highest first: that is the one users get.
    levels = options.isa or [isa for isa in _native.isa_levels()[::-1] if isa != "scalar"]
    levels = levels or _native.isa_levels()
    peers = [] if options.no_peers else installed_peers()[0]
    try:
        small, large = choose_tensors(options)
    except ElbowroomError as error:
        sys.exit(str(error))
    rounds = 2 if options.smoke else options.rounds
    small_rounds = 2 if options.smoke else max(rounds, SMALL_ROUNDS)
    cells: list[SpeedCell] = []
    single: list[SpeedCell] = []
    doubled: list[SpeedCell] = []
    peaks: list[tuple[str, Peak]] = []
    for tensor in [*small, *large]:
        x = tensor.read()
        assert isinstance(x, np.ndarray)
        is_large = tensor in large
        for bound in options.bounds:
            tell(f"{tensor.name}, {x.nbytes / 1e6:.0f} MB, at {bound:g} of its range")
            count = rounds if is_large else small_rounds
            cells.append(
                measure_speed(tensor.name, x, bound, isas=levels, peers=peers, rounds=count)
            )
            if is_large:
                single.append(cells[-1])
                doubled.append(
                    measure_speed(tensor.name, x, bound, isas=levels[:1], rounds=count, threads=2)
                )
        if is_large or not large:
            allowed = Bound.range_relative(1e-2).resolve(*extent(x))
            for codec in ("block",) if options.smoke else ("block", "dense"):
                tell(f"{tensor.name}, memory of {codec}")
                peaks += [(tensor.name, peak) for peak in measure_peaks(x, allowed, codec)]
    tell("calls on 4 KB")
    overhead = measure_overhead(calls=20 if options.smoke else 2000)
    record = {
        "machine": describe(),
        "isa": levels,
        "one_thread": speed_record(cells),
        "two_threads": speed_record(doubled),
        "overhead_us": overhead,
        "memory": [{"tensor": name, **asdict(peak)} for name, peak in peaks],
    }
    text = json.dumps(record, indent=1, allow_nan=False)
    write_text(options.out, text + "\n")
    if options.json:
        print(text)
        return
    tables = speed_tables(cells, levels)
    if doubled:
        tables.append(thread_table(single, doubled, levels[0]))
    tables += [overhead_table(overhead), memory_table(peaks)]
    print("\n".join(table.markdown() for table in tables))


def choose_tensors(options: argparse.Namespace) -> tuple[list[Tensor], list[Tensor]]:
    """Return small and large tensors of the set, or random ones."""
    if options.smoke:
        values = np.random.default_rng(0).standard_normal((4, 8, 16, 16)).astype(np.float32)
        more = np.tile(values, (4, 1, 1, 1))
        return (
            [Tensor(name="random", kind="random", read=lambda: values)],
            [Tensor(name="more random", kind="random", read=lambda: more)],
        )
    tensors = list_activations(options.activations)
    small = [tensor for tensor in tensors if tensor.name in SMALL]
    large = [] if options.small_only else list_activations(options.activations, large=True)
    return small, large


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
