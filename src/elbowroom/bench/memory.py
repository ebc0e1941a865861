"""How much memory encoding and decoding take at most, each measured in a process of its own."""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from elbowroom.codec import Blob, Bound, decode, encode

CodecName = Literal["block", "dense"]

STATUS = Path("/proc/self/status")


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The most memory of one operation beyond what was there before it."""

    operation: str
    codec: str
    raw_bytes: int
    output_bytes: int
    peak_bytes: int

    @property
    def scratch_bytes(self) -> int:
        """What was needed besides the result."""
        return max(0, self.peak_bytes - self.output_bytes)


def measure_peaks(x: np.ndarray, allowed: float, codec: str) -> list[Peak]:
    """Return the peaks of encode and decode, none where the system does not tell them."""
    if not STATUS.exists():
        return []
    peaks: list[Peak] = []
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "x.npy"), x)
        for operation in ("encode", "decode"):
            words = [operation, codec, repr(allowed), folder]
            command = [sys.executable, "-P", "-m", "elbowroom.bench.memory", *words]
            answer = subprocess.run(command, check=True, capture_output=True, text=True)
            peaks.append(
                Peak(
                    operation=operation,
                    codec=codec,
                    raw_bytes=x.nbytes,
                    **json.loads(answer.stdout),
                )
            )
    return peaks


def _run(operation: str, codec: CodecName, allowed: float, folder: Path) -> dict[str, int]:
    bound = Bound.absolute(allowed)
    # The first call starts threads and loads what is loaded late; that is no scratch.
    decode(encode(np.zeros(1024, np.float32), bound, codec=codec, threads=1), threads=1)
    stored = folder / "x.er"
    if operation == "encode":
        x = np.load(folder / "x.npy", allow_pickle=False)
        before = _begin()
        blob = encode(x, bound, codec=codec, threads=1)
        peak = status_bytes("VmHWM") - before
        stored.write_bytes(blob.tobytes())
        return {"output_bytes": blob.nbytes, "peak_bytes": peak}
    blob = Blob.frombytes(stored.read_bytes())
    before = _begin()
    back: Any = decode(blob, threads=1)
    return {"output_bytes": back.nbytes, "peak_bytes": status_bytes("VmHWM") - before}


def _begin() -> int:
    try:
        # Sets the high-water mark back to the present size, where that is allowed.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        pass
    return status_bytes("VmRSS")


def status_bytes(name: str) -> int:
    """A size from the kernel's account of this process."""
    for line in STATUS.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """Do one operation and print its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operation", choices=["encode", "decode"])
    parser.add_argument("codec", choices=["block", "dense"])
    parser.add_argument("allowed", type=float)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    print(json.dumps(_run(options.operation, options.codec, options.allowed, options.folder)))


if __name__ == "__main__":
    main()
