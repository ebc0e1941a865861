"""What is written to files of other programs is what was saved, and what is read from them too."""

from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from elbowroom.errors import CorruptData, IncompatibleFormat, InvalidArgument
from elbowroom.store.checkpoint import Checkpointer, CheckpointWarning, Store, tensorfile
from elbowroom.store.checkpoint.comparison import survey
from elbowroom.store.checkpoint.exchange import export_file, import_file
from elbowroom.store.checkpoint.reading import PartReader
from elbowroom.store.checkpoint.state import flatten

from .holders import Holder, double_ranks, flip, forge, save
from .runs import start, tensors_of


def load(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def same_bits(a: Tensor, b: Tensor) -> bool:
    whole = [torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor) for tensor in (a, b)]
    bits = [tensor.reshape(-1).view(torch.uint8) for tensor in whole]
    return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(*bits)


def odd_tensors() -> dict[str, Tensor]:
    """Every kind of tensor that a file could get wrong."""
    torch.manual_seed(3)
    x = torch.randn(6, 4)
    return {
        "half": x.bfloat16(),
        "eight": x.to(torch.float8_e4m3fn),
        "zero-dim": torch.tensor(-0.0),
        "empty": torch.zeros(0, 3),
        "empty and turned": torch.zeros(0, 3).t(),
        "one of many": torch.randn(9)[::2][:1],
        "turned": x.t(),
        "every other": torch.randn(9, 8)[::2, 1::3],
        "spread": torch.tensor([1.5]).expand(5, 2),
        "pictures": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "tied": x,
        "tied again": x,
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
        "complex": torch.randn(3, dtype=torch.complex64),
        "flags": torch.tensor([True, False]),
        "wide": torch.tensor([2**63], dtype=torch.uint64),
    }


def test_a_model_as_safetensors(tmp_path: Path) -> None:
    run = start()
    with run.checkpointer(tmp_path / "store") as checkpointer:
        run.step()
        checkpointer.save(sync=True)
    done = export_file(tmp_path / "store", tmp_path / "x.safetensors")
    found, expected = load_file(tmp_path / "x.safetensors"), run.model.state_dict()
    assert found.keys() == expected.keys()
    assert all(same_bits(found[name], value) for name, value in expected.items())
    assert (done.tensors, done.replaced, done.left_out) == (len(expected), {}, ())
    assert done.tensor_bytes == sum(value.nbytes for value in expected.values())
    assert done.file_bytes == (tmp_path / "x.safetensors").stat().st_size > done.tensor_bytes
    (tmp_path / "plain").touch()
    modes = {path.stat().st_mode for path in (tmp_path / "plain", tmp_path / "x.safetensors")}
    assert len(modes) == 1


