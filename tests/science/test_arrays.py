"""Arrays count, not the file that packs them."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elbowroom.science.arrays import Array, compare_arrays, is_array
from elbowroom.science.catalogue import File, examine_file, read_catalogue

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
Y = np.array([0, 1, 1], np.uint8)


def describe(name: str, values: np.ndarray) -> Array:
    digest = hashlib.sha256(values.tobytes()).hexdigest()
    return Array(name=name, dtype=str(values.dtype), shape=values.shape, sha256=digest)


WANTED = (describe("x", X), describe("y", Y))


def test_any_container_and_any_wider_type_will_do(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=X, y=Y)
    assert compare_arrays(path, WANTED) == "same"
    np.savez_compressed(path, y=Y.astype(np.int64), x=np.asfortranarray(X), extra=Y)
    assert compare_arrays(path, WANTED) == "same"
    np.savez(path, x=X.astype(np.float64), y=Y.astype(bool))
    assert compare_arrays(path, WANTED) == "same"
    np.save(tmp_path / "x.npy", X)
    assert compare_arrays(tmp_path / "x.npy", [describe("", X)]) == "same"


def test_other_values_shapes_and_names_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    other = X.copy()
    other[0, 0] += 1
    for held in (
        {"x": other, "y": Y},
        {"x": X.T, "y": Y},
        {"x": X},
        {"x": X, "y": Y.astype(np.int64) + 256},  # which has the same bytes if it is cut
        {"x": X, "y": np.array(["0", "1", "1"])},
    ):
        np.savez(path, allow_pickle=False, **held)
        assert compare_arrays(path, WANTED) == "different", held
    path.write_bytes(path.read_bytes()[:50])
    assert compare_arrays(path, WANTED) == "unreadable"
    path.write_bytes(b"")
    assert compare_arrays(path, WANTED) == "unreadable"
    assert not is_array(X, replace(WANTED[0], sha256="0" * 64))


@pytest.mark.parametrize("verify", [True, False])
def test_a_file_is_judged_by_its_arrays(verify: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=X, y=Y)
    file = File(path="x.npz", bytes=path.stat().st_size, sha256="0" * 64, arrays=WANTED)
    assert examine_file(path, file, verify=verify) == "present"
    np.savez(path, x=X, y=Y)
    assert path.stat().st_size != file.bytes
    assert examine_file(path, file, verify=verify) == "present"
    np.savez(path, x=X + 1, y=Y)
    assert examine_file(path, file, verify=verify) == "damaged"
    path.write_bytes(path.read_bytes()[:40])
    assert examine_file(path, file, verify=verify) == "partial"


def test_the_catalogue_says_what_files_made_by_hand_hold() -> None:
    by_hand = [one for one in read_catalogue().values() if one.originals]
    assert {one.name for one in by_hand} == {"jet-images", "higgs", "higgsml", "marmousi"}
    assert all(file.arrays for one in by_hand for file in one.files)
    assert str(by_hand[0].files[0].arrays[0]) == "x: float32 of 5027 x 30 x 30"
