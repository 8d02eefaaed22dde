"""The op suite on one picture, (H, W, 3) uint8 to (H, W, 3) uint8; Pillow's integers where the protocol says so."""

from __future__ import annotations

import numpy as np

from . import Op
from .cpu_colour import hue
from .cpu_levels import autocontrast, equalize, point
from .cpu_resize import crop_resize
from .cpu_warp import copy, warp
from .jit import jit

_CHUNK = 1344  # pixels whose channels are taken apart at a time


@jit
def _enhance(image, factor, out):  # type: ignore[no-untyped-def]
    """Pillow's blend of a degenerate picture, in `out`, with the picture: float32, fraction dropped, in place."""
    source, target = image.reshape(-1), out.reshape(-1)
    f = np.float32(factor)
    if 0 <= f <= 1:  # between the two, so there is nothing to clip
        for i in range(source.shape[0]):
            base = np.float32(target[i])
            target[i] = np.uint8(np.int32(base + f * (np.float32(source[i]) - base)))
        return
    for i in range(source.shape[0]):
        base = np.float32(target[i])
        v = base + f * (np.float32(source[i]) - base)
        v = v if v > np.float32(0) else np.float32(0)
        v = v if v < np.float32(255) else np.float32(255)
        target[i] = np.uint8(np.int32(v))


@jit
def _enhance_flat(level, image, factor, out):  # type: ignore[no-untyped-def]
    """The same with a degenerate picture of one level: brightness (0) and contrast (the mean grey)."""
    source, target = image.reshape(-1), out.reshape(-1)
    f, base = np.float32(factor), np.float32(level)
    if 0 <= f <= 1:
        for i in range(source.shape[0]):
            target[i] = np.uint8(np.int32(base + f * (np.float32(source[i]) - base)))
        return
    for i in range(source.shape[0]):
        v = base + f * (np.float32(source[i]) - base)
        v = v if v > np.float32(0) else np.float32(0)
        v = v if v < np.float32(255) else np.float32(255)
        target[i] = np.uint8(np.int32(v))


@jit
def _split(image, at, n, planes):  # type: ignore[no-untyped-def]
    """The channels of n pixels, from value `at` on, go to planes[0], planes[1] and planes[2]."""
    red, green, blue = planes[0], planes[1], planes[2]
    for i in range(n):
        k = at + np.uint64(3) * i
        red[i] = image[k]
        green[i] = image[k + np.uint64(1)]
        blue[i] = image[k + np.uint64(2)]


@jit
def _weigh(planes, n, floating, line):  # type: ignore[no-untyped-def]
    """Pillow's L of n pixels, or if `floating` 0.2989 R + 0.587 G + 0.114 B, rounded half up."""
    red, green, blue = planes[0], planes[1], planes[2]
    if floating:
        for i in range(n):
            v = np.float32(2989) * np.float32(red[i]) + np.float32(5870) * np.float32(green[i])
            v += np.float32(1140) * np.float32(blue[i])
            # Whole numbers below 2^24 are exact, and half a unit keeps the quotient off whole numbers.
            line[i] = np.uint8(np.int32((v + np.float32(5000.5)) * np.float32(1e-4)))
    else:
        for i in range(n):
            v = np.int32(np.int32(19595) * np.int32(red[i]) + np.int32(38470) * np.int32(green[i]))
            line[i] = np.uint8(np.int32(v + np.int32(7471) * np.int32(blue[i]) + np.int32(32768)) >> np.int32(16))


