"""Text as numbers: every character is a symbol, the last tenth is held out."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.science.data import locate_first
from elbowroom.science.files import require_file

HELD_OUT_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text, cut in two."""

    symbols: str  # the character of every number
    train: Tensor
    held_out: Tensor

    def __str__(self) -> str:
        return "".join(self.symbols[code] for code in [*self.train, *self.held_out])


def load_text(folder: Path | None = None) -> Text:
    """Return tiny Shakespeare, or the plays that `elbowroom data get shakespeare` brings."""
    _, paths = locate_first("tinyshakespeare", "shakespeare", folder=folder)
    return read_text(*(paths[name] for name in sorted(paths)))


def read_text(*paths: Path) -> Text:
    """Read files of UTF-8, one after the other."""
    parts: list[str] = []
    for path in paths:
        try:
            parts.append(require_file(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise CorruptData(f"{path} is not UTF-8 from byte {error.start} on") from None
    return number(parts)


def number(parts: list[str]) -> Text:
    """Number the characters; of every part the last tenth is held out."""
    symbols = "".join(sorted(set("".join(parts))))
    if len(symbols) < 2:
        raise InvalidArgument(f"a text of at least two symbols is needed, got {len(symbols)}")
    known = np.array([ord(symbol) for symbol in symbols], dtype=np.uint32)
    train: list[Tensor] = []
    held_out: list[Tensor] = []
    for part in parts:
        points = np.frombuffer(part.encode("utf-32-le"), dtype=np.uint32)
        codes = torch.from_numpy(np.searchsorted(known, points).astype(np.int64))
        cut = len(codes) - int(HELD_OUT_SHARE * len(codes))
        train.append(codes[:cut])
        held_out.append(codes[cut:])
    return Text(symbols=symbols, train=torch.cat(train), held_out=torch.cat(held_out))
