"""Pictures of sections and curves, as files that open in any browser.

Colours run evenly to the eye: they are mixed in Oklab (Ottosson 2020), where equal distances look
equal, with lightness that rises from end to end, or falls to both sides of zero.
"""

import base64
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elbowroom.errors import InvalidArgument

# Lightness, green to red, blue to yellow.
_SEQUENTIAL = ((0.22, 0.03, -0.12), (0.45, -0.02, -0.11), (0.68, -0.10, 0.01), (0.92, -0.04, 0.17))
_DIVERGING = (
    (0.35, -0.02, -0.16),
    (0.70, -0.05, -0.09),
    (0.98, 0.0, 0.0),
    (0.70, 0.12, 0.07),
    (0.38, 0.13, 0.06),
)

_LINES = ("#1f5fa8", "#c2571a", "#2f7d4f", "#7a4fa3", "#6b6b6b")
_WIDTH, _MARGIN = 640, 64


def draw_section(
    path: Path | str,
    values: Tensor,
    *,
    spacing_m: float,
    title: str = "",
    unit: str = "m/s",
    is_signed: bool = False,
    limits: tuple[float, float] | None = None,
) -> Path:
    """Draw a vertical section: a picture with scales as .svg, or the bare points as .png.

    `is_signed` draws zero white and cuts off the largest hundredth, as gradients have peaks.
    """
    path = Path(path)
    array = _array(values)
    low, high = limits or _limits(array, is_signed=is_signed)
    span = high - low if high > low else 1.0
    rgb = colours((array - low) / span, is_signed=is_signed)
    if path.suffix == ".png":
        path.write_bytes(png(rgb))
    elif path.suffix == ".svg":
        path.write_text(_framed(rgb, spacing_m, title, unit, (low, high), is_signed), "utf-8")
    else:
        raise InvalidArgument(f"a picture must end in .svg or .png, got {path.name!r}")
    return path


def draw_curves(
    path: Path | str,
    curves: Mapping[str, Sequence[float]],
    *,
    title: str = "",
    across: str = "iteration",
    is_logarithmic: bool = True,
) -> Path:
    """Draw curves over their numbers from 0 on, as .svg."""
    path = Path(path)
    if path.suffix != ".svg":
        raise InvalidArgument(f"a picture of curves must end in .svg, got {path.name!r}")
    every = [v for values in curves.values() for v in values if math.isfinite(v)]
    if not every:
        raise InvalidArgument("there is no finite value to draw")
    is_logarithmic = is_logarithmic and min(every) > 0

    def level(value: float) -> float:
        return math.log10(value) if is_logarithmic else value

    low, high = level(min(every)), level(max(every))
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    last = max(1, max(len(values) for values in curves.values()) - 1)
    height = 300
    parts = [_text(_MARGIN, 24, title, "start", 15)]
    for share in (0.0, 0.5, 1.0):
        value = low + share * (high - low)
        y = _MARGIN + height * (1 - share)
        said = 10**value if is_logarithmic else value
        parts.append(f'<path d="M{_MARGIN} {y:.1f}h{_WIDTH}" stroke="#ddd"/>')
        parts.append(_text(_MARGIN - 6, y + 4, f"{said:.3g}", "end"))
    for number in sorted({0, last // 2, last}):
        x = _MARGIN + _WIDTH * number / last
        parts.append(_text(x, _MARGIN + height + 18, str(number), "middle"))
    parts.append(_text(_MARGIN + _WIDTH / 2, _MARGIN + height + 38, across, "middle"))
    for place, (name, values) in enumerate(curves.items()):
        colour = _LINES[place % len(_LINES)]
        # Where curves coincide, those below show through.
        dashed = f' stroke-dasharray="{4 + 2 * place} {4 + 2 * place}"' if place else ""
        points = [
            f"{_MARGIN + _WIDTH * n / last:.1f},"
            f"{_MARGIN + height * (1 - (level(v) - low) / (high - low)):.1f}"
            for n, v in enumerate(values)
            if math.isfinite(v)
        ]
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" '
            f'stroke-width="2"{dashed}/>'
        )
        parts.append(_text(_MARGIN + _WIDTH, 24 + 16 * place, name, "end", 12, colour))
    path.write_text(_svg(_WIDTH + 2 * _MARGIN, height + 2 * _MARGIN, parts, title), "utf-8")
    return path


def colours(shares: NDArray[np.float64], *, is_signed: bool = False) -> NDArray[np.uint8]:
    """The colours of values from 0 to 1; what is not a number is grey."""
    anchors = np.array(_DIVERGING if is_signed else _SEQUENTIAL)
    at = np.clip(np.nan_to_num(shares, nan=0.5), 0, 1) * (len(anchors) - 1)
    lab = np.stack([np.interp(at, np.arange(len(anchors)), column) for column in anchors.T], -1)
    # From Oklab to linear light, as its author gives it, and on to sRGB.
    to_cone = np.array([[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728]])
    to_cone = np.vstack([to_cone, [1, -0.0894841775, -1.2914855480]])
    to_light = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    light = np.clip((lab @ to_cone.T) ** 3 @ to_light.T, 0, 1)
    bent = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    rgb = np.rint(255 * bent).astype(np.uint8)
    rgb[~np.isfinite(shares)] = 128
    return rgb


def png(rgb: NDArray[np.uint8]) -> bytes:
    """Rows x columns x 3 as a PNG file."""
    height, width, _ = rgb.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), rgb.reshape(height, -1)], 1)

    def chunk(name: bytes, data: bytes) -> bytes:
        check = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


