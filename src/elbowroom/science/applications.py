"""The applications by name: recipes of moderate size, trained in minutes on two cores."""

from collections.abc import Callable
from dataclasses import replace

from elbowroom.errors import InvalidArgument
from elbowroom.science.climate import Clouds, ExtremeRain, Weather
from elbowroom.science.language import Characters
from elbowroom.science.particles import Events, JetImages
from elbowroom.science.task import Recipe, Schedule
from elbowroom.science.vision import Images


def list_applications() -> dict[str, Callable[[], Recipe]]:
    """Return what makes the recipe of every application."""
    return {
        "extreme-rain": ExtremeRain,
        "extreme-rain-deeplab": lambda: ExtremeRain(network="deeplab", widths=(24, 48, 96)),
        "clouds": Clouds,
        "climatenet": Weather,
        "deepcam": lambda: Weather(data="deepcam"),
        "jets": JetImages,
        "cms-jets": lambda: Events(
            width=64, dropout=0.3, schedule=Schedule(steps=300, batch=128, learning_rate=2e-3)
        ),
        "higgs": lambda: Events(data="higgs", dropout=0.3),
        "higgsml": lambda: Events(data="higgsml"),
        "cifar-resnet": Images,
        "cifar-vit": lambda: Images(
            network="vit",
            schedule=replace(Images().schedule, steps=1200, learning_rate=1e-3),
        ),
        "digits": lambda: Images(
            data="digits",
            pixels=8,
            widths=(16, 32),
            blocks=1,
            schedule=Schedule(steps=400, batch=64, learning_rate=5e-3),
        ),
        "images-resnet18": lambda: _with_folder(Images(network="resnet18")),
        "images-resnet50": lambda: _with_folder(Images(network="resnet50")),
        "images-vit": lambda: _with_folder(Images(network="vit_small", dropout=0.1)),
        "gpt": Characters,
        "lstm": lambda: Characters(
            network="lstm",
            width=256,
            layers=2,
            schedule=replace(Characters().schedule, steps=1000, learning_rate=4e-3),
        ),
    }


def _with_folder(recipe: Images) -> Images:
    return replace(recipe, data="folder", pixels=224)


def find_recipe(name: str) -> Recipe:
    """Return the recipe of the application with that name."""
    applications = list_applications()
    if name not in applications:
        raise InvalidArgument(
            f"there is no application {name!r}: choose one of {', '.join(applications)}"
        )
    return applications[name]()
