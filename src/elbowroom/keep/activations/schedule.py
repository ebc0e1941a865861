"""In which passes the gradients are looked at, and in which the meter runs: never in the same."""


def is_due(step: int, every: int) -> bool:
    """A look at 1, 2, 3, 4, 6, 8, 12 and so on until the period is reached, then once a period.

    Gradients change fastest at the beginning: at each of these a third to a half more steps have
    been seen than at the last, and twice as many at the second.
    """
    if step >= every:
        return step % every == 0
    step //= step & -step
    return step in (1, 3)


def is_metered(step: int, every: int) -> bool:
    """The meter's turn: one pass after such a look, at 5, 7, 9, 13, 17 and so on.

    Before the fifth pass there is hardly a prediction to compare with.
    """
    return step > min(4, every + 1) and is_due(step - 1, every)


def is_rare(step: int, every: int) -> bool:
    """Its turn where it has to run a whole batch: at 17, 33, 65 and so on, then once a period."""
    before = step - 1
    is_power = before & -before == before
    return before >= min(16, every) and (is_power if before < every else before % every == 0)
