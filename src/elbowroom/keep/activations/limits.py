"""Where errors may be how large: tolerances by module, and modules that are kept exact."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from elbowroom.errors import InvalidArgument


class Limits:
    """What a room was asked for, by the names of modules."""

    def __init__(self, model: nn.Module, tolerance: Any, exact: Any) -> None:
        self._tolerances = _tolerances_of(tolerance)
        self._model = model
        names = [name for name, _ in model.named_modules()]
        for name in self._tolerances:
            _check_name(name, names, "tolerance")
        self.exact = tuple(dict.fromkeys(_names_in(model, exact, names)))
        """Names of modules whose tensors are kept without errors, parts included."""

    @property
    def tolerance(self) -> float:
        """Of the whole gradient."""
        return self._tolerances[""]

    @property
    def is_exact(self) -> bool:
        """Whether no error is allowed anywhere."""
        return not any(self._tolerances.values())

    @property
    def has_zeros(self) -> bool:
        """Whether some parameters must not be reached by any error."""
        return not all(self._tolerances.values())

    def by_parameter(self) -> dict[int, float]:
        """Tolerances of parameters, by their id, where they are not the whole gradient's."""
        if len(self._tolerances) == 1:
            return {}
        found: dict[int, float] = {}
        for name, parameter in self._model.named_parameters():
            module = max((n for n in self._tolerances if _is_in(name, n)), key=len)
            if module:
                found[id(parameter)] = self._tolerances[module]
        return found

    def keeps_exact(self, module: str) -> bool:
        """Whether tensors that the module saves must have no errors."""
        return any(_is_in(module, name) for name in self.exact)

    def __str__(self) -> str:
        tolerance: Any = self.tolerance if len(self._tolerances) == 1 else self._tolerances
        exact = f", exact={list(self.exact)}" if self.exact else ""
        return f"tolerance={tolerance}{exact}"


def _is_in(name: str, module: str) -> bool:
    return not module or name == module or name.startswith(module + ".")


def _tolerances_of(tolerance: Any) -> dict[str, float]:
    if not isinstance(tolerance, Mapping):
        _check_tolerance(tolerance)
        return {"": float(tolerance)}
    for value in tolerance.values():
        _check_tolerance(value)
    return {"": 0.1, **{str(name): float(value) for name, value in tolerance.items()}}


def _check_tolerance(tolerance: Any) -> None:
    is_number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
    if not is_number or not 0 <= tolerance <= 1:
        raise InvalidArgument(
            "tolerance must be a share from 0 (exact) to 1, or such shares by the names of "
            f"modules, got {tolerance!r}: 0.1 is a good start"
        )


def _names_in(model: nn.Module, exact: Any, names: list[str]) -> list[str]:
    if isinstance(exact, str | nn.Module) or not isinstance(exact, Iterable):
        raise InvalidArgument(
            f"exact must be a list of modules or of their names, got {exact!r}: write "
            'exact=["head"] or exact=[model.head]'
        )
    found: list[str] = []
    for each in exact:
        if isinstance(each, str):
            _check_name(each, names, "exact")
            found.append(each)
        elif isinstance(each, nn.Module):
            own = [name for name, module in model.named_modules() if module is each]
            if not own:
                raise InvalidArgument(
                    f"exact names a {type(each).__name__} that is no part of the model: pass one "
                    "of its modules, or a name"
                )
            found += own
        else:
            raise InvalidArgument(
                f"exact must hold modules or their names, got {each!r}: write exact=[model.head]"
            )
    return found


def _check_name(name: str, names: list[str], what: str) -> None:
    if name not in names:
        near = difflib.get_close_matches(name, names, 3, 0.4) or [n for n in names if n][:3]
        raise InvalidArgument(
            f"{what} names {name!r}, and the model has no module of that name: choose one of its "
            f"named_modules(), such as {', '.join(near) or 'none, it has no parts'}"
        )
