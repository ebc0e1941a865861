"""`elbowroom inspect`: the facts of a file, in words and as JSON, and its damage."""

from pathlib import Path

import numpy as np
import pytest
import torch

import elbowroom as er
from elbowroom.cli import inspect
from elbowroom.codec.recipe import Codec, Dtype, Model, Predictor, Recipe, Rule

from .conftest import Command


def store(path: Path, x: np.ndarray | torch.Tensor, bound: er.Bound, **options: object) -> er.Blob:
    blob = er.encode(x, bound, **options)  # type: ignore[arg-type]
    path.write_bytes(blob.tobytes())
    return blob


def test_a_blob_in_words(image: np.ndarray, tmp_path: Path, command: Command) -> None:
    blob = store(tmp_path / "x.er", image, er.Bound.absolute(1e-2), codec="block")
    ended = command("inspect", tmp_path / "x.er")
    assert (ended.code, ended.err) == (0, "")
    words = ["one blob", "numpy float32 6x24x32", "row-major", "no finite value moves by more than"]
    words += ["0.01", "block", f"{blob.nbytes:,}", f"{image.nbytes:,}", "header and payload match"]
    for word in words:
        assert word in ended.out


def test_json_holds_header_recipe_and_directory(
    image: np.ndarray, tmp_path: Path, command: Command
) -> None:
    many = np.tile(image, (20, 1, 1))
    blob = store(tmp_path / "x.er", many, er.Bound.range_relative(1e-2), codec="block")
    found = command("inspect", tmp_path / "x.er", "--chunks", "--json").json
    (row,) = found["blobs"]
    assert found["format"] == "blob" and found["bytes"] == blob.nbytes
    assert row["header_bytes"] + row["payload_bytes"] == row["encoded_bytes"] == blob.nbytes
    assert row["bound"]["mode"] == "range_relative" and row["bound"]["value"] == 1e-2
    assert row["recipe"]["codec"] == "block" and row["recipe"]["limit"] == blob.recipe.limit
    assert row["damaged_chunks"] == []
    assert len(row["chunks"]) == row["chunk_count"] == 2
    assert sum(chunk["bytes"] for chunk in row["chunks"]) == row["payload_bytes"]
    assert sum(chunk["items"] for chunk in row["chunks"]) == many.size
    assert all(chunk["intact"] for chunk in row["chunks"])


PROMISES: dict[str, tuple[er.Bound, str]] = {
    "lossless": (er.Bound.lossless(), "every bit comes back"),
    "absolute": (er.Bound.absolute(0.25), "more than 0.25;"),
    "range": (er.Bound.range_relative(0.125), "more than 0.125 of the array's range, here"),
    "pointwise": (er.Bound.pointwise_relative(0.0625), "more than 0.0625 of itself"),
    "signs": (er.Bound.absolute(0.25, keep_sign=True), "no sign changes"),
}


@pytest.mark.parametrize(("bound", "words"), PROMISES.values(), ids=PROMISES.keys())
@pytest.mark.parametrize("codec", ["block", "dense", "raw"])
def test_every_bound_says_its_promise(
    bound: er.Bound, words: str, codec: str, image: np.ndarray, tmp_path: Path, command: Command
) -> None:
    store(tmp_path / "x.er", image, bound, codec=codec)
    ended = command("inspect", tmp_path / "x.er")
    assert ended.code == 0
    assert words.split(" of the array", maxsplit=1)[0] in ended.out


def test_integers_are_exact_whatever_the_bound(tmp_path: Path, command: Command) -> None:
    store(tmp_path / "x.er", np.arange(100), er.Bound.absolute(5))
    assert "every bit comes back" in command("inspect", tmp_path / "x.er").out


def test_layout_and_dither_are_told(image: np.ndarray, tmp_path: Path, command: Command) -> None:
    x = torch.from_numpy(image[None]).to(memory_format=torch.channels_last)
    store(tmp_path / "x.er", x, er.Bound.absolute(1e-2), dither=99)
    ended = command("inspect", tmp_path / "x.er")
    assert "torch float32 1x6x24x32" in ended.out
    assert "seed 99" in ended.out
    assert "axes in memory" in ended.out


