"""Fields of a climate model: a small sample that ships with the package. See README.md here."""

from elbowroom.science.climate.fields import SAMPLE_BOUND as SAMPLE_BOUND
from elbowroom.science.climate.fields import sample as sample
