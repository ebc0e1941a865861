"""Next characters: windows, baselines, and a pattern that is learnt."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from elbowroom.errors import InvalidArgument
from elbowroom.science.language.data import number
from elbowroom.science.language.training import Characters, predict_characters
from elbowroom.science.task import Schedule
from elbowroom.science.training import train

RHYME = "the rain in spain falls mainly on the plain; "


@pytest.fixture
def recipe(tmp_path: Path) -> Characters:
    (tmp_path / "rhyme.txt").write_text(RHYME * 40)
    return Characters(
        text=tmp_path / "rhyme.txt",
        context=16,
        width=32,
        layers=1,
        schedule=Schedule(steps=60, batch=16, learning_rate=1e-2, clip=1.0),
    )


@pytest.mark.parametrize("network", ["gpt", "lstm"])
def test_a_rhyme_is_learnt(network: str, recipe: Characters) -> None:
    result = train(replace(recipe, network=network))  # type: ignore[arg-type]
    assert result.losses[-1] < 0.5 * result.losses[0]
    assert not result.score.higher_is_better
    assert result.score.value < result.score.baselines["pairs of symbols"]
    assert result.score.beats_baselines()


def test_a_seed_decides_everything(recipe: Characters) -> None:
    short = replace(recipe, dropout=0.2, schedule=replace(recipe.schedule, steps=4))
    assert train(short, seed=1).losses == train(short, seed=1).losses
    assert train(short, seed=1).losses != train(short, seed=2).losses


def test_targets_are_the_next_characters_of_training_text_alone() -> None:
    text = number(["ab" * 90 + "cd" * 10])
    task = predict_characters(text, context=8)
    inputs, targets = task.draw(200, torch.Generator().manual_seed(0))
    assert inputs.shape == targets.shape == (200, 8)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert int(torch.cat([inputs, targets]).max()) == 1  # no c and no d
    assert task.outputs == 4


class Knowing(nn.Module):
    """Says with a certain confidence that b follows a and a follows b."""

    def __init__(self, logit: float) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor(logit))

    def forward(self, codes: Tensor) -> Tensor:
        return nn.functional.one_hot(1 - codes, 2) * self.logit


@pytest.mark.parametrize(("logit", "nats"), [(30.0, 0.0), (0.0, math.log(2))])
def test_a_perfect_network_scores_nothing_and_a_blind_one_the_entropy(
    logit: float, nats: float
) -> None:
    task = predict_characters(number(["ab" * 100]), context=6)
    score = task.score(Knowing(logit))
    assert score.value == pytest.approx(nats, abs=1e-6)
    assert score.baselines["any symbol"] == pytest.approx(math.log(2))
    assert 0 < score.baselines["pairs of symbols"] < 0.02


def test_part_of_the_held_out_text_can_be_scored() -> None:
    text = number([RHYME * 40])
    seen: list[int] = []

    class Counting(Knowing):
        def forward(self, codes: Tensor) -> Tensor:
            seen.append(len(codes))
            return torch.zeros(*codes.shape, len(text.symbols)) * self.logit

    predict_characters(text, context=8, scored_windows=3).score(Counting(0.0))
    assert sum(seen) == 3


def test_what_does_not_fit_is_refused(recipe: Characters) -> None:
    with pytest.raises(InvalidArgument, match="longer than the context of 64 characters"):
        predict_characters(number([RHYME]), context=64)
    task = recipe.make_task()
    with pytest.raises(InvalidArgument, match="symbols, more than 3"):
        replace(recipe, symbols=3).make_network(task)
    wide = replace(recipe, symbols=100).make_network(task)
    assert wide(torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, 100)
