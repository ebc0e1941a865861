"""Time as a budget: which forms given seconds buy, and when a room steps aside."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.keep.activations.choice_of_forms import Option, choose
from elbowroom.keep.activations.laps import Held, Lap
from elbowroom.keep.activations.pace import Pace
from elbowroom.keep.activations.sites import Form, Site

MB = 1 << 20


def site(number: int) -> Site:
    return Site((f"layer{number}", "conv2d", 0, 0), number)


def option(seconds: float, held: float, form: Form = Form.BLOCK, number: int = 0) -> Option:
    return Option(forms=((site(number), form),), seconds=seconds, held_bytes=held)


# The choice.


def least_bytes(groups: list[list[Option]], seconds: float) -> float:
    """By trying all."""
    return min(
        sum(o.held_bytes for o in each)
        for each in itertools.product(*groups)
        if sum(o.seconds for o in each) <= seconds
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_within_the_seconds_and_near_the_best_one(seed: int) -> None:
    """A swap that does not fit is the most that is lost: less than one tensor."""
    chance = random.Random(seed)
    groups: list[list[Option]] = []
    for _ in range(6):
        plain = chance.uniform(1, 10)
        block = option(chance.uniform(0.1, 1) * plain, chance.uniform(0.1, 0.6) * plain)
        dense = option(block.seconds * 2, block.held_bytes * chance.uniform(0.5, 1.1))
        groups.append([option(0, plain, Form.PLAIN), block, dense])
    for seconds in (0.0, 1.0, 3.0, 8.0, 100.0):
        found = choose(groups, seconds)
        assert sum(o.seconds for o in found) <= seconds
        largest = max(group[0].held_bytes for group in groups)
        best = least_bytes(groups, seconds)
        assert best <= sum(o.held_bytes for o in found) + 1e-9 <= best + largest


def test_seconds_go_where_they_buy_most() -> None:
    mask = [option(0, 10, Form.PLAIN), option(0.1, 0.3, Form.KEEP)]
    values = [option(0, 10, Form.PLAIN), option(1, 2), option(3, 1.5, Form.DENSE)]
    assert [o.seconds for o in choose([values, mask], 0.0)] == [0, 0]
    assert [o.seconds for o in choose([values, mask], 0.5)] == [0, 0.1]
    assert [o.seconds for o in choose([values, mask], 1.2)] == [1, 0.1]
    assert [o.seconds for o in choose([values, mask], 9.0)] == [3, 0.1]


def test_what_is_larger_and_slower_is_never_taken() -> None:
    worse = option(2, 3, Form.DENSE)
    assert choose([[option(0, 10, Form.PLAIN), option(1, 2), worse]], 100)[0].seconds == 1


# The plan, from times that were measured.


def held(number: int, form: Form, method: str, **given: Any) -> Held:
    given = {"plain_bytes": MB, "storage_bytes": MB, "storage": number} | given
    return Held(site=given.pop("at", None) or site(number), form=form, method=method, **given)


def coded(number: int, at: Site, *, seconds: float, storage: int | None = None) -> Held:
    return held(
        number,
        Form.BLOCK,
        "encode",
        at=at,
        held_bytes=MB // 5,
        encode_s=seconds / 2,
        decode_s=seconds / 2,
        bound=1.0,
        storage=number if storage is None else storage,
    )


def run(
    pace: Pace,
    held: list[Held],
    *,
    plain_s: float,
    python_s: float = 0.0,
    news: list[str] | None = None,
) -> Lap:
    """A pass that took so long."""
    lap = pace.start()
    lap.held = held
    lap.spent_s = python_s + sum(h.seconds for h in held)
    lap.forward_end = lap.start + plain_s / 2 + lap.spent_s
    lap.backward_start, lap.backward_end = 1.0, 1.0 + plain_s / 2
    lap.saved_bytes = sum(h.plain_bytes for h in held)
    lap.kept_bytes = sum(h.held_bytes for h in held)
    pace.next_pass(([] if news is None else news).append)
    return lap


def test_forms_cost_no_more_than_was_asked_for() -> None:
    pace = Pace(0.25)
    sites = [site(i) for i in range(4)]
    lap = run(pace, [coded(i, s, seconds=0.09) for i, s in enumerate(sites)], plain_s=1.0)
    # 0.2 s are planned for: two of the four.
    forms = [pace.form_of(lap, s, MB) for s in sites]
    assert forms.count(Form.BLOCK) == 2 and forms.count(Form.PLAIN) == 2
    assert pace.measured == pytest.approx(0.36)
    # With twice the time there is time for all.
    for _ in range(16):
        run(pace, [coded(i, s, seconds=0.09) for i, s in enumerate(sites)], plain_s=2.5)
    assert [pace.form_of(lap, s, MB) for s in sites] == 4 * [Form.BLOCK]


def test_without_time_only_what_takes_none_is_saved() -> None:
    pace = Pace(0.0)
    a, b = site(0), site(1)
    assert pace.form_of(pace.start(), a, MB) is Form.KEEP
    mask = held(1, Form.KEEP, "bits", at=b, held_bytes=MB // 32, encode_s=0.01)
    lap = run(pace, [coded(0, a, seconds=0.1), mask], plain_s=1.0)
    assert pace.form_of(lap, a, MB) is Form.PLAIN
    assert pace.form_of(lap, b, MB) is Form.PLAIN


def test_views_of_one_storage_are_kept_together() -> None:
    pace = Pace(0.25)
    sites = [site(i) for i in range(3)]
    views = [coded(i, s, seconds=0.1, storage=7) for i, s in enumerate(sites)]
    for view in views:
        view.storage_bytes = 3 * MB
    lap = run(pace, views, plain_s=1.0)
    assert {pace.form_of(lap, s, MB) for s in sites} == {Form.PLAIN}


def test_the_small_codec_is_taken_where_there_is_time() -> None:
    pace = Pace(0.25)
    at = site(0)
    at.gain = 1.3
    lap = run(pace, [coded(0, at, seconds=0.01)], plain_s=1.0)
    assert pace.form_of(lap, at, MB) is Form.DENSE
    small = coded(0, at, seconds=0.4)
    small.is_small = True
    for _ in range(9):
        run(pace, [small], plain_s=1.0)
    assert pace.form_of(lap, at, MB) is Form.BLOCK


def test_a_slow_pass_does_not_grant_more() -> None:
    pace = Pace(0.25)
    for seconds in (1.0, 1.0, 9.0, 1.0, 5.0, 1.0):
        run(pace, [coded(0, site(0), seconds=0.1)], plain_s=seconds)
    assert pace.plain_s == pytest.approx(1.0)


def test_plans_do_not_flicker() -> None:
    pace = Pace(0.25)
    sites = [site(i) for i in range(4)]
    chance = random.Random(0)
    plans: set[tuple[Form, ...]] = set()
    for number in range(60):
        tensors = [
            coded(i, s, seconds=0.1 * chance.uniform(0.98, 1.02)) for i, s in enumerate(sites)
        ]
        lap = run(pace, tensors, plain_s=1.1 * chance.uniform(0.98, 1.02))
        if number > 3:
            plans.add(tuple(pace.form_of(lap, s, MB) for s in sites))
    assert len(plans) == 1


def test_the_fewest_bytes_are_held_where_nobody_asks_for_the_time() -> None:
    pace = Pace(None)
    lap = run(pace, [coded(0, site(0), seconds=5.0)], plain_s=1.0, python_s=3.0)
    assert pace.form_of(lap, site(0), MB) is Form.ENCODE
    assert not pace.is_aside
    assert pace.spare_s() is None and pace.measured == pytest.approx(8.0)


def test_passes_without_backward_say_nothing() -> None:
    pace = Pace(0.25)
    for _ in range(20):
        pace.start()
        pace.next_pass([].append)
    assert pace.plain_s is None and pace.measured is None
    run(pace, [coded(0, site(0), seconds=0.1)], plain_s=1.0)
    assert pace.plain_s == pytest.approx(1.0)


def test_it_steps_aside_where_python_takes_more_than_it_saves() -> None:
    pace = Pace(0.25)
    small = held(0, Form.KEEP, "keep", held_bytes=MB)
    news: list[str] = []
    for _ in range(2):
        assert not pace.is_aside
        run(pace, [small], plain_s=1.0, python_s=0.2, news=news)
    assert pace.is_aside
    assert len(news) == 1 and "left alone" in news[0]
    # Far larger arguments are another matter.
    aside = pace.pass_by()
    aside.note_arguments([torch.zeros(10)])
    assert pace.is_aside
    aside.note_arguments([torch.zeros(40)])
    assert not pace.is_aside


def test_it_does_not_where_much_is_saved() -> None:
    pace = Pace(0.25)
    for _ in range(4):
        run(pace, [coded(0, site(0), seconds=0.01)], plain_s=1.0, python_s=0.2)
    assert not pace.is_aside


# Rooms.


class Loop(nn.Module):
    """Two cells over many small steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(1, 16), nn.LSTMCell(16, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        state = [torch.zeros(x.shape[0], 16) for _ in range(4)]
        found: list[Tensor] = []
        for column in x.split(1, dim=1):
            state[:2] = self.first(column, (state[0], state[1]))
            state[2:] = self.second(state[0], (state[2], state[3]))
            found.append(self.out(state[2]))
        return torch.cat(found, dim=1)


def small_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.SiLU(inplace=True),
        nn.Flatten(),
        nn.Linear(16 * 256, 10),
    )


