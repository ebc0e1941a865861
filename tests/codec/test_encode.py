"""encode: every kind of array under every bound, sizes, layouts, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elbowroom import Blob, Bound, InvalidArgument, _native, decode, encode
from elbowroom.codec.backends import native
from elbowroom.codec.blob import header_nbytes
from elbowroom.codec.bound import Array, Mode
from elbowroom.codec.recipe import Rule
from tests.codec.arrays import (
    CONTENTS,
    DTYPES,
    FLOATS,
    arrays,
    bounds,
    check,
    make_values,
    same_bits,
)

CODECS = ["auto", "block", "dense", "raw"]


@settings(max_examples=400)
@given(
    x=arrays(),
    bound=bounds(),
    codec=st.sampled_from(CODECS),
    effort=st.sampled_from(["ratio", "balanced", "speed"]),
    dither=st.one_of(st.none(), st.integers(0, 2**32 - 1)),
)
@example(torch.tensor(3.0), Bound.absolute(1), "dense", "ratio", None)
@example(torch.empty(0, 3), Bound.absolute(1), "dense", "ratio", 1)
def test_every_array_keeps_every_bound(
    x: Array, bound: Bound, codec: str, effort: str, dither: int | None
) -> None:
    if bound.keep_sign or bound.mode == Mode.POINTWISE_RELATIVE:
        dither = None
    check(x, bound, codec=codec, effort=effort, dither=dither)


@settings(max_examples=120)
@given(x=arrays(max_items=300), bound=bounds(), codec=st.sampled_from(CODECS))
def test_backends_write_the_same_bytes(x: Array, bound: Bound, codec: Any) -> None:
    fast = encode(x, bound, codec=codec)
    slow = encode(x, bound, codec=codec, backend="reference")
    assert fast == slow
    assert same_bits(decode(fast, backend="reference"), decode(slow))


@pytest.mark.parametrize("codec", ["block", "dense"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_of_many_chunks(dtype: torch.dtype, codec: Any) -> None:
    x = make_values(150_000, dtype, "smooth", 3).reshape(-1, 300)
    one = check(x, Bound.absolute(1e-2), codec=codec, threads=1)
    assert check(x, Bound.absolute(1e-2), codec=codec, threads=3) == one
    assert check(x, Bound.absolute(1e-2), codec=codec, threads=100) == one


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_larger_arrays_under_all_modes(dtype: torch.dtype, content: str) -> None:
    x = make_values(20_000, dtype, content, 5).reshape(20, 1000)
    for bound in (
        Bound.lossless(),
        Bound.absolute(1e-3),
        Bound.absolute(1e-3, keep_sign=True),
        Bound.range_relative(1e-3),
        Bound.pointwise_relative(1e-2),
    ):
        check(x, bound)
        check(x, bound, effort="speed")


def test_compression_happens() -> None:
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    assert encode(x, Bound.absolute(0.1)).ratio > 7
    assert encode(x, Bound.absolute(0.1), effort="speed").ratio > 5
    assert encode(torch.zeros(100_000), Bound.lossless()).ratio > 100


def test_auto_goes_by_size_and_effort() -> None:
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    bound = Bound.absolute(0.1)
    assert encode(x, bound).codec == "dense"
    assert encode(x, bound, effort="speed").codec == "block"
    assert encode(x[:1000], bound).codec == "block"
    for codec in ("block", "dense", "raw"):
        assert encode(x, bound, codec=codec).codec == codec


# --- sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["block", "dense", "auto"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_does_not_shrink_is_stored_raw(dtype: torch.dtype, codec: Any) -> None:
    x = make_values(9_000, dtype, "bits", 7)
    for bound in (Bound.lossless(), Bound.absolute(1e-30), Bound.pointwise_relative(1e-3)):
        blob = check(x, bound, codec=codec)
        assert blob.nbytes <= x.nbytes + header_nbytes(1, 1)


def test_tight_bounds_fall_back_to_lossless_before_raw() -> None:
    x = torch.linspace(1, 2, 20_000, dtype=torch.float64)
    blob = check(x, Bound.absolute(1e-15))
    assert blob.recipe.rule == Rule.EXACT
    assert same_bits(x, decode(blob))
    assert blob.codec == "dense"
    assert encode(x, Bound.absolute(1e-15), effort="speed").codec == "raw"


def test_segments_are_cut_into_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    x = make_values(1_000_000, torch.float32, "noisy", 1)
    whole = encode(x, Bound.range_relative(1e-3), codec="block", threads=1)
    assert len(whole.segments) == 1
    monkeypatch.setattr(native, "SEGMENT_BYTES", 1 << 20)
    pieces = encode(x, Bound.range_relative(1e-3), codec="block", threads=2)
    assert len(pieces.segments) == 4
    assert pieces == whole
    assert same_bits(decode(pieces, threads=2), decode(whole, threads=1))
    assert sum(segment.size for segment in pieces.segments) == whole.payload_nbytes
    monkeypatch.setattr(native, "SPARE_BYTES", 0)
    for threads in (1, 2, 3, 16):
        assert encode(x, Bound.range_relative(1e-3), codec="block", threads=threads) == whole


def test_gradients_are_ignored() -> None:
    x = torch.randn(100, requires_grad=True)
    y = decode(encode(x * 2, Bound.absolute(1e-2)))
    assert not y.requires_grad
    with torch.inference_mode():
        check(torch.randn(10), Bound.absolute(0.1))


def test_the_array_is_not_changed() -> None:
    x = torch.randn(10_000)
    before = x.clone()
    encode(x, Bound.absolute(1))
    assert torch.equal(x, before)
    assert x._version == 0


# --- rules -------------------------------------------------------------------------------------


def test_range_relative_is_the_absolute_bound_of_the_range() -> None:
    x = torch.tensor([0.0, 100.0, math.nan, -math.inf] * 50)
    recipe = encode(x, Bound.range_relative(0.01)).recipe
    assert 1.0 - 2**-23 <= recipe.limit <= 1.0
    for flat in (torch.full((9,), 3.0), torch.tensor([math.nan, math.inf]), torch.zeros(0)):
        blob = check(flat, Bound.range_relative(0.01))
        assert blob.recipe.rule == Rule.EXACT


def test_signs_are_kept() -> None:
    x = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * 0.01
    y = decode(encode(x, Bound.absolute(0.1, keep_sign=True)))
    assert torch.equal(torch.sign(x), torch.sign(y))
    assert not torch.equal(x, y)


def test_dither_leaves_averages_alone() -> None:
    x = torch.full((200_000,), 0.3)
    bound = Bound.absolute(1.0)
    plain = decode(encode(x, bound))
    first = decode(check(x, bound, dither=1))
    second = decode(check(x, bound, dither=2))
    assert plain.mean() == 0.0
    assert abs(float(first.mean()) - 0.3) < 0.01
    assert not torch.equal(first, second)
    assert torch.equal(first, decode(encode(x, bound, dither=1)))


def test_dither_is_no_matter_to_what_is_lossless() -> None:
    for x, bound in ((torch.arange(9), Bound.absolute(1)), (torch.ones(9), Bound.lossless())):
        assert encode(x, bound, dither=3) == encode(x, bound)


def test_negative_zeros_are_cheap() -> None:
    x = torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    x[::3] = -0.0
    blob = check(x, Bound.absolute(0.1))
    assert blob.recipe.negative_zero
    assert blob.ratio > 6


# --- like --------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["block", "dense"])
def test_like_takes_over_the_choices(codec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = make_values(20_000, torch.float32, "smooth", 2).reshape(100, 200)
    first = encode(x, Bound.absolute(1e-2), codec=codec)
    for name in ("choose", "sample"):
        monkeypatch.setattr(_native, name, lambda *_: pytest.fail("sampled"))
    again = encode(x, Bound.absolute(1e-2), like=first)
    assert again == first
    tighter = encode(x + 1, Bound.absolute(1e-3), like=first)
    assert tighter.codec == codec
    assert tighter.recipe.limit < first.recipe.limit
    assert tighter.recipe.method == first.recipe.method
    assert Bound.absolute(1e-3).holds(x + 1, decode(tighter))


def test_like_that_does_not_fit_is_chosen_anew() -> None:
    x = make_values(20_000, torch.float32, "smooth", 2).reshape(100, 200)
    bound = Bound.absolute(1e-2)
    like = encode(x, bound)
    raw = encode(x, bound, codec="raw")
    for other, known in (
        (x.double(), like),
        (x.reshape(200, 100), like),
        (x.to(torch.int32), like),
        (x, raw),
        (x, Blob.frombytes(like.tobytes())),
    ):
        assert check(other, bound, like=known) == encode(other, bound)
    assert encode(x, bound, codec="block", like=like) == encode(x, bound, codec="block")
    assert encode(x, Bound.lossless(), like=like) == encode(x, Bound.lossless())


def arrays_that_change() -> dict[str, tuple[Array, Array, float, float]]:
    """An array, a later one that no longer resembles it, and the bounds of both."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((100, 200)).astype(np.float32)
    smooth = np.cumsum(np.cumsum(noise, 0), 1) * np.float32(1e-3)
    gaps = np.where(rng.random(noise.shape) < 0.5, np.float32(-0.0), noise)
    half = torch.from_numpy(noise).bfloat16()
    whole = (noise * 100).astype(np.int32)
    return {
        "a thousand times larger": (noise, noise * 1000, 1e-2, 1e-2),
        "a thousand times smaller": (noise * 1000, noise, 1e-2, 1e-2),
        "a smooth one larger": (smooth, smooth * 100_000, 1e-2, 1e-2),
        "no longer smooth": (smooth, noise, 1e-2, 1e-2),
        "smooth now": (noise, smooth, 1e-2, 1e-2),
        "within a tighter bound": (noise, noise * 1000, 1e-1, 1e-2),
        "with negative zeros": (noise, gaps, 1e-1, 1e-1),
        "bfloat16": (half, half * 1000, 1e-1, 1e-1),
        "integers": (whole, whole * 10_000, 0, 0),
    }


