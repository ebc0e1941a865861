"""Blobs to damage, and damage of every kind: in the header, the directory and the payload."""

import math
import random
import struct

import torch

from elbowroom import Bound, encode
from elbowroom.codec.blob import header_nbytes
from elbowroom.codec.checksum import checksum
from tests.codec.arrays import CONTENTS, DTYPES, make_values

# Offsets and types of docs/format.md.
NDIM, CHUNKS, PAYLOAD, RECIPE, SHAPE = 7, 12, 24, 32, 96
HEADER_FIELDS = [
    *((0, "I"), (4, "H"), (6, "B"), (NDIM, "B"), (8, "B"), (9, "B"), (10, "H")),
    *((CHUNKS, "I"), (16, "d"), (PAYLOAD, "Q")),
]
RECIPE_FIELDS = [
    *((0, "B"), (1, "B"), (2, "B"), (3, "B"), (4, "I"), (8, "d"), (16, "d"), (24, "d"), (32, "B")),
    *((33, "B"), (36, "I"), (40, "I"), (44, "h"), (46, "h"), (48, "h"), (50, "h")),
    *((52, "B"), (53, "b"), (60, "I")),
]
EDGES = [0, 1, 2, 3, 63, 64, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]
NUMBERS = [0.0, 1.0, -1.0, 0.5, 1e-3, 2.0**-149, 2.0**127, 1e300, math.inf, math.nan]


def blobs() -> list[bytes]:
    """Small blobs of every codec, type and kind of bound; two of more than one chunk."""
    bounds = [
        Bound.lossless(),
        Bound.absolute(1e-2),
        Bound.absolute(1e-2, keep_sign=True),
        Bound.range_relative(1e-3),
        Bound.pointwise_relative(1e-2),
    ]
    shapes = [(700,), (20, 30), (5, 12, 10), (64,), (1,), (3, 0), (1000, 1)]
    made = []
    for number, dtype in enumerate(DTYPES * 4):
        shape = shapes[number % len(shapes)]
        content = CONTENTS[number % 4]
        count = math.prod(shape)
        x = make_values(max(count, 1), dtype, content, number)[:count].reshape(shape)
        codec = ("dense", "block", "auto", "raw", "dense", "block")[number % 6]
        lossy = dtype.is_floating_point and number % 5 == 1
        dither = number if lossy else None
        array = x.numpy() if number % 2 and dtype != torch.bfloat16 else x
        made.append(encode(array, bounds[number % 5], codec=codec, dither=dither).tobytes())
    long = torch.cat([torch.zeros(60000), torch.ones(80000)])
    made.append(encode(long, bounds[1], codec="block", effort="speed").tobytes())
    made.append(encode(long.reshape(700, 200), bounds[2], codec="dense").tobytes())
    # Nearly all zero: the model sparse, with and without rows and failed items.
    rare = make_values(6000, torch.float32, "noisy", 1)
    rare[rare.abs() < rare.abs().quantile(0.97)] = 0
    made += [encode(x, bounds[3], codec="dense").tobytes() for x in (rare, rare.reshape(40, 150))]
    rare[::1000] = math.nan
    limit = Bound.absolute(rare.nan_to_num().abs().max().item() / 100)
    made += [encode(x, limit, codec="dense").tobytes() for x in (rare, rare.reshape(40, 150))]
    return made


def mutated(data: bytes, rng: random.Random, *, repair: bool) -> bytes:
    """A blob with one to three changes; with `repair`, sizes and checksums fit them again."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 3])):
        _change(changed, rng)
    return repaired(changed) if repair else bytes(changed)


def _start_of_payload(data: bytearray) -> int:
    if len(data) < SHAPE:
        return len(data)
    chunks = struct.unpack_from("<I", data, CHUNKS)[0]
    return min(header_nbytes(data[NDIM], chunks), len(data))


def _change(data: bytearray, rng: random.Random) -> None:
    start = _start_of_payload(data)
    kind = rng.randrange(12)
    if kind == 0:
        _change_field(data, rng, 0, HEADER_FIELDS)
    elif kind in (1, 2):
        _change_field(data, rng, RECIPE, RECIPE_FIELDS)
    elif kind == 3:  # shape, axis order, directory, checksum of the header
        field = rng.choice([(offset, "Q") for offset in range(SHAPE, max(start, SHAPE + 1), 8)])
        _change_field(data, rng, 0, [field, (field[0] + rng.randrange(8), "B")])
    elif kind == 4:
        del data[rng.randrange(len(data) + 1) :]
    elif kind == 5:
        data += rng.randbytes(rng.choice([1, 2, 8, 100]))
    elif kind == 6 and start < len(data):
        at = rng.randrange(start, len(data))
        data[at:at] = rng.randbytes(rng.choice([1, 2, 4, 8]))
    elif kind == 7 and start < len(data):
        at = rng.randrange(start, len(data))
        del data[at : at + rng.choice([1, 2, 4, 8])]
    elif kind == 8 and start < len(data):
        at, source = rng.randrange(start, len(data)), rng.randrange(start, len(data))
        length = min(rng.randrange(1, 64), len(data) - max(at, source))
        data[at : at + length] = data[source : source + length]
    elif start < len(data):
        # The front of a chunk says how the rest is to be read.
        end = min(start + 64, len(data)) if rng.random() < 0.5 else len(data)
        at = rng.randrange(start, end)
        if rng.random() < 0.5:
            data[at] ^= 1 << rng.randrange(8)
        else:
            _change_field(data, rng, 0, [(at, rng.choice(["B", "H", "I"]))])


def _change_field(
    data: bytearray, rng: random.Random, base: int, fields: list[tuple[int, str]]
) -> None:
    offset, layout = rng.choice(fields)
    size = struct.calcsize(f"<{layout}")
    at = base + offset
    if at + size > len(data):
        return
    if layout == "d":
        (old,) = struct.unpack_from("<d", data, at)
        number = rng.choice([*NUMBERS, old * 2, old / 2, rng.random()])
        struct.pack_into("<d", data, at, number)
        return
    old = int.from_bytes(data[at : at + size], "little")
    value = rng.choice(
        [rng.choice(EDGES), rng.randrange(24), old + 1, old - 1, rng.getrandbits(64)]
    )
    data[at : at + size] = (value % 256**size).to_bytes(size, "little")


def repaired(blob: bytes | bytearray) -> bytes:
    """Let the last chunk take what is left, and compute all checksums anew."""
    data = bytearray(blob)
    chunks = struct.unpack_from("<I", data, CHUNKS)[0] if len(data) >= SHAPE else 0
    start = header_nbytes(data[NDIM], chunks) if len(data) >= SHAPE else SHAPE
    if start > len(data):
        return bytes(data)
    directory = start - 8 - 8 * chunks
    at = start
    for chunk in range(chunks):
        (size,) = struct.unpack_from("<I", data, directory + 8 * chunk)
        if chunk == chunks - 1 or at + size > len(data):
            size = len(data) - at
        body = bytes(data[at : at + size])
        struct.pack_into("<II", data, directory + 8 * chunk, size, checksum(body))
        at += size
    struct.pack_into("<Q", data, PAYLOAD, at - start)
    struct.pack_into("<I", data, start - 8, checksum(bytes(data[: start - 8])))
    return bytes(data)
