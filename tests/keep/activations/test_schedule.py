"""When gradients are looked at, and when the meter runs."""

from elbowroom.keep.activations.schedule import Clock, is_due, is_metered, is_rare


def test_looks_and_the_meter_take_turns() -> None:
    looks = [step for step in range(1, 900) if is_due(step, 100)]
    meters = [step for step in range(1, 900) if is_metered(step, 400)]
    assert looks[:8] == [2, 4, 8, 16, 32, 64, 100, 200]
    assert meters[:6] == [5, 9, 17, 33, 65, 129]
    assert meters[-2:] == [401, 801]
    assert not set(looks) & set(meters)


def test_whole_batches_take_few_turns() -> None:
    rare = [step for step in range(1, 900) if is_rare(step, 400)]
    assert rare == [17, 33, 65, 129, 257, 401, 801]
    assert all(is_metered(step, 400) for step in rare)


def test_a_meter_of_every_pass() -> None:
    assert [step for step in range(1, 8) if is_metered(step, 1)] == [3, 4, 5, 6, 7]
    assert all(is_rare(step, 1) for step in range(3, 8))


def test_a_meter_that_takes_long_beside_a_step_has_few_turns() -> None:
    times = [0.0]
    clock = Clock(lambda: times[0])

    def step(seconds: float, *, meter_s: float | None = None, has_look: bool = False) -> bool:
        clock.begin_pass(has_look=has_look)
        times[0] += seconds
        if meter_s is not None:
            end = clock.begin_meter()
            times[0] += meter_s
            end()
        return clock.is_dear

    for _ in range(3):
        step(1.0)
    # Looks and the meter's own passes are no usual steps.
    step(40.0, has_look=True)
    assert not step(1.0, meter_s=0.2)
    assert not step(1.0, meter_s=0.3)
    assert step(1.0, meter_s=0.3)
    assert not step(1.0, meter_s=0.2)