def test_an_archive(image: np.ndarray, tmp_path: Path, command: Command) -> None:
    np.savez(tmp_path / "in.npz", first=image, second=np.arange(10))
    assert command("encode", tmp_path / "in.npz", tmp_path / "x.er", "--absolute", "0.1").code == 0
    ended = command("inspect", tmp_path / "x.er")
    assert ended.code == 0 and "archive of 2 blobs" in ended.out
    assert "first" in ended.out and "second" in ended.out
    assert "promise" in command("inspect", tmp_path / "x.er", "--name", "first").out
    found = command("inspect", tmp_path / "x.er", "--json").json
    assert [blob["name"] for blob in found["blobs"]] == ["first", "second"]
    ended = command("inspect", tmp_path / "x.er", "--name", "third")
    assert ended.code == 2 and "named 'third': choose one of 'first', 'second'" in ended.err


def test_one_of_everything_is_in_the_singular(tmp_path: Path, command: Command) -> None:
    np.savez(tmp_path / "in.npz", only=np.ones(1, np.float32))
    assert command("encode", tmp_path / "in.npz", tmp_path / "x.er", "--lossless").code == 0
    listed = command("inspect", tmp_path / "x.er").out
    assert "archive of 1 blob," in listed and "lossless " in listed and "lossless 0" not in listed
    assert " 1 item," in command("inspect", tmp_path / "x.er", "--name", "only").out


def test_damage_in_several_chunks_is_counted(tmp_path: Path, command: Command) -> None:
    x = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    np.savez(tmp_path / "in.npz", noise=x)
    words = ("--absolute", "1e-2", "--codec", "block")
    assert command("encode", tmp_path / "in.npz", tmp_path / "x.er", *words).code == 0
    content = bytearray((tmp_path / "x.er").read_bytes())
    content[len(content) // 2] ^= 1
    content[-1] ^= 1
    (tmp_path / "x.er").write_bytes(content)
    ended = command("inspect", tmp_path / "x.er")
    assert "2 of 4 chunks damaged" in ended.out
    assert "x.er, blob 'noise': 2 chunks do not match their checksums, the first" in ended.err


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_small_shapes(shape: tuple[int, ...], tmp_path: Path, command: Command) -> None:
    store(tmp_path / "x.er", np.zeros(shape, np.float32), er.Bound.absolute(1))
    ended = command("inspect", tmp_path / "x.er", "--chunks")
    assert (ended.code, ended.err) == (0, "")


def test_damage_is_shown_and_refused(image: np.ndarray, tmp_path: Path, command: Command) -> None:
    store(tmp_path / "x.er", image, er.Bound.absolute(1e-3))
    content = bytearray((tmp_path / "x.er").read_bytes())
    content[-9] ^= 1
    (tmp_path / "x.er").write_bytes(content)
    ended = command("inspect", tmp_path / "x.er", "--chunks")
    assert ended.code == 2
    assert "1 of 1 chunk damaged" in ended.out
    assert "x.er: the checksum of chunk 0 of 1 does not match; fetch the file again" in ended.err
    found = command("inspect", tmp_path / "x.er", "--json")
    assert found.code == 2 and found.json["blobs"][0]["damaged_chunks"] == [0]
    content[40] ^= 1
    (tmp_path / "x.er").write_bytes(content)
    ended = command("inspect", tmp_path / "x.er")
    assert ended.code == 2 and ended.out == "" and ended.err.count("\n") == 1


def test_a_stranger(tmp_path: Path, command: Command) -> None:
    (tmp_path / "x.er").write_bytes(b"PK\x03\x04 something else")
    ended = command("inspect", tmp_path / "x.er")
    assert ended.code == 2 and "begins with" in ended.err


@pytest.mark.parametrize("model", Model)
def test_every_model_has_words(model: Model) -> None:
    recipe = Recipe(codec=Codec.DENSE, dtype=Dtype.F32, method=model, weights=(64, 0, -32, 0))
    text = " ".join(inspect.codec_words(recipe))
    assert "entropy-coded" in text
    assert ("+1 left -0.5 above left" in text) == (model != Model.SPARSE)


@pytest.mark.parametrize("predictor", Predictor)
def test_every_predictor_has_words(predictor: Predictor) -> None:
    recipe = Recipe(codec=Codec.BLOCK, dtype=Dtype.F32, method=predictor, columns=7, rows=5)
    assert len(inspect.codec_words(recipe)) == (1 if predictor == Predictor.NONE else 2)


@pytest.mark.parametrize("rule", Rule)
def test_every_rule_has_words(rule: Rule) -> None:
    recipe = Recipe(codec=Codec.BLOCK, dtype=Dtype.F32, rule=rule, step=0.25, negative_zero=True)
    assert "negative zero" in inspect.rule_words(recipe)
