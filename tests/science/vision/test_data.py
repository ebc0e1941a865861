"""Images: digits, CIFAR-10 in both of its formats, folders, and what is said of bad files."""

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from elbowroom.errors import (
    BackendUnavailable,
    CorruptData,
    IncompatibleFormat,
    InvalidArgument,
    MissingData,
)
from elbowroom.science.vision import Images, data
from elbowroom.science.vision.data import (
    load_cifar10,
    load_digits,
    open_folder,
    read_cifar_binary,
)


def test_digits_come_with_scikit_learn() -> None:
    train, held_out = load_digits()
    assert (len(train), len(held_out)) == (1400, 397)
    assert train.pixels.shape == (1400, 1, 8, 8) and train.pixels.dtype == torch.uint8
    assert int(train.pixels.max()) == 255 and int(train.pixels.min()) == 0
    assert sorted(set(held_out.labels.tolist())) == list(range(10))
    # A zero is dark in the middle, a one is not.
    zero, one = (
        train.pixels[train.labels == n].float().mean(0)[0, 3:5, 3:5].mean() for n in (0, 1)
    )
    assert zero < 0.5 * one


def test_without_scikit_learn_the_way_to_digits_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "find_spec", lambda _: None)
    with pytest.raises(MissingData, match="run 'elbowroom data get digits'"):
        load_digits()


def write_binary(folder: Path, batches: int = 2, images: int = 3) -> np.ndarray:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (batches + 1, images, 3073), dtype=np.uint8)
    records[..., 0] %= 10
    for number in range(batches):
        records[number].tofile(folder / f"data_batch_{number + 1}.bin")
    records[-1].tofile(folder / "test_batch.bin")
    return records


def test_the_binary_version_of_cifar_is_read(data_folder: Path) -> None:
    records = write_binary(data_folder / "images" / "cifar-10-batches-bin")
    train, held_out = load_cifar10()
    assert (len(train), len(held_out)) == (6, 3)
    assert train.labels.tolist() == records[:2, :, 0].flatten().tolist()
    # Red, green and blue planes, row after row.
    assert int(train.pixels[4, 1, 2, 5]) == records[1, 1, 1 + 1024 + 2 * 32 + 5]
    assert train.classes[held_out.labels[0]] == data.CIFAR_CLASSES[records[2, 0, 0]]


def test_a_partial_binary_file_is_found(tmp_path: Path) -> None:
    write_binary(tmp_path / "c")
    path = tmp_path / "c" / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptData, match="records of 3073 bytes"):
        read_cifar_binary(tmp_path / "c")
    path.write_bytes(bytes([77]) + bytes(3072))
    with pytest.raises(CorruptData, match="beyond the ten classes"):
        read_cifar_binary(tmp_path / "c")
    path.unlink()
    with pytest.raises(MissingData, match=r"must hold data_batch_1\.bin"):
        read_cifar_binary(tmp_path / "c")


def test_torn_files_that_add_up_are_found(tmp_path: Path) -> None:
    write_binary(tmp_path / "c")
    one, two = (tmp_path / "c" / f"data_batch_{number}.bin" for number in (1, 2))
    both = one.read_bytes() + two.read_bytes()
    one.write_bytes(both[:5000])
    two.write_bytes(both[5000:])
    with pytest.raises(CorruptData, match=r"data_batch_1\.bin must hold whole records"):
        read_cifar_binary(tmp_path / "c")


def test_strips_are_rows_of_images(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    Image.fromarray(images.reshape(5, 1024, 3)).save(tmp_path / "strip.png")
    stored = data._store_cifar([tmp_path / "strip.png"], [0, 1, 2, 3, 4])
    assert np.array_equal(stored.pixels.numpy(), images.transpose(0, 3, 1, 2))
    with pytest.raises(CorruptData, match="holds 5 images for 4 labels"):
        data._store_cifar([tmp_path / "strip.png"], [0, 1, 2, 3])


def test_missing_cifar_says_how_to_get_it() -> None:
    with pytest.raises(MissingData, match="run 'elbowroom data get cifar10'"):
        load_cifar10()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, colour in (("blue", (0, 0, 255)), ("red", (255, 0, 0))):
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(3):
            image = Image.new("RGB", (20 + 4 * number, 12), colour)
            image.save(tmp_path / "train" / name / f"{number}.png")
    (tmp_path / "train" / "notes.txt").write_text("no image")
    return tmp_path / "train"


def test_a_folder_has_a_class_a_subfolder(folder: Path) -> None:
    images = open_folder(folder, pixels=8)
    assert images.classes == ("blue", "red")
    assert images.labels.tolist() == [0, 0, 0, 1, 1, 1]
    pixels, labels = images.read(torch.tensor([5, 0]))
    assert pixels.shape == (2, 3, 8, 8) and pixels.dtype == torch.uint8
    assert labels.tolist() == [1, 0]
    assert pixels[0, 0].float().mean() == 255 and pixels[1, 2].float().mean() == 255
    swapped = open_folder(folder, pixels=8, classes=("red", "blue"))
    assert swapped.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert swapped.paths[0].parent.name == "red"


def test_the_middle_of_an_image_is_kept(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 200
    Image.fromarray(pixels).save(tmp_path / "x" / "wide.png")
    read, _ = open_folder(tmp_path, pixels=10).read(torch.tensor([0]))
    assert int(read.min()) == 200


def test_bad_folders_and_files_are_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="is no folder"):
        open_folder(tmp_path / "nowhere", pixels=8)
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingData, match="has no images in subfolders"):
        open_folder(tmp_path / "empty", pixels=8)
    broken = folder / "red" / "2.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(CorruptData, match=r"2\.png cannot be read as an image"):
        open_folder(folder, pixels=8).read(torch.tensor([5]))


def write_huge_png(path: Path) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        sum_ = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + sum_

    header = struct.pack(">IIBBBBB", 30000, 30000, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(bytes(9))), chunk(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def test_huge_images_and_folders_named_like_images(folder: Path) -> None:
    (folder / "red" / "folder.png").mkdir()
    assert len(open_folder(folder, pixels=8)) == 6
    write_huge_png(folder / "red" / "9.png")
    with pytest.raises(CorruptData, match=r"9\.png has more pixels than Pillow opens"):
        open_folder(folder, pixels=8).read(torch.tensor([6]))


def test_classes_must_be_those_of_training_and_at_least_two(folder: Path) -> None:
    recipe = Images(data="folder", widths=(4,), blocks=1, pixels=8)
    (folder.parent / "val").mkdir()
    for name in ("blue", "green", ".cache"):
        (folder.parent / "val" / name).mkdir()
        Image.new("RGB", (8, 8)).save(folder.parent / "val" / name / "1.png")
    with pytest.raises(IncompatibleFormat, match="has the class 'green', which training lacks"):
        recipe.make_task(folder.parent)
    (folder / "blue").rename(folder.parent / "blue")
    with pytest.raises(InvalidArgument, match="at least two classes, each a subfolder, got 1"):
        recipe.make_task(folder.parent)


def test_without_pillow_its_need_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = open_folder(folder, pixels=8)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(BackendUnavailable, match="reading images needs the package pillow"):
        images.read(torch.tensor([0]))
