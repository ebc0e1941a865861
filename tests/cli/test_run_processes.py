"""The verb run where a script starts processes, or is started several times."""

import json
import runpy
from pathlib import Path

import pytest
import torch

from tests.cli.programs import RUN, run, weights

DISTRIBUTED = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.Linear(256, 8))


def loss_of(model, step, rank):
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(100 * step + rank))
    return nn.functional.cross_entropy(model(x), x[:, :8].argmax(1))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(5):
        loss_of(model, step, dist.get_rank()).backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), sys.argv[1])
    dist.destroy_process_group()
"""


def test_torchrun_starts_it_in_every_process(tmp_path: Path) -> None:
    """Torchrun itself trains nothing; what it starts finds the run in its environment."""
    (tmp_path / "train.py").write_text(DISTRIBUTED)
    words = ["--tolerance", 0, "--ledger", "ledger.json", "torchrun", "--nproc-per-node", 2]
    done = run(tmp_path, *RUN, *words, "--standalone", "train.py", "ours.pt")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("elbowroom: ") == 1
    assert "elbowroom: Sequential, in 2 processes: " in done.stderr
    for name, rank in (("ledger.json", 0), ("ledger-rank1.json", 1)):
        ledger = json.loads((tmp_path / name).read_text())
        assert ledger["rank"] == rank
        assert [module["passes"] for module in ledger["modules"]] == [5]
    script = runpy.run_path(str(tmp_path / "train.py"))
    model = script["make"]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(5):
        for rank in range(2):
            # Halves add up to the mean without rounding.
            (script["loss_of"](model, step, rank) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, value in weights(tmp_path / "ours.pt").items():
        assert torch.equal(value, model.state_dict()[name]), name


SPAWN = """
import sys
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, index):
        return torch.arange(64).mul(index).sin()


def train(rank, workers):
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    context = "spawn" if workers else None
    for x in DataLoader(Waves(), 64, num_workers=workers, multiprocessing_context=context):
        model(x).square().mean().backward()


if __name__ == "__main__":
    mp.start_processes(train, (int(sys.argv[2]),), nprocs=1, start_method=sys.argv[1])
"""


@pytest.mark.parametrize(("method", "workers"), [("spawn", 1), ("fork", 0)])
def test_processes_of_the_script_are_accompanied(tmp_path: Path, method: str, workers: int) -> None:
    """Also those that only load data, which have nothing to say."""
    (tmp_path / "train.py").write_text(SPAWN)
    done = run(tmp_path, *RUN, "--ledger", "ledger.json", "train.py", method, workers)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("elbowroom: Sequential: ") and "2 passes" in line
    (file,) = tmp_path.glob("ledger-process*.json")
    assert [m["passes"] for m in json.loads(file.read_text())["modules"]] == [2]


def test_processes_of_slurm_write_ledgers_of_their_own(tmp_path: Path) -> None:
    """What srun does: it starts the command several times, with a number for each."""
    (tmp_path / "train.py").write_text(
        "import torch\ntorch.nn.Linear(256, 256)(torch.randn(64, 256)).sum().backward()\n"
    )
    words = [*RUN, "--ledger", "ledger.json", "train.py"]
    done = run(tmp_path, *words, SLURM_PROCID="1", SLURM_NTASKS="2")
    assert (done.returncode, done.stderr) == (0, "")
    (file,) = tmp_path.glob("*.json")
    assert file.name == "ledger-rank1.json"
