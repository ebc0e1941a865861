"""Climate: fields of a model, extreme rain, clouds and labelled weather. See README.md here."""

from elbowroom.science.climate.clouds import Clouds as Clouds
from elbowroom.science.climate.extremes import ExtremeRain as ExtremeRain
from elbowroom.science.climate.fields import SAMPLE_BOUND as SAMPLE_BOUND
from elbowroom.science.climate.fields import sample as sample
from elbowroom.science.climate.models import DeepLab as DeepLab
from elbowroom.science.climate.models import UNet as UNet
from elbowroom.science.climate.weather import Weather as Weather
