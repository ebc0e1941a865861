"""Writes the golden blobs of the format version; run once a version, never to please a test.

python -m tests.codec.golden.make
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import elbowroom as er

FOLDER = Path(__file__).parent / "v1"


def field(shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """A smooth field with some noise, the same on every machine: no transcendental functions."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(shape).astype(np.float32)
    for axis in range(len(shape)):
        noise = np.cumsum(noise, axis=axis, dtype=np.float32) / np.float32(8)
    return noise


def cases() -> Iterator[tuple[str, Any, er.Bound, dict[str, Any]]]:
    """Name, array, bound and options of every golden blob."""
    smooth = field((3, 24, 40), 1)
    rough = np.random.default_rng(2).standard_normal((64, 80)).astype(np.float32)
    relu = np.maximum(rough, 0)
    special = rough[:10].copy()
    special[0, :6] = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42]
    special[3, :3] = [1e30, -1e30, 3e-39]
    absolute = er.Bound.absolute
    for codec in ("block", "dense"):
        yield f"{codec}_smooth", smooth, er.Bound.range_relative(1e-3), {"codec": codec}
        yield f"{codec}_rough", rough, absolute(0.02), {"codec": codec}
        yield f"{codec}_tight", rough, absolute(1e-5), {"codec": codec}
        yield f"{codec}_signs", relu, absolute(0.05, keep_sign=True), {"codec": codec}
        yield f"{codec}_dither", rough, absolute(0.05), {"codec": codec, "dither": 7}
        yield f"{codec}_pointwise", rough, er.Bound.pointwise_relative(0.01), {"codec": codec}
        yield f"{codec}_special", special, absolute(0.01), {"codec": codec}
        yield f"{codec}_f16", rough.astype(np.float16), absolute(0.05), {"codec": codec}
        yield f"{codec}_f64", smooth.astype(np.float64), absolute(0.001), {"codec": codec}
        yield f"{codec}_lossless", rough, er.Bound.lossless(), {"codec": codec}
        yield f"{codec}_i64", np.arange(-500, 500) * 3, er.Bound.lossless(), {"codec": codec}
        yield f"{codec}_bool", relu > 0, er.Bound.lossless(), {"codec": codec}
    # Nearly all zero: the dense codec takes its model sparse.
    rare = np.where(np.abs(rough) > 2.2, rough, 0)
    failing = rare.copy()
    failing[::9, 0] = [np.nan, np.inf, -np.inf, -0.0, 1e30, 1e-42, -1e30, 3.5]
    dense = {"codec": "dense"}
    yield "sparse_rows", rare, absolute(0.3), dense
    yield "sparse_flat", rare.reshape(-1), absolute(0.01), dense
    yield "sparse_narrow", rare.reshape(-1, 4), absolute(0.3), dense
    yield "sparse_signs", rare, absolute(0.4, keep_sign=True), dense
    yield "sparse_dither", rare, absolute(0.5), {**dense, "dither": 7}
    yield "sparse_pointwise", rare, er.Bound.pointwise_relative(0.4), dense
    yield "sparse_failing", failing, absolute(0.3), dense
    yield "sparse_f16", rare.astype(np.float16), absolute(0.3), dense
    yield "sparse_f64", rare.astype(np.float64), absolute(0.3), dense
    yield "sparse_i64", (rare * 2).astype(np.int64).reshape(-1), er.Bound.lossless(), dense
    yield "sparse_bool", rare > 0, er.Bound.lossless(), dense
    yield "sparse_zeros", np.zeros((40, 300), np.float32), absolute(0.01), dense
    bf16 = torch.from_numpy(rough).to(torch.bfloat16)
    yield "torch_bf16", bf16, absolute(0.05), {"codec": "dense"}
    images = torch.from_numpy(field((2, 3, 8, 10), 3)).to(memory_format=torch.channels_last)
    yield "torch_channels_last", images, absolute(0.01), {"codec": "block"}
    yield "raw", rough[:2], absolute(0.01), {"codec": "raw"}
    yield "empty", np.empty((0, 3), np.float32), absolute(0.01), {}
    yield "scalar", np.array(3.25, np.float32), absolute(0.01), {}


def main() -> None:
    """Write every blob."""
    FOLDER.mkdir(exist_ok=True)
    for name, array, bound, options in cases():
        (FOLDER / f"{name}.er").write_bytes(er.encode(array, bound, threads=1, **options).tobytes())


if __name__ == "__main__":
    main()
