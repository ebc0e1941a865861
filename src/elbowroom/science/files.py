"""Files that users name: there, and files, before anything reads them."""

from pathlib import Path

from elbowroom.errors import InvalidArgument, MissingData


def require_file(path: Path) -> Path:
    """Return the path if a file is there that can be read; else say in a sentence what is."""
    if path.is_dir():
        raise InvalidArgument(f"{path} is a folder, and a file is needed: name the file")
    try:
        with path.open("rb"):
            return path
    except FileNotFoundError:
        raise MissingData(f"{path} is not there: check the name") from None
    except OSError as error:
        raise MissingData(
            f"{path} cannot be opened ({error.strerror}): check the name and who may read it"
        ) from None
