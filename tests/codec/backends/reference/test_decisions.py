"""Bins and the binary range coder of the model sparse."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from elbowroom.codec.backends.reference.decisions import Bin, Decoder, Encoder
from elbowroom.errors import CorruptData

# Kind, contexts and answer; None for a plain decision.
DECISIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 1), st.booleans()),
        st.tuples(st.none(), st.just(0), st.just(0), st.booleans()),
    ),
    max_size=300,
)


def encoded(decisions: Sequence[tuple[str | None, int, int, bool]]) -> Encoder:
    encoder = Encoder()
    for kind, sharp, broad, answer in decisions:
        if kind is None:
            assert encoder.decide_plainly(answer) == answer
        else:
            assert encoder.decide(kind, sharp, broad, answer) == answer
    return encoder


def test_a_bin_learns_fast_and_then_slowly() -> None:
    taught = Bin()
    shares = []
    for answer in (True, True, False):
        taught.learn(answer, 20)
        shares.append(taught.share)
    # Two thirds, two fifths, two sevenths of the way to 65520 and to 16.
    assert shares == [32768 + 21834, 54602 + 4367, 58969 - 16844]
    for _ in range(1000):
        taught.learn(False, 20)
    assert (taught.share, taught.count) == (16, 20)
    for _ in range(1000):
        taught.learn(True, 200)
    assert taught.count == 200
    assert 65300 < taught.share <= 65520


def test_bytes_by_hand() -> None:
    # Even chances: the first bits of a number that begins where yes does.
    assert encoded([]).finish() == b""
    assert encoded([(None, 0, 0, False)] * 100).finish() == b""
    assert encoded([(None, 0, 0, True)]).finish() == b"\x80"
    assert encoded([(None, 0, 0, answer) for answer in (False, True, True)]).finish() == b"\x60"
    # A bin that has seen nothing has even chances, too.
    assert encoded([("a", 0, 0, True)]).finish() == b"\x80"


def test_kinds_and_contexts_have_bins_of_their_own() -> None:
    same = encoded([("a", 0, 0, False)] * 40 + [("a", 0, 0, True)])
    other = encoded([("a", 0, 0, False)] * 40 + [("b", 0, 0, True)])
    assert same.range < other.range


def test_a_carry_reaches_far_back() -> None:
    # A number just above a round one: low stays below that until the last byte lifts it.
    data = b"\x55" + bytes(30) + b"\x01"
    decoder, encoder = Decoder(data), Encoder()
    steps_below = 0
    while encoder.steps < 9:
        encoder.decide("a", 0, 0, decoder.decide("a", 0, 0, False))
        if encoder.low < 0x55 << (56 + 32 * encoder.steps):
            steps_below = encoder.steps
    assert 4 < steps_below < 9
    assert encoder.finish() == data


@given(decisions=DECISIONS)
def test_decisions_come_back(decisions: list[tuple[str | None, int, int, bool]]) -> None:
    encoder = encoded(decisions)
    data = encoder.finish()
    assert len(data) <= 8 + 4 * encoder.steps
    decoder = Decoder(data)
    for kind, sharp, broad, answer in decisions:
        if kind is None:
            assert decoder.decide_plainly(False) == answer
        else:
            assert decoder.decide(kind, sharp, broad, False) == answer
    decoder.finish()
    # The number lies where the writer's interval does.
    assert encoder.low <= int.from_bytes(data.ljust(8 + 4 * encoder.steps, b"\0"), "big")


def test_what_no_writer_writes() -> None:
    for data, fault in (
        (b"\xff" * 8, "too large"),
        (b"\x80\0", "zeros"),
        (b"\x80" * 9, "at most 8"),
    ):
        with pytest.raises(CorruptData, match=f"^decisions: .*{fault}"):
            decoder = Decoder(data)
            decoder.decide_plainly(False)
            decoder.finish()
    Decoder(b"\xff" * 7 + b"\xfe").finish()


@pytest.mark.parametrize(("memory", "rounds"), [(20, 800), (200, 5000)])
def test_no_answers_cost_a_bin_much_more_than_they_say(memory: int, rounds: int) -> None:
    """Whatever is asked, a bin costs at most 1.04 bits an answer and 5 bits: room is kept for it.

    By value iteration: the worst excess over 1.04 bits an answer, from every state of a bin.
    """
    share = np.arange(16, 65521)

    def after(count: int, goal: int) -> NDArray[np.int64]:
        return share + ((goal - share) * (131072 // (2 * count + 3)) >> 16) - 16

    costs = -np.log2(np.stack([65536 - share, share]) / 65536) - 1.04
    nexts = np.stack([after(memory, 16), after(memory, 65520)])
    before = excess = np.zeros(len(share))
    for _ in range(rounds):
        before, excess = excess, np.maximum(0, (costs + excess[nexts]).max(axis=0))
    assert np.abs(excess - before).max() < 1e-6  # and so for every number of answers
    for count in reversed(range(memory)):
        nexts = np.stack([after(count, 16), after(count, 65520)])
        excess = np.maximum(0, (costs + excess[nexts]).max(axis=0))
    assert excess[32768 - 16] < 5
