"""The op suite of one picture in clear NumPy: what `Backend.op` and `Backend.warp` mean.

Every function takes and returns one (H, W, 3) uint8 picture.  The Pillow ops equal Pillow 13 bit for bit on x86-64.
Where an op is a ratio of integers it is computed in integers, so that no backend can round it differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import F32, F64, U8, Op

_LEVELS = np.arange(256)


def histogram(image: U8) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(3, 256): how many pixels of each channel have each value."""
    return np.stack([np.bincount(image[..., c].ravel(), minlength=256) for c in range(3)])


def look_up(image: U8, tables: U8) -> U8:
    """Value v of channel c becomes tables[c, v].  tables: (3, 256)."""
    return np.asarray(tables[np.arange(3), image])


def luma(image: U8) -> U8:
    """Pillow's conversion to L: (H, W), 16-bit fixed-point weights, rounded to nearest."""
    r, g, b = (image[..., c].astype(np.int64) for c in range(3))
    return ((19595 * r + 38470 * g + 7471 * b + 32768) >> 16).astype(np.uint8)


def _grey(plane: U8) -> U8:
    return np.repeat(plane[..., None], 3, axis=-1)


def _same_table(image: U8, table: Any) -> U8:
    return np.asarray(table, np.uint8)[image]


def _cut_low(counts: Any, cut: int) -> None:
    """Take `cut` pixels away, lowest bins first."""
    for level in range(256):
        taken = min(cut, int(counts[level]))
        counts[level] -= taken
        cut -= taken


