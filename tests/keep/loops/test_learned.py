"""The learned coder keeps its bound, decodes the same bits everywhere, and disturbs nothing."""

from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

import elbowroom as er
from elbowroom.errors import CorruptData, InvalidArgument
from elbowroom.keep import Encoding
from elbowroom.keep.loops.learned import LearnedCoder
from elbowroom.keep.loops.network import MOST_BITS, Network, Weights
from elbowroom.keep.loops.predictive import MOST_CODE, Predicted
from elbowroom.keep.loops.probe import relative_error

from .films import film, gradient_of_a_film, worst_error

BOUND = er.Bound.absolute(2e-3)


@pytest.fixture(scope="module")
def network() -> Network:
    coder = LearnedCoder(fit_steps=20)
    for frame in film():
        coder.encode(frame, BOUND)
    assert coder.network is not None
    return coder.network


def random_network(dims: int, size: float = 1.0) -> Network:
    generator = torch.Generator().manual_seed(dims)
    codes, hidden = 10, 8
    seen = 3**dims * codes
    shapes = {
        "into": (64, codes),
        "into_hidden": (seen, hidden),
        "into_out": (hidden, codes),
        "linear": (codes, 64),
        "hidden": (seen, hidden),
        "out": (hidden, 64),
    }
    drawn = {k: torch.randn(s, generator=generator) * size for k, s in shapes.items()}
    return Network(Weights(**drawn), dims)


def test_a_film_is_learned_and_becomes_smaller() -> None:
    coder = LearnedCoder(fit_steps=20)
    raw = taken = 0
    for frame in film():
        coded = coder.encode(frame, BOUND)
        assert worst_error(coded, frame) <= BOUND.value
        if isinstance(coded, Predicted):
            raw += frame.nbytes
            taken += coded.nbytes
    assert coder.counts["model"] > 20 and coder.counts["plain"] > 0 and coder.counts["trials"] > 0
    assert taken * 10 < raw  # the network itself included


def test_fitting_lowers_the_bits_of_later_frames() -> None:
    sizes = []
    for steps in (0, 60):
        coder = LearnedCoder(fit_steps=steps)
        found = [coder.encode(frame, er.Bound.absolute(0.02)) for frame in film()]
        later = found[-20:]
        assert all(isinstance(one, Predicted) for one in later)
        sizes.append(sum(one.nbytes for one in later))
    assert sizes[1] < sizes[0]


@given(
    st.sampled_from([(70, 90), (2, 64, 65), (5000,), (18, 17, 19)]),
    st.sampled_from([torch.float32, torch.float64]),
    st.floats(-20, 20),
    st.floats(-6, 0),
    st.sampled_from(["waves", "noise", "zeros", "nan", "inf", "spike"]),
    st.sampled_from([0.05, 1.0, 100.0]),
)
@settings(max_examples=50, deadline=None)
def test_the_bound_is_kept_however_bad_the_network(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    exponent: float,
    relative: float,
    kind: str,
    size: float,
) -> None:
    dims = {2: 2, 1: 1, 3: 3}[len(shape)] if shape[0] != 2 else 2
    coder = LearnedCoder(network=random_network(dims, size))
    # As if it always won.
    coder._until_trial = 100
    scale = 10.0**exponent
    frame = torch.sin(torch.linspace(0, 30, prod(shape), dtype=torch.float64)).reshape(shape)
    if kind == "noise":
        frame = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    elif kind == "zeros":
        frame = torch.zeros(shape, dtype=torch.float64)
    elif kind != "waves":
        frame.view(-1)[77] = {"nan": torch.nan, "inf": torch.inf, "spike": 1e5}[kind]
    frame = (frame * scale).to(dtype)
    bound = er.Bound.absolute(scale * 10.0**relative)
    assert worst_error(coder.encode(frame, bound), frame) <= bound.value


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_predictions_are_exact(dims: int) -> None:
    """In another order of all codes and hidden units, at the largest codes there may be."""
    generator = torch.Generator().manual_seed(0)
    network = random_network(dims)
    assert network.bits == MOST_BITS
    given_codes = torch.randint(
        -MOST_CODE, MOST_CODE + 1, (1, *[4] * dims, 10), generator=generator
    )
    codes = given_codes.double()
    order, units = (torch.randperm(n, generator=generator) for n in (10, 8))
    old = network.weights
    hidden = old.hidden.view(-1, 10, 8)[:, order][:, :, units].reshape(-1, 8)
    turned = Weights(
        into=old.into,
        into_hidden=old.into_hidden,
        into_out=old.into_out,
        linear=old.linear[order],
        hidden=hidden,
        out=old.out[units],
    )
    other = Network(turned, dims)
    assert torch.equal(network.predict(codes), other.predict(codes[..., order]))


