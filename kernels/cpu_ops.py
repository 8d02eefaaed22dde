"""The op suite on one picture, (H, W, 3) uint8 to (H, W, 3) uint8; Pillow's integers where the protocol says so."""

from __future__ import annotations

import numpy as np

from . import Op
from .cpu_warp import copy, warp
from .jit import jit


@jit
def histogram(image, out):  # type: ignore[no-untyped-def]
    """out (3, 256) int32: how often each channel takes each value."""
    pixels = image.reshape(-1, 3)
    half = pixels.shape[0] // 2
    # Two counters a channel: neighbouring pixels are often equal, and adding to one cell twice in a row stalls.
    counts = np.zeros((6, 256), np.int32)
    for i in range(np.uint64(half)):
        even = np.uint64(2) * i
        odd = even + np.uint64(1)
        counts[0, pixels[even, 0]] += 1
        counts[1, pixels[even, 1]] += 1
        counts[2, pixels[even, 2]] += 1
        counts[3, pixels[odd, 0]] += 1
        counts[4, pixels[odd, 1]] += 1
        counts[5, pixels[odd, 2]] += 1
    if pixels.shape[0] % 2:
        for c in range(3):
            counts[c, pixels[pixels.shape[0] - 1, c]] += 1
    for c in range(3):
        for v in range(256):
            out[c, v] = counts[c, v] + counts[c + 3, v]


@jit
def table(image, tables, out):  # type: ignore[no-untyped-def]
    """Look every value up in its channel's table (3, 256)."""
    source = image.reshape(-1, 3)
    target = out.reshape(-1, 3)
    t0, t1, t2 = tables[0], tables[1], tables[2]
    for i in range(source.shape[0]):
        target[i, 0] = t0[source[i, 0]]
        target[i, 1] = t1[source[i, 1]]
        target[i, 2] = t2[source[i, 2]]