def _autocontrast_table(counts: Any, cutoff: float) -> Any:
    counts = counts.copy()
    cut = int(counts.sum() * cutoff // 100)
    _cut_low(counts, cut)
    _cut_low(counts[::-1], cut)
    filled = np.flatnonzero(counts)
    if filled.size == 0 or filled[0] == filled[-1]:
        return _LEVELS
    scale = 255.0 / (filled[-1] - filled[0])
    return np.clip(np.trunc(_LEVELS * scale + -filled[0] * scale), 0, 255)


def _autocontrast(image: U8, p: F64) -> U8:
    tables = np.stack([_autocontrast_table(counts, float(p[0])) for counts in histogram(image)])
    return look_up(image, tables.astype(np.uint8))


def _equalize_table(counts: Any) -> Any:
    filled = np.flatnonzero(counts)
    step = (counts.sum() - counts[filled[-1]]) // 255
    if len(filled) <= 1 or step == 0:
        return _LEVELS
    below = np.cumsum(counts) - counts
    return np.minimum((step // 2 + below) // step, 255)


def _equalize(image: U8, _p: F64) -> U8:
    return look_up(image, np.stack([_equalize_table(counts) for counts in histogram(image)]).astype(np.uint8))


def _posterize(image: U8, p: F64) -> U8:
    return image & np.uint8((256 - (1 << (8 - int(p[0])))) & 255)  # 0 bits: black


def _solarize(image: U8, p: F64) -> U8:
    return _same_table(image, np.where(p[0] > _LEVELS, _LEVELS, 255 - _LEVELS))


def _invert(image: U8, _p: F64) -> U8:
    return 255 - image


def _toward(flat: Any, image: U8, factor: float) -> U8:
    """flat + factor (image - flat) in float32, fraction dropped: the four Enhance classes of Pillow."""
    flat, picture = np.asarray(flat, np.float32), image.astype(np.float32)
    return np.asarray(np.clip(flat + np.float32(factor) * (picture - flat), 0, 255), np.uint8)


def _brightness(image: U8, p: F64) -> U8:
    return _toward(0, image, p[0])


def _contrast(image: U8, p: F64) -> U8:
    return _toward(int(luma(image).mean() + 0.5), image, p[0])


def _color(image: U8, p: F64) -> U8:
    return _toward(_grey(luma(image)), image, p[0])


def _sharpness(image: U8, p: F64) -> U8:
    """Toward the picture smoothed by (1 1 1; 1 5 1; 1 1 1) / 13, whose border is the picture's own."""
    smooth = image.astype(np.int64)
    if min(image.shape[:2]) >= 3:
        height, width = image.shape[:2]
        taps = [smooth[y : y + height - 2, x : x + width - 2] for y in range(3) for x in range(3)]
        smooth[1:-1, 1:-1] = (2 * (sum(taps) + 4 * smooth[1:-1, 1:-1]) + 13) // 26
    return _toward(smooth, image, p[0])


def _grayscale(image: U8, _p: F64) -> U8:
    return _grey(luma(image))


def _hue_byte(image: U8) -> Any:
    """(H, W) the H of Pillow's HSV, 0..255: its quotients are float32, its sums float64."""
    levels = image.astype(np.int64)
    high, span = levels.max(-1), np.ptp(levels, axis=-1)
    below = (high[..., None] - levels).astype(np.float32) / np.maximum(span, 1)[..., None].astype(np.float32)
    r, g, b = (below[..., c].astype(np.float64) for c in range(3))
    sixths = np.select([levels[..., 0] == high, levels[..., 1] == high], [b - g, 2 + r - b], 4 + g - r)
    turn = (sixths.astype(np.float32) / np.float64(6) + 1) % 1
    return np.trunc(turn.astype(np.float32) * np.float64(255)).astype(np.int64)


def _hue(image: U8, p: F64) -> U8:
    """To Pillow's HSV, three bytes, and back."""
    value, span = image.max(-1).astype(np.int64), np.ptp(image, axis=-1).astype(np.int64)
    saturation = 255 * span // np.maximum(value, 1)
    sixth, part = np.divmod(6 * ((_hue_byte(image) + int(255 * p[0])) % 256), 255)

    def level(share: Any) -> Any:
        """value (1 - share / 255^2), to nearest; never half-way."""
        return (2 * value * (65025 - share) + 65025) // 130050

    least, falling, rising = level(255 * saturation), level(saturation * part), level(saturation * (255 - part))
    sixth %= 6
    red = np.choose(sixth, [value, falling, least, least, rising, value])
    green = np.choose(sixth, [rising, value, value, falling, least, least])
    blue = np.choose(sixth, [least, least, rising, value, value, falling])
    return np.stack([red, green, blue], axis=-1).astype(np.uint8)


def _mirror(image: U8, _p: F64) -> U8:
    return image[:, ::-1]


def _flip(image: U8, _p: F64) -> U8:
    return image[::-1]


def _float_posterize(image: U8, p: F64) -> U8:
    steps = 1 << int(p[0])
    kept = np.minimum(_LEVELS * steps // 255, steps - 1)
    return _same_table(image, (2 * 255 * kept + steps) // (2 * steps))


def _float_autocontrast(image: U8, _p: F64) -> U8:
    low, high = image.min((0, 1)).astype(np.int64), image.max((0, 1)).astype(np.int64)
    span = np.maximum(high - low, 1)
    stretched = (2 * 255 * (image - low) + span) // (2 * span)
    return np.where(high > low, stretched, image).astype(np.uint8)


def _float_grayscale(image: U8, _p: F64) -> U8:
    r, g, b = (image[..., c].astype(np.int64) for c in range(3))
    return _grey(((2989 * r + 5870 * g + 1140 * b + 5000) // 10000).astype(np.uint8))


def _coordinates(shape: tuple[int, ...], p: F64) -> tuple[F64, F64]:
    """Where each output pixel reads, (H, W) columns and rows; pixel (0, 0) covers [0, 1) x [0, 1)."""
    y, x = np.arange(shape[0])[:, None] + 0.5, np.arange(shape[1])[None] + 0.5
    return p[0] * x + p[1] * y + p[2], p[3] * x + p[4] * y + p[5]


def _bilinear(image: U8, u: F64, v: F64, zeros: bool) -> F64:
    """Interpolate at the points (u, v), first along rows; neighbours outside repeat the edge, or are 0 if `zeros`."""
    height, width = image.shape[:2]
    x0, y0 = np.floor(u - 0.5), np.floor(v - 0.5)
    dx, dy = (u - 0.5 - x0)[..., None], (v - 0.5 - y0)[..., None]

    def tap(y: F64, x: F64) -> F64:
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        value = image[np.clip(y, 0, height - 1).astype(np.int64), np.clip(x, 0, width - 1).astype(np.int64)]
        return np.where(inside[..., None] | (not zeros), value, 0).astype(np.float64)

    a, b, c, d = tap(y0, x0), tap(y0, x0 + 1), tap(y0 + 1, x0), tap(y0 + 1, x0 + 1)
    upper, lower = a + (b - a) * dx, c + (d - c) * dx
    return upper + (lower - upper) * dy


def warp(image: U8, p: F64) -> U8:
    """`Op.WARP`: a pixel that reads outside the picture is black, others interpolate inside it; fraction dropped."""
    height, width = image.shape[:2]
    u, v = _coordinates(image.shape, p)
    inside = (u >= 0) & (u < width) & (v >= 0) & (v < height)
    return np.where(inside[..., None], np.trunc(_bilinear(image, u, v, zeros=False)), 0).astype(np.uint8)


def _float_warp(image: U8, p: F64) -> U8:
    return np.floor(_bilinear(image, *_coordinates(image.shape, p), zeros=True) + 0.5).astype(np.uint8)


def _shrink(image: U8, p: F64) -> U8:
    top, left, bottom, right = (int(v) for v in p[:4])
    out = np.zeros_like(image)
    if top < bottom and left < right:
        whole = np.array([0, 0, image.shape[1], image.shape[0]], np.float64)
        out[top:bottom, left:right] = resize(image, whole, bottom - top, right - left)
    return out


_OPS: dict[Op, Callable[[U8, F64], U8]] = {
    Op.NONE: lambda image, _p: image,
    Op.AUTOCONTRAST: _autocontrast,
    Op.EQUALIZE: _equalize,
    Op.POSTERIZE: _posterize,
    Op.SOLARIZE: _solarize,
    Op.INVERT: _invert,
    Op.BRIGHTNESS: _brightness,
    Op.CONTRAST: _contrast,
    Op.COLOR: _color,
    Op.SHARPNESS: _sharpness,
    Op.GRAYSCALE: _grayscale,
    Op.MIRROR: _mirror,
    Op.FLIP: _flip,
    Op.WARP: warp,
    Op.FLOAT_WARP: _float_warp,
    Op.FLOAT_POSTERIZE: _float_posterize,
    Op.FLOAT_AUTOCONTRAST: _float_autocontrast,
    Op.FLOAT_GRAYSCALE: _float_grayscale,
    Op.HUE: _hue,
    Op.SHRINK: _shrink,
}


def apply(image: U8, record: Any) -> U8:
    """The picture after one OP record."""
    return _OPS[Op(record["code"])](image, record["p"])


def filter3x3(image: U8, weights: F32) -> U8:
    """float32, each row of weights summed left to right, the lowest row first (the order of Pillow's filter)."""
    out = image.copy()
    height, width = image.shape[:2]
    if min(height, width) < 3:
        return out
    source = image.astype(np.float32)
    total = np.zeros((height - 2, width - 2, 3), np.float32)
    for y in (2, 1, 0):
        a, b, c = (source[y : y + height - 2, x : x + width - 2] * weights[y, x] for x in range(3))
        total += (a + b) + c
    out[1:-1, 1:-1] = np.clip(np.trunc(total + np.float32(0.5)), 0, 255).astype(np.uint8)
    return out


def _triangle(length: int, start: float, extent: float, count: int) -> F32:
    """(count, length) weights of the antialiased triangle filter over [start, start + extent) of `length` pixels.

    Pillow's rule: the filter is widened by the reduction, sees pixels outside the box but not outside the picture, and
    its weights are normalised.
    """
    scale = extent / count
    support = max(scale, 1.0)
    centre = start + (np.arange(count) + 0.5)[:, None] * scale
    pixel = np.arange(length)[None]
    first, last = np.trunc(np.maximum(centre - support + 0.5, 0)), np.trunc(centre + support + 0.5)
    weights = np.maximum(1 - np.abs((pixel + 0.5 - centre) / support), 0) * ((pixel >= first) & (pixel < last))
    return np.asarray(weights / weights.sum(1, keepdims=True), np.float32)


def resize(image: U8, box: F64, height: int, width: int) -> U8:
    """The box (left, top, width, height) of a picture, resized; float32 between the two passes."""
    left, top, box_width, box_height = (float(v) for v in box)
    across = _triangle(image.shape[1], left, box_width, width)
    down = _triangle(image.shape[0], top, box_height, height)
    value = np.tensordot(down, across @ image.astype(np.float32), axes=1)
    return np.asarray(np.clip(np.floor(value + np.float32(0.5)), 0, 255), np.uint8)
