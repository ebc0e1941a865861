"""`elbowroom decode`: back into every format, or one sentence."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import elbowroom as er

from .conftest import Command


@pytest.fixture
def blob_file(image: np.ndarray, tmp_path: Path) -> Path:
    path = tmp_path / "x.er"
    path.write_bytes(er.encode(image, er.Bound.absolute(1e-3)).tobytes())
    return path


@pytest.fixture
def archive_file(image: np.ndarray, tmp_path: Path, command: Command) -> Path:
    np.savez(
        tmp_path / "in.npz",
        image=image,
        tall=np.asfortranarray(image[0]),
        ids=np.arange(7, dtype=np.uint16),
        flags=np.array([True, False]),
        scalar=np.float64(2.5),
        empty=np.zeros((2, 0), np.int8),
    )
    path = tmp_path / "many.er"
    assert command("encode", tmp_path / "in.npz", path, "--range", "1e-3").code == 0
    return path


def test_to_npy(image: np.ndarray, blob_file: Path, tmp_path: Path, command: Command) -> None:
    ended = command("decode", blob_file, tmp_path / "y.npy")
    assert (ended.code, ended.err) == (0, "")
    back = np.load(tmp_path / "y.npy")
    assert back.dtype == np.float32
    assert er.Bound.absolute(1e-3).holds(image, back)
    np.testing.assert_array_equal(back, er.decode(er.Blob.frombytes(blob_file.read_bytes())))


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".bin"])
def test_a_single_blob_to_other_formats(
    ending: str, image: np.ndarray, blob_file: Path, tmp_path: Path, command: Command
) -> None:
    target = tmp_path / f"y{ending}"
    assert command("decode", blob_file, target).code == 0
    if ending == ".npz":
        back = np.load(target)["x"]
    elif ending == ".safetensors":
        back = load_file(target)["x"].numpy()
    else:
        back = np.fromfile(target, np.float32).reshape(image.shape)
    assert er.Bound.absolute(1e-3).holds(image, back)


def test_npz_round_trip(archive_file: Path, tmp_path: Path, command: Command) -> None:
    ended = command("decode", archive_file, tmp_path / "out.npz", "--json")
    before, after = np.load(tmp_path / "in.npz"), np.load(tmp_path / "out.npz")
    assert before.files == after.files == [row["name"] for row in ended.json["arrays"]]
    for name in before.files:
        assert before[name].dtype == after[name].dtype
        assert er.Bound.range_relative(1e-3).holds(before[name], after[name])
    assert after["tall"].flags.f_contiguous
    assert command("decode", archive_file, tmp_path / "again.npz").code == 0
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "out.npz").read_bytes()


def test_safetensors_round_trip(tmp_path: Path, command: Command) -> None:
    generator = torch.Generator().manual_seed(2)
    tensors = {
        "flag": torch.tensor([True]),
        "w": torch.randn(5, 3, generator=generator),
        "half": torch.randn(3, generator=generator).bfloat16(),
        "wide": torch.randn(2, generator=generator).double(),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(3, dtype=torch.int16),
    }
    save_file(tensors, tmp_path / "in.safetensors")
    assert command("encode", tmp_path / "in.safetensors", tmp_path / "x.er", "--lossless").code == 0
    assert command("decode", tmp_path / "x.er", tmp_path / "out.safetensors").code == 0
    back = load_file(tmp_path / "out.safetensors")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        torch.testing.assert_close(back[name], tensor, rtol=0, atol=0)
    with safe_open(tmp_path / "out.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_every_element_type_in_safetensors(tmp_path: Path, command: Command) -> None:
    names = "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 bool"
    arrays = {name: np.arange(5).astype(name) for name in names.split()}
    with (tmp_path / "in.npz").open("wb") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    assert command("encode", tmp_path / "in.npz", tmp_path / "x.er", "--lossless").code == 0
    assert command("decode", tmp_path / "x.er", tmp_path / "y.safetensors").code == 0
    for name, tensor in load_file(tmp_path / "y.safetensors").items():
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])
        assert tensor.numpy().dtype == arrays[name].dtype


def test_one_of_many(archive_file: Path, tmp_path: Path, command: Command) -> None:
    assert command("decode", archive_file, tmp_path / "ids.npy", "--name", "ids").code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "ids.npy"), np.arange(7, dtype=np.uint16))
    ended = command("decode", archive_file, tmp_path / "no.npy", "--name", "nobody")
    assert ended.code == 2 and "'nobody'" in ended.err and "'image'" in ended.err


def test_names_are_no_paths(tmp_path: Path, command: Command) -> None:
    save_file({"../../evil": torch.ones(3), "/abs": torch.ones(2)}, tmp_path / "in.safetensors")
    assert command("encode", tmp_path / "in.safetensors", tmp_path / "x.er", "--lossless").code == 0
    (tmp_path / "out").mkdir()
    # What unpacks an .npz file may take them for paths.
    ended = command("decode", tmp_path / "x.er", tmp_path / "out" / "y.npz")
    assert ended.code == 2 and "would be unpacked outside of its folder" in ended.err
    assert command("decode", tmp_path / "x.er", tmp_path / "out" / "y.safetensors").code == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["y.safetensors"]
    assert load_file(tmp_path / "out" / "y.safetensors").keys() == {"../../evil", "/abs"}


def test_refusals(archive_file: Path, blob_file: Path, tmp_path: Path, command: Command) -> None:
    ended = command("decode", archive_file, tmp_path / "y.npy")
    assert ended.code == 2 and "can hold one array, here are 6" in ended.err
    ended = command("decode", blob_file, tmp_path / "y.txt")
    assert ended.code == 2 and "must end in one of" in ended.err
    ended = command("decode", blob_file, archive_file, "--force")
    assert ended.code == 2 and "must end in one of" in ended.err
    ended = command("decode", blob_file, tmp_path / "in.npz")
    assert ended.code == 2 and "--force" in ended.err
    ended = command("decode", blob_file, tmp_path / "y.npy", "--name", "x")
    assert ended.code == 2 and "a single array, which has no name" in ended.err
    ended = command("decode", tmp_path / "in.npz", tmp_path / "y.npy")
    assert ended.code == 2 and "or encode it first" in ended.err
    ended = command("decode", tmp_path / "no.er", tmp_path / "y.npy")
    assert ended.code == 2 and "no.er" in ended.err
    assert not (tmp_path / "y.npy").exists() and not (tmp_path / "y.txt").exists()


def test_bfloat16_has_no_npy(tmp_path: Path, command: Command) -> None:
    blob = er.encode(torch.ones(4, dtype=torch.bfloat16), er.Bound.lossless())
    (tmp_path / "x.er").write_bytes(blob.tobytes())
    ended = command("decode", tmp_path / "x.er", tmp_path / "y.npy")
    assert ended.code == 2 and "bfloat16" in ended.err and ".safetensors" in ended.err
    assert command("decode", tmp_path / "x.er", tmp_path / "y.raw").code == 0
    assert (tmp_path / "y.raw").read_bytes() == b"\x80\x3f" * 4


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: ...")]
)
def test_too_little_memory_is_one_sentence(
    error: Exception,
    blob_file: Path,
    tmp_path: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(er, "decode", fail)
    ended = command("decode", blob_file, tmp_path / "y.npy")
    assert ended.code == 1 and "not enough memory" in ended.err and "x.er" in ended.err
    assert not (tmp_path / "y.npy").exists()


def test_an_archive_of_nothing(tmp_path: Path, command: Command) -> None:
    np.savez(tmp_path / "in.npz")
    assert command("encode", tmp_path / "in.npz", tmp_path / "x.er", "--lossless").code == 0
    assert command("inspect", tmp_path / "x.er").code == 0
    assert command("decode", tmp_path / "x.er", tmp_path / "y.npz").code == 0
    assert np.load(tmp_path / "y.npz").files == []
    ended = command("decode", tmp_path / "x.er", tmp_path / "y.npy")
    assert ended.code == 2 and "here is none: write .npz" in ended.err
    ended = command("decode", tmp_path / "x.er", tmp_path / "z.npz", "--name", "a")
    assert ended.code == 2 and "choose another file, it is empty" in ended.err


def test_a_reserved_name_is_refused(tmp_path: Path, command: Command) -> None:
    np.savez(tmp_path / "in.npz", __metadata__=np.ones(3))
    assert command("encode", tmp_path / "in.npz", tmp_path / "x.er", "--lossless").code == 0
    ended = command("decode", tmp_path / "x.er", tmp_path / "y.safetensors")
    assert ended.code == 2 and "__metadata__" in ended.err


@pytest.mark.parametrize("content", [b"", b"ELBR", b"ELBA", b"\x93NUMPY", bytes(300)])
def test_what_is_no_er_file(content: bytes, tmp_path: Path, command: Command) -> None:
    (tmp_path / "x.er").write_bytes(content)
    ended = command("decode", tmp_path / "x.er", tmp_path / "y.npy")
    assert ended.code == 2 and "x.er: " in ended.err and ended.err.count("\n") == 1


def test_every_damaged_byte_is_noticed_or_harmless(
    blob_file: Path, tmp_path: Path, command: Command
) -> None:
    content = blob_file.read_bytes()
    for position in [*range(0, 120, 7), *range(120, len(content), 1 + len(content) // 40)]:
        damaged = bytearray(content)
        damaged[position] ^= 0x40
        (tmp_path / "bad.er").write_bytes(damaged)
        ended = command("decode", tmp_path / "bad.er", tmp_path / "y.npy")
        assert ended.code == 2, position
        assert ended.err.startswith("elbowroom: ") and ended.err.count("\n") == 1
        assert not (tmp_path / "y.npy").exists()
    for length in range(0, len(content), 1 + len(content) // 25):
        (tmp_path / "bad.er").write_bytes(content[:length])
        assert command("decode", tmp_path / "bad.er", tmp_path / "y.npy").code == 2