def _array(values: Tensor) -> NDArray[np.float64]:
    if values.dim() != 2 or values.numel() == 0:
        raise InvalidArgument(f"a section of rows and columns is drawn, got {list(values.shape)}")
    return values.detach().to("cpu", torch.float64).numpy()


def _limits(array: NDArray[np.float64], *, is_signed: bool) -> tuple[float, float]:
    finite = array[np.isfinite(array)]
    if finite.size == 0:
        return 0.0, 1.0
    if not is_signed:
        return float(finite.min()), float(finite.max())
    most = float(np.quantile(np.abs(finite), 0.99)) or float(np.abs(finite).max()) or 1.0
    return -most, most


def _framed(
    rgb: NDArray[np.uint8],
    spacing_m: float,
    title: str,
    unit: str,
    limits: tuple[float, float],
    is_signed: bool,
) -> str:
    rows, columns, _ = rgb.shape
    height = _WIDTH * rows / columns
    bottom, right = _MARGIN + height, _MARGIN + _WIDTH
    parts = [_text(_MARGIN, 24, title, "start", 15)]
    parts.append(_image(rgb, _MARGIN, _MARGIN, _WIDTH, height))
    for share in (0.0, 0.5, 1.0):
        across, down = (share * (n - 1) * spacing_m / 1000 for n in (columns, rows))
        parts.append(_text(_MARGIN + share * _WIDTH, bottom + 18, f"{across:.2f}", "middle"))
        parts.append(_text(_MARGIN - 6, _MARGIN + share * height + 4, f"{down:.2f}", "end"))
    parts.append(_text(_MARGIN + _WIDTH / 2, bottom + 38, "distance and depth, km", "middle"))
    shares = np.linspace(1, 0, 64)[:, None]
    parts.append(_image(colours(shares, is_signed=is_signed), right + 12, _MARGIN, 14, height))
    for share, value in ((0.0, limits[1]), (1.0, limits[0])):
        parts.append(_text(right + 32, _MARGIN + share * height + 4, f"{value:.3g}", "start"))
    parts.append(_text(right + 12, _MARGIN - 8, unit, "start"))
    return _svg(right + 2 * _MARGIN, bottom + _MARGIN, parts, title)


def _image(rgb: NDArray[np.uint8], x: float, y: float, width: float, height: float) -> str:
    data = base64.b64encode(png(rgb)).decode()
    return (
        f'<image x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        'preserveAspectRatio="none" style="image-rendering:pixelated" '
        f'href="data:image/png;base64,{data}"/>'
    )


def _text(x: float, y: float, said: str, anchor: str, size: int = 12, colour: str = "#333") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{colour}">{escape(said)}</text>'
    )


def _svg(width: float, height: float, parts: list[str], title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'role="img" aria-label="{escape(title)}" font-family="sans-serif">\n'
        '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