@pytest.mark.parametrize("codec", ["block", "dense", "auto"])
@pytest.mark.parametrize("change", arrays_that_change())
def test_like_is_noticed_when_it_no_longer_fits(change: str, codec: Any) -> None:
    before, after, loose, tight = arrays_that_change()[change]
    like = encode(before, Bound.absolute(loose), codec=codec)
    alone = encode(after, Bound.absolute(tight), codec=codec)
    blob = check(after, Bound.absolute(tight), codec=codec, like=like)
    assert blob.nbytes <= 1.03 * alone.nbytes
    for threads in (1, 3):
        again = encode(after, Bound.absolute(tight), codec=codec, like=like, threads=threads)
        assert again == blob
    # And what was chosen anew is what the next one resembles.
    assert encode(after, Bound.absolute(tight), codec=codec, like=blob) == blob


def test_like_is_noticed_by_every_backend() -> None:
    x = make_values(9000, torch.float32, "noisy", 4)
    bound = Bound.range_relative(1e-3)
    like = encode(x, bound)
    later = torch.cat([x[:8990], 1e4 * x[:10]])
    fast = check(later, Bound.absolute(like.recipe.limit / 300), like=like)
    slow = encode(later, fast.bound, like=like, backend="reference")
    assert fast == slow == encode(later, fast.bound)


