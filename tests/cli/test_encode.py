"""`elbowroom encode`: every format, every bound, and refusals that leave no file behind."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import elbowroom as er
from elbowroom.bench import verification
from elbowroom.cli import sources
from elbowroom.codec.archive import Archive

from .conftest import Command

BOUNDS = {
    "absolute": (["--absolute", "1e-2"], er.Bound.absolute(1e-2)),
    "signs": (
        ["--absolute", "1e-2", "--keep-sign"],
        er.Bound.absolute(1e-2, keep_sign=True),
    ),
    "range": (["--range", "1e-3"], er.Bound.range_relative(1e-3)),
    "pointwise": (["--pointwise", "1e-2"], er.Bound.pointwise_relative(1e-2)),
    "lossless": (["--lossless"], er.Bound.lossless()),
}


@pytest.mark.parametrize(("words", "bound"), BOUNDS.values(), ids=BOUNDS.keys())
def test_a_single_array_becomes_one_blob(
    words: list[str], bound: er.Bound, image: np.ndarray, tmp_path: Path, command: Command
) -> None:
    source, target = tmp_path / "x.npy", tmp_path / "x.er"
    np.save(source, image)
    ended = command("encode", source, target, *words)
    assert (ended.code, ended.err) == (0, "")
    assert "x.er" in ended.out
    blob = er.Blob.frombytes(target.read_bytes())
    assert blob.bound == bound
    assert bound.holds(image, er.decode(blob))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.er", "x.npy"]


def test_json_tells_sizes_and_errors(image: np.ndarray, tmp_path: Path, command: Command) -> None:
    np.save(tmp_path / "x.npy", image)
    ended = command("encode", tmp_path / "x.npy", tmp_path / "x.er", "--absolute", "0.05", "--json")
    found = ended.json
    (row,) = found["arrays"]
    assert found["verified"] and found["bytes"] == (tmp_path / "x.er").stat().st_size
    assert row["encoded_bytes"] == found["bytes"]
    assert row["raw_bytes"] == image.nbytes and row["dtype"] == "float32"
    assert row["shape"] == list(image.shape)
    assert 0 < row["largest_error"] <= row["allowed"] == 0.05
    assert row["ratio"] == pytest.approx(image.nbytes / found["bytes"])


def test_verification_can_be_left_out(image: np.ndarray, tmp_path: Path, command: Command) -> None:
    np.save(tmp_path / "x.npy", image)
    words = ("encode", tmp_path / "x.npy", tmp_path / "x.er", "--range", "1e-2", "--no-verify")
    ended = command(*words)
    assert ended.code == 0 and "not verified" in ended.out
    assert "largest_error" not in command(*words, "--force", "--json").json["arrays"][0]


@pytest.mark.parametrize("codec", ["auto", "block", "dense", "raw"])
def test_the_codec_can_be_chosen(
    codec: str, image: np.ndarray, tmp_path: Path, command: Command
) -> None:
    np.save(tmp_path / "x.npy", image)
    words = ["--absolute", "1e-2", "--codec", codec, "--effort", "speed", "--threads", "1"]
    ended = command("encode", tmp_path / "x.npy", tmp_path / "x.er", *words, "--json")
    assert ended.code == 0
    assert codec in {"auto", ended.json["arrays"][0]["codec"]}


def test_dither_takes_its_seed(image: np.ndarray, tmp_path: Path, command: Command) -> None:
    np.save(tmp_path / "x.npy", image)
    words = ["--absolute", "1e-2", "--dither", "7"]
    assert command("encode", tmp_path / "x.npy", tmp_path / "x.er", *words).code == 0
    assert er.Blob.frombytes((tmp_path / "x.er").read_bytes()).recipe.seed == 7


def test_all_arrays_of_an_npz(image: np.ndarray, tmp_path: Path, command: Command) -> None:
    arrays = {
        "image": image,
        "file": np.arange(12, dtype=np.int64).reshape(3, 4),
        "a.npy": np.asfortranarray(image[0].astype(np.float64)),
        "empty": np.zeros((0, 3), np.float16),
        "scalar": np.array(True),
    }
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as stream:
                np.lib.format.write_array(stream, array)
    ended = command("encode", tmp_path / "x.npz", tmp_path / "x.er", "--range", "1e-3")
    assert (ended.code, ended.err) == (0, "")
    with (tmp_path / "x.er").open("rb") as file:
        held = Archive(file)
        assert list(held) == list(arrays)
        for name, array in arrays.items():
            blob = held.read(name)
            back = er.decode(blob)
            assert isinstance(back, np.ndarray) and back.shape == array.shape
            assert blob.bound.holds(array, back)


def test_all_tensors_of_a_safetensors_file(tmp_path: Path, command: Command) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "layer.weight": torch.randn(16, 8, generator=generator).bfloat16(),
        "layer/bias": torch.randn(16, generator=generator).half(),
        "steps": torch.tensor(17),
    }
    save_file(tensors, tmp_path / "x.safetensors")
    ended = command(
        "encode", tmp_path / "x.safetensors", tmp_path / "x.er", "--absolute", "0.1", "--json"
    )
    assert ended.code == 0
    assert {row["name"]: row["dtype"] for row in ended.json["arrays"]} == {
        "layer.weight": "bfloat16",
        "layer/bias": "float16",
        "steps": "int64",
    }
    with (tmp_path / "x.er").open("rb") as file:
        held = Archive(file)
        for name, tensor in tensors.items():
            back = er.decode(held.read(name))
            assert isinstance(back, torch.Tensor)
            assert held.read(name).bound.holds(tensor, back)


@pytest.mark.parametrize(
    ("dtype", "shape", "found"),
    [
        ("float32", "6,24,32", (6, 24, 32)),
        ("f32", "6x24x32", (6, 24, 32)),
        ("F64", None, (6 * 24 * 16,)),
        ("bfloat16", "12,768", (12, 768)),
    ],
)
def test_raw_binary(
    dtype: str,
    shape: str | None,
    found: tuple[int, ...],
    image: np.ndarray,
    tmp_path: Path,
    command: Command,
) -> None:
    (tmp_path / "x.bin").write_bytes(image.tobytes())
    words = ["--lossless", "--dtype", dtype, *(["--shape", shape] if shape else [])]
    ended = command("encode", tmp_path / "x.bin", tmp_path / "x.er", *words)
    assert ended.code == 0, ended.err
    blob = er.Blob.frombytes((tmp_path / "x.er").read_bytes())
    assert blob.shape == found and blob.raw_nbytes == image.nbytes
    assert command("decode", tmp_path / "x.er", tmp_path / "y.raw").code == 0
    assert (tmp_path / "y.raw").read_bytes() == image.tobytes()


def test_foreign_byte_order_is_turned(tmp_path: Path, command: Command) -> None:
    values = np.linspace(-1, 1, 100)
    np.save(tmp_path / "x.npy", values.astype(">f4"))
    assert command("encode", tmp_path / "x.npy", tmp_path / "x.er", "--lossless").code == 0
    back = er.decode(er.Blob.frombytes((tmp_path / "x.er").read_bytes()))
    assert isinstance(back, np.ndarray)
    np.testing.assert_array_equal(back, values.astype(np.float32))


def test_an_existing_file_is_kept(image: np.ndarray, tmp_path: Path, command: Command) -> None:
    np.save(tmp_path / "x.npy", image)
    (tmp_path / "x.er").write_bytes(b"precious")
    words = ("encode", tmp_path / "x.npy", tmp_path / "x.er", "--lossless")
    ended = command(*words)
    assert ended.code == 2 and "--force" in ended.err
    assert (tmp_path / "x.er").read_bytes() == b"precious"
    assert command(*words, "--force").code == 0
    assert (tmp_path / "x.er").read_bytes()[:4] == b"ELBR"


def test_what_is_no_plain_file_is_never_replaced(
    image: np.ndarray, tmp_path: Path, command: Command
) -> None:
    np.save(tmp_path / "x.npy", image)
    (tmp_path / "folder.er").mkdir()
    (tmp_path / "link.er").symlink_to(tmp_path / "folder.er")
    for name in ("folder.er", "link.er"):
        ended = command("encode", tmp_path / "x.npy", tmp_path / name, "--lossless", "--force")
        assert ended.code == 2 and "no plain file" in ended.err


def test_a_broken_bound_is_loud_and_writes_nothing(
    image: np.ndarray, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", image)
    verdict = verification.Verdict(holds=False, largest_error=2.0, allowed=1.0)
    monkeypatch.setattr(verification, "verify", lambda x, y, bound: verdict)
    ended = command("encode", tmp_path / "x.npy", tmp_path / "x.er", "--absolute", "1")
    assert ended.code == 1
    assert (
        "largest error is 2 where 1 is allowed" in ended.err and "nothing was written" in ended.err
    )
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def header(text: str, data: bytes = b"") -> bytes:
    padded = text.encode() + b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + data


BAD_FILES: dict[str, tuple[str, bytes, str]] = {
    "empty": ("x.npy", b"", "not a .npy file"),
    "text": ("x.npy", b"hello, I am a text file", "not a .npy file"),
    "cut": (
        "x.npy",
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (9,), }", bytes(20)),
        "36 bytes, but holds 20",
    ),
    "longer": (
        "x.npy",
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", bytes(20)),
        "8 bytes, but holds 20",
    ),
    "immense": (
        "x.npy",
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,), }", bytes(4)),
        "but holds 4",
    ),
    "negative": (
        "x.npy",
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -1), }", bytes(4)),
        "impossible shape",
    ),
    "objects": (
        "x.npy",
        header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", bytes(8)),
        "type object",
    ),
    "complex": (
        "x.npy",
        header("{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }", bytes(8)),
        "type complex64",
    ),
    "version": ("x.npy", b"\x93NUMPY\x03\x00\x10\x00\x00\x00" + b" " * 16, "version 3.0"),
    "no zip": ("x.npz", b"PK but not really", "not an .npz file"),
    "no safetensors": ("x.safetensors", b"\xff" * 40, "not a .safetensors file"),
    "unknown": ("x.csv", b"1,2,3", "must end in one of"),
    "encoded": ("x.er", b"ELBR", "encoded already"),
    "untold raw": ("x.bin", bytes(8), "--dtype"),
}


@pytest.mark.parametrize(("name", "content", "sentence"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_one_sentence(
    name: str, content: bytes, sentence: str, tmp_path: Path, command: Command
) -> None:
    (tmp_path / name).write_bytes(content)
    ended = command("encode", tmp_path / name, tmp_path / "out.er", "--lossless")
    assert ended.code == 2
    assert sentence in ended.err
    assert ended.err.startswith("elbowroom: ") and ended.err.count("\n") == 1
    assert ended.out == ""
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_damage_within_an_npz_is_found(image: np.ndarray, tmp_path: Path, command: Command) -> None:
    np.savez(tmp_path / "x.npz", image=image)
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[2000] ^= 1
    (tmp_path / "x.npz").write_bytes(content)
    ended = command("encode", tmp_path / "x.npz", tmp_path / "x.er", "--lossless")
    assert ended.code == 2 and "array 'image'" in ended.err and "CRC" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def test_a_stranger_in_an_npz_is_refused(tmp_path: Path, command: Command) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("notes.txt", "hello")
    ended = command("encode", tmp_path / "x.npz", tmp_path / "x.er", "--lossless")
    assert ended.code == 2 and "notes.txt" in ended.err


def test_an_unknown_element_type_of_safetensors_is_named(tmp_path: Path, command: Command) -> None:
    save_file({"w": torch.zeros(4).to(torch.float8_e4m3fn)}, tmp_path / "x.safetensors")
    ended = command("encode", tmp_path / "x.safetensors", tmp_path / "x.er", "--lossless")
    assert ended.code == 2 and "F8_E4M3" in ended.err and "'w'" in ended.err


BAD_WORDS: dict[str, tuple[list[str], str]] = {
    "no bound": ([], "got none"),
    "two bounds": (["--lossless", "--range", "1"], "got --range and --lossless"),
    "negative": (["--absolute", "-1"], "-1"),
    "not a number": (["--absolute", "nan"], "nan"),
    "large share": (["--pointwise", "2"], "below 1"),
    "share of one": (["--pointwise", "1"], "below 1"),
    "whole range": (["--range", "1"], "--range 1 lets values move by the whole range"),
    "more than the range": (["--range", "2", "--keep-sign"], "pass a share below 1"),
    "infinite range": (["--range", "inf"], "pass a share below 1"),
    "no range": (["--range", "nan"], "finite and positive"),
    "infinite": (["--absolute", "inf"], "finite and positive"),
    "shape of npy": (["--lossless", "--shape", "3"], "has its own"),
}


@pytest.mark.parametrize(("words", "sentence"), BAD_WORDS.values(), ids=BAD_WORDS.keys())
def test_bad_options_are_one_sentence(
    words: list[str], sentence: str, image: np.ndarray, tmp_path: Path, command: Command
) -> None:
    np.save(tmp_path / "x.npy", image)
    ended = command("encode", tmp_path / "x.npy", tmp_path / "x.er", *words)
    assert ended.code == 2 and sentence in ended.err
    assert not (tmp_path / "x.er").exists()


def test_a_bound_that_leaves_nothing_is_noted(
    image: np.ndarray, tmp_path: Path, command: Command
) -> None:
    flat, whole = np.ones(9, np.float32), np.arange(9)
    np.savez(tmp_path / "x.npz", image=image, flat=flat, whole=whole, large=100 * image)
    words = ("encode", tmp_path / "x.npz", tmp_path / "x.er", "--absolute", "9")
    ended = command(*words)
    assert ended.code == 0
    assert ended.err == (
        "elbowroom: note: array 'image' varies by no more than the bound of 9, so that nothing of "
        "it is left: a smaller one keeps more\n"
    )
    assert "note" in command(*words, "--force", "--json").err
    assert command(*words, "--force", "--keep-sign").err == ""
    assert command(*words[:-1], "0.1", "--force").err == ""


def test_what_did_not_shrink_is_not_called_smaller(tmp_path: Path, command: Command) -> None:
    np.save(tmp_path / "x.npy", np.ones(1))
    ended = command("encode", tmp_path / "x.npy", tmp_path / "x.er", "--lossless")
    assert ended.code == 0 and "bytes for 8, not smaller" in ended.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--dtype", "float31"], "--dtype must be one of"),
        (["--dtype", "float64"], "no whole number"),
        (["--dtype", "float32", "--shape", "2,2"], "but shape (2, 2) has 4"),
        (["--dtype", "float32", "--shape", "3,-1"], "whole numbers"),
        (["--dtype", "float32", "--shape", "three"], "whole numbers"),
    ],
)
def test_raw_binary_has_to_fit(
    words: list[str], sentence: str, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "x.raw").write_bytes(bytes(12))
    ended = command("encode", tmp_path / "x.raw", tmp_path / "x.er", "--lossless", *words)
    assert ended.code == 2 and sentence in ended.err


def test_a_missing_file_or_folder(image: np.ndarray, tmp_path: Path, command: Command) -> None:
    ended = command("encode", tmp_path / "no.npy", tmp_path / "x.er", "--lossless")
    assert ended.code == 2 and "no.npy" in ended.err
    np.save(tmp_path / "x.npy", image)
    ended = command("encode", tmp_path / "x.npy", tmp_path / "no" / "x.er", "--lossless")
    assert ended.code == 2 and "folder" in ended.err


def test_reading_does_not_trust_a_stream_that_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(100))
    with path.open("rb") as file, pytest.raises(er.CorruptData, match="ends after 0 of 800"):
        file.seek(0)
        content = file.read()[:-800]
        (tmp_path / "cut.npy").write_bytes(content)
        with (tmp_path / "cut.npy").open("rb") as cut:
            sources.read_npy(cut, len(content) + 800, "x")
