"""Frequency tables of the dense codec: from counts, to bits and back."""

import struct

import numpy as np
from numpy.typing import NDArray

from elbowroom.errors import CorruptData

SYMBOLS = 256

# One row a context, one column a symbol; a context that does not occur has zeros.
Tables = NDArray[np.int64]


def choose_precision(n: int, counts: NDArray[np.int64]) -> int:
    """P of a chunk of n codes, whose symbols have these counts in each context."""
    if n < 32768:
        return 11
    total, largest, kinds = counts.sum(axis=1), counts.max(axis=1), np.count_nonzero(counts, axis=1)
    skewed = (kinds >= 2) & (64 * (total - largest) < total)
    if 2 * total[skewed].sum() >= total.sum():
        return 12
    return 11 if kinds.sum() <= 32 * np.count_nonzero(kinds) else 12


def frequencies(counts: NDArray[np.int64], precision: int) -> NDArray[np.int64]:
    """Frequencies that sum to 2^precision, at least 1 for every symbol that occurs."""
    total = int(counts.sum())
    f = [max(1, (2 * c * 2**precision + total) // (2 * total)) if c else 0 for c in counts.tolist()]
    while missing := 2**precision - sum(f):
        largest = f.index(max(f))
        f[largest] += missing if missing > 0 else -min(-missing, f[largest] - 1)
    return np.array(f, dtype=np.int64)


def build_tables(
    n: int, contexts: NDArray[np.int64], symbols: NDArray[np.int64], context_count: int
) -> tuple[int, Tables]:
    """Precision and tables of the symbols of a chunk of n codes."""
    counts = np.zeros((context_count, SYMBOLS), dtype=np.int64)
    np.add.at(counts, (contexts.ravel(), symbols.ravel()), 1)
    precision = choose_precision(n, counts)
    rows = [frequencies(row, precision) if row.any() else row for row in counts]
    return precision, np.array(rows, dtype=np.int64)


def pack_tables(tables: Tables) -> bytes:
    """The set of contexts, then their tables as a stream of bits."""
    occurring, bits = 0, ""
    for context, row in enumerate(tables):
        if not row.any():
            continue
        occurring |= 1 << context
        lowest, highest = np.flatnonzero(row)[[0, -1]].tolist()
        fields = [(lowest, 8), (highest, 8)]
        for f in row[lowest : highest + 1].tolist():
            length = f.bit_length()
            fields.append((length, 4))
            if length > 1:
                fields.append((f - (1 << length - 1), length - 1))
        # Lowest bit first: the reverse of how numbers are printed.
        bits += "".join(f"{value:0{width}b}"[::-1] for value, width in fields)
    stream = np.packbits(np.array(list(bits), dtype=np.uint8), bitorder="little").tobytes()
    return struct.pack("<Q", occurring) + stream + bytes(-len(stream) % 8)


class _BitReader:
    """Fields of bits from the lowest bit of each byte up."""

    def __init__(self, data: bytes) -> None:
        self.bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little").tolist()
        self.at = 0

    def take(self, width: int) -> int:
        field = self.bits[self.at : self.at + width]
        if len(field) < width:
            raise CorruptData("tables: cut off")
        self.at += width
        return sum(bit << i for i, bit in enumerate(field))


def _read_row(reader: _BitReader, context: int, precision: int) -> list[int]:
    lowest, highest = reader.take(8), reader.take(8)
    if lowest > highest:
        raise CorruptData(f"tables: context {context}: symbols from {lowest} to {highest}")
    row = [0] * SYMBOLS
    for symbol in range(lowest, highest + 1):
        length = reader.take(4)
        if length:
            row[symbol] = 1 << length - 1 | reader.take(length - 1)
    if sum(row) != 2**precision:
        raise CorruptData(f"tables: context {context}: sum {sum(row)}, expected {2**precision}")
    if not (row[lowest] and row[highest]):
        raise CorruptData(f"tables: context {context}: an outermost symbol does not occur")
    return row


def unpack_tables(data: bytes, context_count: int, precision: int) -> Tables:
    """The tables in some bytes; CorruptData if they are anything else."""
    if len(data) < 8 or len(data) % 8:
        raise CorruptData(f"tables: {len(data)} bytes")
    occurring = struct.unpack_from("<Q", data)[0]
    if occurring >> context_count:
        raise CorruptData(f"tables: contexts {occurring:#x}, the model has {context_count}")
    reader = _BitReader(data[8:])
    tables = np.zeros((context_count, SYMBOLS), dtype=np.int64)
    for context in range(context_count):
        if occurring >> context & 1:
            tables[context] = _read_row(reader, context, precision)
    rest = reader.bits[reader.at :]
    if len(rest) >= 64 or any(rest):
        raise CorruptData("tables: not filled with zeros to a multiple of 8 bytes")
    return tables
