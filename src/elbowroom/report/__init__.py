"""What was measured in a run, kept in a folder and shown on one page.

`Recorder` writes while a run goes on, `read_run` reads what is there, `render` makes the page.
"""

from typing import TYPE_CHECKING

from elbowroom.lazy import later
from elbowroom.report.model import Run as Run
from elbowroom.report.reading import read_run as read_run
from elbowroom.report.render import render as render

if TYPE_CHECKING:
    from elbowroom.report.recorder import Recorder as Recorder
else:
    # Who reads and shows runs does without torch.
    __getattr__ = later(__name__, {"Recorder": "elbowroom.report.recorder"})
