"""The earth by sound: velocity models, and waves that travel through them."""

from elbowroom.science.seismic.survey import Survey as Survey
from elbowroom.science.seismic.survey import line_survey as line_survey
from elbowroom.science.seismic.survey import record as record
from elbowroom.science.seismic.velocity import Velocity as Velocity
from elbowroom.science.seismic.velocity import layered as layered
from elbowroom.science.seismic.velocity import marmousi as marmousi
from elbowroom.science.seismic.velocity import smooth as smooth
from elbowroom.science.seismic.waves import Medium as Medium
from elbowroom.science.seismic.waves import longest_step_s as longest_step_s
from elbowroom.science.seismic.waves import ricker as ricker
