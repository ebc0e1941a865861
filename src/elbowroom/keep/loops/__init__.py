"""Gradients through long time loops in bounded memory.

loop.py is the way in; plans.py, pilot.py and planning.py decide what is kept; schedules.py,
slots.py and replay.py keep states and make steps again (mixed.py: or keep tapes); conditions.py,
with names.py, statistics.py and traces.py, has them find what they found the first time, and
prints.py compares what they give; turn.py takes gradients back over them, past hooks.py;
series.py, coders.py and history.py encode the tape; patches.py, predictive.py, linear.py,
network.py and learned.py predict frames from what was learned of them; functions.py makes it all
differentiable, to any order, with tangents of tangent.py; probe.py measures what encoding does.
"""

from elbowroom.keep.loops.learned import LearnedCoder as LearnedCoder
from elbowroom.keep.loops.linear import LinearCoder as LinearCoder
from elbowroom.keep.loops.loop import Loop as Loop
from elbowroom.keep.loops.loop import loop as loop
from elbowroom.keep.loops.network import Network as Network
from elbowroom.keep.loops.options import Encoding as Encoding
from elbowroom.keep.loops.slots import LoopWarning as LoopWarning
