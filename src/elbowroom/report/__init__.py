"""What was measured in a run, kept in a folder and shown on one page.

`Recorder` writes while a run goes on, `read_run` reads what is there, `render` makes the page.
"""

from elbowroom.report.model import Run as Run
from elbowroom.report.reading import read_run as read_run
from elbowroom.report.recorder import Recorder as Recorder
from elbowroom.report.render import render as render
