"""The verb `doctor`: what this machine and installation offer."""

import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
from typing import Annotated, Any

import typer

from elbowroom.cli.wording import counted

OPTIONAL = (
    "triton",
    "h5py",
    "netCDF4",
    "zstandard",
    "blosc2",
    "pysz",
    "zfpy",
    "pcodec",
    "transformers",
    "lightning",
)


def examine() -> dict[str, Any]:
    """Return everything that doctor shows, as plain values."""
    import torch

    import elbowroom

    return {
        "elbowroom": elbowroom.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "compiler": _compiler(),
        "native": _native(),
        "threads": {
            "cores": os.cpu_count(),
            "usable": _usable_cores(),
            "torch": torch.get_num_threads(),
            "ELBOWROOM_THREADS": os.environ.get("ELBOWROOM_THREADS"),
        },
        "memory_bytes": _memory_bytes(),
        "torch": torch.__version__,
        "gpu": _gpus(),
        "packages": {name: _version(name) for name in OPTIONAL},
    }


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the compiler, processor, threads, GPU and optional packages found here."""
    found = examine()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from elbowroom.cli.tables import print_sections

    print_sections(_sections(found))


def _sections(found: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """What people read: the machine, what was built for it, and what else could be there."""
    native, threads = found["native"], found["threads"]
    if native["error"]:
        kernels = f"not available: {native['error']}; build them with 'pip install .'"
    else:
        kernels = f"{native['isa']} (this processor runs {', '.join(native['isa_levels'])})"
    wish = threads["ELBOWROOM_THREADS"]
    cores = (
        f"{threads['usable']} of {counted(threads['cores'] or threads['usable'], 'core')} usable"
    )
    cores += f", torch uses {counted(threads['torch'], 'thread')}"
    memory = found["memory_bytes"]
    present = [f"{name} {version}" for name, version in found["packages"].items() if version]
    absent = [name for name, version in found["packages"].items() if not version]
    return {
        "Machine": [
            ("system", found["platform"]),
            ("threads", cores + (f", ELBOWROOM_THREADS={wish}" if wish else "")),
            ("memory", f"{memory / 2**30:.1f} GiB" if memory else "unknown"),
            ("gpu", ", ".join(found["gpu"]) or "none"),
        ],
        "Build": [
            ("elbowroom", found["elbowroom"]),
            ("kernels", kernels),
            ("compiler", found["compiler"] or "none (needed only to build from source)"),
            ("python", found["python"]),
            ("torch", found["torch"]),
        ],
        "Optional packages": [
            ("installed", ", ".join(present) or "none of the optional packages"),
            ("not installed", ", ".join(absent) or "nothing optional is missing"),
        ],
    }


def _native() -> dict[str, Any]:
    try:
        from elbowroom import _native
    except ImportError as error:
        return {"isa": None, "isa_levels": [], "error": str(error)}
    return {"isa": _native.isa(), "isa_levels": _native.isa_levels(), "error": None}


def _compiler() -> str | None:
    named = os.environ.get("CXX", "")
    for command in [shlex.split(named)] if named else [["c++"], ["g++"], ["clang++"]]:
        if not command or shutil.which(command[0]) is None:
            continue
        try:
            answer = subprocess.run(
                [*command, "--version"], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if answer.returncode == 0 and answer.stdout:
            return answer.stdout.splitlines()[0]
    return None


def _usable_cores() -> int:
    # Less than the machine has under taskset, Slurm or a container's cpuset.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _gpus() -> list[str]:
    import torch

    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        return ["Apple Metal"]
    return []


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
