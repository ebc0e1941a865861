"""Checkpoints: saved beside the training, never half there, resumed by themselves."""

from elbowroom.store.checkpoint.checkpointer import Checkpointer as Checkpointer
from elbowroom.store.checkpoint.retention import Keep as Keep
from elbowroom.store.checkpoint.sources import CheckpointWarning as CheckpointWarning
from elbowroom.store.checkpoint.store import Store as Store
from elbowroom.store.checkpoint.taking import load as load