def test_a_model_for_torch_loads_into_a_new_one(tmp_path: Path) -> None:
    run = start()
    with run.checkpointer(tmp_path / "store") as checkpointer:
        run.step()
        checkpointer.save(sync=True)
    export_file(tmp_path / "store", tmp_path / "x.pt")
    found = load(tmp_path / "x.pt")
    assert type(found) is OrderedDict
    assert vars(found) == vars(run.model.state_dict()) != {}
    again = start(seed=7)
    again.model.load_state_dict(found)
    state = run.model.state_dict()
    assert all(same_bits(value, state[name]) for name, value in again.model.state_dict().items())


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
def test_odd_tensors_come_out_as_they_were(tmp_path: Path, ending: str) -> None:
    given = odd_tensors()
    save(tmp_path / "store", given)
    target = tmp_path / f"x{ending}"
    export_file(tmp_path / "store", target)
    found = load(target) if ending == ".pt" else load_file(target)
    assert found.keys() == given.keys()
    assert all(same_bits(found[name], value) for name, value in given.items())
    # Equal bytes are stored once; in another's memory they must not be one tensor.
    assert found["tied"].data_ptr() != found["tied again"].data_ptr()
    if ending == ".pt":
        assert found["turned"].stride() == (1, 4)
        assert found["pictures"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
def test_odd_tensors_come_in_as_they_were(tmp_path: Path, ending: str) -> None:
    given = odd_tensors()
    source = tmp_path / f"x{ending}"
    if ending == ".pt":
        torch.save(given, source)
    else:
        save_file({name: value.contiguous().clone() for name, value in given.items()}, source)
    name = import_file(tmp_path / "store", source, step=12)
    store = Store.open(tmp_path / "store")
    assert store.names() == [name] and name.step == 12 and store.verify(name) == []
    found = store.state(store.manifest(name))["model"]
    assert found.keys() == given.keys()
    assert all(same_bits(found[key], value) for key, value in given.items())


def test_all_of_a_state_comes_out(tmp_path: Path) -> None:
    run = start()
    with run.checkpointer(tmp_path / "store", every=1) as checkpointer:
        for _ in range(3):
            run.step()
            checkpointer.step()
            checkpointer.wait()
    done = export_file(tmp_path / "store", tmp_path / "x.pt", what=None)
    whole = load(tmp_path / "x.pt")
    names = {"steps", "model", "optimizer", "scheduler", "progress", "randomness"}
    assert whole.keys() == names and whole["steps"] == 3
    assert done.replaced == {"state['randomness']['numpy']['state']['key']": "Tensor"}
    again = start(seed=9)
    again.model.load_state_dict(whole["model"])
    again.optimizer.load_state_dict(whole["optimizer"])
    again.scheduler.load_state_dict(whole["scheduler"])
    again.load_state_dict(whole["progress"])
    pairs = [(value, tensors_of(again)[name]) for name, value in tensors_of(run).items()]
    assert pairs and all(same_bits(a, b) for a, b in pairs)
    assert again.losses == run.losses
    assert again.scheduler.state_dict() == run.scheduler.state_dict()


def test_states_of_further_ranks_are_there_too(tmp_path: Path) -> None:
    store = save(tmp_path / "store", {"x": torch.ones(3)})
    double_ranks(store, store.names()[0])
    export_file(tmp_path / "store", tmp_path / "x.pt", what=None)
    whole = load(tmp_path / "x.pt")
    assert whole["per_rank"].keys() == {1}
    assert same_bits(whole["per_rank"][1]["model"]["x"], torch.ones(3))
    export_file(tmp_path / "store", tmp_path / "y.pt")
    assert load(tmp_path / "y.pt").keys() == {"x"}


def test_the_nearest_stands_for_what_torch_does_not_read(tmp_path: Path) -> None:
    state = {
        "deque": deque([1, 2]),
        "frozen": frozenset({3}),
        "sets": {frozenset({1}), (2, np.int64(3))},
        "range": range(3, 9, 2),
        "none": b"",
        "bytes": b"ab",
        "number": np.float32(1.5),
        "array": np.arange(6, dtype=">i2").reshape(2, 3),
        "filled": defaultdict(int, {"a": 1}),
        "counted": Counter("aab"),
        "ordered": OrderedDict(b=1, a=2),
        "kept": (1, None, True, 2.5, float("nan"), 1j, "x", torch.Size([2]), torch.bfloat16),
        4: {5},
    }
    save(tmp_path / "store", state)
    done = export_file(tmp_path / "store", tmp_path / "x.pt")
    found = load(tmp_path / "x.pt")
    expected: dict[Any, Any] = {
        **state,
        "deque": [1, 2],
        "frozen": (3,),
        "sets": {(1,), (2, 3)},
        "range": (3, 9, 2),
        "none": bytearray(),
        "number": 1.5,
        "array": torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int16),
        "filled": {"a": 1},
    }
    assert flatten(found, "x")[0] == flatten(expected, "x")[0]
    assert same_bits(found["array"], expected["array"])
    assert {place.split("'")[1]: kind for place, kind in done.replaced.items()} == {
        **{"deque": "list", "frozen": "tuple", "range": "tuple", "none": "bytearray"},
        **{"number": "float", "array": "Tensor", "filled": "dict"},
    }