@jit
def _grey(image, floating, out):  # type: ignore[no-untyped-def]
    """Grey in all three channels of out; see `_weigh`."""
    source, target = image.reshape(-1), out.reshape(-1)
    planes = np.empty((4, _CHUNK), np.uint8)
    line = planes[3]
    for start in range(0, source.shape[0], 3 * _CHUNK):
        at, n = np.uint64(start), np.uint64(min((source.shape[0] - start) // 3, _CHUNK))
        _split(source, at, n, planes)
        _weigh(planes, n, floating, line)
        for i in range(n):
            k = at + np.uint64(3) * i
            target[k] = line[i]
            target[k + np.uint64(1)] = line[i]
            target[k + np.uint64(2)] = line[i]


@jit
def _mean_grey(image):  # type: ignore[no-untyped-def]
    """The mean of Pillow's L."""
    source = image.reshape(-1)
    planes = np.empty((4, _CHUNK), np.uint8)
    line = planes[3]
    total = 0
    for start in range(0, source.shape[0], 3 * _CHUNK):
        n = np.uint64(min((source.shape[0] - start) // 3, _CHUNK))
        _split(source, np.uint64(start), n, planes)
        _weigh(planes, n, np.bool_(False), line)
        for i in range(n):
            total += line[i]
    return total / (source.shape[0] // 3)


@jit
def _smooth(image, top, bottom, out):  # type: ignore[no-untyped-def]
    """The 3 x 3 kernel (1 1 1; 1 5 1; 1 1 1) / 13, rounded, in integers; the border is copied."""
    height, width, _ = image.shape
    rows = image.reshape(height, -1)
    target = out.reshape(height, -1)
    copy(image[top:bottom].reshape(-1), out[top:bottom].reshape(-1))
    if height < 3 or width < 3:
        return
    column = np.empty(width * 3, np.int16)
    for y in range(max(top, 1), min(bottom, height - 1)):
        above, here, below = rows[y - 1], rows[y], rows[y + 1]
        for x in range(width * 3):
            column[x] = np.int16(above[x]) + np.int16(here[x]) + np.int16(below[x])
        row = target[y]
        for x in range(np.uint64(3), np.uint64(width * 3 - 3)):
            v = column[x - np.uint64(3)] + column[x] + column[x + np.uint64(3)] + (np.int16(here[x]) << np.int16(2))
            # Rounded by half a unit of v, so the quotient is never next to a whole number.
            row[x] = np.uint8(np.int32((np.float32(np.int16(v)) + np.float32(6.5)) * np.float32(1 / 13)))


@jit
def _mirror(image, out):  # type: ignore[no-untyped-def]
    width = image.shape[1]
    source, target = image.reshape(-1), out.reshape(-1)
    for y in range(image.shape[0]):
        start = np.uint64(3 * width * y)
        last = start + np.uint64(3 * (width - 1))
        for x in range(np.uint64(width)):
            to, at = start + np.uint64(3) * x, last - np.uint64(3) * x
            target[to] = source[at]
            target[to + np.uint64(1)] = source[at + np.uint64(1)]
            target[to + np.uint64(2)] = source[at + np.uint64(2)]


@jit
def _shrink(image, p, top, bottom, out):  # type: ignore[no-untyped-def]
    """All of the picture, resized into the box p, whatever rows of it are asked for; black in the rest of these."""
    height, width, _ = image.shape
    first, left, last, right = int(p[0]), int(p[1]), int(p[2]), int(p[3])
    rows = out[top:bottom].reshape(-1)
    for i in range(rows.shape[0]):
        rows[i] = 0
    if first < last and left < right:
        made = np.empty((last - first, right - left, 3), np.uint8)
        crop_resize(image, 0.0, 0.0, float(width), float(height), np.bool_(False), made)
        for y in range(made.shape[0]):
            copy(made[y].reshape(-1), out[first + y, left:right].reshape(-1))


@jit
def apply_op(image, code, p, top, bottom, scratch, out):  # type: ignore[no-untyped-def]
    """Rows [top, bottom) of one op's picture; `out` must not overlap `image`.  scratch: as for `warp`."""
    seen, made = image[top:bottom], out[top:bottom]
    if code == Op.AUTOCONTRAST or code == Op.FLOAT_AUTOCONTRAST:
        cutoff = p[0] if code == Op.AUTOCONTRAST else 0.0
        autocontrast(image, cutoff, code == Op.FLOAT_AUTOCONTRAST, top, bottom, out)
    elif code == Op.EQUALIZE:
        equalize(image, top, bottom, out)
    elif code == Op.POSTERIZE or code == Op.SOLARIZE or code == Op.INVERT or code == Op.FLOAT_POSTERIZE:
        point(seen, code, p[0], made)
    elif code == Op.BRIGHTNESS:
        _enhance_flat(np.int64(0), seen, p[0], made)
    elif code == Op.CONTRAST:
        _enhance_flat(int(_mean_grey(image) + 0.5), seen, p[0], made)
    elif code == Op.COLOR or code == Op.GRAYSCALE or code == Op.FLOAT_GRAYSCALE:
        _grey(seen, code == Op.FLOAT_GRAYSCALE, made)
        if code == Op.COLOR:
            _enhance(seen, p[0], made)
    elif code == Op.SHARPNESS:
        _smooth(image, top, bottom, out)
        _enhance(seen, p[0], made)
    elif code == Op.HUE:
        hue(seen, p[0], made)
    elif code == Op.MIRROR:
        _mirror(seen, made)
    elif code == Op.FLIP:
        for y in range(top, bottom):
            copy(image[image.shape[0] - 1 - y].reshape(-1), out[y].reshape(-1))
    elif code == Op.WARP or code == Op.FLOAT_WARP:
        warp(image, p, code == Op.FLOAT_WARP, top, bottom, scratch, out)
    elif code == Op.SHRINK:
        _shrink(image, p, top, bottom, out)
    else:
        copy(seen.reshape(-1), made.reshape(-1))


@jit
def apply_ops(images, ops, scratch, out, lo, hi):  # type: ignore[no-untyped-def]
    """Op i of picture i, rows [lo, hi) of the batch."""
    top = np.int64(0)  # no literal, for which Numba would compile everything once more
    for i in range(lo, hi):
        apply_op(images[i], ops[i].code, ops[i].p, top, images.shape[1], scratch, out[i])


@jit
def filter3x3(image, weights, out):  # type: ignore[no-untyped-def]
    """See `Backend.filter3x3`; the lowest row of weights is summed first, each row from left to right."""
    height, width, _ = image.shape
    copy(image.reshape(-1), out.reshape(-1))
    for y in range(1, height - 1):
        for x in range(1, width - 1):
            for c in range(3):
                total = np.float32(0)
                for row in range(2, -1, -1):
                    one = weights[row, 0] * np.float32(image[y + row - 1, x - 1, c])
                    two = weights[row, 1] * np.float32(image[y + row - 1, x, c])
                    total += (one + two) + weights[row, 2] * np.float32(image[y + row - 1, x + 1, c])
                v = total + np.float32(0.5)
                v = v if v > np.float32(0) else np.float32(0)
                out[y, x, c] = np.uint8(np.int32(v if v < np.float32(255) else np.float32(255)))
