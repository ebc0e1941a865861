"""Events with labels: jet images, HIGGS rows, the ATLAS challenge, and files in their formats."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elbowroom.errors import BackendUnavailable, CorruptData, IncompatibleFormat
from elbowroom.science.data import locate
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
    """Read HIGGS as published: no heading, the label, then 28 columns; .gz is unpacked."""
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.float32, max_rows=rows, ndmin=2)
    except (ValueError, EOFError) as error:
        raise CorruptData(f"{path} is not the HIGGS table or ends too early ({error})") from None
    if table.shape[1] != 1 + HIGGS_COLUMNS:
        raise IncompatibleFormat(
            f"{path} must have a label and {HIGGS_COLUMNS} columns, got {table.shape[1]} in all"
        )
    return _label(table[:, 1:], table[:, 0])


def read_top_tagging(path: Path, *, jets: int | None = None) -> Labelled:
    """Read constituents of the top tagging reference set, jets x 200 x (E, px, py, pz).

    The file is a pandas table: /table/table holds the four-vectors, then the truth's, in
    values_block_0, and (ttv, is_signal_new) in values_block_1.
    """
    h5py = need("h5py", "reading HDF5 files")
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
    momenta = rows["values_block_0"][:, : 4 * CONSTITUENTS]
    return _label(momenta.reshape(-1, CONSTITUENTS, 4), rows["values_block_1"][:, 1])


def _find_table(path: Path, file: Any) -> Any:
    table = file.get("table/table")
    if table is None or not {"values_block_0", "values_block_1"} <= set(table.dtype.names or ()):
        raise IncompatibleFormat(f"{path} must hold the table /table/table of the reference set")
    if table.dtype["values_block_0"].shape[0] < 4 * CONSTITUENTS:
        raise IncompatibleFormat(f"{path} must hold {CONSTITUENTS} four-vectors a jet")
    return table


def _label(inputs: Any, labels: Any) -> Labelled:
    return Labelled(
        inputs=torch.from_numpy(np.ascontiguousarray(inputs, np.float32)),
        labels=torch.from_numpy(np.ascontiguousarray(labels, np.float32)),
    )
