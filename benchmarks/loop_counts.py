"""Steps that schedules make, beside those of the package `checkpoint_schedules`; one JSON a line.

Both count all steps, those with a tape included. It needs `pip install checkpoint_schedules`; its
tables are made in plain Python where numba is missing, which takes a minute.
"""

import importlib
import json
from typing import Any

from elbowroom.keep.loops.mixed import fewest_steps
from elbowroom.keep.loops.schedules import fewest_advances

CASES = ((10, 3), (50, 5), (100, 3), (100, 10), (200, 20), (300, 10), (400, 5), (400, 30))


def main() -> None:
    """A line for each length and number of slots."""
    binomial: Any = importlib.import_module("checkpoint_schedules.multistage")
    mixed: Any = importlib.import_module("checkpoint_schedules.mixed")
    for length, slots in CASES:
        line = {
            "length": length,
            "slots": slots,
            "revolve": fewest_advances(length, slots) + length,
            "theirs": int(binomial.optimal_steps_binomial(length, slots)),
            "mixed": fewest_steps(length, slots),
            "their mixed": int(mixed.mixed_steps_tabulation(length, slots)[length, slots, 2]),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
