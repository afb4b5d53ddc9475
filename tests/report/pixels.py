"""Reads the PNG files that a browser writes: eight bits, RGB or RGBA, not interlaced."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np

Colour = tuple[int, int, int]


@dataclass
class Picture:
    pixels: np.ndarray

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])

    def at(self, x: float, y: float) -> Colour:
        r, g, b = self.pixels[round(y), round(x), :3].tolist()
        return (r, g, b)

    def colours(self, x: float, y: float, w: float, h: float) -> set[Colour]:
        box = self.pixels[round(y) : round(y + h), round(x) : round(x + w), :3]
        return {(r, g, b) for r, g, b in np.unique(box.reshape(-1, 3), axis=0).tolist()}


def read_png(data: bytes) -> Picture:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    offset, packed, size, channels = 8, b"", (0, 0), 0
    while offset < len(data):
        length, kind = struct.unpack(">I4s", data[offset : offset + 8])
        body = data[offset + 8 : offset + 8 + length]
        if kind == b"IHDR":
            wide, high, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert depth == 8 and colour in (2, 6) and not interlaced
            size, channels = (wide, high), 3 if colour == 2 else 4
        elif kind == b"IDAT":
            packed += body
        offset += length + 12
    rows = np.frombuffer(zlib.decompress(packed), np.uint8)
    rows = rows.reshape(size[1], size[0] * channels + 1)
    out = np.zeros((size[1], size[0], channels), np.uint8)
    above = np.zeros(size[0] * channels, np.uint8)
    for i, row in enumerate(rows):
        above = _unfilter(int(row[0]), row[1:], above, channels)
        out[i] = above.reshape(size[0], channels)
    return Picture(out)


def _unfilter(kind: int, row: np.ndarray, above: np.ndarray, step: int) -> np.ndarray:
    if kind == 0:
        return row.copy()
    if kind == 1:
        return np.cumsum(row.reshape(-1, step), axis=0, dtype=np.uint8).reshape(-1)
    if kind == 2:
        return row + above
    previous, corner, rows = [0] * step, [0] * step, []
    for x, b in zip(row.reshape(-1, step).tolist(), above.reshape(-1, step).tolist(), strict=True):
        if kind == 3:
            previous = [(v + (a + u) // 2) & 255 for v, a, u in zip(x, previous, b, strict=True)]
        else:
            near = [_paeth(a, u, c) for a, u, c in zip(previous, b, corner, strict=True)]
            previous, corner = [(v + n) & 255 for v, n in zip(x, near, strict=True)], b
        rows.append(previous)
    return np.array(rows, np.uint8).reshape(-1)


def _paeth(a: int, b: int, c: int) -> int:
    p = a + b - c
    distances = abs(p - a), abs(p - b), abs(p - c)
    return (a, b, c)[distances.index(min(distances))]
