"""The area under the ROC curve, from ranks."""

import torch
from torch import Tensor

from elbowroom.errors import InvalidArgument


def measure_auc(scores: Tensor, labels: Tensor) -> float:
    """Return the chance that a signal scores higher than a background; ties count half.

    That is the statistic of Mann and Whitney: with mean ranks r, (Σ r over the n signals
    - n (n + 1) / 2) / (n m).
    """
    signal = labels.flatten().bool()
    scores = scores.flatten().double()
    if len(scores) != len(signal):
        raise InvalidArgument(f"{len(scores)} scores do not go with {len(signal)} labels")
    signals = int(signal.sum())
    backgrounds = len(signal) - signals
    if not signals or not backgrounds:
        raise InvalidArgument("both signal and background are needed to compare them")
    if torch.isnan(scores).any():
        return float("nan")
    _, places, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks = (ends - (counts.double() - 1) / 2)[places]  # mean rank of equal scores, from 1
    above = float(ranks[signal].sum()) - signals * (signals + 1) / 2
    return above / (signals * backgrounds)
