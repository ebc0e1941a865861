"""encode and decode inside a compiled region: called as they are, with a hint for fullgraph."""

from typing import Any

import pytest
import torch

from elbowroom import Blob, Bound, decode, encode


def through(x: torch.Tensor) -> torch.Tensor:
    blob = encode(x * 2, Bound.absolute(1e-2))
    return decode(Blob.frombytes(blob.tobytes())) + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_region_breaks_around_the_codec(backend: str) -> None:
    torch._dynamo.reset()
    compiled: Any = torch.compile(through, backend=backend)
    for count in (100, 100, 3000, 70_000):
        x = torch.randn(count)
        assert torch.equal(compiled(x), through(x))


def test_a_whole_graph_is_refused_with_a_hint() -> None:
    torch._dynamo.reset()
    compiled: Any = torch.compile(through, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"torch\.ops\.elbowroom\.encode and decode can be comp"):
        compiled(torch.randn(100))
