"""Labelled weather: tropical cyclones and atmospheric rivers of ClimateNet or DeepCAM."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from elbowroom.errors import InvalidArgument
from elbowroom.science.climate.maps import (
    CHANNELS,
    open_climatenet,
    open_deepcam,
    read_deepcam_scales,
)
from elbowroom.science.climate.segmentation import (
    Crop,
    make_segmenter,
    measure_shares,
    segment,
)
from elbowroom.science.task import Schedule, Task


@dataclass(frozen=True, kw_only=True)
class Weather:
    """Find tropical cyclones and atmospheric rivers in files of ClimateNet or DeepCAM.

    The data folder is the data set's own, with the folders train and test (ClimateNet) or train
    and validation (DeepCAM).
    """

    data: Literal["climatenet", "deepcam"] = "climatenet"
    channels: tuple[str, ...] = CHANNELS
    network: Literal["unet", "deeplab"] = "unet"
    widths: tuple[int, ...] = (16, 32, 64, 128)
    dropout: float = 0.0
    crop: Crop | None = None
    # Weights of classes are their shares to minus this power, as in the benchmark DeepCAM.
    power: float = 0.125
    schedule: Schedule = Schedule(
        steps=2000, batch=2, learning_rate=2e-3, weight_decay=1e-2, climb=0.1
    )

    def make_task(self, folder: Path | None = None) -> Task:
        """List the files, and measure scales and shares on some of training."""
        if folder is None:
            raise InvalidArgument(f"the folder of {self.data} must be given")
        scales = None
        if self.data == "climatenet":
            train = open_climatenet(folder / "train", self.channels)
            held_out = open_climatenet(folder / "test", self.channels)
        else:
            train = open_deepcam(folder / "train", self.channels)
            held_out = open_deepcam(folder / "validation", self.channels)
            scales = read_deepcam_scales(folder / "stats.h5", self.channels)
        shares = [max(share, 1e-6) for share in measure_shares(train)]
        return segment(
            train,
            held_out,
            name=self.data,
            weights=[share**-self.power for share in shares],
            crop=self.crop,
            scales=scales,
        )

    def make_network(self, task: Task) -> nn.Module:
        """Return the network."""
        return make_segmenter(self.network, task, self.widths, self.dropout)
