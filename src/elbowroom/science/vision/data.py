"""Labelled images: CIFAR-10, digits, and folders with a subfolder for every class."""

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from elbowroom.errors import CorruptData, IncompatibleFormat, MissingData
from elbowroom.science.catalogue import examine_file, find_dataset
from elbowroom.science.data import list_folders, locate, locate_first
from elbowroom.science.packages import need

CIFAR_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
CIFAR_BINARY = "images/cifar-10-batches-bin"  # the original publication's format
CIFAR_RECORD_BYTES = 3073  # a label, then 32 x 32 pixels in three colours
DIGITS_TRAINING = 1400  # of 1797, in the order of the file
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff"}


class ImageSet(Protocol):
    """Images that can be read by number, bytes of samples x channels x height x width."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Name the classes in the order of the labels."""
        ...

    def __len__(self) -> int: ...

    def read(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images of these numbers and their labels."""
        ...


@dataclass(frozen=True, kw_only=True)
class StoredImages:
    """Images that are all in memory."""

    pixels: Tensor  # uint8
    labels: Tensor  # int64
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images of these numbers and their labels."""
        return self.pixels[numbers], self.labels[numbers]


@dataclass(frozen=True, kw_only=True)
class FolderImages:
    """Image files, read when they are asked for and cut to a square about their middle."""

    paths: tuple[Path, ...]
    labels: Tensor
    classes: tuple[str, ...]
    pixels: int

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images of these numbers and their labels."""
        images = [_read_square(self.paths[number], self.pixels) for number in numbers.tolist()]
        return torch.stack(images), self.labels[numbers]


def load_cifar10(folder: Path | None = None) -> tuple[StoredImages, StoredImages]:
    """Return the training and the test images: all, or the part that is in the data folder."""
    for place in list_folders(folder):
        if (place / CIFAR_BINARY).is_dir():
            return read_cifar_binary(place / CIFAR_BINARY)
    name, paths = locate_first("cifar10", "cifar10-part", "cifar10", folder=folder)
    if name == "cifar10-part":
        labels = json.loads(paths["cifar10_labels.json"].read_text())
        train = [paths["cifar10_data_batch_1.png"]]
        test = [paths["cifar10_test_first5000.png"]]
        told = labels["train_batch_1"], labels["test_first5000"]
    else:
        train = [paths[f"data_batch_{number}.png"] for number in range(1, 6)]
        test = [paths["test_batch.png"]]
        told = (
            json.loads(paths["train_labels.json"].read_text()),
            json.loads(paths["test_labels.json"].read_text()),
        )
    return _store_cifar(train, told[0]), _store_cifar(test, told[1])


def _store_cifar(strips: list[Path], labels: list[int]) -> StoredImages:
    pixels = torch.cat([_read_strip(path) for path in strips])
    if len(pixels) != len(labels):
        raise CorruptData(f"{strips[0]} holds {len(pixels)} images for {len(labels)} labels")
    return StoredImages(pixels=pixels, labels=torch.tensor(labels), classes=CIFAR_CLASSES)


def _read_strip(path: Path) -> Tensor:
    """Read a picture whose every row is an image of 32 x 32 pixels."""
    image = need("PIL.Image", "reading images", package="pillow")
    with image.open(path) as strip:
        rows = np.asarray(strip.convert("RGB")).reshape(-1, 32, 32, 3)
    return torch.from_numpy(rows.transpose(0, 3, 1, 2).copy())


def read_cifar_binary(folder: Path) -> tuple[StoredImages, StoredImages]:
    """Read the binary version of CIFAR-10 as its authors publish it."""
    train = sorted(folder.glob("data_batch_*.bin"))
    test = [folder / "test_batch.bin"]
    if not train or not test[0].is_file():
        raise MissingData(f"{folder} must hold data_batch_1.bin and further, and test_batch.bin")

    def read(paths: list[Path]) -> StoredImages:
        records = torch.cat([_read_records(path) for path in paths])
        pixels = records[:, 1:].reshape(-1, 3, 32, 32).contiguous()
        return StoredImages(pixels=pixels, labels=records[:, 0].long(), classes=CIFAR_CLASSES)

    return read(train), read(test)


def _read_records(path: Path) -> Tensor:
    stored = path.read_bytes()
    if not stored or len(stored) % CIFAR_RECORD_BYTES:
        raise CorruptData(
            f"{path} must hold whole records of {CIFAR_RECORD_BYTES} bytes, got {len(stored)} "
            "bytes: copy it again"
        )
    records = torch.frombuffer(bytearray(stored), dtype=torch.uint8).view(-1, CIFAR_RECORD_BYTES)
    if int(records[:, 0].max()) > 9:
        raise CorruptData(f"{path} has labels beyond the ten classes")
    return records


def load_digits(folder: Path | None = None) -> tuple[StoredImages, StoredImages]:
    """Return the 8 x 8 digits of scikit-learn, from the data folder or the installed package."""
    try:
        path = locate("digits", folder)["digits.csv.gz"]
    except MissingData:
        file = find_dataset("digits").files[0]
        spec = find_spec("sklearn")
        if spec is None or spec.origin is None:
            raise
        path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if examine_file(path, file) != "present":
            raise
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    # Sixteen shades become bytes like those of other images.
    pixels = torch.from_numpy(table[:, :-1] * (255 / 16)).round().byte().view(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, -1]).long()
    classes = tuple("0123456789")

    def part(rows: slice) -> StoredImages:
        return StoredImages(pixels=pixels[rows], labels=labels[rows], classes=classes)

    return part(slice(DIGITS_TRAINING)), part(slice(DIGITS_TRAINING, None))


def open_folder(folder: Path, *, pixels: int, classes: tuple[str, ...] = ()) -> FolderImages:
    """List the images of a folder that has a subfolder for every class.

    The classes are the subfolders in alphabetical order, unless they are given: held-out images
    must be numbered like those of training.
    """
    if not folder.is_dir():
        raise MissingData(f"{folder} is no folder: one with a subfolder for every class is needed")
    found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    found = [name for name in found if not name.startswith(".")]
    unknown = [name for name in found if classes and name not in classes]
    if unknown:
        raise IncompatibleFormat(
            f"{folder} has the class {unknown[0]!r}, which training lacks: both must have the same "
            "subfolders"
        )
    classes = classes or tuple(found)
    paths: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(classes):
        images = [p for p in sorted((folder / name).rglob("*")) if p.suffix.lower() in SUFFIXES]
        images = [path for path in images if path.is_file()]
        paths += images
        labels += [number] * len(images)
    if not paths:
        raise MissingData(f"{folder} has no images in subfolders named after their classes")
    return FolderImages(
        paths=tuple(paths), labels=torch.tensor(labels), classes=classes, pixels=pixels
    )


def _read_square(path: Path, pixels: int) -> Tensor:
    image = need("PIL.Image", "reading images", package="pillow")
    ops = need("PIL.ImageOps", "reading images", package="pillow")
    try:
        with image.open(path) as picture:
            square = ops.fit(picture.convert("RGB"), (pixels, pixels))
    except image.DecompressionBombError:
        raise CorruptData(
            f"{path} has more pixels than Pillow opens ({image.MAX_IMAGE_PIXELS * 2:,}): make it "
            "smaller or leave it out"
        ) from None
    except (OSError, SyntaxError, ValueError) as error:
        # What Pillow raises of broken files differs from format to format.
        raise CorruptData(f"{path} cannot be read as an image ({error})") from None
    return torch.from_numpy(np.asarray(square).transpose(2, 0, 1).copy())
