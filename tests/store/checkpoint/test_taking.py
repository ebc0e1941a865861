"""Weights come out in one line: whole, in part, under other names, of sharded runs too."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from safetensors.torch import load_file
from torch import nn

import elbowroom as er
from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.store.checkpoint import CheckpointWarning, dcp
from elbowroom.store.checkpoint.exchange import export_file, import_file

from .holders import flip, save

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),  # torch's own save
]


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_plain_dict(tmp_path: Path) -> None:
    model = network()
    with er.Checkpointer(tmp_path / "run", model=model, handle_signals=False) as ck:
        ck.save(sync=True)
    found = er.load(tmp_path / "run")
    assert {"model", "steps", "randomness"} == found.keys() and found["steps"] == 0
    assert same(dict(found["model"]), model.state_dict())
    assert er.load(tmp_path / "run", "model", keys="0").keys() == {"0.weight", "0.bias"}
    part = er.load(tmp_path / "run", "model", keys=["2.bias", "1"], names={"2": "head", "1": "n"})
    assert "head.bias" in part and "n.running_mean" in part and len(part) == 6
    with pytest.raises(InvalidArgument, match=r"has no 9; it has: 0\.weight"):
        er.load(tmp_path / "run", "model", keys=["9"])
    with pytest.raises(InvalidArgument, match="two things would be called"):
        er.load(tmp_path / "run", "model", names={"0.weight": "x", "0.bias": "x"})
    with pytest.raises(InvalidArgument, match="no checkpoint of step 7"):
        er.load(tmp_path / "run", step=7)


def test_into_a_model_of_other_names(tmp_path: Path) -> None:
    model = network()
    wrapped = {f"module._orig_mod.{name}": value for name, value in model.state_dict().items()}
    save(tmp_path / "run", wrapped)
    other = network(1)
    with pytest.raises(InvalidArgument, match=r"has nothing that fits .* rename with strip="):
        er.load(tmp_path / "run", into=other, strict=False)
    with pytest.raises(InvalidArgument, match=r"does not fit the Sequential: it lacks .* strip="):
        er.load(tmp_path / "run", into=other)
    er.load(tmp_path / "run", into=other, strip=("module.", "_orig_mod."))
    assert same(other.state_dict(), model.state_dict())
    # A head of another shape, which strict=False leaves as it is.
    other, head = network(2), nn.Linear(8, 5)
    other[2] = head
    before = head.weight.clone()
    with pytest.raises(InvalidArgument, match=r"another shape: 2\.weight \(\(3, 8\) in place"):
        er.load(tmp_path / "run", into=other, strip=("module.", "_orig_mod."))
    with pytest.warns(CheckpointWarning, match=r"loaded in part: of another shape: 2\.weight"):
        er.load(tmp_path / "run", into=other, strip=("module.", "_orig_mod."), strict=False)
    assert torch.equal(head.weight, before)
    assert torch.equal(other.state_dict()["0.weight"], model.state_dict()["0.weight"])


def test_a_model_that_does_not_fit_is_told_the_way_out(tmp_path: Path) -> None:
    save(tmp_path / "run", network().state_dict())
    with pytest.raises(InvalidArgument, match=r"elbowroom\.load\(folder, 'model'\) .*strict=False"):
        er.Checkpointer(tmp_path / "run", model=nn.Linear(2, 2), handle_signals=False)


def test_damage_names_what_is_older(tmp_path: Path) -> None:
    save(tmp_path / "run", {"x": torch.randn(5000)}, {"x": torch.randn(5000)})
    flip(max((tmp_path / "run" / "packs").iterdir()), 500)
    with pytest.raises(CorruptData, match="step= names an older checkpoint: 1"):
        er.load(tmp_path / "run")
    assert er.load(tmp_path / "run", step=1)["steps"] == 1


def sharded(where: Path) -> tuple[nn.Module, dict[str, Any]]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    dcp.save(state, where, step=5)
    return model, state


def test_a_sharded_run_comes_out_whole(tmp_path: Path) -> None:
    model, state = sharded(tmp_path / "run")
    found = er.load(tmp_path / "run")
    assert found["epoch"] == 3 and same(found["model"], model.state_dict())
    moments = state["optimizer"]["state"][0]["exp_avg"]
    assert torch.equal(found["optimizer"]["state"]["0"]["exp_avg"], moments)  # torch names them so
    other = network(4)
    er.load(tmp_path / "run", into=other)
    assert same(other.state_dict(), model.state_dict())
    for name in ("model.safetensors", "model.pt"):
        done = export_file(tmp_path / "run", tmp_path / name)
        assert (done.name.step, done.tensors) == (5, len(model.state_dict()))
    assert same(load_file(tmp_path / "model.safetensors"), model.state_dict())
    assert same(torch.load(tmp_path / "model.pt", weights_only=True), model.state_dict())
    with pytest.raises(InvalidArgument, match="has no 'ema'; it has: model, optimizer, epoch"):
        er.load(tmp_path / "run", "ema")


def test_a_folder_of_torchs_becomes_a_run(tmp_path: Path) -> None:
    model, state = sharded(tmp_path / "run")
    torch_dcp.save(state, checkpoint_id=tmp_path / "theirs", no_dist=True)
    import_file(tmp_path / "ours", tmp_path / "theirs")
    again = network(3)
    er.load(tmp_path / "ours", into=again)
    assert same(again.state_dict(), model.state_dict())
    with pytest.raises(InvalidArgument, match=r"none of torch\.distributed"):
        import_file(tmp_path / "new", tmp_path / "run")


class Evil:
    """What a pickle can do to whoever reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_folder_of_torchs_runs_nothing(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    torch_dcp.save({"model": {"x": torch.ones(3)}}, checkpoint_id=theirs, no_dist=True)
    good = (theirs / ".metadata").read_bytes()
    (theirs / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    with pytest.raises(InvalidArgument, match="only descriptions of tensors are read"):
        import_file(tmp_path / "ours", theirs)
    found = pickle.loads(good)
    for place in found.storage_data.values():
        place.relative_path = "../secret"
    (theirs / ".metadata").write_bytes(pickle.dumps(found))
    with pytest.raises(CorruptData, match="no file in that folder"):
        import_file(tmp_path / "ours", theirs)
    theirs = tmp_path / "others"
    evil = {"model": {"x": torch.ones(3)}, "o": Evil(tmp_path / "ran")}
    torch_dcp.save(evil, checkpoint_id=theirs, no_dist=True)
    with pytest.raises(InvalidArgument, match="only by running code"):
        import_file(tmp_path / "ours", theirs)
    assert not (tmp_path / "ran").exists()
    (theirs / ".metadata").write_bytes(good[:50])
    with pytest.raises(CorruptData, match="describes no checkpoint, or is damaged"):
        import_file(tmp_path / "ours", theirs)
