"""The true error of the gradient, against the variance over other batches at the same weights."""

import copy
from typing import Any

import torch
from torch import Tensor

from benchmarks.zoo.entry import Subject

# Passes that are looked at: each costs as many exact gradients as there are other batches.
PASSES = (2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 30, 35, 40)
OTHERS = 6
TOLERANCE = 0.1

# A parameter whose gradient is smaller than this, against the mean element of all of them, is zero
# but for rounding: its own variance says nothing.
ROUNDING = 1e-5


def compare(subject: Subject, steps: int) -> dict[str, Any]:
    """Predicted, measured and true errors at some of the first passes."""
    import elbowroom as er

    model = subject.model
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(parameters.values(), subject.rate)
    room = er.Activations(model, optimizer=optimizer)
    own, aside = torch.Generator().manual_seed(7), torch.Generator().manual_seed(8)
    rows: list[dict[str, Any]] = []
    for number in range(1, steps + 1):
        batch = subject.batch(own)
        is_looked_at = number in PASSES
        exact: list[dict[str, Tensor]] = []
        if is_looked_at:
            state = torch.get_rng_state()
            exact = [_gradients(subject, batch)]
            exact += [_gradients(subject, subject.batch(aside)) for _ in range(OTHERS)]
            torch.set_rng_state(state)
        with room:
            loss = subject.loss(model, batch)
        loss.backward()
        del loss
        if is_looked_at:
            found = {n: p.grad for n, p in parameters.items() if p.grad is not None}
            ledger = room.ledger
            rows.append(
                {
                    "pass": number,
                    "predicted": ledger.gradient_error,
                    "readings": [(r.step, r.predicted, r.measured) for r in ledger.readings],
                    **_errors(found, exact),
                }
            )
        optimizer.step()
        optimizer.zero_grad()
    return {"rows": rows, "events": list(room.ledger.events), "ratio": room.ledger.ratio}


def _gradients(subject: Subject, batch: Any) -> dict[str, Tensor]:
    """Exact, at the same weights, with the random numbers that come next."""
    model = copy.deepcopy(subject.model)
    model.zero_grad()
    subject.loss(model, batch).backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def _errors(found: dict[str, Tensor], exact: list[dict[str, Tensor]]) -> dict[str, Any]:
    """Shares of the variance: of all parameters together, and the worst of a single one."""
    names = [n for n in found if all(n in each for each in exact)]
    error = {n: _energy(found[n] - exact[0][n]) for n in names}
    variance: dict[str, float] = {}
    for n in names:
        mean = sum(each[n] for each in exact[1:]) / OTHERS
        variance[n] = sum(_energy(each[n] - mean) for each in exact[1:]) / (OTHERS - 1)
    count = sum(found[n].numel() for n in names)
    usual = sum(_energy(exact[0][n]) for n in names) / count
    own = {
        n: error[n] / variance[n]
        for n in names
        if variance[n] > 0 and _energy(exact[0][n]) / found[n].numel() > ROUNDING**2 * usual
    }
    worst = max(own, key=lambda n: own[n], default="")
    return {
        "true": sum(error.values()) / max(sum(variance.values()), 1e-300),
        "parameters": len(own),
        "above": sum(share > 3 * TOLERANCE for share in own.values()),
        "worst": own.get(worst, 0.0),
        "worst_name": worst,
    }


def _energy(tensor: Tensor) -> float:
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return float(tensor.double().square().sum())
