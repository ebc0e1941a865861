"""The networks of the study: applications at a size where dozens of trainings take an hour."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from elbowroom.errors import InvalidArgument
from elbowroom.science.climate import ExtremeRain
from elbowroom.science.language import Characters
from elbowroom.science.particles import Events, JetImages
from elbowroom.science.task import Recipe, Schedule
from elbowroom.science.vision import Images


def _cifar() -> Recipe:
    return Images(
        blocks=1,
        schedule=Schedule(steps=500, batch=64, learning_rate=3e-3, weight_decay=5e-2),
    )


def _climate() -> Recipe:
    # The fields that ship, so that it is the same task on every machine.
    return ExtremeRain(
        data="shipped",
        widths=(8, 16, 32, 64),
        crop=(96, 144),
        schedule=Schedule(steps=250, batch=4, learning_rate=6e-3),
    )


def _jets() -> Recipe:
    return JetImages(
        schedule=Schedule(steps=300, batch=64, learning_rate=3e-3, weight_decay=2e-2),
    )


def _gpt() -> Recipe:
    return Characters(
        context=64,
        width=128,
        layers=3,
        scored_windows=400,
        schedule=Schedule(
            steps=700, batch=16, learning_rate=3e-3, weight_decay=1e-1, climb=0.1, clip=1.0
        ),
    )


def _cms() -> Recipe:
    # Small, and its data ships as well.
    return Events(
        width=64, dropout=0.3, schedule=Schedule(steps=300, batch=128, learning_rate=2e-3)
    )


NETWORKS: Mapping[str, Callable[[], Recipe]] = {
    "cifar-resnet": _cifar,
    "climate-unet": _climate,
    "jets-cnn": _jets,
    "gpt-mini": _gpt,
    "cms-perceptron": _cms,
}


def find_network(name: str, *, steps: int | None = None) -> Recipe:
    """Return the recipe of that name, if wished with another number of steps."""
    if name not in NETWORKS:
        raise InvalidArgument(
            f"there is no network {name!r} in the study: choose of {', '.join(NETWORKS)}"
        )
    recipe: Any = NETWORKS[name]()
    if steps is None:
        return recipe
    return replace(recipe, schedule=replace(recipe.schedule, steps=steps))
