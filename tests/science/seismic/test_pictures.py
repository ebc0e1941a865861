"""Pictures: files that hold what was drawn."""

import base64
import re
import struct
import zlib
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import elbowroom as er
from elbowroom.science.seismic import draw_curves, draw_section, layered
from elbowroom.science.seismic.pictures import colours, png

SVG = "{http://www.w3.org/2000/svg}"


def read_png(data: bytes) -> NDArray[np.uint8]:
    """The points of a PNG as this project writes it, every checksum looked at."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    at = 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        (check,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        assert check == zlib.crc32(name + body)
        chunks[name] = body
        at += 12 + length
    width, height, *kind = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert kind == [8, 2, 0, 0, 0]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def lightness(rgb: NDArray[np.uint8]) -> NDArray[np.float64]:
    light = (rgb / 255) ** 2.2
    return light @ np.array([0.2126, 0.7152, 0.0722])


def test_a_png_is_read_back() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    assert np.array_equal(read_png(png(rgb)), rgb)


def test_colours_grow_lighter_or_leave_white() -> None:
    rising = lightness(colours(np.linspace(0, 1, 50)))
    assert (np.diff(rising) > 0).all()
    signed = lightness(colours(np.linspace(0, 1, 51), is_signed=True))
    assert signed.argmax() == 25 and signed[25] > 0.9
    assert (np.diff(signed[:26]) > 0).all() and (np.diff(signed[25:]) < 0).all()
    assert colours(np.array([np.nan])).tolist() == [[128, 128, 128]]


def test_a_section_as_points(tmp_path: Path) -> None:
    model = layered(20, 30)
    path = draw_section(tmp_path / "a.png", model.m_per_s, spacing_m=10.0)
    points = read_png(path.read_bytes())
    assert points.shape == (20, 30, 3)
    assert len(np.unique(points.reshape(-1, 3), axis=0)) == len(model.m_per_s.unique())


@pytest.mark.parametrize("is_signed", [False, True])
def test_a_section_with_scales(tmp_path: Path, is_signed: bool) -> None:
    values = layered(20, 30).m_per_s - 2500 * is_signed
    path = draw_section(
        tmp_path / "a.svg", values, spacing_m=10.0, title="<a> & b", is_signed=is_signed
    )
    root = ET.parse(path).getroot()
    said = [text.text for text in root.iter(f"{SVG}text")]
    assert said[0] == "<a> & b" and "0.29" in said and "m/s" in said
    pictures = re.findall(r"base64,([A-Za-z0-9+/=]+)", path.read_text())
    assert read_png(base64.b64decode(pictures[0])).shape == (20, 30, 3)


def test_odd_sections_are_drawn(tmp_path: Path) -> None:
    for values in (
        torch.zeros(3, 4),
        torch.full((3, 4), torch.nan),
        torch.tensor([[1.0, torch.inf]]),
    ):
        for is_signed in (False, True):
            path = tmp_path / "a.svg"
            draw_section(path, values, spacing_m=1.0, is_signed=is_signed)
            ET.parse(path)


def test_curves(tmp_path: Path) -> None:
    path = draw_curves(tmp_path / "c.svg", {"one": [1.0, 0.1, 0.01], "two": [1.0, 0.2]})
    lines = ET.parse(path).getroot().findall(f"{SVG}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 2]
    heights = [float(pair.split(",")[1]) for pair in lines[0].attrib["points"].split()]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1])
    draw_curves(path, {"flat": [0.0, 0.0], "broken": [float("nan")]})
    ET.parse(path)


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(er.InvalidArgument, match=r"\.svg or \.png"):
        draw_section(tmp_path / "a.gif", torch.ones(3, 3), spacing_m=1.0)
    with pytest.raises(er.InvalidArgument, match="rows and columns"):
        draw_section(tmp_path / "a.svg", torch.ones(3), spacing_m=1.0)
    with pytest.raises(er.InvalidArgument, match=r"\.svg"):
        draw_curves(tmp_path / "a.png", {"a": [1.0]})
    with pytest.raises(er.InvalidArgument, match="no finite value"):
        draw_curves(tmp_path / "a.svg", {"a": []})
