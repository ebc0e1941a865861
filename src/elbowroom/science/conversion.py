"""Makes the arrays of a data set out of the files that their authors publish."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elbowroom.errors import CorruptData, IncompatibleFormat, InvalidArgument
from elbowroom.science.arrays import is_array
from elbowroom.science.catalogue import Dataset
from elbowroom.science.files import require_file
from elbowroom.science.packages import need

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]


def convert(dataset: Dataset, source: Path, folder: Path) -> Path:
    """Write the data set's file into the folder, from originals that the source holds.

    The source is a folder, such as a copy of their repository, or the file if there is one alone.
    Arrays that are not those of the catalogue are refused.
    """
    if dataset.name not in _MAKERS or len(dataset.files) != 1:
        raise InvalidArgument(
            f"{dataset.name} is not made from other files: choose one of {', '.join(_MAKERS)}"
        )
    paths = _find_originals(dataset, source)
    try:
        made = _MAKERS[dataset.name](*paths)
    except (OSError, ValueError, EOFError, KeyError, zlib.error) as error:
        names = " and ".join(map(str, paths))
        raise CorruptData(f"{names} cannot be read as {dataset.origin} ({error})") from None
    (file,) = dataset.files
    for wanted in file.arrays:
        if not is_array(made[wanted.name], wanted):
            raise IncompatibleFormat(
                f"{' and '.join(map(str, paths))} must give the array {wanted} with the values of "
                f"the catalogue, and do not: take them from {dataset.origin}"
            )
    return _write(folder / file.path, made)


def _find_originals(dataset: Dataset, source: Path) -> list[Path]:
    if source.is_file():
        if len(dataset.originals) != 1:
            raise InvalidArgument(
                f"{source} is one file, and {dataset.name} is made from "
                f"{' and '.join(dataset.originals)}: name the folder that holds them"
            )
        return [source]
    found: list[Path] = []
    for original in dataset.originals:
        flat = source / Path(original).name
        found.append(require_file(flat if flat.exists() else source / original))
    return found


def _write(path: Path, made: "Arrays") -> Path:
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".partial")
    aside.unlink(missing_ok=True)  # what lies there, be it a link, is not written to
    try:
        with aside.open("xb") as out:
            if path.suffix == ".npy":
                np.save(out, made[""])
            else:
                np.savez_compressed(out, allow_pickle=False, **made)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def _make_jet_images(path: Path) -> "Arrays":
    import numpy as np

    h5py = need("h5py", "reading HDF5 files")
    with h5py.File(path) as file:
        parts = [np.asarray(file[name]) for name in ("QCD", "TT")]
    images = np.concatenate([part.reshape(len(part), *part.shape[1:3]) for part in parts])
    labels = np.repeat(np.array([0, 1], np.uint8), [len(part) for part in parts])
    return {"x": images.astype(np.float32), "y": labels}


def _make_higgs(train: Path, test: Path) -> "Arrays":
    import numpy as np

    made: Arrays = {}
    for name, path in (("train", train), ("test", test)):
        table = np.loadtxt(path, ndmin=2)
        made[f"x_{name}"] = table[:, 1:].astype(np.float32)
        made[f"y_{name}"] = table[:, 0].astype(np.uint8)
    return made


def _make_higgsml(signal: Path, background: Path) -> "Arrays":
    import numpy as np

    # EventId comes first; Weight, Label, KaggleSet and KaggleWeight come last.
    parts = [
        np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(1, 31), ndmin=2)
        for path in (signal, background)
    ]
    labels = np.repeat(np.array([1, 0], np.uint8), [len(part) for part in parts])
    return {"x": np.concatenate(parts).astype(np.float32), "y": labels}


def _make_marmousi(path: Path) -> "Arrays":
    import numpy as np

    return {"": np.fromfile(path, "<f4").reshape(1601, 401)}


_MAKERS: dict[str, Callable[..., "Arrays"]] = {
    "jet-images": _make_jet_images,
    "higgs": _make_higgs,
    "higgsml": _make_higgsml,
    "marmousi": _make_marmousi,
}