def test_like_of_a_looser_bound_may_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    x = make_values(20_000, torch.float32, "smooth", 2).reshape(100, 200)
    like = encode(x, Bound.absolute(1e-2))
    for name in ("choose", "sample"):
        monkeypatch.setattr(_native, name, lambda *_: pytest.fail("sampled"))
    for value in (1e-3, 2e-3, 5e-3, 9e-3, 1.1e-2, 3e-2):
        assert encode(x, Bound.absolute(value), like=like).recipe.weights == like.recipe.weights


@settings(max_examples=100)
@given(x=arrays(), y=arrays(), bound=bounds(), other=bounds(), codec=st.sampled_from(CODECS))
def test_any_like_keeps_every_bound(
    x: Array, y: Array, bound: Bound, other: Bound, codec: str
) -> None:
    check(y, bound, like=encode(x, other), codec=codec)


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bound": 1e-3}, r"what it is relative to, got 0.001: pass Bound.absolute\(0.001\)"),
        ({"bound": 1}, r"what it is relative to, got 1: pass Bound.absolute\(1\)"),
        ({"bound": None}, r"bound must be a Bound, got NoneType: pass Bound.absolute\(1e-3\)"),
        ({"bound": True}, r"bound must be a Bound, got bool"),
        ({"codec": "zip"}, r"codec must be 'auto', 'block', 'dense' or 'raw', got 'zip': leave"),
        ({"codec": None}, r"codec must be .*, got None"),
        ({"effort": "high"}, r"effort must be 'ratio', 'balanced' or 'speed', got"),
        ({"dither": -1}, r"dither must be a seed from 0 to 2\^32 - 1, got -1"),
        ({"dither": 2**32}, r"dither must be a seed"),
        ({"dither": 0.5}, r"dither must be a seed .* got 0.5: pass an integer or None"),
        ({"dither": 1, "bound": Bound.absolute(1, keep_sign=True)}, r"dither moves values across"),
        ({"dither": 1, "bound": Bound.pointwise_relative(0.1)}, r"dither needs an absolute or"),
        ({"like": b"x"}, r"like must be a blob, got bytes: pass what encode returned before"),
        ({"threads": 0}, r"threads must be a positive integer, got 0"),
        ({"threads": 1.5}, r"threads must be a positive integer, got 1.5"),
        ({"threads": True}, r"threads must be a positive integer, got True"),
        ({"backend": "cuda"}, r"a backend is 'native' or 'reference', got 'cuda'"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {"bound": Bound.absolute(1), **options}
    with pytest.raises(InvalidArgument, match=sentence):
        encode(torch.ones(3), **arguments)


@pytest.mark.parametrize("codec", ["raw", "block", "dense"])
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_every_byte_but_zero_is_true(codec: Any, backend: Any) -> None:
    odd = np.array([2, 1, 0, 255, 254], np.uint8).view(np.bool_)
    back = decode(encode(odd, Bound.lossless(), codec=codec, backend=backend))
    assert back.view(np.uint8).tolist() == [1, 1, 0, 1, 1]


def test_values_far_above_the_bound_are_encoded() -> None:
    for x, bound in ((np.array([1e300, 1.0, 2.0]), 1e-60), (np.array([1e200, 3.0]), 1e-160)):
        assert np.array_equal(decode(encode(x, Bound.absolute(bound))), x)
