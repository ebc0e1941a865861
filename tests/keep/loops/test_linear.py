"""The linear coder keeps its bound whatever comes, and its frames outlive what made them."""

from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import elbowroom as er
from elbowroom.keep import Encoding
from elbowroom.keep.loops.coders import PlainCoder
from elbowroom.keep.loops.history import History
from elbowroom.keep.loops.linear import Basis, LinearCoder
from elbowroom.keep.loops.patches import SIDES, VALUES, Tiling, with_neighbours
from elbowroom.keep.loops.predictive import MOST_CODE, Codes, Predicted
from elbowroom.keep.loops.probe import relative_error

from .films import EPS, film, gradient_of_a_film, worst_error


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_patches_come_together_again(shape: list[int], dims: int) -> None:
    tiling = Tiling.of(tuple(shape), dims)
    if dims > len(shape):
        assert tiling is None
        return
    assert tiling is not None
    frame = torch.arange(prod(shape), dtype=torch.float64).reshape(shape)
    patches = tiling.cut(frame)
    assert patches.shape == (prod(shape[:-dims]), *tiling.counts, VALUES)
    assert torch.equal(tiling.join(patches), frame)


def test_which_axes_are_a_grid() -> None:
    shapes = {(20_000,): 1, (3, 100, 200): 2, (40, 40, 40): 3, (9, 2, 500): 1, (3, 3): None}
    for shape, dims in shapes.items():
        tiling = Tiling.of(shape)
        assert (None if tiling is None else tiling.dims) == dims
    assert Tiling.of((0, 100)) is None
    assert all(prod(sides) == VALUES for sides in SIDES.values())


def test_neighbours_lie_where_they_should() -> None:
    x = torch.arange(12.0).reshape(1, 3, 4, 1)
    found = with_neighbours(x, 2)
    assert found.shape == (1, 3, 4, 9)
    assert found[0, 1, 1].tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert found[0, 0, 0].tolist() == [0, 0, 0, 0, 0, 1, 0, 4, 5]


