"""The compressors that the codec is measured against, each behind the same two calls.

SZ3 and zfp keep an absolute bound by themselves. The lossless ones are put behind the plain
quantiser rint(x / 2e) in the narrowest integer type that holds its codes; unlike the codec it does
not check the bound again after rounding, which is to its advantage.
"""

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

# pysz, like SZ3, takes at most four dimensions; so does zfp.
MOST_DIMENSIONS = 4


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One compressor in one setting."""

    name: str
    package: str
    encode: Callable[[np.ndarray, float], Any]  # float32 or float64, absolute bound
    decode: Callable[[Any, np.ndarray, float], np.ndarray]  # encoded, an array like it, bound
    finite_only: bool = False

    @property
    def version(self) -> str:
        """The version of the package that is installed."""
        return importlib.metadata.version(self.package)


SZ3_ALGORITHMS = ("LORENZO_REG", "INTERP_LORENZO", "INTERP", "NOPRED")
ZSTD_LEVELS = (1, 3, 9)
PCODEC_LEVEL = 8
BLOSC2_LEVEL = 5


def fold(x: np.ndarray) -> np.ndarray:
    """Return the array contiguous, as float32 or float64 and with one to four dimensions."""
    wide = x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
    wide = np.ascontiguousarray(wide)
    if wide.ndim > MOST_DIMENSIONS:
        return wide.reshape(-1, *wide.shape[1 - MOST_DIMENSIONS :])
    return wide.reshape(1) if wide.ndim == 0 else wide


def quantise(x: np.ndarray, bound: float) -> np.ndarray:
    """Return the codes of the plain quantiser in the narrowest signed integer type."""
    codes = np.rint(x / (2 * bound))
    least, most = codes.min(), codes.max()
    for dtype in (np.int8, np.int16, np.int32, np.int64):
        limits = np.iinfo(dtype)
        if limits.min <= least and most <= limits.max:
            return codes.astype(dtype)
    raise OverflowError(f"codes up to {max(-least, most)} fit no integer type")


def restore(codes: np.ndarray, like: np.ndarray, bound: float) -> np.ndarray:
    """Return the values of the plain quantiser's codes."""
    step = like.dtype.type(2 * bound)
    return (codes.reshape(like.shape) * step).astype(like.dtype, copy=False)


def installed_peers() -> tuple[list[Peer], list[str]]:
    """Return the peers that can run here, and the packages that are missing."""
    groups: dict[str, tuple[str, Callable[[], list[Peer]]]] = {
        "pysz": ("pysz", _sz3),
        "zfpy": ("zfpy", _zfp),
        "pcodec": ("pcodec", _pcodec),
        "zstandard": ("zstandard", _zstd),
        "blosc2": ("blosc2", _blosc2),
    }
    peers: list[Peer] = []
    missing: list[str] = []
    for package, (module, make) in groups.items():
        if importlib.util.find_spec(module) is None:
            missing.append(package)
        else:
            peers += make()
    return peers, missing


def _sz3() -> list[Peer]:
    pysz: Any = import_module("pysz")

    def configure(x: np.ndarray, bound: float, algorithm: str) -> Any:
        config = pysz.szConfig(x.shape)
        config.errorBoundMode = pysz.szErrorBoundMode.ABS
        config.absErrorBound = bound
        config.cmprAlgo = getattr(pysz.szAlgorithm, algorithm)
        return config

    def encode(x: np.ndarray, bound: float, algorithm: str) -> Any:
        return pysz.sz.compress(x, configure(x, bound, algorithm))[0]

    def decode(encoded: Any, like: np.ndarray, bound: float) -> np.ndarray:
        return pysz.sz.decompress(encoded, like.dtype, like.shape)[0]

    return [
        Peer(
            name=f"sz3 {algorithm.lower().replace('_', '+')}",
            package="pysz",
            encode=partial(encode, algorithm=algorithm),
            decode=decode,
        )
        for algorithm in SZ3_ALGORITHMS
    ]


def _zfp() -> list[Peer]:
    zfpy: Any = import_module("zfpy")

    return [
        Peer(
            name="zfp",
            package="zfpy",
            encode=lambda x, bound: zfpy.compress_numpy(x, tolerance=bound),
            decode=lambda encoded, like, bound: zfpy.decompress_numpy(encoded),
            finite_only=True,
        )
    ]


def _pcodec() -> list[Peer]:
    pcodec: Any = import_module("pcodec")
    standalone: Any = import_module("pcodec.standalone")

    def encode(x: np.ndarray, bound: float) -> bytes:
        codes = quantise(x, bound).ravel()
        # Its narrowest integer has 16 bits; zeros above cost it nothing.
        wide = codes.astype(np.int16) if codes.itemsize == 1 else codes
        return standalone.simple_compress(wide, pcodec.ChunkConfig(compression_level=PCODEC_LEVEL))

    def decode(encoded: bytes, like: np.ndarray, bound: float) -> np.ndarray:
        return restore(standalone.simple_decompress(encoded), like, bound)

    return [
        Peer(
            name=f"pcodec {PCODEC_LEVEL}",
            package="pcodec",
            encode=encode,
            decode=decode,
            finite_only=True,
        )
    ]


def _zstd() -> list[Peer]:
    zstandard: Any = import_module("zstandard")

    def encode(x: np.ndarray, bound: float, level: int) -> tuple[bytes, np.dtype]:
        codes = quantise(x, bound)
        return zstandard.ZstdCompressor(level=level).compress(codes.tobytes()), codes.dtype

    def decode(encoded: tuple[bytes, np.dtype], like: np.ndarray, bound: float) -> np.ndarray:
        stored, dtype = encoded
        return restore(
            np.frombuffer(zstandard.ZstdDecompressor().decompress(stored), dtype), like, bound
        )

    return [
        Peer(
            name=f"zstd {level}",
            package="zstandard",
            encode=partial(encode, level=level),
            decode=decode,
            finite_only=True,
        )
        for level in ZSTD_LEVELS
    ]


def _blosc2() -> list[Peer]:
    blosc2: Any = import_module("blosc2")

    def encode(x: np.ndarray, bound: float) -> tuple[bytes, np.dtype]:
        codes = quantise(x, bound)
        settings = {
            "codec": blosc2.Codec.ZSTD,
            "clevel": BLOSC2_LEVEL,
            "typesize": codes.itemsize,
            "filters": [blosc2.Filter.BITSHUFFLE],
            "nthreads": 1,
        }
        return blosc2.compress2(codes, cparams=settings), codes.dtype

    def decode(encoded: tuple[bytes, np.dtype], like: np.ndarray, bound: float) -> np.ndarray:
        stored, dtype = encoded
        values = blosc2.decompress2(stored, dparams={"nthreads": 1})
        return restore(np.frombuffer(values, dtype), like, bound)

    return [
        Peer(
            name=f"blosc2 bitshuffle+zstd {BLOSC2_LEVEL}",
            package="blosc2",
            encode=encode,
            decode=decode,
            finite_only=True,
        )
    ]


def encoded_bytes(encoded: Any) -> int:
    """Return the size of what a peer's encode returned."""
    stored = encoded[0] if isinstance(encoded, tuple) else encoded
    return stored.nbytes if isinstance(stored, np.ndarray) else len(stored)