def train(
    make: Callable[[], nn.Module], shape: tuple[int, ...], passes: int, **options: Any
) -> Iterator[tuple[er.Activations | None, list[Tensor]]]:
    """After each pass: the room, and all gradients."""
    torch.manual_seed(0)
    model = make()
    room = er.Activations(model, **options) if options else None
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(passes):
        x = torch.randn(shape)
        if room is None:
            loss = model(x).square().mean()
        else:
            with room:
                loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        yield room, [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
    if room is not None:
        room.close()


@pytest.mark.parametrize("tolerance", [0, 0.1])
def test_a_forward_over_small_tensors_goes_on_plainly(tolerance: float) -> None:
    plain = [grads for _, grads in train(Loop, (300, 40), 2)]
    found: list[int] = []
    options: dict[str, Any] = {"tolerance": tolerance, "overhead": 0.0}
    for (room, mine), theirs in zip(train(Loop, (300, 40), 2, **options), plain, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
        assert room is not None
        found.append(len(room.ledger.rows))
        assert ["left alone" in event for event in room.ledger.events] == [True]
    # Each of some hundreds of tensors would have a row.
    assert 0 < found[0] < 150 and found[1] == 0


def test_what_is_saved_plainly_in_mid_forward_is_still_checked_for_changes() -> None:
    model = Loop()
    room = er.Activations(model, tolerance=0, overhead=0.0)
    with room:
        y = model(torch.randn(300, 40))
        z = y.exp()
        z += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    room.close()


def test_hooks_inside_keep_a_forward_from_going_on_plainly() -> None:
    """Those of the user's own come off in their turn, and ours only when they are on top."""
    model, seen = Loop(), []
    room = er.Activations(model, tolerance=0, overhead=0.0)

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        with room:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                inside = model(torch.randn(300, 40))
            assert not room.ledger.events and len(seen) > 150
            loss = inside.sum() + model(torch.randn(300, 40)).sum()
        assert any("left alone" in event for event in room.ledger.events)
        count = len(seen)
        loss = loss + model(torch.randn(2, 40)).sum()
    loss.backward()
    assert len(seen) == count
    assert all(p.grad is not None for p in model.parameters())
    room.close()


def test_large_tensors_are_not_left_for_being_many() -> None:
    layers = [layer for _ in range(60) for layer in (nn.Linear(64, 64), nn.GELU())]
    room = [room for room, _ in train(lambda: nn.Sequential(*layers), (600, 64), 1, tolerance=0)][
        -1
    ]
    assert room is not None
    assert len(room.ledger.rows) > 100 and room.ledger.ratio > 1.5
    assert not room.ledger.events


def test_the_ledger_of_passes_left_alone_says_what_plain_holds() -> None:
    options: dict[str, Any] = {"tolerance": 0, "overhead": 0.0}
    rooms = [(room, room.ledger) for room, _ in train(Loop, (4, 2), 6, **options) if room]
    ledgers = [ledger for _, ledger in rooms]
    assert any("left alone" in event for event in ledgers[-1].events)
    assert ledgers[-1].rows == () and ledgers[-1].ratio == 1
    assert ledgers[-1].saved_bytes == ledgers[0].saved_bytes > 0


def test_a_loop_over_small_tensors_is_left_alone_and_stays_as_it_is() -> None:
    plain = [grads for _, grads in train(Loop, (4, 60), 4)]
    for tolerance in (0, 0.1):
        found = list(train(Loop, (4, 60), 4, tolerance=tolerance, overhead=0.25))
        for (_, mine), theirs in zip(found, plain, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
        room = found[-1][0]
        assert room is not None
        assert any("left alone" in event for event in room.ledger.events)
        assert room.ledger.saved_bytes == 0


def test_without_time_nothing_is_encoded() -> None:
    for room, _ in train(small_network, (8, 3, 16, 16), 5, overhead=0):
        assert room is not None
        assert room.ledger.gradient_error == 0
        assert all(row.bound == 0 for row in room.ledger.rows)


def test_with_all_the_time_everything_is_encoded() -> None:
    found = [room for room, _ in train(small_network, (8, 3, 16, 16), 5, overhead=None)]
    for room in found:
        assert room is not None
        rows = room.ledger.rows
        assert not any(row.method == "keep" and row.saved_bytes > 1 << 16 for row in rows)
    assert found[-1] is not None and found[-1].ledger.ratio > 5


def test_the_ledger_tells_the_time() -> None:
    room = [room for room, _ in train(small_network, (8, 3, 16, 16), 2, overhead=1000.0)][-1]
    assert room is not None
    ledger = room.ledger
    assert ledger.overhead == 1000 and ledger.slowdown is not None and ledger.slowdown > 0
    assert "more than plain (asked: at most 100000 %)" in str(ledger)


@pytest.mark.parametrize("overhead", [-0.1, "much", True, float("nan"), float("inf")])
def test_overheads_that_are_none(overhead: Any) -> None:
    with pytest.raises(er.InvalidArgument, match="overhead must be what a step"):
        er.Activations(nn.Linear(2, 2), overhead=overhead)
