"""Jets of simulated top pairs in CMS, told by their flavour: does a b quark begin them?

The sample that ships with the package is enough; `read_nano` makes the same from the files that
`elbowroom data get cms-jets` brings.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from elbowroom.codec.archive import Archive
from elbowroom.codec.decode import decode
from elbowroom.errors import CorruptData, IncompatibleFormat
from elbowroom.science.data import locate
from elbowroom.science.packages import need
from elbowroom.science.particles.data import Labelled

SAMPLE_FILE = "cms_jets.er"
COLUMNS = (
    *("pt", "eta", "phi", "mass", "area", "chHEF", "neHEF", "chEmEF", "neEmEF", "muEF"),
    *("nConstituents", "nSVs", "nMuons", "nElectrons"),
)
BOTTOM = 5
HELD_OUT = 4  # every fourth event

Table = dict[str, NDArray[np.float32]]


def load_cms_jets(folder: Path | None = None) -> tuple[Labelled, Labelled]:
    """Return the shipped jets; those of one event are either all for training or all held out."""
    del folder  # they come with the package
    with locate("cms-jets-shipped")[SAMPLE_FILE].open("rb") as file:
        archive = Archive(file)
        return split_by_event({name: decode(archive.read(name)) for name in archive})


def split_by_event(table: Table) -> tuple[Labelled, Labelled]:
    """Tell b jets from the rest; every fourth event is held out."""
    columns = torch.from_numpy(np.stack([table[name] for name in COLUMNS], axis=1))
    jets = Labelled(
        inputs=columns, labels=torch.from_numpy(table["hadronFlavour"] == BOTTOM).float()
    )
    held_out = torch.from_numpy(table["event"]).long() % HELD_OUT == HELD_OUT - 1
    return jets.take((~held_out).nonzero()[:, 0]), jets.take(held_out.nonzero()[:, 0])


def read_nano(*paths: Path) -> Table:
    """Read the jets of NanoAOD files by column; events are numbered through all files."""
    uproot = need("uproot", "reading ROOT files")
    parts: list[Table] = []
    events = 0
    for path in paths:
        try:
            tree = uproot.open(path)["Events"]
        except (OSError, ValueError, KeyError) as error:
            raise CorruptData(f"{path} has no readable tree Events ({error})") from None
        missing = [n for n in (*COLUMNS, "hadronFlavour") if f"Jet_{n}" not in tree]
        if missing:
            raise IncompatibleFormat(
                f"{path} lacks Jet_{missing[0]}: is it NanoAOD of a simulation?"
            )
        counts = np.array([len(jets) for jets in tree["Jet_pt"].array(library="np")])
        part = {"event": np.repeat(np.arange(events, events + len(counts)), counts)}
        for name in (*COLUMNS, "hadronFlavour"):
            part[name] = np.concatenate(tree[f"Jet_{name}"].array(library="np"))
        parts.append({name: column.astype(np.float32) for name, column in part.items()})
        events += len(counts)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
