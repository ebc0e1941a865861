"""`elbowroom bench codec` and the measurements behind it, on arrays too small to mean anything."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import elbowroom as er
from elbowroom import _native
from elbowroom.bench import ratio
from elbowroom.bench.casts import quantise4, restore4
from elbowroom.bench.memory import measure_peaks
from elbowroom.bench.peers import Peer, encoded_bytes, fold, installed_peers, quantise
from elbowroom.bench.race import Contender, race
from elbowroom.bench.speed import OPERATIONS, measure_overhead, measure_speed
from elbowroom.bench.speed_tables import memory_table, overhead_table, speed_tables, thread_table
from elbowroom.bench.tables import Table, plain, short
from elbowroom.bench.verification import PIECE_ITEMS, verify

from .conftest import Command

ROOT = Path(__file__).parents[2]
PEERS = installed_peers()[0]


@pytest.fixture
def activations(image: np.ndarray, tmp_path: Path) -> Path:
    """An activation set of two small tensors, one of them also large."""
    folder = tmp_path / "activations"
    (folder / "large").mkdir(parents=True)
    entries = []
    for name, kind, x in (("net_a", "post_relu", image.clip(0)), ("net_b", "weights", image[0])):
        np.save(folder / f"{name}.npy", x)
        entries.append({"name": name, "kind": kind, "file": f"{name}.npy"})
    (folder / "manifest.json").write_text(json.dumps(entries))
    np.save(folder / "large" / "net_a.npy", np.tile(image, (3, 1, 1)))
    (folder / "large" / "manifest.json").write_text(json.dumps(entries[:1]))
    return folder


def test_a_file_of_the_users(image: np.ndarray, tmp_path: Path, command: Command) -> None:
    np.save(tmp_path / "x.npy", image)
    words = ["--bounds", "1e-1,1e-2", "--no-peers", "--rounds", "1"]
    ended = command("bench", "codec", tmp_path / "x.npy", *words)
    assert (ended.code, ended.err) == (0, "")
    assert "Bytes at bounds relative to the range" in ended.out
    assert "Bound kept in 2 of 2 cells" in ended.out
    found = command("bench", "codec", tmp_path / "x.npy", *words, "--json").json
    assert [cell["bound"] for cell in found["ratio"]] == [0.1, 0.01]
    assert all(cell["holds"] and cell["raw_bytes"] == image.nbytes for cell in found["ratio"])
    assert found["speed"][0]["gb_per_s"].keys() >= {"copyto", f"block decode {_native.isa()}"}


def test_several_arrays_and_types(tmp_path: Path, command: Command) -> None:
    tensors = {
        "half": torch.linspace(-1, 1, 700).bfloat16(),
        "ids": torch.arange(10),
        "wide": torch.linspace(0, 1, 40).double().reshape(5, 8),
        "empty": torch.zeros(0),
    }
    save_file(tensors, tmp_path / "x.safetensors")
    words = ["--bounds", "1e-2", "--rounds", "1", "--json"]
    ended = command("bench", "codec", tmp_path / "x.safetensors", *words)
    assert ended.code == 0, ended.err
    found = {cell["tensor"]: cell for cell in ended.json["ratio"]}
    assert found.keys() == {"x/half", "x/wide"}
    assert found["x/half"]["dtype"] == "bfloat16" and found["x/half"]["raw_bytes"] == 1400


def test_the_activation_set(
    activations: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--activations", activations, "--bounds", "1e-2", "--rounds", "1", "--large"]
    ended = command("bench", "codec", *words)
    assert ended.code == 0, ended.err
    assert "net_a" in ended.out and "net_b" in ended.out
    if PEERS:
        assert "post_relu" in ended.out  # the summary by kind
        assert (tmp_path / ".cache" / "bench" / "peers.json").exists()


def test_without_the_activation_set_the_command_is_told(tmp_path: Path, command: Command) -> None:
    ended = command("bench", "codec", "--activations", tmp_path)
    assert ended.code == 2 and "benchmarks/activation_set.py --out" in ended.err
    (tmp_path / "manifest.json").write_text("[{}]")
    ended = command("bench", "codec", "--activations", tmp_path)
    assert ended.code == 2 and "damaged" in ended.err


@pytest.mark.parametrize("bounds", ["", "0", "1", "nan", "1e-2;1e-3", "-1e-2"])
def test_bad_bounds(bounds: str, command: Command) -> None:
    ended = command("bench", "codec", "--bounds", bounds)
    assert ended.code == 2 and "--bounds must be shares" in ended.err


def test_files_without_floats(tmp_path: Path, command: Command) -> None:
    np.save(tmp_path / "x.npy", np.arange(5))
    ended = command("bench", "codec", tmp_path / "x.npy")
    assert ended.code == 2 and "no float array" in ended.err
    ended = command("bench", "codec", tmp_path / "no.npy")
    assert ended.code == 2 and "no.npy" in ended.err


def test_a_broken_bound_fails_the_run(
    image: np.ndarray, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", image)
    outcome = {name: ratio.Outcome(nbytes=10, share=2.0) for name in ratio.OURS}
    monkeypatch.setattr(ratio, "_measure_ours", lambda x, bound: (outcome, False))
    words = ["--no-peers", "--rounds", "1", "--bounds", "1e-2"]
    ended = command("bench", "codec", tmp_path / "x.npy", *words)
    assert ended.code == 1 and "BROKEN" in ended.out and "bound was broken" in ended.err


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
@pytest.mark.parametrize("shape", [(6, 24, 32), (4608,), (2, 3, 2, 3, 128), (1,)])
def test_peers_come_back_within_the_bound(
    peer: Peer, shape: tuple[int, ...], image: np.ndarray
) -> None:
    x = fold(image.reshape(-1)[: math.prod(shape)].reshape(shape))
    encoded = peer.encode(x, 1e-2)
    back = peer.decode(encoded, x, 1e-2).reshape(x.shape)
    # zfp and the plain quantiser do not check after rounding.
    assert np.abs(back.astype(np.float64) - x).max() <= 1e-2 * 1.2
    assert encoded_bytes(encoded) > 0


def test_the_plain_quantiser_takes_the_narrowest_type() -> None:
    x = np.array([0.0, 1.0], np.float32)
    widths = [quantise(x, bound).itemsize for bound in (0.5, 1e-4, 1e-7, 1e-12)]
    assert widths == [1, 2, 4, 8]
    with pytest.raises(OverflowError):
        quantise(x, 1e-25)


@pytest.mark.skipif(not PEERS, reason="no peer is installed")
def test_sizes_of_peers_are_remembered(image: np.ndarray, tmp_path: Path) -> None:
    tensor = ratio.Tensor(name="x", kind="given", read=lambda: image)
    path = tmp_path / "peers.json"
    first = ratio.measure_ratios([tensor], [1e-2], peers=PEERS, cache=ratio.SizeCache(path))

    def fail(*_: object) -> None:
        raise AssertionError("measured again")

    frozen = [
        Peer(name=peer.name, package=peer.package, encode=fail, decode=peer.decode)
        for peer in PEERS
    ]
    again = ratio.measure_ratios([tensor], [1e-2], peers=frozen, cache=ratio.SizeCache(path))
    assert again == first
    (cell,) = first
    assert cell.best_peer is not None and cell.gain is not None
    assert cell.peers[cell.best_peer].nbytes == min(o.nbytes for o in cell.peers.values())
    path.write_text("{ damaged")
    assert ratio.measure_ratios([tensor], [1e-2], peers=PEERS, cache=ratio.SizeCache(path)) == first


def test_cells_that_peers_cannot_do(image: np.ndarray) -> None:
    gaps = image.copy()
    gaps[0, 0, 0] = np.nan
    arrays = {"constant": np.ones_like(image), "gaps": gaps}
    tensors = [
        ratio.Tensor(name=name, kind="given", read=lambda x=x: x) for name, x in arrays.items()
    ]
    cells = ratio.measure_ratios(tensors, [1e-2], peers=PEERS)
    assert all(cell.holds for cell in cells)
    assert cells[0].peers == {} and cells[0].gain is None
    assert all(name.startswith("sz3") for name in cells[1].peers)
    assert json.dumps(ratio.ratio_record(cells), allow_nan=False)
    assert "constant" in ratio.ratio_tables(cells)[0].markdown()


def test_speed_of_everything(image: np.ndarray) -> None:
    levels = _native.isa_levels()
    before = _native.isa()
    one = measure_speed("x", image, 1e-2, isas=levels, peers=PEERS, rounds=1)
    two = measure_speed("x", image, 1e-2, isas=levels[:1], rounds=1, threads=2)
    assert _native.isa() == before
    assert {f"{name} {isa}" for name in OPERATIONS for isa in levels} < one.times.keys()
    assert {"bf16 encode", "torch 4-bit decode"} < one.times.keys()
    assert not {"bf16 encode", "sz3 nopred encode"} & two.times.keys()
    assert all(best.seconds > 0 for best in one.times.values())
    tables = [*speed_tables([one], levels), thread_table([one], [two], levels[0])]
    for table in tables:
        assert all(len(row) == len(table.headings) for row in table.rows)


def test_overhead_and_memory(image: np.ndarray) -> None:
    found = measure_overhead(calls=1)
    assert "torch dense decode out" in found and min(found.values()) > 0
    assert len(overhead_table(found).rows) == len(found)


def test_a_race_takes_turns_and_the_best() -> None:
    order: list[str] = []
    contenders = [
        Contender(name=name, call=lambda name=name: order.append(name), nbytes=8, isa=None)
        for name in "ab"
    ]
    times = race(contenders, rounds=2)
    assert "".join(order) == "ababab"  # one round to warm up
    assert times["a"].gb_per_s > 0
    with pytest.raises(ValueError, match="share a name"):
        race([*contenders, contenders[0]], rounds=1)
    order.clear()
    race(contenders, rounds=9, budget_s=0.0, least_rounds=2)
    assert "".join(order) == "ababab"


def test_four_bits_in_plain_torch() -> None:
    x = torch.linspace(-3, 5, 1024)
    back = restore4(*quantise4(x))
    groups = x.reshape(-1, 256)
    span = (groups.amax(1) - groups.amin(1)).max()
    assert (back - x).abs().max() <= span / 30 + 0.03  # half a step, and bfloat16's rounding


def test_verification_in_pieces() -> None:
    x = np.linspace(0, 1000, PIECE_ITEMS + 5, dtype=np.float32)
    y = x.copy()
    y[-1] -= 1.0
    verdict = verify(x, y, er.Bound.range_relative(1e-3))
    assert verdict.holds and verdict.share == pytest.approx(1.0)
    y[0] += 1.5
    verdict = verify(x, y, er.Bound.range_relative(1e-3))
    assert not verdict.holds and verdict.largest_error == 1.5
    assert verify(x, x, er.Bound.lossless()).share == 0
    assert verify(x, y, er.Bound.lossless()).share == math.inf
    near = er.Bound.absolute(0.5)
    for old, new, kept in (
        (np.nan, np.nan, True),
        (np.nan, 0.0, False),
        (np.inf, np.inf, True),
        (np.inf, -np.inf, False),
        (0.0, 0.0, True),
        (0.0, -0.0, False),
        (0.0, 0.1, False),
        (1.0, 1.5, True),
        (1.0, 1.500001, False),
        (1.0, np.nan, False),
    ):
        before, after = np.array([2.0, old]), np.array([2.25, new])
        assert verify(before, after, near).holds == near.holds(before, after) == kept
    ids = torch.arange(9)
    assert verify(ids, ids.clone(), er.Bound.absolute(3)).holds
    assert not verify(ids, ids + 1, er.Bound.absolute(3)).holds


def test_numbers_are_short() -> None:
    assert [short(v) for v in (None, 0.012345, 12345.6, math.inf)] == [
        "-",
        "0.0123",
        "12346",
        "inf",
    ]
    assert plain({"a": (1.0, math.nan)}) == {"a": [1.0, None]}
    table = Table(title="T", headings=["a", "b"], rows=[["x", "1"]], remarks=["Note."])
    assert table.markdown() == "### T\n\n| a | b |\n| --- | ---: |\n| x | 1 |\n\nNote.\n"


@pytest.mark.slow
def test_peak_memory_is_measured(image: np.ndarray) -> None:
    peaks = measure_peaks(np.tile(image, (40, 1, 1)), 1e-2, "block")
    assert [peak.operation for peak in peaks] == ["encode", "decode"]
    assert all(peak.peak_bytes > 0 for peak in peaks)
    assert len(memory_table([("x", peak) for peak in peaks]).rows) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["codec_ratio.py", "--bounds", "0.01", "--activations", "{set}", "--peer-sizes", "{set}/s"],
        ["codec_speed.py", "--bounds", "0.01", "--smoke"],
    ],
    ids=["ratio", "speed"],
)
def test_the_scripts_run(words: list[str], activations: Path, tmp_path: Path) -> None:
    script, *rest = [word.format(set=activations) for word in words]
    out = tmp_path / "out.json"
    command = [sys.executable, str(ROOT / "benchmarks" / script), *rest, "--out", str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ended.stdout.startswith("### ")
    json.loads(out.read_text())
