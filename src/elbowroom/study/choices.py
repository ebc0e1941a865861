"""Treatments out of what the options of the command name."""

import itertools
from dataclasses import dataclass
from typing import Any

from elbowroom.errors import InvalidArgument
from elbowroom.study.treatments import Treatment, check_bound, check_name, smaller


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Options as they were given: lists with commas between, None where there is none."""

    tolerance: str | None = None
    rule: str | None = None
    codec: str | None = None
    mode: str | None = None
    bound: str | None = None
    kind: str | None = None
    dither: bool | None = None
    share: str | None = None

    def __post_init__(self) -> None:
        """Refuse options that would have no effect."""
        for needed, names in (
            ("tolerance", ("rule",)),
            ("bound", ("codec", "mode", "kind", "dither")),
        ):
            given = [name for name in names if getattr(self, name) is not None]
            if given and getattr(self, needed) is None:
                raise InvalidArgument(
                    f"--{given[0]} belongs to --{needed}, which is not given: give both or neither"
                )


def make_treatments(choices: Choices) -> tuple[list[Treatment], list[str]]:
    """Return every combination, plain first, and the labels of those that do not fit together.

    There is none if the options name none. It is an error if nothing fits together.
    """
    made = [
        Treatment(method="room", tolerance=value, rule=name)  # type: ignore[arg-type]
        for value in split_numbers(choices.tolerance, "--tolerance")
        for name in split_words(choices.rule, "--rule") or ["variance"]
    ]
    fixed, misfits = _combine(choices)
    made += fixed
    made += [smaller(share) for share in split_numbers(choices.share, "--share")]
    return ([Treatment(), *made] if made else []), misfits


def _combine(choices: Choices) -> tuple[list[Treatment], list[str]]:
    words = {
        "codec": split_words(choices.codec, "--codec") or ["dense"],
        "mode": split_words(choices.mode, "--mode") or ["range"],
        "kind": split_words(choices.kind, "--kind") or ["all"],
    }
    bounds = split_numbers(choices.bound, "--bound")
    # What is wrong by itself is refused; only what is wrong together is left out.
    for name, values in words.items():
        for value in values:
            check_name(name, value)
    for bound in bounds:
        check_bound(bound)
    made: list[Treatment] = []
    misfits: dict[str, InvalidArgument] = {}
    for codec, mode, kind, bound in itertools.product(*words.values(), bounds):
        fields: dict[str, Any] = {"codec": codec, "mode": mode, "kind": kind, "bound": bound}
        dithered = choices.dither is not False and mode != "pointwise"
        try:
            made.append(Treatment(method="fixed", dithered=dithered, **fields))
        except InvalidArgument as error:
            misfits.setdefault(f"{codec} with {mode} {bound:g}", error)
    if misfits and not made:
        raise next(iter(misfits.values()))
    return made, list(misfits)


def split_words(text: str | None, option: str) -> list[str]:
    """Return the words of a list; an option that is given names at least one."""
    if text is None:
        return []
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise InvalidArgument(f"{option} takes one or several, with commas between: got {text!r}")
    return words


def split_numbers(text: str | None, option: str) -> list[float]:
    """Return the numbers of a list."""
    try:
        return [float(word) for word in split_words(text, option)]
    except InvalidArgument:
        raise
    except ValueError:
        raise InvalidArgument(
            f"{option} takes numbers with commas between, such as 0.01,0.1: got {text!r}"
        ) from None
