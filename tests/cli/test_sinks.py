"""What verbs write to: names that say what they hold, and nothing replaced by mistake."""

import os
from pathlib import Path

import numpy as np
import pytest

import elbowroom as er
from elbowroom.cli.sinks import check_ending

from .conftest import Command


@pytest.mark.parametrize("name", ["y.npy", "y.npz", "y.safetensors", "y.bin", "y", "y.er.npy"])
@pytest.mark.parametrize("force", [False, True])
def test_encode_writes_no_file_that_looks_like_data(
    name: str, force: bool, image: np.ndarray, tmp_path: Path, command: Command
) -> None:
    np.save(tmp_path / "x.npy", image)
    (tmp_path / name).write_bytes(b"precious")
    words = ["--lossless", *(["--force"] if force else [])]
    ended = command("encode", tmp_path / "x.npy", tmp_path / name, *words)
    assert ended.code == 2 and f"{name} must end in .er" in ended.err
    assert (tmp_path / name).read_bytes() == b"precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy", name]


@pytest.mark.parametrize("name", ["y.er", "y.txt", "y"])
def test_decode_writes_no_file_that_looks_encoded(
    name: str, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "x.er").write_bytes(er.encode(np.ones(3), er.Bound.lossless()).tobytes())
    ended = command("decode", tmp_path / "x.er", tmp_path / name, "--force")
    assert ended.code == 2 and f"{name} must end in one of .npy, .npz" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["x.er"]


def test_endings_may_be_in_capitals() -> None:
    check_ending(Path("X.ER"), encoded=True)
    check_ending(Path("X.NPY"))


@pytest.mark.parametrize("way", ["itself", "another path", "hard link", "link"])
@pytest.mark.parametrize("verb", ["encode", "decode"])
def test_no_verb_replaces_what_it_reads(
    verb: str, way: str, image: np.ndarray, tmp_path: Path, command: Command
) -> None:
    # Named so that only being the same file stands in the way.
    ending = ".er" if verb == "encode" else ".npy"
    kept = tmp_path / f"x{ending}"
    if verb == "encode":
        source = tmp_path / "x.npy"
        np.save(source, image)
    else:
        source = tmp_path / "x.er"
        source.write_bytes(er.encode(image, er.Bound.lossless()).tobytes())
    content = source.read_bytes()
    if way == "itself":
        kept = source
    elif way == "another path":
        kept = tmp_path / ".." / tmp_path.name / source.name
    elif way == "hard link":
        os.link(source, kept)
    else:
        kept.symlink_to(source)
    words = ["--force", *(["--lossless"] if verb == "encode" else [])]
    ended = command(verb, source, kept, *words)
    assert ended.code == 2
    reason = "must end in" if kept.suffix == source.suffix else "is the file that is read"
    assert reason in ended.err
    assert source.read_bytes() == content