def test_what_a_file_cannot_hold_is_named(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "x.safetensors"
    nested = {"weight": torch.ones(2), "deep": {"scale": 0.5, "list": [torch.zeros(3), "no"]}}
    states: list[Any] = [nested, {"wide": torch.ones(2, dtype=torch.complex128)}]
    states += [{"__metadata__": torch.ones(1)}, {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}]
    states += [{"big": 1 << 4000}, {"text": np.array(["x"])}]
    save(store, *states)
    for step, ending, said in [
        (1, "safetensors", r"model has also 'deep.scale', 'deep.list.1': leave them out"),
        (2, "safetensors", r"cannot hold 'wide' of type torch.complex128: write .pt"),
        (3, "safetensors", r"cannot hold a tensor named '__metadata__'"),
        (4, "safetensors", r"two tensors have the name 'a.b'"),
        (5, "pt", r"model\['big'\] has an integer that torch.load cannot read"),
        (6, "pt", r"model\['text'\] is an array of <U1"),
        (1, "npz", r"must end in one of .safetensors, .pt, "),
    ]:
        with pytest.raises(InvalidArgument, match=said):
            export_file(store, tmp_path / f"x.{ending}", step=step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    done = export_file(store, target, step=1, tensors_only=True)
    assert done.left_out == ("'deep.scale'", "'deep.list.1'") and done.tensors == 2
    found = load_file(target)
    assert found.keys() == {"weight", "deep.list.0"} and found["deep.list.0"].shape == (3,)


def test_steps_and_objects_are_chosen_by_name(tmp_path: Path) -> None:
    store = tmp_path / "store"
    save(store, *({"x": torch.tensor(float(step))} for step in (1, 2, 3)))
    for step, value in [(None, 3.0), (2, 2.0)]:
        export_file(store, tmp_path / "x.pt", step=step, replace=True)
        assert load(tmp_path / "x.pt")["x"] == value
    with pytest.raises(InvalidArgument, match="no checkpoint of step 9; there are: 3, 2, 1"):
        export_file(store, tmp_path / "y.pt", step=9)
    with pytest.raises(InvalidArgument, match="has no 'ema'; it has: steps, model, randomness"):
        export_file(store, tmp_path / "y.pt", what="ema")
    with pytest.raises(InvalidArgument, match="is no store of checkpoints"):
        export_file(tmp_path / "none", tmp_path / "y.pt")


def test_nothing_damaged_is_written(tmp_path: Path) -> None:
    store = save(tmp_path / "store", {"x": torch.arange(5000.0)})
    (pack,) = (tmp_path / "store" / "packs").iterdir()
    flip(pack, 300)
    with pytest.raises(CorruptData, match=r"state\['model'\]\['x'\]"):
        export_file(tmp_path / "store", tmp_path / "x.pt")
    assert not (tmp_path / "x.pt").exists()
    forge(store, store.names()[0], lambda held: held["parts"][0].update(tree=[1]))
    with pytest.raises(CorruptData, match="holds no state of a run"):
        export_file(tmp_path / "store", tmp_path / "x.pt")
    forge(store, store.names()[0], lambda held: held["facts"].update(dcp={}))
    with pytest.raises(IncompatibleFormat, match="was written by another release"):
        export_file(tmp_path / "store", tmp_path / "x.pt")


def test_a_tree_that_asks_for_a_tensor_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = save(tmp_path / "store", {"x": torch.zeros(1 << 16)})
    many = {"dict": [["model", [{"tensor": 0}] * 1000]]}
    forge(store, store.names()[0], lambda held: held["parts"][0].update(tree=many))
    monkeypatch.setattr(tensorfile, "available_bytes", lambda: 100 << 20)

    def refuse(*_: object) -> Tensor:
        raise AssertionError("nothing must be read")

    monkeypatch.setattr(PartReader, "tensor", refuse)
    with pytest.raises(InvalidArgument, match=r"says that it has 262,144,000 bytes, more than"):
        export_file(tmp_path / "store", tmp_path / "x.pt")


def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    save(tmp_path / "store", {"x": torch.zeros(10), "y": torch.zeros(5)})
    told: list[tuple[int, int]] = []
    export_file(tmp_path / "store", tmp_path / "x.pt", tell=lambda *pair: told.append(pair))
    assert told == [(40, 60), (20, 60)]


def test_a_run_starts_from_an_imported_model(tmp_path: Path) -> None:
    given = start(seed=4).model.state_dict()
    save_file(dict(given), tmp_path / "x.safetensors")
    import_file(tmp_path / "store", tmp_path / "x.safetensors", step=100)
    model = start(seed=5).model
    with Checkpointer(tmp_path / "store", model=model, handle_signals=False) as checkpointer:
        assert checkpointer.resumed_from == checkpointer.steps == 100
    assert all(same_bits(value, given[name]) for name, value in model.state_dict().items())
    run = start(seed=6)
    with (
        pytest.warns(CheckpointWarning, match="has no (optimizer|scheduler|progress): it stays"),
        run.checkpointer(tmp_path / "store", every=1) as checkpointer,
    ):
        run.step()
        checkpointer.step()
    assert [name.step for name in Store.open(tmp_path / "store").names()] == [100, 101]


def test_an_import_shares_what_the_store_has(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = {"x": torch.randn(200, 500)}
    store = save(tmp_path / "store", state)
    export_file(tmp_path / "store", tmp_path / "x.pt")
    name = import_file(tmp_path / "store", tmp_path / "x.pt", step=1, what="teacher", add=True)
    found = {holding.name: holding for holding in survey(store).holdings}
    assert list(found) == store.names() and store.names()[-1] == name
    assert found[name].state_bytes >= 400_000 > 40 * found[name].alone_bytes
    export_file(tmp_path / "store", tmp_path / "y.pt", what="teacher")
    assert same_bits(load(tmp_path / "y.pt")["x"], state["x"])


def test_a_store_keeps_its_hash(tmp_path: Path) -> None:
    pytest.importorskip("blake3")
    Checkpointer(tmp_path / "store", model=Holder({}), hash="blake3", handle_signals=False).close()
    torch.save({"x": torch.ones(2)}, tmp_path / "x.pt")
    name = import_file(tmp_path / "store", tmp_path / "x.pt")
    assert Store.open(tmp_path / "store").manifest(name).hash == "blake3"


def test_names_and_steps_that_no_run_has_are_refused(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(2)}, tmp_path / "x.pt")
    for what in ("steps", "randomness", "per_rank", "", "a b", "\x1b"):
        with pytest.raises(InvalidArgument, match="cannot be named"):
            import_file(tmp_path / "store", tmp_path / "x.pt", what=what)
    for step in (-1, 10**16):
        with pytest.raises(InvalidArgument, match="step must be from 0"):
            import_file(tmp_path / "store", tmp_path / "x.pt", step=step)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious.txt").touch()
    with pytest.raises(InvalidArgument, match="is no store of checkpoints and not empty"):
        import_file(tmp_path / "other", tmp_path / "x.pt")
    with (
        Checkpointer(tmp_path / "store", model=Holder({}), handle_signals=False),
        pytest.raises(InvalidArgument, match="another run is writing"),
    ):
        import_file(tmp_path / "store", tmp_path / "x.pt")


def test_a_store_that_has_checkpoints_is_not_added_to_by_chance(tmp_path: Path) -> None:
    save(tmp_path / "store", {"x": torch.ones(3)})
    torch.save({"x": torch.zeros(3)}, tmp_path / "x.pt")
    with pytest.raises(InvalidArgument, match=r"has checkpoints already, the last of step 1"):
        import_file(tmp_path / "store", tmp_path / "x.pt")
    assert len(Store.open(tmp_path / "store").names()) == 1


def test_of_a_file_with_several_objects_the_one_that_is_named_is_taken(tmp_path: Path) -> None:
    held = {"model": {"x": torch.ones(3)}, "optimizer": {"state": {}}, "epoch": 3}
    torch.save(held, tmp_path / "x.pt")
    import_file(tmp_path / "store", tmp_path / "x.pt")
    model = Holder({"x": torch.zeros(3)})
    Checkpointer(tmp_path / "store", model=model, handle_signals=False).close()
    assert torch.equal(model.state_dict()["x"], torch.ones(3))


def test_of_a_file_that_calls_the_model_otherwise_it_has_to_be_named(tmp_path: Path) -> None:
    """As Lightning does, and many scripts."""
    weights = {"w": torch.ones(3)}
    torch.save(
        {"state_dict": weights, "epoch": 3, "optimizer_states": [weights]}, tmp_path / "x.pt"
    )
    with pytest.raises(InvalidArgument, match=r"objects, state_dict, optimizer_states: say which"):
        import_file(tmp_path / "store", tmp_path / "x.pt")
    with pytest.raises(InvalidArgument, match="has no 'other'; it has: state_dict, epoch"):
        import_file(tmp_path / "store", tmp_path / "x.pt", key="other")
    import_file(tmp_path / "store", tmp_path / "x.pt", key="state_dict")
    model = Holder(None)
    Checkpointer(tmp_path / "store", model=model).close()
    assert list(model.state) == ["w"] and torch.equal(model.state["w"], weights["w"])
    # What modules keep besides tensors does not make several objects of one.
    torch.save({**weights, "_extra_state": {"a": torch.ones(1)}}, tmp_path / "y.pt")
    import_file(tmp_path / "other", tmp_path / "y.pt")