@jit
def _extremes(image, percent, low, high):  # type: ignore[no-untyped-def]
    """Least and greatest value of each channel after `percent` of the pixels were removed at each end, as Pillow does.

    By histogram, although comparing rows is eight times as fast by itself: whatever JPEG is decoded after such a loop
    takes up to a tenth longer (measured), which costs more than the loop saves.
    """
    counts = np.empty((3, 256), np.int32)
    histogram(image, counts)
    number = int(image.shape[0] * image.shape[1] * percent // 100)
    for c in range(3):
        for ends in range(2):
            left = number
            for v in range(256):
                at = v if ends == 0 else 255 - v
                gone = min(left, counts[c, at])
                counts[c, at] -= gone
                left -= gone
        low[c] = 255
        high[c] = 0
        for v in range(256):
            if counts[c, v] > 0:
                low[c] = min(low[c], v)
                high[c] = v


@jit
def _as_line(values, low, high):  # type: ignore[no-untyped-def]
    """(m, k) such that values[v] == (v m + k) >> 16 for every v in [low, high], or (0, 0) if there is no such line."""
    span = max(high - low, 1)
    m = np.int32(round((np.int64(values[high]) - np.int64(values[low])) * 65536 / span))
    least, most = -(1 << 30), 1 << 30
    for v in range(low, high + 1):
        least = max(least, (np.int64(values[v]) << 16) - v * m)
        most = min(most, ((np.int64(values[v]) + 1) << 16) - v * m)
    return (m, np.int32(least)) if least < most else (np.int32(0), np.int32(0))


@jit
def _stretch(image, m, k, out):  # type: ignore[no-untyped-def]
    """Straight lines instead of tables, clipped: arithmetic vectorises where a look-up does not."""
    rows, targets = image.reshape(image.shape[0], -1), out.reshape(image.shape[0], -1)
    width = rows.shape[1]
    slopes, offsets = np.empty(width, np.int32), np.empty(width, np.int32)
    for x in range(width):
        slopes[x] = m[x % 3]
        offsets[x] = k[x % 3]
    for y in range(rows.shape[0]):
        row, target = rows[y], targets[y]
        for x in range(width):
            v = np.int32(np.int32(row[x]) * slopes[x] + offsets[x]) >> np.int32(16)
            v = v if v > 0 else 0
            target[x] = np.uint8(v if v < 255 else 255)


@jit
def _autocontrast(image, percent, rounded, top, bottom, out):  # type: ignore[no-untyped-def]
    low = np.empty(3, np.int64)
    high = np.empty(3, np.int64)
    _extremes(image, percent, low, high)
    tables = np.empty((3, 256), np.uint8)
    m, k = np.empty(3, np.int32), np.empty(3, np.int32)
    straight = True
    for c in range(3):
        span = high[c] - low[c]
        for v in range(256):
            if span <= 0:
                tables[c, v] = v
            elif rounded:
                tables[c, v] = min(max((510 * (v - low[c]) + span) // (2 * span), 0), 255)
            else:
                scale = 255.0 / span
                tables[c, v] = min(max(int(v * scale + -low[c] * scale), 0), 255)
        m[c], k[c] = _as_line(tables[c], low[c] if span > 0 else 0, high[c] if span > 0 else 255)
        straight &= m[c] > 0
    if straight:
        _stretch(image[top:bottom], m, k, out[top:bottom])
    else:
        table(image[top:bottom], tables, out[top:bottom])


@jit
def _equalize(image, top, bottom, out):  # type: ignore[no-untyped-def]
    counts = np.empty((3, 256), np.int32)
    histogram(image, counts)
    tables = np.empty((3, 256), np.uint8)
    for c in range(3):
        last = 0
        total = 0
        for v in range(256):
            total += counts[c, v]
            if counts[c, v] > 0:
                last = counts[c, v]
        step = (total - last) // 255
        below = step // 2
        for v in range(256):
            tables[c, v] = v if step == 0 else min(below // step, 255)
            below += counts[c, v]
    table(image[top:bottom], tables, out[top:bottom])


@jit
def _point(image, code, value, out):  # type: ignore[no-untyped-def]
    """Ops that look at one value only; plain loops, so that they vectorise."""
    source = image.reshape(-1)
    target = out.reshape(-1)
    n = source.shape[0]
    if code == Op.POSTERIZE:
        mask = np.uint8(0xFF00 >> int(value) & 0xFF)
        for i in range(n):
            target[i] = source[i] & mask
    elif code == Op.SOLARIZE:
        threshold = np.int16(min(max(np.ceil(value), 0.0), 256.0))
        for i in range(n):
            v = np.int16(source[i])
            target[i] = np.uint8(v if v < threshold else np.int16(255) - v)
    elif code == Op.INVERT:
        for i in range(n):
            target[i] = ~source[i]
    else:  # FLOAT_POSTERIZE
        levels = np.float32(1 << int(value))
        most = levels - np.float32(1)
        for i in range(n):
            # Half a unit keeps the quotient off whole numbers, which only 0 and 255 reach exactly.
            q = np.float32(np.int32((np.float32(source[i]) * levels + np.float32(0.5)) * np.float32(1 / 255)))
            q = q if q < most else most
            target[i] = np.uint8(np.int32(q * (np.float32(255) / levels) + np.float32(0.5)))


@jit
def _enhance(image, factor, out):  # type: ignore[no-untyped-def]
    """Pillow's blend of a degenerate picture, in `out`, with the picture: float32, fraction dropped, in place."""
    source = image.reshape(-1)
    target = out.reshape(-1)
    f = np.float32(factor)
    for i in range(source.shape[0]):
        base = np.float32(target[i])
        v = base + f * (np.float32(source[i]) - base)
        v = v if v > np.float32(0) else np.float32(0)
        v = v if v < np.float32(255) else np.float32(255)
        target[i] = np.uint8(np.int32(v))


@jit
def _enhance_flat(level, image, factor, out):  # type: ignore[no-untyped-def]
    """The same with a degenerate picture of one level: brightness (0) and contrast (the mean grey)."""
    source = image.reshape(-1)
    target = out.reshape(-1)
    f = np.float32(factor)
    base = np.float32(level)
    for i in range(source.shape[0]):
        v = base + f * (np.float32(source[i]) - base)
        v = v if v > np.float32(0) else np.float32(0)
        v = v if v < np.float32(255) else np.float32(255)
        target[i] = np.uint8(np.int32(v))


@jit
def _grey(image, out):  # type: ignore[no-untyped-def]
    """Pillow's L in all three channels of out; returns its sum over the picture."""
    source = image.reshape(-1, 3)
    target = out.reshape(-1, 3)
    total = 0
    for i in range(source.shape[0]):
        v = (
            19595 * np.int32(source[i, 0]) + 38470 * np.int32(source[i, 1]) + 7471 * np.int32(source[i, 2]) + 32768
        ) >> 16
        total += v
        target[i, 0] = v
        target[i, 1] = v
        target[i, 2] = v
    return total


@jit
def _float_grey(image, out):  # type: ignore[no-untyped-def]
    """0.2989 R + 0.587 G + 0.114 B, rounded half up."""
    source = image.reshape(-1, 3)
    target = out.reshape(-1, 3)
    for i in range(source.shape[0]):
        v = (
            2989 * np.int32(source[i, 0]) + 5870 * np.int32(source[i, 1]) + 1140 * np.int32(source[i, 2]) + 5000
        ) // 10000
        target[i, 0] = v
        target[i, 1] = v
        target[i, 2] = v


@jit
def _smooth(image, top, bottom, out):  # type: ignore[no-untyped-def]
    """The 3 x 3 kernel (1 1 1; 1 5 1; 1 1 1) / 13, rounded, in integers; the border is copied."""
    height, width, _ = image.shape
    rows = image.reshape(height, -1)
    target = out.reshape(height, -1)
    copy(image[top:bottom].reshape(-1), out[top:bottom].reshape(-1))
    if height < 3 or width < 3:
        return
    column = np.empty(width * 3, np.int32)
    left, right = column[:-6], column[6:]
    middle = column[3:-3]
    for y in range(max(top, 1), min(bottom, height - 1)):
        above, here, below = rows[y - 1], rows[y], rows[y + 1]
        for x in range(width * 3):
            column[x] = np.int32(above[x]) + np.int32(here[x]) + np.int32(below[x])
        centre, row = here[3:-3], target[y, 3:-3]
        for x in range(width * 3 - 6):
            v = left[x] + middle[x] + right[x] + np.int32(4) * np.int32(centre[x])
            row[x] = np.uint8((np.int32(10083) * (np.int32(2) * v + np.int32(13))) >> np.int32(18))  # // 26 up to 18724


@jit
def _mirror(image, out):  # type: ignore[no-untyped-def]
    width = image.shape[1]
    for y in range(image.shape[0]):
        for x in range(width):
            for c in range(3):
                out[y, width - 1 - x, c] = image[y, x, c]


@jit
def apply_op(image, code, p, top, bottom, scratch, out):  # type: ignore[no-untyped-def]
    """Rows [top, bottom) of one op's picture; `out` must not overlap `image`.  scratch: as for `warp`."""
    seen, made = image[top:bottom], out[top:bottom]
    if code == Op.AUTOCONTRAST:
        _autocontrast(image, p[0], False, top, bottom, out)
    elif code == Op.FLOAT_AUTOCONTRAST:
        _autocontrast(image, 0.0, True, top, bottom, out)
    elif code == Op.EQUALIZE:
        _equalize(image, top, bottom, out)
    elif code == Op.POSTERIZE or code == Op.SOLARIZE or code == Op.INVERT or code == Op.FLOAT_POSTERIZE:
        _point(seen, code, p[0], made)
    elif code == Op.BRIGHTNESS:
        _enhance_flat(0.0, seen, p[0], made)
    elif code == Op.CONTRAST:
        mean = _grey(image, out) / (image.shape[0] * image.shape[1])
        _enhance_flat(int(mean + 0.5), seen, p[0], made)
    elif code == Op.COLOR:
        _grey(seen, made)
        _enhance(seen, p[0], made)
    elif code == Op.SHARPNESS:
        _smooth(image, top, bottom, out)
        _enhance(seen, p[0], made)
    elif code == Op.GRAYSCALE:
        _grey(seen, made)
    elif code == Op.FLOAT_GRAYSCALE:
        _float_grey(seen, made)
    elif code == Op.MIRROR:
        _mirror(seen, made)
    elif code == Op.FLIP:
        for y in range(top, bottom):
            copy(image[image.shape[0] - 1 - y].reshape(-1), out[y].reshape(-1))
    elif code == Op.WARP:
        warp(image, p, False, top, bottom, scratch, out)
    elif code == Op.FLOAT_WARP:
        warp(image, p, True, top, bottom, scratch, out)
    else:
        copy(seen.reshape(-1), made.reshape(-1))


@jit
def apply_ops(images, ops, scratch, out, lo, hi):  # type: ignore[no-untyped-def]
    """Op i of picture i, rows [lo, hi) of the batch."""
    for i in range(lo, hi):
        apply_op(images[i], ops[i].code, ops[i].p, 0, images.shape[1], scratch, out[i])


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