def test_threads_do_not_matter(network: Network) -> None:
    here = torch.get_num_threads()
    coder = LearnedCoder(network=network)
    found = [coder.encode(frame, BOUND) for frame in film()]
    assert any(isinstance(one, Predicted) for one in found)
    decoded = [one.decode() for one in found]
    del coder
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            assert all(torch.equal(a.decode(), b) for a, b in zip(found, decoded, strict=True))
    finally:
        torch.set_num_threads(here)


def test_fits_are_the_same_and_leave_random_numbers_alone() -> None:
    before = torch.random.get_rng_state()
    networks = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.random.get_rng_state()
        coder = LearnedCoder(fit_steps=3)
        for frame in film()[:60]:
            coder.encode(frame, BOUND)
        assert torch.equal(torch.random.get_rng_state(), state)
        assert coder.network is not None
        networks.append(coder.network)
    torch.random.set_rng_state(before)
    one, other = (network.weights.tensors() for network in networks)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_hooks_and_autocast_do_not_see_the_fit() -> None:
    """It is made while autograd packs tensors, whose hooks must not be called from within."""
    coder = LearnedCoder(fit_steps=2)
    packed: list[torch.Size] = []
    frames = iter(film()[20:60])

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.shape)
        coder.encode(next(frames), BOUND)
        return tensor.detach()

    x = torch.ones(3, requires_grad=True)
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)
    with hooks, torch.autocast("cpu", torch.bfloat16):
        for _ in range(40):
            torch.sin(x)
    assert coder.network is not None
    assert packed == [torch.Size([3])] * 40
    tensors = coder.network.weights.tensors().values()
    assert all(t.dtype == torch.float32 and not t.requires_grad for t in tensors)


def test_a_network_comes_back_from_its_file(network: Network, tmp_path: Path) -> None:
    path = tmp_path / "waves.safetensors"
    network.save(path)
    again = Network.load(path)
    assert (again.dims, again.bits, again.nbytes) == (network.dims, network.bits, network.nbytes)
    patches = torch.randn(1, 4, 4, 64, generator=torch.Generator().manual_seed(0)) * 100
    codes = network.analyse(patches)
    assert torch.equal(again.predict(codes), network.predict(codes))
    coder = LearnedCoder(network=again)
    for frame in film():
        assert worst_error(coder.encode(frame, BOUND), frame) <= BOUND.value
    assert coder.counts["model"] > 30 and coder.network is again


def test_wrong_files_are_refused(network: Network, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(InvalidArgument, match="there is no file"):
        Network.load(path)
    path.write_bytes(b"no weights at all")
    with pytest.raises(CorruptData, match="no whole file of weights"):
        Network.load(path)
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(InvalidArgument, match="holds no network of loops"):
        Network.load(path)
    network.save(path)
    tensors = load_file(path)
    about = {"format": "elbowroom-loop-network-1", "dims": "2", "bits": "12"}
    changes: list[tuple[str, Any]] = [
        ("out", tensors["out"][:, :5].contiguous()),
        ("out", tensors["out"] * torch.nan),
        ("linear", tensors["linear"].double()),
        ("into", tensors["into"][0].contiguous()),
    ]
    for name, value in changes:
        save_file({**tensors, name: value}, path, about)
        with pytest.raises(CorruptData, match="do not fit together"):
            Network.load(path)
    for change in ({"dims": "4"}, {"dims": "3"}, {"bits": "60"}, {"bits": "x"}):
        save_file(tensors, path, {**about, **change})
        with pytest.raises(CorruptData, match="do not fit together"):
            Network.load(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptData, match="no whole file"):
        Network.load(path)
    with pytest.raises(InvalidArgument, match="fit_steps"):
        LearnedCoder(fit_steps=-1)


def test_a_loop_with_it() -> None:
    exact, _ = gradient_of_a_film(None)
    coders: list[LearnedCoder] = []

    def make() -> LearnedCoder:
        coders.append(LearnedCoder(fit_steps=5))
        return coders[-1]

    found, _ = gradient_of_a_film(Encoding(relative=1e-3, every=1, coder=make))
    assert 0 < relative_error([exact], [found]) < 1e-2
    assert sum(coder.counts["model"] for coder in coders) > 10
    # The next sweep need not learn again.
    known = next(coder.network for coder in coders if coder.network is not None)
    again = Encoding(relative=1e-3, coder=partial(LearnedCoder, network=known))
    assert relative_error([exact], [gradient_of_a_film(again)[0]]) < 1e-2
