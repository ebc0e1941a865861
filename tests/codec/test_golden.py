"""Blobs of every format version stay readable, and version 1 is still written byte for byte."""

from typing import Any

import numpy as np
import pytest
import torch

import elbowroom as er
from elbowroom.codec.recipe import Codec, Model
from tests.codec.golden.make import FOLDER, cases

CASES = {name: (array, bound, options) for name, array, bound, options in cases()}


def as_numpy(x: Any) -> Any:
    """Bit patterns where numpy has no type."""
    if isinstance(x, torch.Tensor):
        return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()
    return np.asarray(x)


def test_every_case_has_a_blob() -> None:
    assert {p.stem for p in FOLDER.glob("*.er")} == set(CASES)


def test_sparse_cases_are_sparse() -> None:
    for path in FOLDER.glob("*.er"):
        recipe = er.Blob.frombytes(path.read_bytes()).recipe
        is_sparse = recipe.codec == Codec.DENSE and recipe.method == Model.SPARSE
        assert is_sparse == path.stem.startswith("sparse_")


@pytest.mark.parametrize("name", CASES)
def test_reads(name: str, isa: str) -> None:
    array, bound, _ = CASES[name]
    blob = er.Blob.frombytes((FOLDER / f"{name}.er").read_bytes())
    decoded = er.decode(blob)
    assert bound.holds(array, decoded)
    reference = er.decode(blob, backend="reference")
    assert as_numpy(decoded).tobytes() == as_numpy(reference).tobytes()


@pytest.mark.parametrize("name", CASES)
def test_writes_the_same_bytes(name: str, isa: str) -> None:
    array, bound, options = CASES[name]
    stored = (FOLDER / f"{name}.er").read_bytes()
    assert er.encode(array, bound, threads=1, **options).tobytes() == stored
