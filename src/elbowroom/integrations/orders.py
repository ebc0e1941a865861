"""What a run was asked for."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Orders:
    """The options of `elbowroom run`, for every process of the run."""

    tolerance: float = 0.1
    exact: tuple[str, ...] = ()
    """Names of modules, in whichever models have them."""

    memory: str | None = None
    overhead: float | None = 0.25
    rule: Literal["variance", "comet", "certified"] = "variance"
    ledger: str | None = None
    """File for the ledger."""

    is_quiet: bool = False
    is_json: bool = False
    """Whether the summary is for programs."""

    script: str = ""
