"""The table of contents: every public name is there, and costs nothing before it is used."""

import subprocess
import sys

import pytest

import elbowroom


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("name", elbowroom.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(elbowroom, name) is not None
    assert name in dir(elbowroom)


def test_every_late_name_is_public() -> None:
    assert set(elbowroom._PARTS) <= set(elbowroom.__all__)


def test_no_other_name_is_there() -> None:
    with pytest.raises(AttributeError, match="module 'elbowroom' has no attribute 'enc'"):
        elbowroom.enc  # type: ignore[attr-defined]  # noqa: B018


def test_import_alone_does_not_import_torch() -> None:
    done = run(
        "import sys, elbowroom\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "from elbowroom import *\n"
        "assert decode(encode(__import__('torch').ones(3), Bound.lossless())).sum() == 3\n"
    )
    assert done.returncode == 0, done.stderr


def test_parts_are_reached_through_the_package() -> None:
    done = run(
        "import elbowroom as er, sys\n"
        "assert er.codec.bound.Mode.LOSSLESS == 0\n"
        "assert 'elbowroom.integrations' not in sys.modules\n"
        "assert er.integrations.trackers.PREFIX == 'activations/'\n"
        "assert not {'tensorboard', 'wandb', 'mlflow', 'transformers'} & set(sys.modules)\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "imports", ["import torch, elbowroom", "import elbowroom.codec, torch"], ids=["after", "before"]
)
def test_operators_are_registered(imports: str) -> None:
    done = run(f"{imports}\ntorch.ops.elbowroom.encode(torch.ones(3), 1e-3)\n")
    assert done.returncode == 0, done.stderr