@pytest.mark.parametrize("relative", [1e-2, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_wave_becomes_smaller_than_plainly(relative: float, dtype: torch.dtype) -> None:
    coder, plain = LinearCoder(), PlainCoder()
    mine = theirs = 0
    for frame in film(dtype=dtype):
        bound = er.Bound.absolute(relative * max(EPS, float(frame.max() - frame.min())))
        coded = coder.encode(frame, bound)
        assert worst_error(coded, frame) <= bound.value
        mine += coded.nbytes
        theirs += plain.encode(frame, bound).nbytes
    assert coder.counts["model"] > 20
    assert mine < theirs


@given(
    st.sampled_from([(70, 90), (2, 64, 65), (5000,), (18, 17, 19), (4, 4, 400)]),
    st.sampled_from([torch.float32, torch.float64]),
    st.floats(-25, 25),
    st.floats(-7, 0),
    st.sampled_from(["waves", "noise", "zeros", "nan", "inf", "spike", "constant"]),
    st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_the_bound_is_kept(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    exponent: float,
    relative: float,
    kind: str,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0**exponent
    coder = LinearCoder()
    at = torch.linspace(0, 30, prod(shape), dtype=torch.float64).reshape(shape)
    for number in range(6):
        frame = torch.sin(at + number)
        # The last one is of a kind that the others do not prepare for.
        if number == 5 and kind == "noise":
            frame = torch.randn(shape, generator=generator, dtype=torch.float64)
        elif number == 5 and kind in {"zeros", "constant"}:
            frame = torch.full(shape, 0.0 if kind == "zeros" else 0.7, dtype=torch.float64)
        elif number == 5 and kind != "waves":
            values = {"nan": torch.nan, "inf": -torch.inf, "spike": 1e6}
            frame.view(-1)[seed % frame.numel()] = values[kind]
        frame = (frame * scale).to(dtype)
        bound = er.Bound.absolute(scale * 10.0**relative)
        coded = coder.encode(frame, bound)
        assert worst_error(coded, frame) <= bound.value
        assert 0 < coded.nbytes <= frame.nbytes + 20_000


def test_what_is_not_for_a_model_goes_to_the_plain_coder() -> None:
    coder = LinearCoder()
    for frame in film():
        coder.encode(frame, er.Bound.absolute(1e-3))
    before = coder.counts["model"]
    frame = film()[-1]
    others = [
        (frame, er.Bound.lossless()),
        (frame.half(), er.Bound.absolute(1e-3)),
        ((frame * 100).int(), er.Bound.absolute(1e-3)),
        (frame.T, er.Bound.absolute(1e-3)),
        (frame[:5, :5].contiguous(), er.Bound.absolute(1e-3)),
        (frame, er.Bound.range_relative(1e-3)),
        (frame, er.Bound.absolute(1e-3, keep_sign=True)),
        (frame, er.Bound.absolute(1e-9)),
        (torch.zeros(0, 200), er.Bound.absolute(1e-3)),
    ]
    for values, bound in others:
        found = coder.encode(values, bound).decode()
        assert found.shape == values.shape and found.dtype == values.dtype
        assert bound.holds(values, found)
    assert coder.counts["model"] == before


def test_frames_outlive_their_coder_and_its_models() -> None:
    coder = LinearCoder()
    frames = film()
    bound = er.Bound.absolute(1e-3)
    coded = [(frame, coder.encode(frame, bound)) for frame in frames]
    first = coder.model
    assert first is not None
    # What components cannot say makes them lose, and others are looked for in what comes then.
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(frames[0].shape, generator=generator) for _ in range(20)]
    coded += [(frame, coder.encode(frame, bound)) for frame in noise]
    assert coder.model is not first
    turned = [frame.T.contiguous() for frame in frames[30:]]
    coded += [(frame, coder.encode(frame, bound)) for frame in turned]
    models = {id(one.model) for _, one in coded if isinstance(one, Predicted)}
    assert len(models) > 1 and id(first) in models
    del coder
    for frame, one in coded:
        assert worst_error(one, frame) <= bound.value


def test_a_model_is_counted_with_its_first_frame() -> None:
    coder = LinearCoder()
    found = [coder.encode(frame, er.Bound.absolute(1e-3)) for frame in film()]
    predicted = [one for one in found if isinstance(one, Predicted)]
    assert coder.model is not None and coder.model.nbytes > 0
    charged = [one for one in predicted if one.model_bytes]
    assert len(charged) == len({id(one.model) for one in predicted})
    assert charged[0] is predicted[0]


def test_predictions_are_exact() -> None:
    """At the largest codes and finest components, in any order of the sum."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.linalg.qr(torch.randn(64, 64, generator=generator, dtype=torch.float64))[0]
    basis = Basis.of(vectors, 1e9)
    codes = torch.randint(-MOST_CODE, MOST_CODE + 1, (1, 3, 3, 64), generator=generator).double()
    order = torch.randperm(64, generator=generator)
    turned = Basis(basis.whole[:, order], basis.bits, basis.step, basis.blob)
    assert torch.equal(basis.predict(codes), turned.predict(codes[..., order]))
    exact = codes.long() @ basis.whole.long().T
    assert torch.equal(basis.predict(codes), exact.double() * (basis.step * 2.0**-basis.bits))


@pytest.mark.parametrize("head", [0, 4, 100])
def test_codes_come_back(head: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for most in (0, 3, 2**15, MOST_CODE):
        codes = torch.randint(-most, most + 1, (2, 5, 7, 11), generator=generator).double()
        assert torch.equal(Codes.of(codes, head).decode(), codes)


def test_threads_do_not_matter() -> None:
    """Encoded with one number of threads and decoded with others."""
    here = torch.get_num_threads()
    coder = LinearCoder()
    found = [coder.encode(frame, er.Bound.absolute(1e-3)) for frame in film()]
    decoded = [one.decode() for one in found]
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            assert all(torch.equal(a.decode(), b) for a, b in zip(found, decoded, strict=True))
    finally:
        torch.set_num_threads(here)


def test_a_loop_with_it() -> None:
    exact, _ = gradient_of_a_film(None)
    coders: list[LinearCoder] = []

    def make() -> LinearCoder:
        coders.append(LinearCoder())
        return coders[-1]

    found, loop = gradient_of_a_film(Encoding(relative=1e-3, every=1, coder=make))
    assert 0 < relative_error([exact], [found]) < 1e-2
    assert sum(coder.counts["model"] for coder in coders) > 10
    engine: Any = loop.engine
    assert isinstance(engine, History)
    again: Tensor = gradient_of_a_film(Encoding(relative=1e-3, coder=LinearCoder))[0]
    assert relative_error([exact], [again]) < 1e-2
