"""Events with labels: jet images, HIGGS rows, the ATLAS challenge, and files in their formats."""

import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elbowroom.errors import (
    BackendUnavailable,
    CorruptData,
    IncompatibleFormat,
    InvalidArgument,
)
from elbowroom.science.data import locate
from elbowroom.science.files import require_file
from elbowroom.science.packages import need

HIGGS_COLUMNS = 28
CONSTITUENTS = 200
HELD_OUT_JETS = 1027
HELD_OUT_ROWS = 1998
UNDEFINED = -999.0  # in the ATLAS challenge


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """Inputs and their labels, 1 for signal and 0 for background."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, numbers: Tensor) -> "Labelled":
        """Return the rows of these numbers."""
        return Labelled(inputs=self.inputs[numbers], labels=self.labels[numbers])

    def split(self, held_out: int) -> "tuple[Labelled, Labelled]":
        """Return all but some rows and these; which, is the same every time."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        return self.take(order[held_out:]), self.take(order[:held_out])


def load_jet_images(folder: Path | None = None) -> tuple[Labelled, Labelled]:
    """Return jet images of top quarks and QCD, samples x 1 x 30 x 30, for training and held out."""
    stored = np.load(locate("jet-images", folder)["jet_images_top_vs_qcd.npz"])
    images = _label(stored["x"][:, None], stored["y"])
    return images.split(HELD_OUT_JETS)


def load_higgs(folder: Path | None = None) -> tuple[Labelled, Labelled]:
    """Return the rows of HIGGS that the data folder holds, as they were split by others."""
    stored = np.load(locate("higgs", folder)["higgs_uci_7500.npz"])
    return _label(stored["x_train"], stored["y_train"]), _label(stored["x_test"], stored["y_test"])


def load_higgsml(folder: Path | None = None) -> tuple[Labelled, Labelled]:
    """Return the ATLAS challenge; columns that are undefined for a row are NaN."""
    stored = np.load(locate("higgsml", folder)["higgsml_atlas_10k.npz"])
    rows = np.where(stored["x"] == UNDEFINED, np.float32("nan"), stored["x"])
    return _label(rows, stored["y"]).split(HELD_OUT_ROWS)


def read_higgs_csv(path: Path, *, rows: int | None = None) -> Labelled:
    """Read HIGGS as published: no heading, the label, then 28 columns; .gz is unpacked.

    NaN stands for what is undefined; infinity is refused, since it would wipe out its column.
    """
    _check_count("rows", rows)
    require_file(path)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "loadtxt: input contained no data")
            table = np.loadtxt(path, delimiter=",", dtype=np.float32, max_rows=rows, ndmin=2)
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise CorruptData(
            f"{path} is not the HIGGS table, is damaged or ends too early ({error})"
        ) from None
    if not table.size:
        raise IncompatibleFormat(f"{path} must have a row for every event, and has none")
    if table.shape[1] != 1 + HIGGS_COLUMNS:
        raise IncompatibleFormat(
            f"{path} must have a label and {HIGGS_COLUMNS} columns, got {table.shape[1]} in all"
        )
    if np.isinf(table).any():
        row, column = np.argwhere(np.isinf(table))[0]
        raise CorruptData(
            f"{path} must have finite numbers, got an infinite one in line {row + 1}, column "
            f"{column + 1}"
        )
    _check_labels(path, "line", table[:, 0])
    return _label(table[:, 1:], table[:, 0])


def read_top_tagging(path: Path, *, jets: int | None = None) -> Labelled:
    """Read constituents of the top tagging reference set, jets x 200 x (E, px, py, pz).

    The file is a pandas table: /table/table holds the four-vectors, then the truth's, in
    values_block_0, and (ttv, is_signal_new) in values_block_1.
    """
    h5py = need("h5py", "reading HDF5 files")
    _check_count("jets", jets)
    require_file(path)
    try:
        with h5py.File(path) as file:
            table = _find_table(path, file)
            rows = table[:jets]
    except OSError as error:
        if "filter" in str(error) or "plugin" in str(error):
            raise BackendUnavailable(
                f"{path} was compressed by a filter that h5py lacks: pip install hdf5plugin and "
                "import it first"
            ) from None
        raise CorruptData(f"{path} cannot be read ({error}): copy it again") from None
    if not len(rows):
        raise IncompatibleFormat(f"{path} must have a row for every jet, and has none")
    momenta = rows["values_block_0"][:, : 4 * CONSTITUENTS]
    if not np.isfinite(momenta).all():
        row = int(np.argwhere(~np.isfinite(momenta))[0, 0])
        raise CorruptData(
            f"values_block_0 of {path} must have finite momenta, got one of row {row} that is not"
        )
    labels = rows["values_block_1"][:, 1]
    _check_labels(path, "values_block_1, row", labels, first=0)
    return _label(momenta.reshape(-1, CONSTITUENTS, 4), labels)


def _find_table(path: Path, file: Any) -> Any:
    table = file.get("table/table")
    columns: Any = getattr(table, "dtype", None)
    if table is None or not {"values_block_0", "values_block_1"} <= set(
        getattr(columns, "names", None) or ()
    ):
        raise IncompatibleFormat(f"{path} must hold the table /table/table of the reference set")
    for name, least, what in (
        ("values_block_0", 4 * CONSTITUENTS, f"{CONSTITUENTS} four-vectors a jet"),
        ("values_block_1", 2, "ttv and is_signal_new of every jet"),
    ):
        kind = columns[name]
        if len(kind.shape) != 1 or kind.shape[0] < least or kind.base.kind not in "iuf":
            raise IncompatibleFormat(
                f"{name} of {path} must hold {what}, {least} numbers or more, got {kind}"
            )
    return table


def _check_count(name: str, count: int | None) -> None:
    if count is not None and count < 1:
        raise InvalidArgument(f"{name} must be at least 1, or None for all, got {count}")


def _check_labels(path: Path, where: str, labels: Any, *, first: int = 1) -> None:
    wrong = np.flatnonzero(~np.isin(labels, (0, 1)))
    if len(wrong):
        raise IncompatibleFormat(
            f"{path} must have labels 0 and 1, got {labels[wrong[0]]:g} in {where} "
            f"{wrong[0] + first}"
        )


def _label(inputs: Any, labels: Any) -> Labelled:
    return Labelled(
        inputs=torch.from_numpy(np.ascontiguousarray(inputs, np.float32)),
        labels=torch.from_numpy(np.ascontiguousarray(labels, np.float32)),
    )
