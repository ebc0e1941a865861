"""What is known of other packages' streams: whose state leaves something out, what lies below."""

from typing import Any

from torch.utils.data import DataLoader

from elbowroom.errors import InvalidArgument

_MOST_STAGES = 1000


def forgets_buffer(dataset: Any) -> bool:
    """Whether it is one of Hugging Face's that shuffles in a buffer, which its state leaves out."""
    if not type(dataset).__module__.startswith("datasets."):
        return False
    stage = getattr(dataset, "_ex_iterable", None)
    for _ in range(_MOST_STAGES):
        if stage is None:
            return False
        if "BufferShuffled" in type(stage).__name__:
            return True
        stage = getattr(stage, "ex_iterable", None)
    return False


def loader_below(loader: Any) -> Any:
    """The DataLoader that webdataset's WebLoader is made of; anything else as it is."""
    if not type(loader).__module__.startswith("webdataset."):
        return loader
    stages = getattr(loader, "pipeline", None)
    if not isinstance(stages, list) or not stages or not isinstance(stages[0], DataLoader):
        return loader
    others = [getattr(stage, "__name__", type(stage).__name__) for stage in stages[1:]]
    if others or getattr(loader, "nsamples", -1) > 0 or getattr(loader, "repetitions", 1) != 1:
        what = f"has stages of its own ({', '.join(others)})" if others else "sets an epoch"
        raise InvalidArgument(
            f"loader= is a WebLoader that {what}, which would have to be gone through again: do "
            "that in the dataset below it, and give a WebLoader of nothing else"
        )
    return stages[0]
