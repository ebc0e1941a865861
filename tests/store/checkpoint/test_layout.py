"""Tensors of all types, shapes and strides: as they were, or refused before they are saved."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from elbowroom.errors import InvalidArgument
from elbowroom.store.checkpoint import Checkpointer, Store
from elbowroom.store.checkpoint.layout import DTYPES, check_layout, layout_of

from .holders import Holder, forge

CUBE = torch.arange(60.0).reshape(3, 4, 5)
VIEWS = {
    "turned": CUBE.permute(2, 0, 1),
    "with gaps": CUBE[:, ::2],
    "one value": torch.tensor(2.0).expand(5),
    "overlapping": torch.arange(6.0).as_strided((4, 3), (1, 1)),
    "long stride of one": torch.arange(5.0).as_strided((1, 5), (100, 1)),
    "conjugate": torch.randn(3, dtype=torch.cfloat).conj(),
    "negative": torch.randn(3, dtype=torch.cfloat).conj().imag,
    "empty and turned": torch.empty(0, 3).t(),
    "empty with gaps": torch.zeros(5, 0)[::2],
    "empty without strides": torch.empty(0).as_strided((0,), (0,)),
    "empty in the middle": torch.empty(3, 0, 2).permute(2, 1, 0),
}


def save(where: Path, tensors: dict[str, Tensor], **options: Any) -> None:
    with Checkpointer(where, held=Holder(tensors), handle_signals=False, **options) as checkpointer:
        checkpointer.save(sync=True)


def load(where: Path) -> dict[str, Tensor]:
    held = Holder({})
    with Checkpointer(where, held=held, handle_signals=False) as checkpointer:
        assert checkpointer.resumed_from == 0
    return held.state


def bits(tensor: Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


@pytest.mark.parametrize("snapshot", ["copy", "fork"])
def test_views_of_all_kinds_come_back(tmp_path: Path, snapshot: str) -> None:
    save(tmp_path, VIEWS, snapshot=snapshot)
    found = load(tmp_path)
    for name, tensor in VIEWS.items():
        assert (found[name].shape, found[name].dtype) == (tensor.shape, tensor.dtype), name
        assert bits(found[name]) == bits(tensor), name


def test_all_types_come_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {
        f"{name} {count}": torch.randint(0, 256, (16 * count,), dtype=torch.uint8).view(dtype)
        for name, dtype in DTYPES.items()
        for count in (0, 1, 3)
    }
    save(tmp_path, tensors)
    found = load(tmp_path)
    assert all(found[name].dtype == tensor.dtype for name, tensor in tensors.items())
    raw = {name: bytes(tensor.untyped_storage()) for name, tensor in tensors.items()}
    assert {name: bytes(tensor.untyped_storage()) for name, tensor in found.items()} == raw


def test_what_is_empty_is_read_whatever_its_strides(tmp_path: Path) -> None:
    """Such were written once."""
    save(tmp_path, {"nothing": torch.empty(0, 3)})
    store = Store.open(tmp_path)

    def turn(held: Any) -> None:
        for entry in held["parts"][0]["entries"]:
            if entry[0] == "state['held']['nothing']":
                entry[2:4] = [3, 0], [7, 3]

    forge(store, store.names()[0], turn)
    assert load(tmp_path)["nothing"].shape == (3, 0)


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.zeros(4, dtype=torch.uint8).view(torch.quint8), "is a quantised tensor"),
        (torch.eye(3).to_sparse(), "is a torch.sparse_coo tensor"),
        (torch.empty(3, device="meta"), "is a meta tensor"),
    ],
)
def test_what_has_no_plain_bytes_is_refused(tensor: Tensor, said: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^here {said}"):
        layout_of(tensor, "here")


def test_what_is_written_can_be_read() -> None:
    for tensor in VIEWS.values():
        layout = layout_of(tensor, "here")
        check_layout(layout, layout.nbytes, "here")
