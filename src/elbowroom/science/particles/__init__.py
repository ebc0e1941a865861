"""Collisions: top quarks told from QCD by jet images, and classifiers of tables of events."""

from elbowroom.science.particles.models import JetCNN as JetCNN
from elbowroom.science.particles.models import Perceptron as Perceptron
from elbowroom.science.particles.scores import measure_auc as measure_auc
from elbowroom.science.particles.training import Events as Events
from elbowroom.science.particles.training import JetImages as JetImages
