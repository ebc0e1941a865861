"""Fetching: real pip on archives made here, checksums, and going on after an interruption."""

import hashlib
import io
import os
import shutil
import stat
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from elbowroom.errors import CorruptData, MissingData
from elbowroom.science import retrieval
from elbowroom.science.catalogue import Dataset, File, Source, hash_file
from elbowroom.science.retrieval import FETCHED, fetch, retrieve, unpack

PARTS = {"one.bin": b"first" * 1000, "two.bin": b"second" * 1000}

# A package that builds without any other, so that pip needs no network.
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BACKEND = """
from pathlib import Path
def prepare_metadata_for_build_wheel(folder, settings=None):
    made = Path(folder) / "fieldwork-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\\nName: fieldwork\\nVersion: 1.0\\n")
    return made.name
def build_wheel(*_):
    raise SystemExit("nothing asks for a wheel")
build_sdist = build_wheel
"""


def ignore(what: str, done: int, total: int | None) -> None:
    """Tell nobody."""


def make_sdist(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "fieldwork-1.0.tar.gz"
    content = {
        "PKG-INFO": b"Metadata-Version: 2.1\nName: fieldwork\nVersion: 1.0\n",
        "pyproject.toml": PROJECT.encode(),
        "backend.py": BACKEND.encode(),
        **{f"data/{name}": part for name, part in PARTS.items()},
    }
    with tarfile.open(path, "w:gz") as tar:
        for name, part in content.items():
            member = tarfile.TarInfo(f"fieldwork-1.0/{name}")
            member.size = len(part)
            tar.addfile(member, io.BytesIO(part))
    return path


def make_dataset(archive: Path) -> Dataset:
    return Dataset(
        name="work",
        about="",
        origin="here",
        licence="",
        files=tuple(
            File(
                path=f"deep/{name}",
                bytes=len(part),
                sha256=hashlib.sha256(part).hexdigest(),
                member=f"fieldwork-1.0/data/{name}",
            )
            for name, part in PARTS.items()
        ),
        source=Source(
            kind="sdist",
            package="fieldwork",
            version="1.0",
            bytes=archive.stat().st_size,
            sha256=hash_file(archive),
        ),
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let pip see one folder and nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_pip_brings_a_source_archive_and_its_files_are_unpacked(
    index: Path, tmp_path: Path
) -> None:
    dataset = make_dataset(make_sdist(index))
    told: list[str] = []
    target = tmp_path / "target"
    brought = retrieve(dataset, target, tell=lambda what, done, total: told.append(what))
    assert brought == [target / "deep" / name for name in PARTS]
    assert [path.read_bytes() for path in brought] == list(PARTS.values())
    assert {"fetching fieldwork", "unpacking one.bin", "unpacking two.bin"} == set(told)
    # Nothing else is left, and a second call has nothing to do.
    assert sorted(p.name for p in target.rglob("*")) == ["deep", *PARTS]
    assert retrieve(dataset, target, tell=ignore) == []


def test_another_archive_than_the_published_one_is_not_even_opened(
    index: Path, tmp_path: Path
) -> None:
    dataset = make_dataset(make_sdist(index))
    assert dataset.source
    with (index / "fieldwork-1.0.tar.gz").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(MissingData, match="pip could not fetch fieldwork") as error:
        retrieve(dataset, tmp_path / "target", tell=ignore)
    assert "DO NOT MATCH THE HASHES" in str(error.value)
    assert not (tmp_path / "target" / FETCHED).exists()


def test_no_network_is_one_sentence(index: Path, tmp_path: Path) -> None:
    source = Source(kind="sdist", package="fieldwork", version="1.0", sha256="0" * 64)
    with pytest.raises(MissingData) as error:
        fetch(source, tmp_path / "waiting", tell=ignore)
    assert "pip could not fetch fieldwork (ERROR: No matching distribution found" in str(
        error.value
    )
    assert "check the network" in str(error.value)


def test_a_wheel_of_any_version_is_known_by_its_files(index: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(index / "gauge-2.5-py3-none-any.whl", "w") as wheel:
        wheel.writestr("gauge/rows.csv", "1,2\n")
        about = "Metadata-Version: 2.1\nName: gauge\nVersion: 2.5\n"
        wheel.writestr("gauge-2.5.dist-info/METADATA", about)
        wheel.writestr("gauge-2.5.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("gauge-2.5.dist-info/RECORD", "")
    digest = hashlib.sha256(b"1,2\n").hexdigest()
    file = File(path="rows.csv", bytes=4, sha256=digest, member="gauge/rows.csv")
    archive = fetch(Source(kind="wheel", package="gauge"), tmp_path / "waiting", tell=ignore)
    unpack(archive, [file], tmp_path, tell=ignore)
    assert (tmp_path / "rows.csv").read_text() == "1,2\n"


def test_an_installed_package_spares_the_fetching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "site" / "gauge_installed"
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("raise SystemExit('it must not be imported')")
    (inside / "rows.csv").write_bytes(b"1,2\n")
    monkeypatch.syspath_prepend(inside.parent)
    file = File(
        path="rows.csv",
        bytes=4,
        sha256=hashlib.sha256(b"1,2\n").hexdigest(),
        member="gauge_installed/rows.csv",
    )
    source = Source(kind="wheel", package="gauge-installed")
    dataset = Dataset(name="g", about="", origin="", licence="", files=(file,), source=source)
    target = tmp_path / "target"
    assert retrieve(dataset, target, tell=ignore) == [target / "rows.csv"]
    assert (target / "rows.csv").read_bytes() == b"1,2\n"


def test_an_interrupted_call_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make_sdist(tmp_path / "made")
    dataset = make_dataset(archive)
    target = tmp_path / "target"
    waiting = target / FETCHED
    waiting.mkdir(parents=True)
    shutil.copy(archive, waiting)
    (waiting / "half.tar.gz").write_bytes(archive.read_bytes()[:100])
    (target / "deep").mkdir()
    (target / "deep" / "one.bin").write_bytes(PARTS["one.bin"])
    (target / "deep" / "two.bin").write_bytes(PARTS["two.bin"][:10])
    stopped = False

    def stop_once(what: str, done: int, total: int | None) -> None:
        nonlocal stopped
        if not stopped:
            stopped = True
            raise KeyboardInterrupt

    # No command must run: the archive is here.
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    with pytest.raises(KeyboardInterrupt):
        retrieve(dataset, target, tell=stop_once)
    assert not list(target.rglob("*.partial"))
    assert retrieve(dataset, target, tell=ignore) == [target / "deep" / "two.bin"]
    assert (target / "deep" / "two.bin").read_bytes() == PARTS["two.bin"]
    assert [path.name for path in waiting.iterdir()] == ["half.tar.gz"]


def test_damaged_archives_leave_nothing_behind(tmp_path: Path) -> None:
    archive = make_sdist(tmp_path)
    files = list(make_dataset(archive).files)
    wrong = replace(files[1], sha256="0" * 64)
    with pytest.raises(CorruptData, match=r"two\.bin has not the checksum"):
        unpack(archive, [files[0], wrong], tmp_path / "a", tell=ignore)
    assert [path.name for path in (tmp_path / "a" / "deep").iterdir()] == ["one.bin"]
    absent = replace(files[1], member="fieldwork-1.0/data/three.bin")
    with pytest.raises(CorruptData, match=r"does not hold fieldwork-1\.0/data/three\.bin"):
        unpack(archive, [absent], tmp_path / "b", tell=ignore)
    archive.write_bytes(archive.read_bytes()[:150])
    with pytest.raises(CorruptData, match="cannot be unpacked"):
        unpack(archive, files, tmp_path / "c", tell=ignore)


def test_what_is_in_no_package_is_explained(tmp_path: Path) -> None:
    dataset = replace(make_dataset(make_sdist(tmp_path)), source=None, origin="the attic")
    with pytest.raises(MissingData, match=r"from the attic, and put deep/one\.bin, deep/two"):
        retrieve(dataset, tmp_path / "target", tell=ignore)


def test_too_little_space_is_said_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_dataset(make_sdist(tmp_path))
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(retrieval.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match="MB are needed, 0 free"):
        retrieve(dataset, tmp_path / "target", tell=ignore)


def test_npm_is_asked_for_a_package_and_its_absence_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make_sdist(tmp_path / "made")
    source = Source(kind="npm", package="fieldwork", version="1.0", sha256=hash_file(archive))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(MissingData, match="fetched by npm, which is not installed"):
        fetch(source, tmp_path / "waiting", tell=ignore)
    # A stand-in: there is no registry here to ask.
    (tmp_path / "bin").mkdir()
    npm = tmp_path / "bin" / "npm"
    npm.write_text(
        f"#!{sys.executable}\nimport shutil, sys\n"
        "assert sys.argv[1:4] == ['pack', 'fieldwork@1.0', '--silent'], sys.argv\n"
        f"shutil.copy({str(archive)!r}, sys.argv[-1])\n"
    )
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    assert hash_file(fetch(source, tmp_path / "waiting", tell=ignore)) == source.sha256
    other = replace(source, sha256="1" * 64)
    with pytest.raises(CorruptData, match="has not the checksum of the published archive"):
        fetch(other, tmp_path / "elsewhere", tell=ignore)
