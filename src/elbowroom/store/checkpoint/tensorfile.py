"""Files of tensors that other programs read and write: .safetensors, and .pt of torch.save.

What is written can be read with `torch.load(weights_only=True)`, and was read back and compared
before it appears under its name. Nothing that is read can run.
"""

import os
import re
import secrets
import stat
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.host import available_bytes
from elbowroom.store.checkpoint.layout import rows
from elbowroom.store.checkpoint.state import flatten

SAFETENSORS_ENDING = ".safetensors"
TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")
_SHOWN = 8


def is_safetensors(path: Path) -> bool:
    """Whether a file holds nothing but tensors, going by its ending; other endings are refused."""
    ending = path.suffix.lower()
    if ending not in (SAFETENSORS_ENDING, *TORCH_ENDINGS):
        endings = ", ".join((SAFETENSORS_ENDING, *TORCH_ENDINGS))
        raise InvalidArgument(f"{path} must end in one of {endings}, which say what it holds")
    return ending == SAFETENSORS_ENDING


def write_file(held: Any, target: Path, *, replace: bool) -> int:
    """Have it there whole and durable, or not at all; return its size in bytes."""
    refuse_existing(target, replace=replace)
    with _write_aside(target, replace) as aside:
        (_write_safetensors if is_safetensors(target) else _write_torch)(held, aside, target)
        return aside.stat().st_size


def read_file(source: Path) -> Any:
    """What a file holds, on the host."""
    read = _read_safetensors if is_safetensors(source) else _read_torch
    if not source.is_file():
        raise InvalidArgument(f"{source} is not there: check the name")
    return read(source)


def refuse_existing(path: Path, *, replace: bool) -> None:
    """Refuse to replace a file unasked, and what is no plain file at all."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise InvalidArgument(f"the folder of {path} is not there: make it first") from None
        return
    if not stat.S_ISREG(mode):
        raise InvalidArgument(f"{path} is there and no plain file: choose another name")
    if not replace:
        raise InvalidArgument(f"{path} is there already: have it replaced, or choose another name")


def check_memory(nbytes: int, what: str) -> None:
    """Refuse what would not fit, before memory is taken for it."""
    if nbytes > available_bytes():
        raise InvalidArgument(
            f"{what} says that it has {nbytes:,} bytes, more than the {available_bytes():,} of "
            "memory that are free"
        )


def listed(words: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    rest = f" and {len(words) - _SHOWN} more" if words[_SHOWN:] else ""
    return ", ".join(words[:_SHOWN]) + rest


def _write_torch(held: Any, aside: Path, target: Path) -> None:
    torch.save(held, aside)
    try:
        back = torch.load(aside, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise InvalidArgument(
            f"{target} could not be read with weights_only=True: {_reason(error)}"
        ) from None
    (tree, wrote), (tree_again, read) = flatten(held, "state"), flatten(back, "state")
    if tree != tree_again:
        _complain(target)
    for (_, a), (_, b) in zip(wrote, read, strict=True):
        _compare(a, b, target)


def _write_safetensors(held: dict[str, Tensor], aside: Path, target: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    for name in held:
        if name == "__metadata__" or name.encode("utf-8", "ignore").decode() != name:
            raise InvalidArgument(f"{target} cannot hold a tensor named {name!r}: write .pt")
    # Rows one after another: what lies otherwise is refused by the format.
    whole = {
        name: tensor.contiguous().as_strided(tensor.shape, rows(tuple(tensor.shape)))
        for name, tensor in held.items()
    }
    try:
        save_file(whole, aside, metadata={"format": "pt"})
    except KeyError as error:
        names = [repr(name) for name, tensor in whole.items() if tensor.dtype in error.args]
        raise InvalidArgument(
            f"{target} cannot hold {listed(names)} of type {error.args[0]}: write .pt"
        ) from None
    with safe_open(aside, framework="pt") as file:
        for name, tensor in whole.items():
            _compare(tensor, file.get_tensor(name), target)


def _compare(wrote: Tensor, read: Tensor, target: Path) -> None:
    looks = [(tensor.dtype, tensor.shape, tensor.stride()) for tensor in (wrote, read)]
    if looks[0] != looks[1] or not torch.equal(_bits_of(wrote), _bits_of(read)):
        _complain(target)


def _bits_of(tensor: Tensor) -> Tensor:
    # By strides: torch takes a single item for contiguous whatever strides it has.
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _complain(target: Path) -> NoReturn:
    raise CorruptData(f"{target} does not hold what was written to it: the disk may be failing")


@contextmanager
def _write_aside(path: Path, replace: bool) -> Iterator[Path]:
    # A name that nobody knows before, and that must not be there: a link is not followed.
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        # The mode that the user gives new files: safetensors lets nobody else read its own.
        aside.touch(exist_ok=False)
        mode = stat.S_IMODE(aside.stat().st_mode)
        yield aside
        aside.chmod(mode)
        _sync(aside)
        refuse_existing(path, replace=replace)
        aside.replace(path)
        _sync(path.parent)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise CorruptData(
            f"{path} is not a .safetensors file, or a damaged one ({_reason(error)})"
        ) from None


def _read_torch(path: Path) -> Any:
    try:
        if zipfile.is_zipfile(path):
            # Members may be compressed, and be much more than the file.
            with zipfile.ZipFile(path) as archive:
                check_memory(sum(member.file_size for member in archive.infolist()), str(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what the file was written with
            return torch.load(path, map_location="cpu", weights_only=True)
    except (PermissionError, InvalidArgument):
        raise
    except Exception as error:  # of many types, for a file can be anything
        found = re.search(r"GLOBAL (\S+)", str(error))
        if found:
            raise InvalidArgument(
                f"{path} holds a {found[1]}, and only tensors and plain values are read from a "
                "file: save a state_dict"
            ) from None
        raise CorruptData(f"{path} is not a file of torch.save, or a damaged one") from None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
