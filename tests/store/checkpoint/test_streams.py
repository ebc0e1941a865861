"""Streams of other packages: every sample comes once, or it is said why not."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint import Checkpointer

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata's
]


def interrupted(folder: Path, make: Any, stop: int, of: Any) -> list[Any]:
    """What a loop is given that is left after some batches, and what the next run is given."""
    seen: list[Any] = []
    torch.manual_seed(0)
    for most in (stop, 10**9):
        loader = make()
        with Checkpointer(
            folder, model=nn.Linear(1, 1), loader=loader, every=1, handle_signals=False
        ) as ck:
            for batch in loader:
                seen.append(of(batch))
                ck.step()
                if len(seen) == most:
                    break
    return seen


def numbers(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        for number in range(10):
            yield {"x": 100 * shard + number}


@pytest.mark.parametrize("stop", [2, 7])
def test_a_shuffle_buffer_loses_nothing(
    tmp_path: Path, stop: int, caplog: pytest.LogCaptureFixture
) -> None:
    datasets = pytest.importorskip("datasets")

    def make() -> DataLoader[Any]:
        stream = datasets.IterableDataset.from_generator(numbers, gen_kwargs={"shards": [0, 1, 2]})
        return DataLoader(stream.shuffle(seed=3, buffer_size=8), batch_size=4)

    want = [batch["x"].tolist() for batch in make()]
    with caplog.at_level("INFO", "elbowroom"):
        found = interrupted(tmp_path, make, stop, lambda batch: batch["x"].tolist())
    assert found == want
    assert "shuffles in a buffer" in caplog.text


def test_a_stateful_loader_over_a_shuffle_buffer_is_refused(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    stream = datasets.IterableDataset.from_generator(numbers, gen_kwargs={"shards": [0, 1]})
    loader = stateful.StatefulDataLoader(stream.shuffle(seed=3, buffer_size=8), num_workers=2)
    with pytest.raises(InvalidArgument, match=r"samples would be lost: give a plain DataLoader"):
        Checkpointer(tmp_path, model=nn.Linear(1, 1), loader=loader, handle_signals=False)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files left open
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_web_loader_goes_on(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for number in range(20):
            member = tarfile.TarInfo(f"{number:04d}.txt")
            text = str(number).encode()
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))

    def make() -> Any:
        stream = wds.WebDataset(str(tmp_path / "shard.tar"), shardshuffle=False).decode()
        return wds.WebLoader(stream.to_tuple("txt"), batch_size=4)

    found = interrupted(tmp_path / "run", make, 3, lambda batch: list(batch[0]))
    assert [int(text) for batch in found for text in batch] == list(range(20))
    with pytest.raises(InvalidArgument, match=r"has stages of its own \(.*do that in the dataset"):
        loader = make().shuffle(10)
        Checkpointer(tmp_path / "b", model=nn.Linear(1, 1), loader=loader, handle_signals=False)
