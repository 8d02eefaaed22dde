"""What a JPEG says before its pixels (ITU-T T.81, annex B): size, orientation, and the tables to decode them with."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .kernels import Scan

__all__ = ["JpegHeader", "exif_orientation", "jpeg_header"]

_LONE_MARKERS = frozenset(range(0xD0, 0xD8)) | {0x01}
_KNOWN = {0xC4, 0xDB, 0xDD, 0xFE} | set(range(0xE0, 0xF0))  # what may come before the pixels of a sound file
_GARBAGE = 0
_MOST = 65500  # pixels a side that libjpeg takes
_MOST_TABLES = 1 << 14  # bytes, several times what four tables need: each one takes time to make
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BASELINE = (0xC0, 0xC1)
_HUFFMAN = (*_BASELINE, 0xC2)
_TABLES, _STEPS, _SCAN, _RESTART, _APP0, _EXIF, _ADOBE = 0xC4, 0xDB, 0xDA, 0xDD, 0xE0, 0xE1, 0xEE


class JpegHeader(NamedTuple):
    """height, width: pixels, before orientation (EXIF 1..8).

    huffman: 8-bit grey or three colours, Huffman-coded: what libjpeg-turbo decodes to RGB.
    scan: for `kernels.decode_jpeg`, or None if the file is not of the kind that it reads.
    """

    height: int
    width: int
    orientation: int
    huffman: bool
    scan: Scan | None


def jpeg_header(data: bytes) -> JpegHeader:
    """Walk the marker segments up to the pixels.  Raises ValueError if there is no frame header."""
    segments: dict[int, list[bytes]] = {}
    try:
        marker, frame, at = _walk(data, 2, segments)
        depth, height, width, colours = struct.unpack_from(">BHHB", frame)
    except (ValueError, IndexError, struct.error):
        raise ValueError("truncated or damaged JPEG: it has no frame header") from None
    exif = next((s for s in segments.get(_EXIF, ()) if s.startswith(b"Exif\0\0")), b"")
    plain = depth == 8 and colours in (1, 3)
    scan = None
    if plain and marker in _BASELINE and height and width:
        try:
            scan = _scan(data, at, frame, segments)
        except (ValueError, IndexError, struct.error):
            pass  # tables that are missing or do not fit: libjpeg-turbo will say so
    return JpegHeader(height, width, exif_orientation(exif), plain and marker in _HUFFMAN, scan)


def exif_orientation(exif: bytes) -> int:
    """Tag 0x0112 of the first directory (EXIF 2.32, 4.6.4); 1 where it is absent or malformed."""
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, entry)
            if tag == 0x0112:
                return int(value) if kind == 3 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def _walk(data: bytes, at: int, segments: dict[int, list[bytes]]) -> tuple[int, bytes, int]:
    """Collect segments up to a frame or scan header; returns its marker, its content, and where that ends."""
    while True:
        after, at = at, data.index(b"\xff", at)
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        lone = marker in _LONE_MARKERS or not marker
        if lone or data[after] != 0xFF:
            segments[_GARBAGE] = []
        if lone:
            continue
        end = at + 1 + int.from_bytes(data[at + 1 : at + 3], "big")
        content = data[at + 3 : end]
        if end < at + 3 or end > len(data):
            segments[_GARBAGE] = []
        if marker in _START_OF_FRAME or marker == _SCAN:
            return marker, content, end
        segments.setdefault(marker, []).append(content)
        at = end


def _scan(data: bytes, at: int, frame: bytes, segments: dict[int, list[bytes]]) -> Scan | None:
    """Read on from the frame header to the scan's; None unless all is as most encoders write it."""
    height, width, colours = struct.unpack_from(">HHB", frame, 1)
    marker, scan, start = _walk(data, at, segments)
    if marker != _SCAN or not segments.keys() <= _KNOWN or max(height, width) > _MOST:
        return None
    if set(segments.get(_RESTART, ())) - {b"\0\0"} or not _is_ycc(colours, frame, segments):
        return None
    coding = _parts(frame[6:], scan) if len(frame) == 6 + 3 * colours else None
    if coding is None or width < 3 * coding[0]:
        return None  # libjpeg-turbo does not interpolate the colours of two samples
    across, down, parts = coding
    steps, tables = tuple(segments.get(_STEPS, ())), tuple(segments.get(_TABLES, ()))
    if sum(map(len, tables)) > _MOST_TABLES:
        return None
    return Scan(start, (height, width, across, down, colours), parts, steps, tables)


@lru_cache(maxsize=64)  # there are few ways to do it
def _parts(frame: bytes, scan: bytes) -> tuple[int, int, NDArray[np.int64]] | None:
    """Luma samples a colour sample, and `Scan.parts`, from the headers' lists of colours; None for an uncommon way."""
    colours = len(frame) // 3
    parts = [frame[3 * c : 3 * c + 3] for c in range(colours)]  # name, sampling, quantisation table
    used = [scan[1 + 2 * c : 3 + 2 * c] for c in range(colours)]  # name, Huffman tables
    if scan[0] != colours or scan[1 + 2 * colours :] != b"\0\x3f\0" or [p[0] for p in parts] != [u[0] for u in used]:
        return None
    across, down = (parts[0][1] >> 4, parts[0][1] & 15) if colours == 3 else (1, 1)
    if (across, down) not in ((1, 1), (2, 1), (2, 2)) or any(p[1] != 0x11 for p in parts[1:]):
        return None
    if not (1 <= parts[0][1] >> 4 <= 4 and 1 <= parts[0][1] & 15 <= 4):
        return None
    rows = [(c, 2 * (u[1] >> 4), 2 * (u[1] & 15) + 1, parts[c][2]) for c, u in enumerate(used)]
    if any(dc > 2 or ac > 3 or row > 3 for _, dc, ac, row in rows):
        return None
    return across, down, np.array(rows[:1] * (across * down) + rows[1:], np.int64)


def _is_ycc(colours: int, frame: bytes, segments: dict[int, list[bytes]]) -> bool:
    """Whether three colours are luma and two differences, as libjpeg tells it."""
    if colours == 1 or any(s.startswith(b"JFIF\0") and len(s) >= 14 for s in segments.get(_APP0, ())):
        return True
    for adobe in reversed(segments.get(_ADOBE, [])):
        if adobe.startswith(b"Adobe") and len(adobe) >= 12:
            return adobe[11] == 1
    return frame[6::3] == b"\1\2\3"
