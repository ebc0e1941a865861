"""Presets: which cells answer which question."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elbowroom.errors import InvalidArgument
from elbowroom.study.cells import Cell
from elbowroom.study.networks import find_network
from elbowroom.study.treatments import Treatment, fixed, room, smaller

FULL = ("cifar-resnet", "climate-unet", "jets-cnn", "gpt-mini")
CONVOLUTIONAL = ("convolution", "norm", "activation", "pooling")
KINDS = {
    "cifar-resnet": ("convolution", "norm", "activation"),
    "climate-unet": CONVOLUTIONAL,
    "jets-cnn": CONVOLUTIONAL,
    "cms-perceptron": ("linear", "norm", "activation"),
    "gpt-mini": (
        *("linear", "norm", "activation", "loss"),
        *("attention-query", "attention-key", "attention-value", "attention-output"),
    ),
}
TOLERANCES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
RANGES = (0.01, 0.05, 0.2)


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A question, and how it is asked."""

    about: str
    networks: tuple[str, ...]
    seeds: int
    pace: float = 1.0  # share of the networks' own steps


PRESETS = {
    "accuracy": Preset(
        about="does a network learn as well with er.Activations at its default tolerance?",
        networks=FULL,
        seeds=5,
    ),
    "tolerances": Preset(
        about="what does each tolerance and each rule cost and save?",
        networks=FULL,
        seeds=2,
        pace=0.4,
    ),
    "kinds": Preset(
        about="which kinds of layers bear which error?",
        networks=FULL,
        seeds=1,
        pace=0.4,
    ),
    "modes": Preset(
        about="which sort of bound, which codec, with or without dither?",
        networks=("jets-cnn", "gpt-mini"),
        seeds=1,
        pace=0.4,
    ),
    "quick": Preset(
        about="a look at every method, on a small network",
        networks=("cms-perceptron",),
        seeds=2,
    ),
}


def find_preset(name: str) -> Preset:
    """Return the preset of that name."""
    if name not in PRESETS:
        raise InvalidArgument(f"there is no preset {name!r}: choose of {', '.join(PRESETS)}")
    return PRESETS[name]


def list_treatments(preset: str, network: str) -> list[Treatment]:
    """Return what the preset does to a network; plain always comes first."""
    chosen: list[Treatment] = [Treatment()]
    if preset == "accuracy":
        chosen += [room(0.1)]
    if preset == "tolerances":
        chosen += [room(tolerance) for tolerance in TOLERANCES]
        chosen += [room(0.1, "certified"), room(0.1, "comet")]
        # A gradient of half the batch has twice the variance: what tolerance 1 would do.
        chosen += [smaller(0.75), smaller(0.5)]
    if preset == "kinds":
        kinds = KINDS.get(network, CONVOLUTIONAL)
        chosen += [fixed(kind, "range", bound) for kind in kinds for bound in RANGES]
    if preset == "modes":
        chosen += [fixed("all", "range", bound) for bound in RANGES]
        chosen += [fixed("all", "range", bound, dithered=False) for bound in RANGES]
        chosen += [fixed("all", "range", RANGES[1], codec="block")]
        chosen += [fixed("all", "absolute", bound) for bound in (0.03, 0.3, 3.0)]
        chosen += [fixed("all", "pointwise", bound) for bound in (0.03, 0.3, 0.9)]
        chosen += [fixed("all", "bits", bits, codec="group") for bits in (2, 4)]
    if preset == "quick":
        chosen += [room(0.1), room(1.0)]
        chosen += [fixed("linear", "range", 0.05), fixed("all", "bits", 2, codec="group")]
    return chosen


def plan_cells(
    networks: Sequence[str],
    treatments: dict[str, list[Treatment]],
    seeds: Iterable[int],
    *,
    pace: float = 1.0,
    steps: int | None = None,
) -> list[Cell]:
    """Return every cell once, seed by seed, so that a study that is cut short is balanced."""
    cells = [
        Cell(
            network=network,
            treatment=treatment,
            seed=seed,
            steps=steps or _paced(network, pace),
        )
        for seed in seeds
        for network in networks
        for treatment in treatments[network]
    ]
    return list({cell.key: cell for cell in cells}.values())


def _paced(network: str, pace: float) -> int | None:
    if pace == 1.0:
        return None
    return max(1, round(find_network(network).schedule.steps * pace))
