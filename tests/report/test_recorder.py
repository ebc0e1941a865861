"""Recording real trainings: times, bytes, moments, and what autograd is left alone with."""

from itertools import accumulate
from pathlib import Path

import pytest
import torch
from torch import nn

from elbowroom.errors import InvalidArgument
from elbowroom.keep.activations import Activations
from elbowroom.keep.activations.ledger import Reading
from elbowroom.report import Recorder, read_run
from elbowroom.report.watch import Watch

from .runs import HOSTILE, record


@pytest.mark.parametrize("name", ["plain", "elbowroom"])
def test_what_is_recorded_adds_up(tmp_path: Path, name: str) -> None:
    record(tmp_path, name)
    (contender,) = read_run(tmp_path).contenders
    assert contender.state == "finished"
    assert [step.step for step in contender.steps] == [1, 2, 3, 4, 5, 6]
    for step in contender.steps:
        parts = step.forward_s + step.backward_s + step.optimizer_s
        assert 0 < parts <= step.seconds
        assert step.encode_s <= step.forward_s and step.decode_s <= step.backward_s
    assert contender.memory is not None
    assert contender.memory.peak_bytes >= contender.memory.baseline_bytes > 0
    assert contender.facts["note"] == HOSTILE and contender.machine["torch"] == torch.__version__
    assert contender.score is not None and contender.score.baselines == {"chance": 0.1}
    assert (len(contender.rows) > 0) == (name == "elbowroom")


@pytest.mark.parametrize("name", ["plain", "elbowroom"])
def test_the_timeline_begins_and_ends_with_nothing(tmp_path: Path, name: str) -> None:
    record(tmp_path, name)
    (contender,) = read_run(tmp_path).contenders
    timeline = contender.timeline
    assert timeline is not None and timeline.step == (5 if name == "plain" else 6)
    times = [moment.at_s for moment in timeline.moments]
    assert times == sorted(times) and times[0] > 0
    held = list(accumulate(moment.held_bytes for moment in timeline.moments))
    assert min(held) == 0 == held[-1] and max(held) > 0
    plain = list(accumulate(moment.plain_bytes for moment in timeline.moments))
    assert plain[-1] == 0
    if name == "elbowroom":
        assert max(held) == contender.kept_bytes
        assert max(plain) == contender.saved_bytes
        assert max(held) < max(plain) / 4
    grown = [m for m in timeline.moments if m.at_s <= timeline.forward_s and m.held_bytes > 0]
    assert any(HOSTILE in moment.layer for moment in grown)


def test_a_watch_counts_storages_once_and_only_what_is_saved() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh())
    x = torch.randn(32, 64)
    watch = Watch(model)
    with watch:
        y = model(x)
    # ReLU's result is also the second layer's input; Tanh saves its own; x is the caller's.
    assert watch.saved_bytes == 2 * 32 * 64 * 4
    assert {layer for _, layer, _, _ in watch.moments} == {"1", "3"}
    y.sum().backward()
    assert sum(held for _, _, _, held in watch.moments) == 0


def test_a_watch_takes_new_parameters_for_what_they_are() -> None:
    """Lazy layers get theirs while they run, and those are no activations."""
    model = nn.Sequential(nn.LazyLinear(64), nn.ReLU(), nn.LazyLinear(64), nn.LazyBatchNorm1d())
    saved_bytes = []
    for _ in range(2):
        watch = Watch(model)
        with watch:
            y = model(torch.randn(32, 64))
        y.sum().backward()
        saved_bytes.append(watch.saved_bytes)
    # The two layers' results, and the mean and spread of each feature.
    assert saved_bytes == [2 * 32 * 64 * 4 + 2 * 64 * 4] * 2


def test_a_watch_changes_no_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    x = torch.randn(2, 3, 12, 12)
    gradients = []
    for inside in (Watch(model), torch.enable_grad()):
        model.zero_grad()
        with inside:
            loss = model(x).square().sum()
        loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == 4
    assert all(map(torch.equal, *gradients))


def test_a_pass_that_fails_leaves_no_hook_behind() -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(RuntimeError), Watch(model):
        model(torch.zeros(1, 5))
    assert not model._forward_hooks and not model._forward_pre_hooks


def test_an_interrupted_recording_keeps_what_it_has(tmp_path: Path) -> None:
    recorder = record(tmp_path, "elbowroom", steps=5, end=False)
    assert read_run(tmp_path).state == "running"
    recorder.end("interrupted", "by me")
    (contender,) = read_run(tmp_path).contenders
    assert (contender.state, contender.note, len(contender.steps)) == ("interrupted", "by me", 5)
    assert contender.timeline is not None and contender.rows


def test_passes_that_follow_the_last_step_are_not_shown_as_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 1))
    optimizer = torch.optim.SGD(network.parameters(), 0.05)
    room = Activations(network, meter=0)
    recorder = Recorder(tmp_path, network, optimizer, room=room, look_at=(2,))
    for _ in range(3):
        with recorder:
            loss = network(torch.randn(2, 3, 32, 32)).square().mean()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    with room:
        loss = network(torch.randn(16, 3, 64, 64)).square().mean()
    loss.backward()
    recorder.tell("measuring gradients")
    assert read_run(tmp_path).contenders[0].doing == "measuring gradients"
    recorder.note_ledger([Reading(step=3, predicted=0.25, measured=0.5)])
    recorder.end("stopped")
    (contender,) = read_run(tmp_path).contenders
    assert contender.timeline is not None and contender.timeline.step == 3
    held = accumulate(moment.held_bytes for moment in contender.timeline.moments)
    assert max(held) == contender.kept_bytes == sum(row.kept_bytes for row in contender.rows)
    assert (contender.tolerance, contender.state) == (0.1, "stopped")
    assert (contender.gradient_error, contender.measured_error) == (0.25, 0.5)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)
    with pytest.raises(InvalidArgument, match="Module"):
        Recorder(tmp_path, "model", optimizer)  # type: ignore[arg-type]
